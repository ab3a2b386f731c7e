"""`roster state` on stores as a pipeline's tasks leave them."""

from __future__ import annotations

import json
from datetime import timedelta

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roster.cli.root import run
from roster.state import Position
from roster.state.aggregate import Aggregation
from roster.state.deduplicate import Deduplication
from roster.state.definition import STATE_KEY, Definition, Noted
from roster.state.entries import Read
from roster.state.lmdb_store import LmdbStore
from roster.state.processor.batch import Plan
from roster.state.processor.variables import REGISTRY_KEY
from roster.state.sessions import SessionAggregation
from roster.state.store import NoState
from roster.state.stream_join import StreamJoin, in_columns, joined_columns
from roster.state.windows import Window, WindowedAggregation
from roster.stateful.tasks.subtopology import definition_of
from tests.examples_tried import examples
from tests.state.aggregate_texts import aggregate_of
from tests.state.processor.test_batch import Recorder, process_batch

ROWS = pa.table(
    {
        "tail": ["N1", "N2", "N1", None],
        "day": pa.array([3, 3, 4, 3], pa.int16()),
        "delay": pa.array([5, None, 7, 1]),
        "at": pa.array([0, 1, 2, 3_600_000_000], pa.timestamp("us", "UTC")),
    }
)
AGGREGATES = {"n": aggregate_of("count(*)"), "worst": aggregate_of("max(delay)")}


WINDOWS = (Window("at", timedelta(hours=1)), Window.session("at", timedelta(minutes=1)))


OPERATORS = [
    Aggregation(("tail", "day"), AGGREGATES),
    WindowedAggregation(("tail",), AGGREGATES, WINDOWS[0], final=False),
    SessionAggregation(("tail",), AGGREGATES, WINDOWS[1], final=False),
    Deduplication(("tail",), "at", timedelta(hours=9)),
]


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_store_as_a_table_has_the_rows_that_are_printed(operator):
    entries = definition_of(operator, ROWS.schema).entries()
    changes = operator(ROWS, NoState()).changes
    stored = Read(list(zip(*(changes[name].to_pylist() for name in ("key", "value")), strict=True)))
    rows = entries.rows([stored])
    table = entries.table([stored])
    assert rows == table.to_pylist() != []
    assert entries.table([Read()]).schema == table.schema
    assert not any(pa.types.is_null(kind) for kind in table.schema.types)


@pytest.fixture
def roster(capsys):
    def command(*arguments):
        code = run(["state", *map(str, arguments)])
        told = capsys.readouterr()
        return code, told.out, told.err

    return command


def fill(path, operator):
    with LmdbStore(path) as store:
        update = operator(ROWS, store)
        keys, values = (update.changes[name].to_pylist() for name in ("key", "value"))
        said = Noted(definition_of(operator, ROWS.schema), {"flights": 4}).encode()
        store.commit([*keys, STATE_KEY], [*values, said], Position(9, {"flights": 4}))
    return path


def test_stores_are_listed_and_read(tmp_path, roster):
    place = fill(tmp_path / "g-totals-changelog" / "id" / "0_3", Aggregation(("tail", "day"), AGGREGATES))
    code, out, _ = roster("describe", tmp_path, "--json")
    (found,) = json.loads(out)
    assert code == 0
    assert found.pop("bytes") > 0
    assert found.pop("written")
    assert found.pop("definition")["keys"] == {"tail": "string", "day": "int16"}
    assert found == {
        "changelog": "g-totals-changelog",
        "task": "0_3",
        "offset": 9,
        "inputs": {"flights": 4},
        "entries": 5,
        "store": str(place),
    }
    assert "g-totals-changelog  0_3   aggregate" in roster("describe", tmp_path)[1]
    rows = [json.loads(line) for line in roster("scan", place)[1].splitlines()]
    assert rows == [
        {"tail": None, "day": 3, "n": 1, "worst": 1},
        {"tail": "N1", "day": 3, "n": 1, "worst": 5},
        {"tail": "N1", "day": 4, "n": 1, "worst": 7},
        {"tail": "N2", "day": 3, "n": 1, "worst": None},
    ]
    assert len(roster("scan", place, "--limit", 2)[1].splitlines()) == 2
    assert json.loads(roster("get", place, "N1", "4")[1]) == rows[2]


def test_windows_and_first_times_are_read(tmp_path, roster):
    window = Window("at", timedelta(minutes=1))
    place = fill(tmp_path / "w" / "id" / "0_0", WindowedAggregation(("tail",), AGGREGATES, window, final=True))
    assert [json.loads(line) for line in roster("scan", place)[1].splitlines()] == [
        {"window_start": "1970-01-01T01:00:00+00:00", "tail": None, "n": 1, "worst": 1}
    ]
    place = fill(tmp_path / "d" / "id" / "0_0", Deduplication(("day",), "at", timedelta(hours=2)))
    assert json.loads(roster("get", place, "4")[1]) == {"day": 4, "first": "1970-01-01T00:00:00.000002+00:00"}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("get", "STORE", "N9", "4"), 1, "no entry of N9 4"),
        (("get", "STORE", "N9"), 2, "KEY: a key has 2 columns: tail, day"),
        (("get", "STORE", "N9", "soon"), 2, "KEY: the key does not fit its columns"),
        (("scan", "PLACE"), 1, "there is none"),
        (("scan", "nowhere"), 2, "Directory 'nowhere' does not exist"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path, roster, arguments, code, message):
    place = fill(tmp_path / "c" / "id" / "0_3", Aggregation(("tail", "day"), AGGREGATES))
    known = {"STORE": place, "PLACE": tmp_path}
    found, _, err = roster(*(known.get(each, each) for each in arguments))
    assert (found, err.count("\n")) == (code, 1)
    assert message in err


@pytest.mark.parametrize("command", [("scan",), ("get", "N1", "3")])
def test_a_damaged_store_is_one_line_that_says_what_to_delete(tmp_path, roster, command):
    place = fill(tmp_path / "c" / "id" / "0_3", Aggregation(("tail", "day"), AGGREGATES))
    data = place / "data" / "data.mdb"
    assert b"N1" in data.read_bytes()
    data.write_bytes(data.read_bytes().replace(b"N1", b"N0"))
    name, *rest = command
    found, out, err = roster(name, place, *rest)
    assert (found, out, err.count("\n")) == (1, "", 1)
    assert err.endswith(f"delete {place}, it is restored from the changelog\n")


def test_variables_of_a_processor_are_rows(tmp_path, roster):
    place = tmp_path / "0_0"
    process_batch(place, [("a", "update", 1), ("b", "set", 3), ("a", "append", 2)], Plan(("key",)), 0, Recorder())
    definition = Definition.of({}, pa.schema([("key", pa.string())]), None, has_variables=True)
    with LmdbStore(place) as store:
        store.commit([STATE_KEY], [Noted(definition, {}).encode()], store.position())
    of_a = [
        {"variable": "value", "key": {"key": "a"}, "value": {"n": 1}},
        {"variable": "list", "key": {"key": "a"}, "list_element": {"n": 2}},
    ]
    of_b = {"variable": "map", "key": {"key": "b"}, "user_map_key": {"n": 3}, "user_map_value": {"n": 6}}
    assert [json.loads(line) for line in roster("scan", place)[1].splitlines()] == [*of_a, of_b]
    assert [json.loads(line) for line in roster("scan", place, "--limit", "1")[1].splitlines()] == of_a[:1]
    assert [json.loads(line) for line in roster("get", place, "a")[1].splitlines()] == of_a
    assert [json.loads(line) for line in roster("scan", place, "--variable", "map")[1].splitlines()] == [of_b]
    assert [json.loads(line) for line in roster("get", place, "a", "--variable", "list")[1].splitlines()] == of_a[1:]
    for arguments, expected, message in [
        (("get", place, "c"), 1, "no entry of c"),
        (("get", place, "a", "--variable", "lists"), 2, "no variable 'lists'. The store has value, list, map"),
        (("scan", place, "--side", "left"), 2, "--side: the store has no sides. Use variable"),
    ]:
        code, _, err = roster(*arguments)
        assert (code, err.count("\n")) == (expected, 1)
        assert message in err


def test_rows_of_both_sides_of_a_join_are_printed_by_key(tmp_path, roster):
    left, right = (pa.schema([("k", pa.string()), (at, pa.timestamp("us", "UTC"))]) for at in ("ordered", "paid"))
    columns = joined_columns(left, right)
    join = StreamJoin(("k",), ("ordered", "paid"), ("paid",), timedelta(seconds=2), timedelta(seconds=9), "left")
    batches = [
        in_columns(
            pa.record_batch([keys, pa.array(times, side.field(1).type)], schema=side), columns, is_other=is_other
        )
        for keys, times, side, is_other in [
            (["b", "a", "a"], [0, 5_000_000, 1], left, False),
            (["c", "a"], [4_000_000, 0], right, True),
        ]
    ]
    place = tmp_path / "0_0"
    with LmdbStore(place) as store:
        changes = join(pa.Table.from_batches(batches), store).changes
        said = Noted(definition_of(join, columns), {}).encode()
        store.commit([*changes["key"].to_pylist(), STATE_KEY], [*changes["value"].to_pylist(), said], Position(1))

    def row(side, key, name, at):
        return {"side": side, "key": {"k": key}, "value": {"k": key, name: f"1970-01-01T00:00:0{at}+00:00"}}

    rows = [
        row("left", "a", "ordered", "0.000001"),
        row("left", "a", "ordered", "5"),
        row("right", "a", "paid", "0"),
        row("left", "b", "ordered", "0"),
        row("right", "c", "paid", "4"),
    ]
    assert [json.loads(line) for line in roster("scan", place)[1].splitlines()] == rows
    assert [json.loads(line) for line in roster("scan", place, "--limit", 2)[1].splitlines()] == rows[:2]
    assert [json.loads(line) for line in roster("get", place, "a")[1].splitlines()] == rows[:3]
    assert [json.loads(line) for line in roster("scan", place, "--side", "right")[1].splitlines()] == rows[2::2]
    assert roster("get", place, "d")[0] == 1
    assert "--side: 'top' is not possible. Use 'left' or 'right'" in roster("scan", place, "--side", "top")[2]


def test_a_store_without_a_definition_is_hexadecimal(tmp_path, roster):
    with LmdbStore(tmp_path / "0_0") as store:
        store.commit([b"\x01k"], [b"v"], Position(1))
    assert json.loads(roster("scan", tmp_path / "0_0")[1]) == {"key": "016b", "value": "76"}
    assert json.loads(roster("get", tmp_path / "0_0", "016b")[1]) == {"key": "016b", "value": "76"}
    assert roster("get", tmp_path / "0_0", "x")[0] == 2
    assert roster("describe", tmp_path / "0_0" / "data")[1] == "no stores\n"


WORDS = {
    "no JSON": (b"{", "its record of what it means is damaged (JSONDecodeError: "),
    "another release": (b'{"format": 7}', "its state was written in format 7, this release has format 1"),
    "no types": (
        b'{"format": 1, "inputs": {}, "definition": {"keys": {"k": "text"}}}',
        "is damaged (ValueError: No type",
    ),
}


@pytest.mark.parametrize(("said", "message"), WORDS.values(), ids=WORDS)
def test_a_store_of_another_release_is_one_line(tmp_path, roster, said, message):
    place = tmp_path / "c" / "id" / "0_0"
    with LmdbStore(place) as store:
        store.commit([STATE_KEY, b"\x01k"], [said, b"v"], Position(1))
    for command in (("scan", place), ("get", place, "k")):
        code, out, err = roster(*command)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert f"{place}: " in err
        assert message in err
    assert "0_0" in roster("describe", tmp_path)[1]


KEYS = st.binary(min_size=1) | st.sampled_from([REGISTRY_KEY, b"\x01N1\x00\x00"])


@given(st.lists(st.tuples(KEYS, st.binary()), min_size=1, max_size=4))
@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_entries_that_do_not_fit_are_one_line(tmp_path_factory, roster, entries):
    for number, operator in enumerate(OPERATORS):
        place = fill(tmp_path_factory.mktemp("s") / "c" / "id" / f"0_{number}", operator)
        with LmdbStore(place) as store:
            store.commit(*(list(column) for column in zip(*entries, strict=True)), Position(2))
        for command in (("scan", place), ("get", place, "k"), ("describe", place)):
            code, _, err = roster(*command)
            assert code in (0, 1, 2)
            assert err.count("\n") == (code != 0)
