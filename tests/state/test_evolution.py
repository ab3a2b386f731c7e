"""Which changes of a definition may be made in place, and what becomes of entries."""

from __future__ import annotations

import ast
import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.state.aggregate import Aggregation
from roster.state.aggregate_functions import Aggregate, Kind
from roster.state.definition import Definition, Noted, OtherDefinitionError
from roster.state.entries import Read
from roster.state.evolution import Verdict, changes, check, evolution
from roster.state.pending import WithChanges
from roster.state.sessions import SessionAggregation
from roster.state.store import NoState, StateError
from roster.state.windows import Window, WindowedAggregation
from tests.examples_tried import examples
from tests.state.aggregate_texts import aggregate_of

AT = pa.timestamp("us", "UTC")
COLUMNS = pa.schema([("k", pa.string()), ("n", pa.int64()), ("x", pa.float64()), ("day", pa.date32()), ("at", AT)])
ALLOWED, NEEDS, REFUSED = Verdict.ALLOWED, Verdict.NEEDS_MIGRATE, Verdict.REFUSED


def with_types(**kinds: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(each.name, kinds.get(each.name, each.type)) for each in COLUMNS])


BEST: dict[str, Aggregate] = {"count_distinct(n)": Aggregate(Kind.COUNT_DISTINCT, "n")}
BEST |= {f"max_by(n, {by})": Aggregate(Kind.MAX_BY, "n", by=Aggregate(Kind.MAX, by)) for by in ("at", "x")}


def totals(_columns: pa.Schema = COLUMNS, _migrate: Any = None, /, **texts: str) -> Definition:
    operator = Aggregation(("k",), {name: BEST.get(text) or aggregate_of(text) for name, text in texts.items()})
    made = Definition.of(operator.kept, operator.key_columns(_columns), operator.layout(_columns), migrate=_migrate)
    return made.among(0, ["s"])


TIMES = {unit: with_types(at=pa.timestamp(unit, "UTC")) for unit in ("s", "ms", "ns")}
BOTH = {"c": "count(*)", "s": "sum(n)"}
TEXT = with_types(day=pa.string())

CASES: dict[str, tuple[Definition, Definition, dict[str, Verdict]]] = {
    "added": (totals(c="count(*)"), totals(**BOTH), {"s": ALLOWED}),
    "left out": (totals(**BOTH), totals(c="count(*)"), {"s": ALLOWED}),
    "another order": (totals(**BOTH), totals(s="sum(n)", c="count(*)"), {"order": ALLOWED}),
    "added and left out": (totals(**BOTH), totals(c="count(*)", m="max(n)"), {"m": ALLOWED, "s": ALLOWED}),
    "wider sum": (totals(s="sum(n)"), totals(with_types(n=pa.float64()), s="sum(n)"), {"s": ALLOWED}),
    "wider variance": (totals(v="var_pop(n)"), totals(with_types(n=pa.float32()), v="var_pop(n)"), {}),
    "another variance": (totals(v="var_pop(n)"), totals(v="stddev(n)"), {"v": NEEDS}),
    "distinct": (totals(d="count_distinct(n)"), totals(with_types(n=pa.int16()), d="count_distinct(n)"), {}),
    "distinct of another type": (
        totals(d="count_distinct(n)"), totals(with_types(n=pa.float64()), d="count_distinct(n)"), {"d": NEEDS},
    ),
    "chosen by another column": (totals(b="max_by(n, x)"), totals(b="max_by(n, at)"), {"b": NEEDS}),
    "chosen by another column, it is said": (
        totals(b="max_by(n, x)"), totals(COLUMNS, {"b": "b"}, b="max_by(n, at)"), {"b": NEEDS},
    ),
    "chosen by a finer time": (totals(TIMES["s"], b="max_by(n, at)"), totals(b="max_by(n, at)"), {"b": NEEDS}),
    "wider average": (totals(a="avg(n)"), totals(with_types(n=pa.float32()), a="avg(n)"), {"a": ALLOWED}),
    "narrower sum": (totals(with_types(n=pa.float64()), s="sum(n)"), totals(s="sum(n)"), {"s": NEEDS}),
    "narrower, anew": (totals(s="sum(x)"), totals(with_types(x=pa.int8()), {"s": None}, s="sum(x)"), {"s": ALLOWED}),
    "smaller integers": (totals(s="sum(n)"), totals(with_types(n=pa.int16()), s="sum(n)"), {}),
    "finer time": (totals(TIMES["s"], m="max(at)"), totals(TIMES["ms"], m="max(at)"), {"m": ALLOWED}),
    "coarser time": (totals(m="max(at)"), totals(TIMES["ms"], m="max(at)"), {"m": NEEDS}),
    "times that may not fit": (totals(m="max(at)"), totals(TIMES["ns"], m="max(at)"), {"m": NEEDS}),
    "date to time": (totals(m="max(day)"), totals(with_types(day=AT), m="max(day)"), {"m": NEEDS}),
    "bytes to text": (totals(with_types(day=pa.binary()), m="max(day)"), totals(TEXT, m="max(day)"), {"m": NEEDS}),
    "key of bytes": (totals(m="max(n)"), totals(with_types(k=pa.binary()), m="max(n)"), {"keys": REFUSED}),
    "another function": (totals(s="sum(n)"), totals(s="max(n)"), {"s": NEEDS}),
    "another function, anew": (totals(s="sum(n)"), totals(COLUMNS, {"s": None}, s="max(n)"), {"s": ALLOWED}),
    "another column": (totals(s="sum(n)"), totals(s="sum(x)"), {"s": NEEDS}),
    "another column that goes on": (totals(s="sum(n)"), totals(COLUMNS, {"s": "s"}, s="sum(x)"), {"s": ALLOWED}),
    "another name": (totals(s="sum(n)"), totals(t="sum(n)"), {"t": NEEDS, "s": ALLOWED}),
    "another name that goes on": (totals(s="sum(n)"), totals(COLUMNS, {"t": "s"}, t="sum(n)"), {"t": ALLOWED}),
    "another name, anew": (
        totals(s="sum(n)"), totals(COLUMNS, {"t": None}, t="sum(n)"), {"t": ALLOWED, "s": ALLOWED},
    ),
    "of nothing": (totals(s="sum(n)"), totals(COLUMNS, {"t": "r"}, t="max(n)"), {"t": NEEDS, "s": ALLOWED}),
    "of another function": (totals(s="sum(n)"), totals(COLUMNS, {"t": "s"}, t="max(n)"), {"t": NEEDS}),
    "carried out": (totals(t="sum(n)"), totals(COLUMNS, {"t": "s"}, t="sum(n)", m="max(n)"), {"m": ALLOWED}),
    "anew, carried out": (totals(t="sum(n)"), totals(COLUMNS, {"t": None}, t="sum(n)", m="max(n)"), {"m": ALLOWED}),
    "wider key": (
        totals(with_types(k=pa.int32()), **BOTH), totals(with_types(k=pa.int64()), **BOTH), {"keys": ALLOWED},
    ),
    "narrower key": (
        totals(with_types(k=pa.int64()), **BOTH), totals(with_types(k=pa.int32()), **BOTH), {"keys": REFUSED},
    ),
    "key without a sign": (
        totals(with_types(k=pa.int64()), **BOTH), totals(with_types(k=pa.uint64()), **BOTH), {"keys": REFUSED},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_each_change_is_allowed_or_needs_a_word_or_is_refused(name: str) -> None:
    before, after, verdicts = CASES[name]
    assert {each.part: each.verdict for each in changes(before, after)} == verdicts
    assert changes(before, before) == []
    if set(verdicts.values()) <= {ALLOWED}:
        assert check(after, Noted(before, {})) == changes(before, after)
    else:
        with pytest.raises(
            OtherDefinitionError, match=r"its state was written with .*, and this pipeline has "
        ) as error:
            check(after, Noted(before, {}))
        refused = REFUSED in verdicts.values()
        assert ("migrate" in error.value.fix) is not refused, "what a word makes possible names the word"


def test_a_refusal_names_result_types_and_the_word_for_it() -> None:
    with pytest.raises(OtherDefinitionError) as error:
        check(totals(t="sum(n)"), Noted(totals(s="sum(n)"), {}))
    assert str(error.value) == "its state was written with no t, and this pipeline has t sum(n) int64"
    assert (
        error.value.fix == "migrate={'t': 's'} if it is 's' under another name, migrate={'t': None} if it begins anew"
    )


def test_a_release_that_was_left_is_refused_until_it_takes_the_change_back() -> None:
    first, second = totals(c="count(*)"), totals(**BOTH)
    noted = Noted.decode(Noted(first, {}).followed_by(second, {}).encode())
    assert check(second, noted) == []
    with pytest.raises(OtherDefinitionError, match=r"a newer release has changed its state: s sum\(n\) int64") as error:
        check(first, noted)
    assert "migrate={}" in error.value.fix
    back = totals(COLUMNS, {}, c="count(*)")
    assert [each.part for each in check(back, noted)] == ["s"]
    noted = Noted.decode(noted.followed_by(back, {}).encode())
    assert check(first, noted) == check(back, noted) == []
    with pytest.raises(OtherDefinitionError, match="a newer release has changed its state: no s"):
        check(second, noted)


def test_a_word_counts_once_so_that_two_releases_never_take_turns() -> None:
    texts = [{"a": "count(*)"}, {"a": "count(*)", "b": "sum(n)"}]
    noted, words = Noted(totals(**texts[0]), {}), [None, None]
    for turn in range(1, 6):
        own = totals(COLUMNS, words[turn % 2], **texts[turn % 2])
        if turn > 1:
            with pytest.raises(OtherDefinitionError) as error:
                check(own, noted)
            words[turn % 2] = ast.literal_eval(error.value.fix.partition("migrate=")[2])
            own = totals(COLUMNS, words[turn % 2], **texts[turn % 2])
        assert [each.part for each in check(own, noted)] == ["b"]
        noted = Noted.decode(noted.followed_by(own, {}).encode())
        assert check(own, noted) == []
    assert words == [{"a": "a"}, {"a": "a"}]


KINDS = ["count(*)", "count(n)", "sum(n)", "sum(x)", "max(x)", "min(n)", "avg(n)", "max(day)", "min(k)", "max(at)"]
RESULTS = st.dictionaries(st.sampled_from("abcd"), st.sampled_from(KINDS), min_size=1)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.sampled_from(["x", "y", "", "long" * 9]),
            "n": st.none() | st.integers(-9, 9),
            "x": st.none() | st.integers(-9, 9).map(lambda n: n / 2),
            "day": st.none() | st.dates(),
            "at": st.integers(0, 59).map(lambda n: NOON + timedelta(minutes=n)),
        }
    ),
    min_size=1,
    max_size=9,
)


def expected(rows: list[Any], text: str) -> Any:
    """What an aggregate of rows is, in plain Python."""
    kind, _, column = text.rstrip(")").partition("(")
    if column == "*":
        return len(rows)
    taken = [row[column] for row in rows if row[column] is not None]
    plain: dict[str, Any] = {"sum": sum, "max": max, "min": min, "avg": lambda of: sum(of) / len(of), "count": len}
    return plain[kind](taken) if taken or kind == "count" else None


def made(kind: str, texts: dict[str, str], migrate: Any = None) -> tuple[Any, Definition]:
    """Return an operator, and the definition of its entries."""
    parsed, hour = {name: aggregate_of(text) for name, text in texts.items()}, timedelta(hours=1)
    operator: Any = Aggregation(("k",), parsed)
    if kind == "window":
        operator = WindowedAggregation(("k",), parsed, Window("at", hour, grace=hour), final=False)
    if kind == "session":
        operator = SessionAggregation(("k",), parsed, Window.session("at", hour, grace=hour), final=False)
    keys, layout = operator.key_columns(COLUMNS), operator.layout(COLUMNS)
    return operator, Definition.of(operator.kept, keys, layout, migrate=migrate)


def pairs(changes: pa.Table) -> dict[bytes, bytes | None]:
    return dict(zip(changes["key"].to_pylist(), changes["value"].to_pylist(), strict=True))


@given(RESULTS, RESULTS, ROWS, ROWS, st.sampled_from(["totals", "window", "session"]))
@settings(max_examples=examples(60))
def test_entries_under_a_new_definition_are_those_of_what_was_kept(
    old: dict[str, str], new: dict[str, str], rows: list[Any], later: list[Any], kind: str
) -> None:
    if kind == "session":  # which keep no text
        old, new = ({n: t for n, t in each.items() if t != "min(k)"} or {"a": "sum(n)"} for each in (old, new))
    operator, before = made(kind, old)
    successor, after = made(kind, new, {name: None for name in new if new[name] != old.get(name)})
    store = WithChanges(NoState(), pairs(operator(pa.Table.from_pylist(rows, COLUMNS), NoState()).changes))
    way = evolution(after, Noted(before, {}))
    if list(old.items()) == list(new.items()):
        assert way is None
        return
    assert way is not None
    whole: dict[bytes, bytes | None] = {**dict(store.scan()), **pairs(way.seen(store).rewritten(()))}
    assert dict(way.seen(store).scan()) == whole, "what an operator sees is what is written"
    changed = pairs(successor(pa.Table.from_pylist(later, COLUMNS), way.seen(store)).changes)
    for entries, then in ((whole, []), (whole | changed, later)):
        there = sorted((key, value) for key, value in entries.items() if value is not None)
        found = {row["k"]: row for row in after.entries().rows([Read(there)])}
        assert found.keys() == {row["k"] for row in rows + then}
        for key, row in found.items():
            own, more = ([each for each in of if each["k"] == key] for of in (rows, then))
            for name, text in new.items():
                taken = own + more if text == old.get(name) else more
                assert row[name] == expected(taken, text), (key, name)


@pytest.mark.parametrize(
    ("columns", "wider", "aggregate", "values", "found"),
    [
        (with_types(day=pa.int32()), with_types(day=pa.float64()), "sum(day)", [2, None, 3], 5.0),
        (with_types(day=pa.int64()), with_types(day=pa.float32()), "avg(day)", [1, 2], 1.5),
        (with_types(day=pa.timestamp("s", "UTC")), with_types(day=AT), "max(day)", [NOON], NOON),
        (with_types(day=pa.timestamp("ms", "UTC")), with_types(day=AT), "min(day)", [None], None),
        (TEXT, with_types(day=pa.binary()), "max(day)", ["a", "ü"], "ü".encode()),
        (TEXT, with_types(day=pa.large_string()), "min(day)", ["b", ""], ""),
    ],
)
def test_values_are_the_same_in_a_wider_type(
    columns: pa.Schema, wider: pa.Schema, aggregate: str, values: list[Any], found: Any
) -> None:
    before, after = totals(columns, r=aggregate), totals(wider, c="count(*)", r=aggregate)
    rows = pa.Table.from_pylist([{"k": "x", "day": value} for value in values], columns)
    update = Aggregation(("k",), {"r": aggregate_of(aggregate)})(rows, NoState())
    way = evolution(after, Noted(before, {}))
    assert way is not None
    moved = pairs(way.seen(WithChanges(NoState(), pairs(update.changes))).rewritten(()))
    assert after.entries().rows([Read(list(moved.items()))]) == [{"k": "x", "c": 0, "r": found}]  # type: ignore[arg-type]


def test_values_of_other_widths_are_damaged() -> None:
    way = evolution(totals(**BOTH), Noted(totals(c="count(*)"), {}))
    assert way is not None
    for value, times in itertools.product([b"", b"123", bytes(18)], [1, 2]):
        with pytest.raises(StateError):
            way.values([value] * times)
