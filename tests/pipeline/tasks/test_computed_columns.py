"""Columns that tasks compute of constants alone, which have one value for all rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from roster.pipeline.tasks.computed_columns import Call, Computed, ComputedColumns, Constant, Given

ROWS = pa.record_batch({"s": ["a", "b", None]})
ONE, NOTHING = Constant(pa.scalar(1, pa.int32())), Constant(pa.scalar(None, pa.string()))
STRUCT = Call("struct", (ONE, NOTHING), pa.struct([("n", pa.int32()), ("s", pa.string())]))


def computed(column: Computed, *conditions: Computed) -> list[object]:
    return list(ComputedColumns(ROWS.schema, conditions, {"c": column})(ROWS).column("c").to_pylist())


def test_a_struct_of_constants_is_in_each_row() -> None:
    assert computed(STRUCT) == [{"n": 1, "s": None}] * 3
    assert computed(Call("to_json", (STRUCT,), pa.string())) == ['{"n":1}'] * 3
    assert computed(STRUCT, Call("=", (Given("s"), Constant(pa.scalar("a"))), pa.bool_())) == [{"n": 1, "s": None}]


@pytest.mark.parametrize("function", ["contains", "startswith", "endswith", "like"])
def test_a_pattern_that_is_null_is_met_by_no_text(function: str) -> None:
    for value in (Given("s"), Constant(pa.scalar("a"))):
        assert computed(Call(function, (value, NOTHING), pa.bool_())) == [None] * 3
