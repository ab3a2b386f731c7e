"""What stores say of themselves: which pipelines may go on with one, and what comes of any bytes."""

from __future__ import annotations

import contextlib
import itertools
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.state.aggregate import Aggregation
from roster.state.aggregate_functions import Aggregate
from roster.state.deduplicate import Deduplication
from roster.state.definition import STATE_KEY, Definition, Noted, OtherDefinitionError, entries_of
from roster.state.entries import Entries
from roster.state.evolution import changes, check, evolution
from roster.state.pending import WithChanges
from roster.state.processor.variables import Entry, encode_registry
from roster.state.sessions import SessionAggregation
from roster.state.store import NoState
from roster.state.stream_join import StreamJoin, joined_columns
from roster.state.windows import Window, WindowedAggregation
from tests.examples_tried import examples
from tests.state.aggregate_texts import aggregate_of

AT = pa.timestamp("us", "UTC")
ROWS = pa.schema([("k", pa.string()), ("n", pa.int64()), ("x", pa.float64()), ("day", pa.date32()), ("at", AT)])
BOTH = joined_columns(ROWS, pa.schema([("k", pa.string()), ("paid", AT)]))
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


def kept(**texts: str) -> dict[str, Aggregate]:
    return {name: aggregate_of(text) for name, text in texts.items()}


def windowed(column: str = "at", size: timedelta = HOUR, *, grace: timedelta = MINUTE, final: bool = False) -> Any:
    return WindowedAggregation(("k",), kept(c="count(*)"), Window(column, size, grace=grace), final)


def session(gap: timedelta = HOUR, *, grace: timedelta = MINUTE, final: bool = False) -> Any:
    return SessionAggregation(("k",), kept(c="count(*)"), Window.session("at", gap, grace=grace), final)


def join(
    within: timedelta = HOUR, *, grace: timedelta = MINUTE, how: str = "inner", right: tuple[str, ...] = ()
) -> Any:
    return StreamJoin(("k",), ("at", "paid"), right, within, grace, how)


def totals(*keys: str, **texts: str) -> Any:
    return Aggregation(keys, kept(**(texts or {"c": "count(*)"})))


def defined(operator: Any, columns: pa.Schema | None = None, *stores: str) -> Definition:
    if columns is None:
        columns = BOTH if isinstance(operator, StreamJoin) else ROWS
    sides = operator.sides(columns) if isinstance(operator, StreamJoin) else None
    made = Definition.of(operator.kept, operator.key_columns(columns), operator.layout(columns), sides=sides)
    return made.among(0, stores or ("s",))


def with_type(name: str, kind: pa.DataType, columns: pa.Schema = ROWS) -> pa.Schema:
    return columns.set(columns.get_field_index(name), pa.field(name, kind))


DIFFERENT = {
    "totals": defined(totals("k")),
    "other key": defined(totals("n")),
    "more keys": defined(totals("k", "n")),
    "keys in other order": defined(totals("n", "k")),
    "key of other type": defined(totals("k"), with_type("k", pa.binary())),
    "windows": defined(windowed()),
    "longer windows": defined(windowed(size=2 * HOUR)),
    "windows of another time": defined(windowed("later"), ROWS.append(pa.field("later", AT))),
    "sessions": defined(session()),
    "longer sessions": defined(session(2 * HOUR)),
    "first rows": defined(Deduplication(("k",), "at", HOUR)),
    "join": defined(join()),
    "longer join": defined(join(2 * HOUR)),
    "outer join": defined(join(how="left")),
    "full join": defined(join(how="full")),
    "semi join": defined(join(how="semi")),
    "in another sub-topology": Definition({**defined(totals("k")).document, "subtopology": 1}),
}
"""Of each two the entries of one are nothing to the other."""

RESULTS = {
    "totals": defined(totals("k")),
    "more aggregates": defined(totals("k", c="count(*)", s="sum(n)")),
    "aggregates in other order": defined(totals("k", s="sum(n)", c="count(*)")),
    "other name": defined(totals("k", d="count(*)")),
    "other kind": defined(totals("k", c="count(n)")),
    "average": defined(totals("k", c="avg(n)")),
    "average of floats": defined(totals("k", c="avg(x)")),
    "sum": defined(totals("k", c="sum(n)")),
    "of floats": defined(totals("k", c="sum(n)"), with_type("n", pa.float64())),
    "latest": defined(totals("k", c="max(day)")),
    "latest of times": defined(totals("k", c="max(day)"), with_type("day", AT)),
}
"""Of each two the results differ."""


def read_again(definition: Definition) -> Definition:
    return Noted.decode(Noted(definition, {"t": 3}).encode()).definition


@pytest.mark.parametrize("name", DIFFERENT)
def test_only_a_pipeline_of_the_same_meaning_goes_on(name: str) -> None:
    for other, definition in DIFFERENT.items():
        written = read_again(DIFFERENT[name])
        if other == name:
            assert check(definition, Noted(written, {})) == []
            assert definition.fingerprint == written.fingerprint
            continue
        with pytest.raises(OtherDefinitionError, match=r"its state was written with .*, and this pipeline has "):
            check(definition, Noted(written, {}))
        assert definition.fingerprint != written.fingerprint


def test_definitions_of_other_results_are_told_apart() -> None:
    for (name, one), (other, definition) in itertools.product(RESULTS.items(), repeat=2):
        assert (one.fingerprint == definition.fingerprint) is (name == other)
        assert bool(changes(read_again(one), definition)) is (name != other)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (windowed(), windowed(grace=HOUR, final=True)),
        (session(), session(grace=HOUR, final=True)),
        (Deduplication(("k",), "at", HOUR), Deduplication(("k",), "at", MINUTE)),
        (join(), join(grace=HOUR, right=("paid",))),
    ],
)
def test_what_is_not_stored_may_change(before: Any, after: Any) -> None:
    assert check(defined(after), Noted(read_again(defined(before)), {})) == []
    narrow = with_type("n", pa.int16())
    same = defined(totals("k", s="sum(n)"), narrow)
    assert check(same, Noted(read_again(defined(totals("k", s="sum(n)"))), {})) == []


def test_stores_may_go_and_come_but_not_change_places() -> None:
    for before, after in itertools.permutations([("a", "b", "c"), ("a", "c"), ("b", "c", "d"), ("c",)], 2):
        check(defined(totals("k"), None, *after), Noted(read_again(defined(totals("k"), None, *before)), {}))
    for before, after in [("ab", "ba"), ("abc", "ca"), ("ac", "cba")]:
        with pytest.raises(OtherDefinitionError, match=f"stores {', '.join(before)}, and this pipeline has stores"):
            check(defined(totals("k"), None, *after), Noted(read_again(defined(totals("k"), None, *before)), {}))


def test_what_a_store_says_can_be_read_by_people() -> None:
    said = json.loads(Noted(defined(windowed()), {"t": 7}).encode())
    assert said["format"] == 1
    assert said["inputs"] == {"t": 7}
    row = said["definition"].pop("row")
    assert [name for name, _ in row][-1] == "c"
    assert said["definition"] == {
        "operator": "aggregate",
        "window": {"column": "at", "size": "1:00:00", "every": "1:00:00"},
        "keys": {"window_start": "timestamp[ms, tz=UTC]", "k": "string"},
        "aggregates": {"c": {"kind": "count", "column": "*", "type": "int64"}},
        "kinds": {},
        "subtopology": 0,
        "stores": ["s"],
    }


KINDS = [pa.int8(), pa.int64(), pa.uint32(), pa.string(), pa.large_binary(), pa.bool_(), pa.date32(), AT]
KINDS += [pa.timestamp("ns"), pa.timestamp("ms", "Europe/Oslo"), pa.duration("us"), pa.float32(), pa.decimal128(38, 18)]


@given(st.lists(st.tuples(st.text(), st.sampled_from(KINDS)), min_size=1, unique_by=lambda each: each[0]))
@settings(max_examples=examples(50))
def test_keys_of_every_type_come_back(columns: list[tuple[str, pa.DataType]]) -> None:
    assert read_again(Definition.of({}, pa.schema(columns), None)).keys == pa.schema(columns)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["string", "decimal128(99, 9)", "<i8"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
DOCUMENTS = st.fixed_dictionaries(
    {"format": st.sampled_from([1, 1, 1, 2, None]), "inputs": st.just({}) | ANYTHING},
    optional={
        "definition": ANYTHING
        | st.fixed_dictionaries(
            {"keys": st.just({"k": "string"}) | ANYTHING},
            optional=dict.fromkeys(("aggregates", "row", "kinds", "sides", "session"), ANYTHING),
        )
    },
)


@given(st.binary() | DOCUMENTS.map(lambda each: json.dumps(each).encode()))
@settings(max_examples=examples(200))
def test_any_bytes_are_a_definition_or_refused(data: bytes) -> None:
    with contextlib.suppress(OtherDefinitionError):
        assert isinstance(entries_of(WithChanges(NoState(), {STATE_KEY: data})), Entries)
    with contextlib.suppress(OtherDefinitionError):
        evolution(DIFFERENT["totals"], Noted.decode(data))


def test_entries_without_a_word_and_those_of_another_release_are_refused() -> None:
    assert Noted.of(NoState()) is None
    with pytest.raises(OtherDefinitionError, match="does not say what it means"):
        Noted.of(WithChanges(NoState(), {b"\x01k": b"v"}))
    of_later = json.dumps({"format": 2, "meaning": {}}).encode()
    with pytest.raises(OtherDefinitionError, match="its state was written in format 2, this release has format 1"):
        Noted.of(WithChanges(NoState(), {STATE_KEY: of_later}))


@pytest.mark.parametrize(
    ("mode", "kinds", "is_ordered"),
    [
        ("None", ["value"], False),
        ("None", ["value", "list"], False),
        ("None", ["value", "map"], True),
        ("None", [], True),
        ("ProcessingTime", ["value"], True),
        ("EventTime", ["value"], True),
    ],
)
def test_a_processor_that_reads_no_ranges_has_no_order(mode: str, kinds: list[str], is_ordered: bool) -> None:
    """A list is one entry; rows of a map lie beside each other, timers and times to live are in their order."""
    operator = {"operator": "transform_with_state", "time_mode": mode, "event_time": None}
    definition = Definition.of(operator, pa.schema([("k", pa.string())]), None, has_variables=True)
    registry = encode_registry({f"{number}": Entry(kind, 16 + number) for number, kind in enumerate(kinds)})
    assert replace(definition, registry=registry).is_ordered is is_ordered
