"""Sessions against a computation row by row, wherever batches are cut."""

from __future__ import annotations

import json
import statistics
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from roster.state import Position, StateError
from roster.state.aggregate_functions import Aggregate, Kind
from roster.state.definition import Definition
from roster.state.entries import Read
from roster.state.lmdb_store import LmdbStore
from roster.state.sessions import SessionAggregation
from roster.state.store import NoState
from roster.state.windows import Window
from tests.examples_tried import examples
from tests.state.aggregate_texts import aggregate_of
from tests.state.test_windows import AGGREGATES, COLUMNS, EPOCH, SECOND, batches_of

STEP = st.tuples(st.sampled_from(["a", "b", None]), st.none() | st.integers(-9, 9), st.none() | st.integers(-5, 6))


def rows_of(steps: list[Any]) -> list[Any]:
    """Rows whose times go on from each other, now and then backwards."""
    time, rows = 0, []
    for k, n, step in steps:
        time += step or 0
        rows.append((k, n, None if step is None else time))
    return rows


ROWS = st.lists(STEP, max_size=30).map(rows_of)
BY_N = Aggregate(Kind.MIN, "n")
ALL = (
    AGGREGATES
    | {name: aggregate_of(f"{name}(n)") for name in ("min", "max", "var_pop")}
    | {
        f"{kind.value} of n": Aggregate(kind, "n")
        for kind in (Kind.FIRST, Kind.LAST, Kind.FIRST_VALID, Kind.LAST_VALID)
    }
    | {kind.value: Aggregate(kind, "t", by=BY_N) for kind in (Kind.MIN_BY, Kind.MAX_BY)}
)


class RowByRow:
    """Sessions of one key after the other, as the documentation says it, without columns."""

    def __init__(self, gap: int, grace: int) -> None:
        self.gap, self.grace, self.now, self.late = gap, grace, -(10**9), 0
        self.open: list[tuple[Any, list[tuple[int, Any]]]] = []
        self.closed: list[tuple[Any, list[tuple[int, Any]]]] = []

    def add(self, k: Any, n: Any, t: int | None) -> None:
        if t is None:
            self.late += 1
            return
        self.now = max(self.now, t)
        done = [each for each in self.open if max(each[1])[0] + self.gap + self.grace < self.now]
        self.closed += done
        self.open = [each for each in self.open if each not in done]
        if t + self.gap + self.grace < self.now:
            self.late += 1
            return
        session = [(t, -99 if n is None else n)]
        for key, of in list(self.open):
            if key == k and min(of)[0] <= t + self.gap and t <= max(of)[0] + self.gap:
                self.open.remove((key, of))
                session += of
        self.open.append((k, session))

    def rows(self, sessions: Any) -> list[Any]:
        found = []
        for k, of in sessions:
            numbers = [n for _, n in of if n != -99]
            least, most = (min(numbers), max(numbers)) if numbers else (None, None)
            total = sum(numbers) if numbers else None
            mean = total / len(numbers) if numbers else None
            spread = pytest.approx(statistics.pvariance(numbers)) if numbers else None
            ends = min(of)[0], max(of)[0]
            chosen = [self.at([each for each in of if each[0] == end]) for end in ends]
            valid = [each for each in of if each[1] != -99]
            chosen += [self.at([each for each in valid if each[0] == end(valid)[0]]) for end in (min, max) if valid]
            chosen += [min(t for t, n in valid if n == number) for number in (least, most) if valid]
            chosen += [None] * (6 - len(chosen))
            found.append((ends[0], ends[1] + self.gap, k, len(of), total, mean, least, most, spread, *chosen))
        return sorted(found, key=str)

    @staticmethod
    def at(rows: list[tuple[int, Any]]) -> Any:
        """The least value of rows, null if there is no other."""
        return min((n for _, n in rows if n != -99), default=None)


def told(row: dict[str, Any]) -> Any:
    start, end = ((row[name] - EPOCH) // SECOND for name in ("window_start", "window_end"))
    return (start, end, row["k"], *values_of(row))


def values_of(row: dict[str, Any]) -> list[Any]:
    values = [row[name] for name in ALL]
    return [(value - EPOCH) // SECOND if isinstance(value, datetime) else value for value in values]


@given(
    ROWS,
    st.lists(st.integers(0, 99), max_size=5),
    st.sampled_from([(4, 0), (4, 3), (1, 0), (9, 1)]),
    st.booleans(),
)
@example([("a", 1, 0), ("b", 1, 4), ("a", 1, 3)], [], (4, 0), True)  # overlaps a session that is closed when it comes
@example([("a", 1, 0), ("b", 1, 4), ("a", 1, 3), ("a", 1, 2)], [2], (4, 0), False)
@example([("a", 1, 0), ("a", 1, 3), ("b", 1, 5), ("a", 1, 2)], [], (4, 0), False)  # late for the first row only
@example([("a", 1, 0), ("a", 1, 3), ("a", 1, 6), ("a", 1, 9), ("a", 1, 3)], [4], (4, 3), False)  # inside a known one
@settings(max_examples=examples(100))
def test_sessions_equal_a_computation_row_by_row(
    tmp_path_factory: Any, rows: list[Any], cuts: list[int], shape: Any, final: bool
) -> None:
    gap, grace = shape
    operator = SessionAggregation(("k",), ALL, Window.session("t", gap * SECOND, grace=grace * SECOND), final)
    plain = RowByRow(gap, grace)
    emitted, latest, late = [], {}, 0
    path = tmp_path_factory.mktemp("sessions")
    for number, table in enumerate(batches_of(rows, cuts)):
        for row in table.to_pylist():
            plain.add(row["k"], row["n"], None if row["t"] is None else (row["t"] - EPOCH) // SECOND)
        with LmdbStore(path) as store:  # as after a restart
            update = operator(table, store)
            keys = update.changes["key"].to_pylist()
            assert len(set(keys)) == len(keys), "one change for each key"
            store.commit(keys, update.changes["value"].to_pylist(), Position(number))
            stored = store.scan(stop=b"\x02")
            notes = store.scan(b"\x02", b"\x03")
        late += update.late
        for row in update.retracted.to_pylist() if update.retracted is not None else ():
            del latest[(row["window_start"] - EPOCH) // SECOND, row["k"]]
        found = [told(row) for row in update.results.to_pylist()]
        emitted += found
        latest |= {(each[0], each[2]): each for each in found}
        if final:
            assert sorted(emitted, key=str) == plain.rows(plain.closed)
        else:
            assert sorted(latest.values(), key=str) == plain.rows(plain.closed + plain.open)
        left = {json.dumps(k) for k, _ in plain.open}
        assert len(stored) == len(notes) == len(left), "no state of closed sessions, and one note for each key"
        definition = Definition.of(operator.kept, operator.key_columns(COLUMNS), operator.layout(COLUMNS))
        described = definition.entries().rows([Read(stored + notes)])
        assert sorted(
            ((e["first"] - EPOCH) // SECOND, (e["last"] - EPOCH) // SECOND + gap, e["k"], *values_of(e))
            for e in described
            if e["k"] is not None
        ) == sorted(each for each in plain.rows(plain.open) if each[2] is not None)
    assert late == plain.late


def test_a_session_of_many_rows_in_a_burst_is_cut_where_it_was_quiet(tmp_path: Any) -> None:
    rows = [("a", 1, 0), ("b", 1, 5), *[("a", 1, 3)] * 50, ("a", 1, 30), ("b", 1, 90)]
    plain = RowByRow(4, 0)
    for row in rows:
        plain.add(*row)
    operator = SessionAggregation(("k",), ALL, Window.session("t", 4 * SECOND), final=True)
    (table,) = batches_of(rows, [])
    found = sorted((told(row) for row in operator(table, NoState()).results.to_pylist()), key=str)
    assert found == plain.rows(plain.closed)
    assert [each[:4] for each in found if each[2] == "a"] == [(0, 4, "a", 1), (3, 7, "a", 50), (30, 34, "a", 1)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Window.session("t", timedelta()), "gap=.* is not 1 or more whole milliseconds"),
        (lambda: Window.session("t", SECOND, grace=-SECOND), "grace=.* is not 0 or more whole"),
        (lambda: run(Window.session("u", SECOND)), "window: no column 'u' among k, n, t"),
        (
            lambda: run(Window.session("t", SECOND), {"window_end": ALL["sum"]}),
            "have a column 'window_end' of their own",
        ),
        (lambda: run(Window.session("t", SECOND), {"last": ALL["max"]}), "aggregate 'last': the state has a column of"),
    ],
)
def test_what_makes_no_session_is_named(make: Any, message: str) -> None:
    with pytest.raises(StateError, match=message):
        make()


def run(window: Any, aggregates: Any = None) -> None:
    SessionAggregation(("k",), aggregates or ALL, window, final=True)(COLUMNS.empty_table(), NoState())


def test_sessions_keep_the_least_and_the_largest_timestamp_over_batches(tmp_path: Any) -> None:
    extremes = {name: aggregate_of(f"{name}(t)") for name in ("min", "max")}
    operator = SessionAggregation(("k",), extremes, Window.session("t", 4 * SECOND), final=False)
    with LmdbStore(tmp_path) as store:
        for number, table in enumerate(batches_of([("a", 1, 3), ("a", 1, 5), ("a", None, 2)], [1, 2])):
            update = operator(table, store)
            store.commit(*(update.changes[name].to_pylist() for name in ("key", "value")), Position(number))
        stored = store.scan(stop=b"\x02")
    (row,) = update.results.to_pylist()
    assert (row["min"], row["max"]) == (EPOCH + 2 * SECOND, EPOCH + 5 * SECOND)
    assert update.results.schema.field("max").type == COLUMNS.field("t").type
    definition = Definition.of(operator.kept, operator.key_columns(COLUMNS), operator.layout(COLUMNS))
    (entry,) = definition.entries().rows([Read(stored)])
    assert (entry["min"], entry["max"]) == (row["min"], row["max"])
