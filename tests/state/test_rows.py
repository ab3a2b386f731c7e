"""Rows as bytes: what is appended comes back, nested columns too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.state.rows import RowLayout
from roster.state.store import StateError
from roster.state.type_texts import text_of, type_of
from tests.examples_tried import examples

FLAT: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=3),
    pa.binary(): st.binary(max_size=3),
    pa.decimal128(20, 2): st.decimals(-(10**17), 10**17, places=2),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.integers(0, 1 << 50),
}


def typed(kinds: st.SearchStrategy[Any], values: Any) -> Any:
    return kinds.map(lambda kind: (kind, values(kind)))


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


def lists(inner: tuple[pa.DataType, Any]) -> tuple[pa.DataType, Any]:
    return pa.list_(inner[0]), st.lists(optional(inner[1]), max_size=3)


def large_lists(inner: tuple[pa.DataType, Any]) -> tuple[pa.DataType, Any]:
    return pa.large_list(inner[0]), st.lists(optional(inner[1]), max_size=3)


def maps(inner: tuple[pa.DataType, Any]) -> tuple[pa.DataType, Any]:
    return pa.map_(pa.string(), inner[0]), st.lists(st.tuples(st.text(max_size=2), optional(inner[1])), max_size=3)


def structs(inner: list[tuple[pa.DataType, Any]]) -> tuple[pa.DataType, Any]:
    names = [f"f{number}" for number in range(len(inner))]
    values = st.fixed_dictionaries({name: optional(part[1]) for name, part in zip(names, inner, strict=True)})
    return pa.struct(list(zip(names, (part[0] for part in inner), strict=True))), values


TYPES: st.SearchStrategy[tuple[pa.DataType, Any]] = st.recursive(
    st.sampled_from(list(FLAT.items())),
    lambda inner: (
        inner.map(lists)
        | inner.map(large_lists)
        | inner.map(maps)
        | st.lists(inner, min_size=1, max_size=3).map(structs)
    ),
    max_leaves=4,
)


@given(data=st.data())
@settings(max_examples=examples(200))
def test_rows_of_any_types_come_back(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(TYPES, min_size=1, max_size=3))
    count = data.draw(st.integers(0, 6))
    columns = [
        pa.array(data.draw(st.lists(optional(values), min_size=count, max_size=count)), kind) for kind, values in kinds
    ]
    table = pa.table(columns, [f"c{number}" for number in range(len(kinds))])
    begin = data.draw(st.integers(0, count))
    rows = table.slice(begin)
    places = np.array(data.draw(st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows))), np.int64)
    times = np.arange(len(rows))
    layout = RowLayout.of(table.schema)
    values = layout.appended([b"", b"", b""], rows, times, places)
    values = layout.appended(values, rows, times, places)
    stored = layout.decode(values)
    stored.table.validate(full=True)
    order = [
        number
        for place in range(3)
        for number in 2 * [number for number in range(len(rows)) if places[number] == place]
    ]
    assert stored.table.schema == table.schema
    assert stored.table.to_pylist() == rows.take(pa.array(order, pa.int64())).to_pylist()
    read = RowLayout.of(pa.schema([(field.name, type_of(text_of(field.type))) for field in table.schema]))
    assert read.decode(values).table.to_pylist() == stored.table.to_pylist()
    assert stored.times.tolist() == times[order].tolist() if order else not len(stored.times)


@pytest.mark.parametrize("kind", [pa.dictionary(pa.int32(), pa.string()), pa.struct([]), pa.list_(pa.struct([]))])
def test_columns_of_other_types_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(StateError, match=r"column 'c' is .*; make text of it, or leave it out"):
        RowLayout.of(pa.schema([("c", kind)]))
