"""Entries of variables as rows: what a batch has written is read back without the code that wrote it."""

import pyarrow as pa

from roster.state.entries import Span
from roster.state.keys import encode_keys, key_end
from roster.state.lmdb_store import LmdbStore
from roster.state.processor.batch import Plan, TimeMode
from roster.state.processor.entries import VariableEntries
from tests.state.processor.test_batch import Recorder, process_batch

KEYS = pa.schema([("key", pa.string())])
ROWS = [("a", "update", 1), ("a", "append list", 2), ("b", "set", 3), ("a\0", "update", 4), ("b", "register", 9)]


def test_rows_of_values_lists_and_maps_are_told_apart(tmp_path):
    process_batch(tmp_path, ROWS, Plan(("key",), TimeMode.PROCESSING), 100, Recorder(30))
    with LmdbStore(tmp_path) as store:
        entries = VariableEntries(KEYS)
        rows = entries.rows([entries.read(store, Span())])
        of_a = entries.rows([entries.read(store, Span(entries.key_of(["a"]), is_key=True))])
    over = {"expiration_timestamp": 130}
    expected = [
        {"variable": "value", "key": {"key": "a"}, "value": {"n": 1}} | over,
        {"variable": "list", "key": {"key": "a"}, "list_element": {"n": 2}} | over,
        {"variable": "list", "key": {"key": "a"}, "list_element": {"n": 3}} | over,
        {"variable": "value", "key": {"key": "a\0"}, "value": {"n": 4}} | over,
        {"variable": "map", "key": {"key": "b"}, "user_map_key": {"n": 3}, "user_map_value": {"n": 6}} | over,
    ]
    assert rows == expected
    assert of_a == [row for row in expected if row["key"] == {"key": "a"}]


def test_a_key_ends_before_what_follows_it():
    columns = {"text": ["", "a\0b", None], "n": [0, -1, 3], "data": [b"\0", b"\0\0", b"x\0"]}
    table = pa.table(columns)
    for key in encode_keys(table, list(columns)).to_pylist():
        assert key_end(b"\x10" + key + b"\0\0\1", 1, table.schema.types) == 1 + len(key)
