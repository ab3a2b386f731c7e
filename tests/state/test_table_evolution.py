"""Entries changed as tables: by a user's function, and to other columns of a join's sides."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.state.aggregate import Aggregation
from roster.state.definition import Definition, Noted, OtherDefinitionError
from roster.state.entries import Read
from roster.state.evolution import Verdict, changes, check, evolution, seen_as
from roster.state.pending import WithChanges
from roster.state.sessions import SessionAggregation
from roster.state.store import NoState, StateError
from roster.state.stream_join import IS_OTHER, OTHER, StreamJoin, joined_columns
from roster.state.table_evolution import TableEvolution
from roster.state.windows import Window, WindowedAggregation
from tests.examples_tried import examples
from tests.state.aggregate_texts import aggregate_of

AT = pa.timestamp("us", "UTC")
COLUMNS = pa.schema([("k", pa.string()), ("n", pa.int64()), ("at", AT)])
HOUR = timedelta(hours=1)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BEFORE = {"revenue": "sum(n)", "orders": "count(*)"}
AFTER = {"average": "avg(n)", "first": "min(n)"}


def averaged(table: pa.Table) -> pa.Table:
    """The average of all time from sum and count; the first one is not known."""
    table = table.append_column("sum of average", table["revenue"])
    table = table.append_column("count of average", table["orders"])
    return table.append_column("first", pa.nulls(len(table), pa.int64()))


def made(kind: str, texts: dict[str, str], migrate: Any = None) -> tuple[Any, Definition]:
    parsed = {name: aggregate_of(text) for name, text in texts.items()}
    operator: Any = Aggregation(("k",), parsed)
    if kind == "window":
        operator = WindowedAggregation(("k",), parsed, Window("at", HOUR), final=False)
    if kind == "session":
        operator = SessionAggregation(("k",), parsed, Window.session("at", HOUR), final=False)
    keys, layout = operator.key_columns(COLUMNS), operator.layout(COLUMNS)
    return operator, Definition.of(operator.kept, keys, layout, migrate=migrate).among(0, ["s"])


def pairs(changed: pa.Table) -> dict[bytes, bytes | None]:
    return dict(zip(changed["key"].to_pylist(), changed["value"].to_pylist(), strict=True))


ROWS = st.lists(st.tuples(st.sampled_from("xyz"), st.integers(-9, 9), st.integers(0, 59)), min_size=1, max_size=8)


def table(rows: list[tuple[str, int, int]]) -> pa.Table:
    return pa.Table.from_pylist([{"k": k, "n": n, "at": NOON + timedelta(minutes=at)} for k, n, at in rows], COLUMNS)


@given(ROWS, ROWS, st.sampled_from(["totals", "window", "session"]))
@settings(max_examples=examples(15))
def test_a_function_makes_new_results_of_those_that_were_kept(rows: Any, later: Any, kind: str) -> None:
    operator, before = made(kind, BEFORE)
    successor, after = made(kind, AFTER, averaged)
    store = WithChanges(NoState(), pairs(operator(table(rows), NoState()).changes))
    assert [each.verdict for each in check(after, Noted(before, {}))] == [Verdict.ALLOWED]
    way = evolution(after, Noted(before, {}))
    assert isinstance(way, TableEvolution)
    whole = dict(store.scan()) | pairs(way.seen(store).rewritten([]))
    assert dict(way.seen(store).scan()) == {key: value for key, value in whole.items() if value is not None}
    changed = pairs(successor(table(later), way.seen(store)).changes)
    for entries, then in ((whole, []), (whole | changed, later)):
        there = sorted((key, value) for key, value in entries.items() if value is not None)
        found = {row["k"]: row for row in after.entries().rows([Read(there)])}
        assert found.keys() == {k for k, *_ in rows + then}
        for key, row in found.items():
            own = [n for k, n, _ in rows + then if k == key]
            assert row["average"] == sum(own) / len(own)
            assert row["first"] == min((n for k, n, _ in then if k == key), default=None)


def test_a_function_that_does_not_fit_is_refused_before_anything_is_written() -> None:
    _, before = made("totals", BEFORE)
    for function, problem in [
        (lambda rows: rows, "its result has no column 'first'"),
        (lambda rows: averaged(rows).drop_columns(["k"]), "it must leave the column 'k' as it is"),
        (lambda rows: averaged(rows).to_batches(), "it must return a pyarrow.Table .*, not a list"),
        (lambda rows: rows["price"], "KeyError: .*price"),
        (
            lambda rows: averaged(rows).set_column(5, "first", pa.nulls(len(rows), pa.list_(AT))),
            "a column does not have its type",
        ),
    ]:
        _, after = made("totals", AFTER, function)
        with pytest.raises(OtherDefinitionError, match=f"the function .*lambda.* of migrate failed: {problem}"):
            check(after, Noted(before, {}))


def test_a_function_that_moves_keys_fails_with_the_first_rows() -> None:
    def other_keys(rows: pa.Table) -> pa.Table:
        return averaged(rows).set_column(0, "k", pc.utf8_upper(rows["k"]))

    operator, before = made("totals", BEFORE)
    _, after = made("totals", AFTER, other_keys)
    store = WithChanges(NoState(), pairs(operator(table([("x", 1, 1)]), NoState()).changes))
    way = evolution(after, Noted(before, {}))
    assert way is not None
    with pytest.raises(OtherDefinitionError, match="other_keys of migrate failed: it must leave the column 'k'"):
        way.seen(store).rewritten([])
    noted = WithChanges(store, {b"\xff~state": Noted(before, {}).encode()})
    with pytest.raises(StateError, match="its entries are an earlier release's"):
        seen_as(after, noted)


LEFT = pa.schema([("k", pa.string()), ("n", pa.int32()), ("at", AT), ("gone", pa.string())])
RIGHT = pa.schema([("k", pa.string()), ("paid", AT), ("price", pa.float32())])
NEW_LEFT = pa.schema([("more", pa.string()), ("k", pa.string()), ("at", AT), ("n", pa.int64()), ("waits", pa.bool_())])
NEW_RIGHT = pa.schema([("k", pa.string()), ("paid", AT), ("price", pa.float64())])


def join(left: pa.Schema, right: pa.Schema, how: str, migrate: Any = None) -> tuple[StreamJoin, Definition, pa.Schema]:
    columns = joined_columns(left, right)
    shown = tuple(name for name in right.names if name not in ("k", "paid"))
    operator = StreamJoin(("k",), ("at", "paid"), shown, HOUR, HOUR, how)
    sides = operator.sides(columns)
    keys = operator.key_columns(columns)
    return operator, Definition.of(operator.kept, keys, None, sides=sides, migrate=migrate), columns


def rows_of(columns: pa.Schema, left: list[Any], right: list[Any], number: Any = int) -> pa.Table:
    """Rows of both sides: (key, minute), with nulls in columns that are not named."""
    rows: list[dict[str, Any]] = []
    for key, minute in left:
        rows.append(
            {"k": key, "at": NOON + timedelta(minutes=minute), "n": number(minute), "gone": "g", IS_OTHER: False}
        )
    for key, minute in right:
        given = {"k": key, "paid": NOON + timedelta(minutes=minute), "price": minute / 4}
        rows.append({OTHER + name: value for name, value in given.items()} | {IS_OTHER: True})
    known = [{name: value for name, value in row.items() if name in columns.names} for row in rows]
    return pa.Table.from_pylist(known, columns)


SIDE = st.lists(st.tuples(st.sampled_from("xy"), st.integers(0, 200)), max_size=6)


@given(SIDE, SIDE, SIDE, SIDE, st.sampled_from(["inner", "left", "full", "semi"]))
@settings(max_examples=examples(15))
def test_rows_of_a_join_find_the_same_partners_after_its_columns_changed(
    left: Any, right: Any, more_left: Any, more_right: Any, how: str
) -> None:
    operator, before, columns = join(LEFT, RIGHT, how)
    successor, after, new_columns = join(NEW_LEFT, NEW_RIGHT, how)
    assert {each.part: each.verdict for each in changes(before, after)} == {
        "left n": Verdict.ALLOWED, "left gone": Verdict.ALLOWED, "left more": Verdict.ALLOWED,
        "left waits": Verdict.ALLOWED, "order of left": Verdict.ALLOWED, "right price": Verdict.ALLOWED,
    }  # fmt: skip
    store = WithChanges(NoState(), pairs(operator(rows_of(columns, left, right), NoState()).changes))
    way = evolution(after, Noted(before, {}))
    assert way is not None
    whole = WithChanges(store, pairs(way.seen(store).rewritten([])))
    plain = WithChanges(NoState(), pairs(successor(rows_of(new_columns, left, right), NoState()).changes))
    assert [key for key, _ in whole.scan()] == [key for key, _ in plain.scan()]
    then = rows_of(new_columns, more_left, more_right)
    found, expected = (successor(then, seen).results.to_pylist() for seen in (way.seen(store), plain))
    for row in [*found, *expected]:
        row.pop("gone", None)
    assert sorted(map(str, found)) == sorted(map(str, expected))


TEXT_LEFT = pa.schema([("k", pa.string()), ("n", pa.string()), ("at", AT)])


def as_text(rows: pa.Table) -> pa.Table:
    """Columns of TEXT_LEFT, and one more that is left out."""
    return rows.set_column(rows.column_names.index("n"), "n", rows["n"].cast(pa.string()))


@given(SIDE, SIDE, SIDE, SIDE, st.sampled_from(["inner", "left", "full", "semi"]))
@settings(max_examples=examples(15))
def test_a_function_makes_the_rows_of_a_side(left: Any, right: Any, more_left: Any, more_right: Any, how: str) -> None:
    operator, before, columns = join(LEFT, RIGHT, how)
    successor, after, new_columns = join(TEXT_LEFT, NEW_RIGHT, how, {"left": as_text})
    refused = [
        each.part for each in changes(before, join(TEXT_LEFT, NEW_RIGHT, how)[1]) if each.verdict is Verdict.REFUSED
    ]
    assert refused == ["left n"]
    store = WithChanges(NoState(), pairs(operator(rows_of(columns, left, right), NoState()).changes))
    assert [each.part for each in check(after, Noted(before, {}))] == ["left", "right price"]
    way = evolution(after, Noted(before, {}))
    assert way is not None
    plain = WithChanges(NoState(), pairs(successor(rows_of(new_columns, left, right, str), NoState()).changes))
    assert WithChanges(store, pairs(way.seen(store).rewritten([]))).scan() == plain.scan()
    then = rows_of(new_columns, more_left, more_right, str)
    found, expected = (successor(then, seen).results.to_pylist() for seen in (way.seen(store), plain))
    assert found == expected


def test_a_function_of_a_side_leaves_keys_and_times_as_they_are() -> None:
    operator, before, columns = join(LEFT, RIGHT, "left")
    store = WithChanges(NoState(), pairs(operator(rows_of(columns, [("x", 1)], []), NoState()).changes))
    for name, changed in [("k", pa.array(["y"])), ("at", pa.array([NOON], AT))]:

        def moved(rows: pa.Table, name: str = name, changed: Any = changed) -> pa.Table:
            place = rows.column_names.index(name)
            return as_text(rows).set_column(place, name, changed.slice(0, len(rows)))

        way = evolution(join(TEXT_LEFT, RIGHT, "left", {"left": moved})[1], Noted(before, {}))
        assert way is not None
        with pytest.raises(OtherDefinitionError, match=f"moved of migrate failed: it must leave the column '{name}'"):
            way.seen(store)
    own = join(TEXT_LEFT, RIGHT, "left", {"left": as_text})[1]
    assert check(own, Noted(before, {}).followed_by(own, {})) == [], "a function counts once"


def test_an_earlier_release_of_a_join_needs_a_word() -> None:
    _, before, _ = join(LEFT, RIGHT, "inner")
    _, after, _ = join(pa.schema([each for each in LEFT if each.name != "gone"]), RIGHT, "inner")
    noted = Noted(before, {}).followed_by(after, {})
    with pytest.raises(OtherDefinitionError, match="a newer release has changed its state") as refused:
        check(before, noted)
    assert refused.value.fix.endswith("take the change back with migrate={}")
    word = join(LEFT, RIGHT, "inner", {})[1]
    noted = noted.followed_by(word, {}).followed_by(after, {})
    with pytest.raises(OtherDefinitionError, match="a newer release") as refused:
        check(word, noted)
    assert refused.value.fix.endswith("take the change back with migrate={'left': None}")
