"""Windows and deduplication against computations row by row, wherever batches are cut."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from roster.state import Position, StateError
from roster.state.deduplicate import Deduplication
from roster.state.keys import decode_keys, encode_keys
from roster.state.lmdb_store import LmdbStore
from roster.state.windows import Window, WindowedAggregation
from tests.examples_tried import examples
from tests.state.aggregate_texts import aggregate_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
COLUMNS = pa.schema([("k", pa.string()), ("n", pa.int64()), ("t", pa.timestamp("us", "UTC"))])
ROW = st.tuples(st.sampled_from(["a", "b", None]), st.integers(-9, 9), st.none() | st.integers(-5, 40))
AGGREGATES = {name: aggregate_of(text) for name, text in [("count", "count(*)"), ("sum", "sum(n)"), ("avg", "avg(n)")]}


def batches_of(rows: list[Any], cuts: list[int]) -> list[pa.Table]:
    """The rows as tables, cut at these places."""
    ends = sorted({0, len(rows), *(cut % (len(rows) + 1) for cut in cuts)})
    return [
        pa.Table.from_pylist(
            [{"k": k, "n": n, "t": None if t is None else EPOCH + t * SECOND} for k, n, t in rows[start:end]],
            schema=COLUMNS,
        )
        for start, end in pairwise(ends)
    ]


def outcome(path: Any, operator: Any, tables: list[pa.Table]) -> tuple[list[dict[str, Any]], int, int]:
    """All results in their order, late rows, and the entries that are left in the store."""
    results, late = [], 0
    with LmdbStore(path) as store:
        for number, table in enumerate(tables):
            update = operator(table, store)
            keys = update.changes["key"].to_pylist()
            assert len(set(keys)) == len(keys), "one change for each key"
            store.commit(keys, update.changes["value"].to_pylist(), Position(number))
            results += update.results.to_pylist()
            late += update.late
        return results, late, len(store.scan())


@given(
    st.lists(ROW, max_size=25),
    st.lists(st.integers(0, 99), max_size=4),
    st.sampled_from(
        [(4, None, 0, 0), (4, None, 3, 0), (6, 2, 0, 0), (6, 3, 5, 0), (5, 2, 0, 1), (7, 5, 2, 4), (4, None, 1, 3)]
    ),
)
@example([("a", 1, 0), ("a", 1, 4), ("a", 1, 3)], [], (4, None, 0, 0))  # the last one comes as its window is closed
@settings(max_examples=examples(40))
def test_windows_equal_a_computation_row_by_row(
    tmp_path_factory: Any, rows: list[Any], cuts: list[int], shape: Any
) -> None:
    size, every, grace, begin = shape
    hop = every or size
    now, late = -(10**9), 0
    windows: dict[tuple[int, Any], list[int]] = {}
    for k, n, t in rows:
        if t is None:
            late += 1
            continue
        now = max(now, t)
        starts = [start for start in range(t, t - size, -1) if (start - begin) % hop == 0]
        for start in starts:
            if start + size + grace > now:
                windows.setdefault((start, k), []).append(n)
        late += starts[0] + size + grace <= now
    closed = {place for place in windows if place[0] + size + grace <= now}
    every = None if every is None else every * SECOND
    window = Window("t", size * SECOND, every, grace * SECOND, begin * SECOND)

    def told(found: list[dict[str, Any]]) -> list[Any]:
        for each in found:
            assert each["window_end"] - each["window_start"] == size * SECOND
        return [
            ((each["window_start"] - EPOCH) // SECOND, each["k"], *(each[name] for name in AGGREGATES))
            for each in found
        ]

    tables = batches_of(rows, cuts)
    final, late_found, left = outcome(
        tmp_path_factory.mktemp("final"), WindowedAggregation(("k",), AGGREGATES, window, final=True), tables
    )
    exact = {(*place, len(of), sum(of), sum(of) / len(of)) for place, of in windows.items()}
    assert sorted(told(final), key=str) == sorted((each for each in exact if each[:2] in closed), key=str)
    assert late_found == late
    assert left == len(windows) - len(closed) + (now > -(10**9))
    updates, _, left = outcome(
        tmp_path_factory.mktemp("updates"), WindowedAggregation(("k",), AGGREGATES, window, final=False), tables
    )
    assert {each[:2]: each for each in told(updates)} == {each[:2]: each for each in exact}
    assert left == len(windows) - len(closed) + (now > -(10**9))


@given(st.lists(ROW, max_size=30), st.lists(st.integers(0, 99), max_size=4), st.integers(1, 20))
@example([("a", 1, 0), ("a", 2, 4), ("a", 3, 5)], [1], 4)
@settings(max_examples=examples(40))
def test_a_key_passes_once_within_a_time(tmp_path_factory: Any, rows: list[Any], cuts: list[int], within: int) -> None:
    now, late, first, expected = -(10**9), 0, {}, []
    for k, n, t in rows:
        if t is None:
            late += 1
            continue
        now = max(now, t)
        if t + within < now:
            late += 1
        elif k not in first or first[k] + within < now:
            first[k] = t
            expected.append((k, n, t))
    operator = Deduplication(("k",), "t", within * SECOND)
    found, late_found, left = outcome(tmp_path_factory.mktemp("keys"), operator, batches_of(rows, cuts))
    assert [(each["k"], each["n"], (each["t"] - EPOCH) // SECOND) for each in found] == expected
    assert late_found == late
    assert left <= len(first) + 2


@given(st.lists(ROW, max_size=40), st.lists(st.integers(0, 40), max_size=4), st.integers(1, 8), st.integers(0, 3))
def test_first_rows_are_known_longer_than_rows_may_be_late(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], cuts: list[int], slack: int, more: int
) -> None:
    within, now, expected, first = slack + more, -math.inf, [], dict[Any, int]()
    for k, n, t in rows:
        now = now if t is None else max(now, t)
        if t is None or t + slack < now:
            continue
        if k not in first or first[k] + within < now:
            first[k] = t
            expected.append((k, n, t))
    operator = Deduplication(("k",), "t", within * SECOND, slack * SECOND)
    found, _, _ = outcome(tmp_path_factory.mktemp("keys"), operator, batches_of(rows, cuts))
    assert [(each["k"], each["n"], (each["t"] - EPOCH) // SECOND) for each in found] == expected


@given(st.lists(ROW, max_size=40), st.lists(st.integers(0, 40), max_size=4), st.integers(1, 20))
@settings(max_examples=examples(40))
def test_a_null_among_the_keys_is_remembered_for_ever(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], cuts: list[int], within: int
) -> None:
    """Spark's dropDuplicates() with the watermark's time among its columns: null is a time that is never late."""
    now, late, passed = -(10**9), 0, dict[Any, int]()
    for k, n, t in rows:
        now = now if t is None else max(now, t)
        if t is not None and t + within < now:
            late += 1
        else:
            passed.setdefault((k, t), n)
    operator = Deduplication(("k", "t"), "t", within * SECOND)
    found, late_found, _ = outcome(tmp_path_factory.mktemp("keys"), operator, batches_of(rows, cuts))
    times = [None if row["t"] is None else (row["t"] - EPOCH) // SECOND for row in found]
    assert [((row["k"], time), row["n"]) for row, time in zip(found, times, strict=True)] == list(passed.items())
    assert late_found == late


@given(st.lists(ROW, max_size=40), st.lists(st.integers(0, 40), max_size=4))
def test_without_a_time_the_first_row_of_all_time_passes(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], cuts: list[int]
) -> None:
    expected = {k: (k, n) for k, n, _ in reversed(rows)}
    operator = Deduplication(("k",), None)
    found, late, left = outcome(tmp_path_factory.mktemp("keys"), operator, batches_of(rows, cuts))
    assert {(each["k"], each["n"]) for each in found} == set(expected.values())
    assert [each["k"] for each in found] == list(dict.fromkeys(k for k, _, _ in rows))
    assert (late, left) == (0, len(expected))


def test_a_window_has_the_least_text_when_it_is_closed(tmp_path: Any) -> None:
    operator = WindowedAggregation(("n",), {"least": aggregate_of("min(k)")}, Window("t", 2 * SECOND), True)
    found = []
    with LmdbStore(tmp_path) as store:
        for number, table in enumerate(batches_of([("b", 1, 0), ("a", 1, 1), ("c", 1, 9)], [1, 2])):
            update = operator(table, store)
            store.commit(*(update.changes[name].to_pylist() for name in ("key", "value")), Position(number))
            found += update.results.to_pylist()
    assert [(row["window_start"], row["least"]) for row in found] == [(EPOCH, "a")]


def test_keys_that_are_forgotten_leave_the_store(tmp_path: Any) -> None:
    tables = batches_of([(f"k{t}", 0, t) for t in range(200)], list(range(0, 200, 5)))
    _, _, left = outcome(tmp_path, Deduplication(("k",), "t", 10 * SECOND), tables)
    assert left < 30


@given(st.lists(st.tuples(st.none() | st.text(max_size=4), st.none() | st.integers(-(2**62), 2**62)), max_size=6))
def test_keys_are_read_back(of: list[Any]) -> None:
    kinds = [pa.string(), pa.timestamp("ms", "UTC")]
    columns = {
        "s": pa.array([s for s, _ in of], kinds[0]),
        "t": pa.array([t for _, t in of], pa.int64()).cast(kinds[1]),
    }
    table = pa.table(columns)
    assert pa.table(decode_keys(encode_keys(table, ["s", "t"]).to_pylist(), kinds), ["s", "t"]).equals(table)


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("1 hour", {"hours": 1}),
        (" INTERVAL 2 Days 30 minutes ", {"days": 2, "minutes": 30}),
        ("1.5 seconds", {"milliseconds": 1500}),
        ("250 milliseconds", {"milliseconds": 250}),
        ("1 week", {"weeks": 1}),
        ("1 hour 1000000 microseconds", {"hours": 1, "seconds": 1}),
    ],
)
def test_durations_are_taken_in_sparks_words(text: str, given: dict[str, float]) -> None:
    duration = timedelta(**given)
    assert Window("t", text, grace=text) == Window("t", duration, grace=duration)
    assert Window.session("t", text, grace=text) == Window.session("t", duration, grace=duration)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Window("t", timedelta()), "size=.* is not 1 or more whole milliseconds"),
        (
            lambda: Window("t", 5),
            r"size=5 is not a duration: use timedelta\(hours=1\) or '1 hour', in weeks, .*microseconds",
        ),
        (lambda: Window("t", "1 month"), "size='1 month' is not a duration"),
        (lambda: Window("t", "1 hour 5"), "size='1 hour 5' is not a duration"),
        (lambda: Window("t", "999999999999 weeks"), "size='999999999999 weeks' is not a duration"),
        (lambda: Window("t", "1 microsecond"), "size='1 microsecond' is not 1 or more whole milliseconds"),
        (lambda: Window("t", SECOND, 2 * SECOND), "every 0:00:02 is longer than size 0:00:01, so rows would be"),
        (lambda: Window("t", 3 * SECOND, SECOND, start=SECOND), "start 0:00:01 is not less than every 0:00:01"),
        (lambda: Window("t", SECOND, grace=-SECOND), "grace=.* is not 0 or more whole"),
        (lambda: Deduplication(("k",), "t", timedelta()), "within=.* is not a positive timedelta"),
        (lambda: run(Window("n", SECOND)), "window: column 'n' is int64, no timestamp"),
        (lambda: run(Window("u", SECOND)), "window: no column 'u' among k, n, t"),
        (
            lambda: run(Window("t", SECOND), {"window_end": AGGREGATES["sum"]}),
            "have a column 'window_end' of their own",
        ),
    ],
)
def test_what_makes_no_window_is_named(make: Any, message: str) -> None:
    with pytest.raises(StateError, match=message):
        make()


def run(window: Window, aggregates: Any = None) -> None:
    from roster.state.store import NoState

    WindowedAggregation(("k",), aggregates or AGGREGATES, window, final=True)(COLUMNS.empty_table(), NoState())
