"""Aggregates of decimals in keys, windows and sessions against Python's decimals, wherever batches are cut."""

from __future__ import annotations

import operator
from datetime import timedelta
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from roster.state import Position, StateError, expressions
from roster.state.aggregate import Aggregation
from roster.state.aggregate_functions import Aggregate, Kind
from roster.state.definition import Definition, Noted
from roster.state.entries import Read
from roster.state.evolution import changes, evolution
from roster.state.lmdb_store import LmdbStore
from roster.state.sessions import SessionAggregation
from roster.state.store import NoState
from roster.state.windows import Window, WindowedAggregation
from tests.examples_tried import examples
from tests.state.aggregate_texts import aggregate_of

TYPES = [(5, 2), (10, 0), (18, 18), (28, 10), (29, 3), (38, 0), (38, 18), (38, 34)]
GAP = 4
ALL = {f"{name}(d)": aggregate_of(f"{name}(d)") for name in ("count", "sum", "min", "max", "avg", "first", "last")}
ALL |= {kind.value: Aggregate(kind, "d") for kind in (Kind.FIRST_VALID, Kind.LAST_VALID)}
ALL |= {
    "earliest": Aggregate(Kind.MIN_BY, "d", by=Aggregate(Kind.MIN, "t")),
    "at most": Aggregate(Kind.MAX_BY, "n", by=Aggregate(Kind.MIN, "d")),
    "text at least": Aggregate(Kind.MIN_BY, "s", by=Aggregate(Kind.MIN, "d")),
}
BY_TEXT = {"different": Aggregate(Kind.COUNT_DISTINCT, "d"), "about": aggregate_of("approx_count_distinct(d)")}


@st.composite
def unscaled(draw: Any) -> tuple[int, int, list[Any]]:
    """A type, and batches of rows: key, time, which no two have, and decimal."""
    digits, scale = draw(st.sampled_from(TYPES))
    most = 10**digits - 1
    number = st.sampled_from([0, 1, -1, 5, most, -most, most // 3]) | st.integers(-most, most)
    times = draw(st.lists(st.integers(0, 30), max_size=14, unique=True))
    rows = [(draw(st.sampled_from(["a", "b"])), time, draw(st.none() | number)) for time in times]
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    return digits, scale, [rows[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]


def of(rows: Any, scale: int) -> dict[str, Any]:
    """What each of ALL says of rows in their order; decimals unscaled, but the average."""
    known = [d for _, _, d in rows if d is not None]
    found = [d for _, _, d in rows]
    ranked = [(t, d) for _, t, d in rows if d is not None]
    mean = None
    if known:
        with localcontext() as context:
            context.prec = 200
            exact = (Decimal(sum(known)).scaleb(-scale) / len(known)).quantize(
                Decimal(1).scaleb(-scale - 4), ROUND_HALF_UP
            )
            mean = exact if abs(exact.scaleb(scale + 4)) < 10**38 else None
    return {
        "count(d)": len(known),
        "sum(d)": sum(known) if known else None,
        "min(d)": min(known, default=None),
        "max(d)": max(known, default=None),
        "avg(d)": mean,
        "first(d)": found[0],
        "last(d)": found[-1],
        "first ignoring nulls": known[0] if known else None,
        "last ignoring nulls": known[-1] if known else None,
        "earliest": min(rows, key=lambda row: row[1])[2],
        "at most": max(ranked, key=lambda each: each[1])[0] if ranked else None,
        "text at least": f"{min(ranked, key=lambda each: each[1])[0]:02}" if ranked else None,
    }


def table(rows: Any, kind: Any) -> pa.Table:
    times = [t for _, t, _ in rows]
    with localcontext() as context:
        context.prec = 100
        numbers = pa.array([None if d is None else Decimal(d).scaleb(-kind.scale) for _, _, d in rows], kind)
    at = pa.array([t * 1_000_000 for t in times], pa.int64()).cast(pa.timestamp("us", "UTC"))
    columns = {"k": pa.array([k for k, _, _ in rows], pa.string()), "t": at, "d": numbers}
    return pa.table(
        columns | {"n": pa.array(times, pa.int64()), "s": pa.array([f"{t:02}" for t in times], pa.string())}
    )


def told(row: dict[str, Any], scale: int) -> dict[str, Any]:
    """A result with decimals unscaled, but the average, and times as seconds."""
    found = dict(row)
    with localcontext() as context:
        context.prec = 100
        for name, value in row.items():
            if isinstance(value, Decimal) and name != "avg(d)":
                found[name] = int(value.scaleb(scale))
    return found


def sessions(rows: Any) -> dict[Any, list[Any]]:
    """Rows of a key that follow each other within the gap, by their time."""
    found: dict[Any, list[Any]] = {}
    last: dict[str, Any] = {}
    for row in sorted(rows, key=lambda row: row[1]):
        k, t, _ = row
        if k not in last or t > found[last[k]][-1][1] + GAP:
            last[k] = (k, t)
        found.setdefault(last[k], []).append(row)
    return found


def groups(rows: Any, name: Any) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = {}
    for row in rows:
        found.setdefault(name(row), []).append(row)
    return found


EVER = timedelta(days=1)
SECONDS = timedelta(seconds=GAP)
OPERATORS = {
    "keys": (Aggregation(("k",), ALL | BY_TEXT), lambda rows: groups(rows, lambda row: (row[0],))),
    "windows": (
        WindowedAggregation(("k",), ALL, Window("t", SECONDS, grace=EVER), False),
        lambda rows: groups(rows, lambda row: (row[0], row[1] // GAP * GAP)),
    ),
    "sessions": (SessionAggregation(("k",), ALL, Window.session("t", SECONDS, grace=EVER), False), sessions),
}


def is_beyond(batches: Any, wanted: Any, digits: int) -> bool:
    """True if a sum of a batch or of all before, in one group, has more digits than its type."""
    most, seen = 10 ** min(digits + 10, 38), []
    for batch in batches:
        seen += batch
        for rows in wanted(seen).values():
            if any(abs(sum(d or 0 for _, _, d in some)) >= most for some in (rows, [r for r in rows if r in batch])):
                return True
    return False


@pytest.mark.parametrize("name", OPERATORS)
@given(unscaled())
@example((38, 0, [[("a", 1, 10**38 - 1), ("a", 2, 1)]]))
@example((38, 18, [[("a", 1, 10**38 - 1)], [("a", 2, 1)]]))
@example((38, 34, [[("a", 1, -(10**38) + 1), ("a", 2, None)], [("a", 3, 10**38 - 1), ("a", 9, 7)]]))
@settings(max_examples=examples(60))
def test_results_are_those_of_exact_decimals(tmp_path_factory: Any, name: str, made: Any) -> None:
    digits, scale, batches = made
    keeper, wanted = OPERATORS[name]
    kind, seen = pa.decimal128(digits, scale), []
    found: dict[Any, Any] = {}
    schema = table([], kind).schema
    definition = Definition.of(keeper.kept, keeper.key_columns(schema), keeper.layout(schema))
    entries = Noted.decode(Noted(definition, {}).encode()).definition.entries()

    def by_group(rows: pa.Table | None) -> dict[Any, Any]:
        results = {}
        for row in [] if rows is None else rows.to_pylist():
            start, _, _ = (row.pop(name, None) for name in ("window_start", "window_end", "last"))
            start = row.pop("first", start)  # as queries name it in sessions
            group = (row.pop("k"),) if start is None else (row.pop("k"), int(start.timestamp()))
            results[group] = told(row, scale)
        return results

    with LmdbStore(tmp_path_factory.mktemp("decimals")) as store:
        for number, batch in enumerate(batches):
            try:
                update = keeper(table(batch, kind), store)
            except StateError:
                assert is_beyond(batches[: number + 1], wanted, digits)
                return
            store.commit(*(update.changes[name].to_pylist() for name in ("key", "value")), Position(number))
            seen += batch
            for group in by_group(update.retracted):
                found.pop(group)
            found |= by_group(update.results)
        asked = entries.table([Read(store.scan())])
    assert name == "sessions" or not is_beyond(batches, wanted, digits)
    expected = {group: of(rows, scale) for group, rows in wanted(seen).items()}
    if name == "keys":
        for group, rows in wanted(seen).items():
            different = len({d for _, _, d in rows if d is not None})
            expected[group] |= {"different": different, "about": different}
    assert found == expected
    assert by_group(asked) == expected
    for each in (asked.schema, update.results.schema):
        assert each.field("sum(d)").type == pa.decimal128(min(digits + 10, 38), scale)
        assert each.field("avg(d)").type == pa.decimal128(min(digits + 4, 38), scale + 4)
        assert {each.field(name).type for name in ("min(d)", "last(d)", "earliest")} == {kind}


def test_variances_of_decimals_are_those_of_doubles() -> None:
    wanted = {f"{name}(d)": aggregate_of(f"{name}(d)") for name in ("var_pop", "stddev")}
    numbers = pa.array([Decimal("0.07"), None, Decimal("1.10")], pa.decimal128(10, 2)), pa.array([0.07, None, 1.1])
    both = [Aggregation(("k",), wanted)(pa.table({"k": [1] * 3, "d": each}), NoState()).results for each in numbers]
    assert both[0].equals(both[1])


@pytest.mark.parametrize(
    ("text", "digits", "problem"),
    [
        ("collect_list(d)", 38, "which lists, sets, percentiles and distinct sums do not take; cast it to double"),
        ("collect_set(d)", 38, "which lists, sets, percentiles and distinct sums do not take; cast it to double"),
        ("avg(d)", 38, "whose average would have a scale beyond 38; cast it to double"),
        ("min(d)", 40, "no number of up to 64 bits with a sign, .*; cast it to double"),
    ],
)
def test_what_decimals_cannot_be_is_refused(text: str, digits: int, problem: str) -> None:
    kind = pa.decimal128(digits, 35) if digits <= 38 else pa.decimal256(digits, 35)
    rows = pa.table({"k": [1], "d": pa.array([None], kind)})
    with pytest.raises(StateError, match=rf"column 'd' is {str(kind).replace('(', r'.').replace(')', '.')}, {problem}"):
        Aggregation(("k",), {"r": aggregate_of(text)})(rows, NoState())


def test_more_digits_are_the_same_entries_and_another_scale_is_not(tmp_path: Any) -> None:
    """An entry written as decimal(10, 2) is read as decimal(12, 2)."""

    def definition(digits: int, scale: int) -> Definition:
        schema = pa.schema([("k", pa.int64()), ("d", pa.decimal128(digits, scale))])
        keeper = Aggregation(("k",), wanted)
        return Definition.of(keeper.kept, keeper.key_columns(schema), keeper.layout(schema))

    wanted = {name: aggregate_of(f"{name}(d)") for name in ("min", "sum", "avg")}
    rows = pa.table({"k": [1, 1], "d": pa.array([Decimal("-1.50"), Decimal("3.25")], pa.decimal128(10, 2))})
    values = Aggregation(("k",), wanted)(rows, NoState()).changes["value"].to_pylist()
    before, after = definition(10, 2), definition(12, 2)
    assert [(each.part, each.verdict.value) for each in changes(before, after)] == [(n, "allowed") for n in wanted]
    for others in (definition(10, 3), definition(9, 2)):
        assert {each.verdict.value for each in changes(before, others)} == {"needs migrate"}
    way = evolution(after, Noted(before, {}))
    assert way is not None
    assert way.values(values).to_pylist() == values
    layout = after.layout
    results = layout.with_results(pa.table({"k": [1]}), layout.decode(values))
    assert results.drop(["k"]).to_pylist() == [
        {"min": Decimal("-1.50"), "sum": Decimal("1.75"), "avg": Decimal("0.875000")}
    ]


PAIRS = [
    ((10, 2), (5, 1), {"+": (11, 2), "-": (11, 2), "*": (16, 3), "/": (17, 8), "%": (6, 2)}),
    ((10, 0), (20, 0), {"+": (21, 0), "-": (21, 0), "*": (31, 0), "/": (31, 21), "%": (10, 0)}),
    ((38, 18), (10, 2), {"+": (38, 17), "-": (38, 17), "*": (38, 9), "/": (38, 16), "%": (26, 18)}),
    ((38, 18), (38, 18), {"+": (38, 17), "-": (38, 17), "*": (38, 6), "/": (38, 6), "%": (38, 18)}),
    ((38, 38), (38, 0), {"+": (38, 6), "-": (38, 6), "*": (38, 6), "/": (38, 38), "%": (38, 38)}),
]
"""Two types, and those that Spark gives to what is computed of them."""
FUNCTIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "%": operator.mod}
COMPARED = {"=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


@pytest.mark.parametrize("number", range(len(PAIRS)))
@given(st.data())
@settings(max_examples=examples(40))
def test_operators_are_those_of_exact_decimals(number: int, data: Any) -> None:
    *kinds, results = PAIRS[number]
    columns = []
    for digits, _ in kinds:
        most = 10**digits - 1
        values = st.sampled_from([0, 1, -1, most, -most, 5 * 10 ** (digits - 1)]) | st.integers(-most, most)
        columns.append(data.draw(st.lists(st.none() | values, min_size=4, max_size=4)))
    with localcontext() as context:
        context.prec, context.rounding = 400, ROUND_HALF_UP
        numbers = [
            [None if each is None else Decimal(each).scaleb(-scale) for each in column]
            for column, (_, scale) in zip(columns, kinds, strict=True)
        ]
        arrays = [pa.array(of, pa.decimal128(*kind)) for of, kind in zip(numbers, kinds, strict=True)]
        for name, (digits, scale) in results.items():
            expected: list[Any] = []
            for left, right in zip(*numbers, strict=True):
                known = left is not None and right is not None and (right or name not in "/%")
                value = FUNCTIONS[name](left, right).quantize(Decimal(1).scaleb(-scale)) if known else None
                expected.append(value if value is not None and abs(value.scaleb(scale)) < 10**digits else None)
            found = expressions.FUNCTIONS[f"try {name}"](*arrays)
            assert found.type == pa.decimal128(digits, scale), name
            assert found.to_pylist() == expected, name
        if number < 2:  # with more than 38 digits together Spark rounds what it compares
            for name, function in COMPARED.items():
                found = expressions.FUNCTIONS[name](*arrays)
                assert found.to_pylist() == [
                    None if None in (left, right) else function(left, right)
                    for left, right in zip(*numbers, strict=True)
                ]
