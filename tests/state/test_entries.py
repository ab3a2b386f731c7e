"""Spans of keys in stores of every kind against plain lists, with changes that are not applied yet, and limits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.state import Position
from roster.state.definition import Definition
from roster.state.entries import Entries, QueryError, Read, Span, behind
from roster.state.join_entries import JoinEntries
from roster.state.lmdb_store import LmdbStore
from roster.state.pending import WithChanges
from roster.state.processor.batch import Plan
from roster.state.processor.entries import VariableEntries
from roster.state.processor.states import ListState, MapState, ValueState
from roster.state.store import NoState
from tests.examples_tried import examples
from tests.state.processor.test_batch import Recorder, process_batch
from tests.state.test_stream_join import COLUMNS, LEFT, RIGHT, left_row, operator, right_row, table_of

names = st.binary(max_size=3)
values = st.binary(min_size=1, max_size=2)


class Stored(NoState):
    """A snapshot of these entries."""

    def __init__(self, entries: dict[bytes, bytes]) -> None:
        self.entries = entries

    def multi_get(self, keys: Any) -> list[bytes | None]:
        return [self.entries.get(key) for key in keys]

    def scan(
        self, start: bytes = b"", stop: bytes | None = None, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        found = [each for each in sorted(self.entries.items()) if each[0] >= start and (stop is None or each[0] < stop)]
        return found[:limit]


@given(
    st.dictionaries(names, values),
    st.dictionaries(names, st.none() | values),
    names,
    st.none() | names,
    st.none() | st.integers(0, 4),
)
@settings(max_examples=examples(200))
def test_a_snapshot_with_changes_is_what_it_will_be(
    stored: dict[bytes, bytes], changes: dict[bytes, Any], start: bytes, stop: bytes | None, limit: int | None
) -> None:
    after = Stored({key: value for key, value in (stored | changes).items() if value is not None})
    seen = WithChanges(Stored(stored), changes)
    assert seen.scan(start, stop, limit) == after.scan(start, stop, limit)
    wanted = [start, *stored, *changes]
    assert seen.multi_get(wanted) == after.multi_get(wanted)
    assert seen.position == Position()


def in_span(key: str, span: Span) -> bool:
    return span.start <= encoded(key) and (span.stop is None or encoded(key) < span.stop)


def encoded(key: str) -> bytes:
    return VariableEntries(pa.schema([("k", pa.string())])).key_of([key])


def spans(keys: list[str]) -> list[Span]:
    """All keys, each key, ranges between two of them."""
    found = [Span(), *(Span(encoded(key), is_key=True) for key in keys)]
    found += [Span(encoded(key), behind(encoded(key))) for key in keys]
    return found + [Span(encoded(one), encoded(other)) for one in keys for other in [*keys, "zz"]]


def check(entries: Entries, store: LmdbStore, keys: list[str]) -> list[dict[str, Any]]:
    """Hold every span and limit against all rows; return these."""
    everything = entries.rows([entries.read(store, Span())])
    for span in spans(keys):
        wanted = [
            row
            for row in everything
            if (encoded(row["key"]["k"]) == span.start if span.is_key else in_span(row["key"]["k"], span))
        ]
        whole = entries.read(store, span)
        assert entries.rows([whole]) == wanted
        for limit in range(1, 4):
            cut = entries.read(store, span._replace(limit=limit))
            assert list(cut.entries) == list(whole.entries)[:limit]
            assert entries.rows([whole], limit) == entries.rows([cut]) == wanted[: len(entries.rows([cut]))]
    return everything


sides = st.tuples(st.booleans(), st.sampled_from(["", "a", "a\0", "b"]), st.integers(0, 30), st.integers(0, 3))


@given(st.lists(sides, max_size=14), st.integers(1, 9))
@settings(max_examples=examples(12), deadline=None)
def test_rows_of_a_join_are_found_by_key_in_all_their_buckets(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[bool, str, int, int]], within: int
) -> None:
    join = operator(within, 99, "left")
    entries = JoinEntries(pa.schema([("k", pa.string())]), join.sides(COLUMNS))
    with LmdbStore(tmp_path_factory.mktemp("join") / "store") as store:
        for number, row in enumerate(rows):
            changes = join(table_of([row]), store).changes
            store.commit(changes["key"].to_pylist(), changes["value"].to_pylist(), Position(number))
        found = check(entries, store, sorted({key for _, key, _, _ in rows}))
        for is_other, side, make in ((False, "left", left_row), (True, "right", right_row)):
            of_side = [
                {"side": side, "key": {"k": row[1]}, "value": make(*row[1:])} for row in rows if row[0] == is_other
            ]
            # In buckets of the time that rows join within, in which they stay as they came.
            at = {"left": "t", "right": "at"}[side]
            of_side.sort(key=lambda row: (row["key"]["k"], (row["value"][at] - MOMENT) // timedelta(seconds=within)))
            assert [row for row in found if row["side"] == side] == of_side
            assert entries.rows([entries.read(store, Span(part=side))]) == of_side
            table = entries.table([entries.read(store, Span(part=side))], side)
            assert table.to_pylist() == of_side
            assert table.schema.field("value").type == pa.struct(list(LEFT if side == "left" else RIGHT))


MOMENT = datetime(1970, 1, 1, tzinfo=UTC)
OPERATIONS = st.sampled_from(["update", "clear value", "append", "clear list", "set", "set", "remove"])


@given(st.lists(st.tuples(st.sampled_from(["", "a", "a\0", "b"]), OPERATIONS, st.integers(0, 3)), max_size=14))
@settings(max_examples=examples(25), deadline=None)
def test_rows_of_variables_are_found_by_key_in_all_of_them(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, int]]
) -> None:
    place = tmp_path_factory.mktemp("s")
    process_batch(place, rows, Plan(("key",)), 0, Recorder())
    plain: dict[str, dict[str, Any]] = {"value": {}, "list": {}, "map": {}}
    for key, op, n in rows:
        kind = {"update": "value", "clear value": "value", "append": "list", "clear list": "list"}.get(op, "map")
        if op.startswith("clear"):
            plain[kind].pop(key, None)
        elif op == "update":
            plain[kind][key] = n
        elif op == "append":
            plain[kind].setdefault(key, []).append(n)
        elif op == "set":
            plain[kind].setdefault(key, {})[n] = 2 * n
        else:
            plain[kind].get(key, {}).pop(n, None)
    expected: list[dict[str, Any]] = []
    for key in sorted({key for key, _, _ in rows}):
        of = {"key": {"k": key}}
        if key in plain["value"]:
            expected.append({"variable": "value", **of, "value": {"n": plain["value"][key]}})
        expected += [{"variable": "list", **of, "list_element": {"n": n}} for n in plain["list"].get(key, [])]
        expected += [
            {"variable": "map", **of, "user_map_key": {"n": n}, "user_map_value": {"n": value}}
            for n, value in sorted(plain["map"].get(key, {}).items())
        ]
    entries = VariableEntries(pa.schema([("k", pa.string())]))
    with LmdbStore(place) as store:
        assert check(entries, store, sorted({key for key, _, _ in rows})) == expected
        for variable in ("value", "list", "map") if rows else ():
            read = entries.read(store, Span(part=variable))
            assert entries.table([read], variable).to_pylist() == [
                row for row in expected if row["variable"] == variable
            ]


class Declared(Recorder):
    """Declares variables in another order, and one with a field more."""

    def open(self, state: Any, table: Any) -> None:
        self.state, self.table = state, table
        self.map = state.map(MapState, "map", pa.schema([("n", pa.int64())]), self._schema, self._ttl)
        self.list = state.list(ListState, "list", self._schema, self._ttl)
        self.value = state.value(ValueState, "value", self._schema, self._ttl)


def test_rows_of_each_task_are_read_by_its_own_list(tmp_path: Any) -> None:
    more = pa.schema([("more", pa.timestamp("us", "UTC")), ("n", pa.int64())])
    process_batch(tmp_path / "one", [("a", "update", 1), ("c", "set", 5)], Plan(("key",)), 0, Recorder())
    process_batch(tmp_path / "two", [("b", "remove", 2)], Plan(("key",)), 0, Declared())

    class Later(Declared):
        def rows(self, key: Any, begin: Any, end: Any, now: Any, *, is_new: bool) -> None:
            self.value.update((datetime(2026, 3, 1, 12, tzinfo=UTC), 7))

    process_batch(tmp_path / "two", [("b", "look", 0)], Plan(("key",)), 0, Later(schema=more))
    entries = Definition.of({}, pa.schema([("k", pa.string())]), None, has_variables=True).entries()
    reads = []
    for name in ("one", "two"):
        with LmdbStore(tmp_path / name) as store:
            reads.append(entries.read(store, Span()))
    assert reads[0].entries[0][0][0] != reads[1].entries[0][0][0], "the variable has another number in each"
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert entries.rows(reads) == [
        {"variable": "value", "key": {"k": "a"}, "value": {"n": 1}},
        {"variable": "value", "key": {"k": "b"}, "value": {"more": at, "n": 7}},
        {"variable": "map", "key": {"k": "c"}, "user_map_key": {"n": 5}, "user_map_value": {"n": 10}},
    ]
    of_value = [read._replace(entries=read.entries[:1]) for read in reads]
    assert entries.table(of_value, "value").column("value").to_pylist() == [
        {"more": None, "n": 1},
        {"more": at, "n": 7},
    ]
    with pytest.raises(
        QueryError, match=r"variable: the variables have columns of their own\. Name one of value, list"
    ):
        entries.schema(reads)
    with pytest.raises(QueryError, match="store: no task has had a batch"):
        entries.schema([Read()])


def test_definitions_are_told_apart() -> None:
    join = operator(1, 1, "left")
    keys = pa.schema([("k", pa.string())])
    kinds = [
        Definition.of({}, keys, None),
        Definition.of({}, keys, None, has_variables=True),
        Definition.of({}, keys, None, sides=join.sides(COLUMNS)),
        Definition.of({}, keys, None, sides=(LEFT, LEFT)),
    ]
    assert len({definition.fingerprint for definition in kinds}) == len(kinds)
