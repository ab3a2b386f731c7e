"""Restoring from changelog columns: last per key, in parts, killed half-way, up to an offset."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.records.native import HASH, kernel
from roster.state import Position, StateError, hash_snapshot
from roster.state.changelog import SCHEMA, Progress, latest, restore
from roster.state.hash_store import HashStore
from roster.state.lmdb_store import LmdbStore
from tests.examples_tried import examples

hash_snapshot.use(kernel(None, HASH))
records = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from([b"", b"a", b"b", b"c" * 600]), st.none() | st.binary(max_size=2))
)


def table(rows):
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)


def log_of(steps):
    """Records with offsets that have gaps, as compaction and markers leave them."""
    offset, rows = -1, []
    for step, key, value in steps:
        offset += step
        rows.append((offset, key, value))
    return rows


def plain(rows):
    state = {key: value for _, key, value in rows}
    return {key: value for key, value in state.items() if value is not None}


@given(records)
def test_the_last_value_of_each_key_in_the_order_in_which_they_came(steps):
    rows = log_of(steps)
    keys, values = (latest(table(rows))[name].to_pylist() for name in ("key", "value"))
    assert keys == list(dict.fromkeys(key for _, key, _ in rows))
    assert {key: value for key, value in zip(keys, values, strict=True) if value is not None} == plain(rows)


@given(records, st.integers(1, 5), st.integers(1, 9), st.lists(st.integers(0, 60), max_size=3))
@settings(max_examples=examples(50))
def test_a_restore_equals_a_plain_replay_up_to_each_end(tmp_path_factory, steps, size, per_transaction, ends):
    rows = log_of(steps)
    batches = [table(rows[at : at + size]) for at in range(0, len(rows), size)]
    with LmdbStore(tmp_path_factory.mktemp("restore")) as store:
        reached = 0
        for end in sorted(ends):
            told = []
            store.entries_at_once = per_transaction
            applied = restore(store, batches, end, inputs={"t": end}, on_progress=told.append)
            assert applied == sum(reached <= offset < end for offset, _, _ in rows)
            assert dict(store.scan()) == plain([row for row in rows if row[0] < end])
            assert store.position() == Position(end, {"t": end})
            assert [each.records for each in told] == sorted(each.records for each in told)
            reached = end


class CutError(Exception):
    pass


@pytest.mark.parametrize("engine", [LmdbStore, HashStore])
def test_a_restore_that_ends_half_way_goes_on_from_its_last_transaction(tmp_path, engine):
    rows = [(offset, b"%d" % (offset % 7), b"%d" % offset) for offset in range(40)]

    def batches():
        for at in range(0, 40, 4):
            if at == 24:
                raise CutError
            yield table(rows[at : at + 4])

    with engine(tmp_path) as store:
        store.entries_at_once = 8
        with pytest.raises(CutError):
            restore(store, batches(), 40)
        assert store.position().changelog in (8, 16, 24)
        assert dict(store.scan()) == plain(rows[: store.position().changelog])
        applied = restore(store, [table(rows)], 40)
        assert applied == 40 - 16
        assert dict(store.scan()) == plain(rows)


def test_progress_counts_records_and_bytes(tmp_path):
    told = []
    with LmdbStore(tmp_path) as store:
        restore(store, [table([(0, b"key", b"value"), (5, b"key", None)]).to_batches()[0]], 9, on_progress=told.append)
    assert told == [Progress(records=2, bytes=11, offset=6, end=9)]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(1, b"k", b""), (1, b"k", b"")], "offsets do not ascend"),
        ([(1, None, b"v")], "a record has no key"),
    ],
)
def test_what_is_no_changelog_is_refused_and_nothing_is_written(tmp_path, rows, message):
    with LmdbStore(tmp_path) as store:
        with pytest.raises(StateError, match=message):
            restore(store, [table(rows)], 9)
        assert (store.scan(), store.position()) == ([], Position())


def test_a_store_beyond_the_end_is_of_another_log(tmp_path):
    with LmdbStore(tmp_path) as store:
        store.commit([], [], Position(10))
        with pytest.raises(StateError, match="at 10 of its changelog, beyond 9: discard it"):
            restore(store, [], 9)
