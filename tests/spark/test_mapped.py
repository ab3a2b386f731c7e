"""What `map_arrow` returns is held against its schema: Spark would read other bytes as if they were what it expects."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest

from roster.spark.mapped import Mapped

NUMBERS = pa.array([1, 2], pa.int64())
TIMES = pa.array([1, 2], pa.timestamp("us", "UTC"))
READ = pa.RecordBatch.from_pydict({"offset": NUMBERS})


def columns(**arrays: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(arrays)


def mapped(result: Any, *wanted: tuple[str, pa.DataType]) -> list[pa.RecordBatch]:
    return list(Mapped(lambda _: result, pa.schema(list(wanted)))(READ))


@pytest.mark.parametrize(
    ("result", "wanted", "message"),
    [
        (columns(b=NUMBERS, a=NUMBERS), [("a", pa.int64()), ("b", pa.int64())], "(b int64, a int64)"),
        (columns(a=TIMES), [("a", pa.int64())], "(a timestamp[us, tz=UTC]), its schema names (a int64)"),
        (columns(a=NUMBERS), [("a", pa.int32())], "(a int64), its schema names (a int32)"),
        (columns(a=TIMES.cast(pa.timestamp("ns", "UTC"))), [("a", TIMES.type)], "(a timestamp[ns, tz=UTC])"),
        (columns(a=NUMBERS), [("a", pa.int64()), ("b", pa.int64())], "(a int64), its schema names (a int64, b int64)"),
        (columns(a=NUMBERS, b=NUMBERS), [("a", pa.int64())], "(a int64, b int64), its schema names (a int64)"),
        (columns(a=pa.array(["x"]).dictionary_encode()), [("a", pa.string())], "dictionary<"),
        (None, [("a", pa.int64())], "returned a NoneType, not a pyarrow.RecordBatch or an iterator of them"),
        ("rows", [("a", pa.int64())], "returned a str, not a pyarrow.RecordBatch"),
        (pa.table({"a": NUMBERS}), [("a", pa.int64())], "returned a Table, not a pyarrow.RecordBatch"),
        ([columns(a=NUMBERS), {"a": [1]}], [("a", pa.int64())], "gave a dict, not a pyarrow.RecordBatch"),
        ([columns(a=NUMBERS), columns(a=TIMES)], [("a", pa.int64())], "(a timestamp[us, tz=UTC])"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
)
def test_other_columns_than_declared_are_named(result: Any, wanted: Any, message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        mapped(result, *wanted)


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        (pa.array(["x"], pa.large_string()), pa.string()),
        (pa.array([b"x"], pa.large_binary()), pa.binary()),
        (pa.array([1], pa.timestamp("us")), TIMES.type),
        (pa.nulls(2), pa.int32()),
        (pa.array([[1]], pa.list_(pa.int64())), pa.list_(pa.field("element", pa.int64(), nullable=False))),
        (pa.array([{"k": None}]), pa.struct([("k", pa.string())])),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), pa.map_(pa.string(), pa.int64())),
    ],
    ids=str,
)
def test_what_spark_reads_alike_passes(column: pa.Array, wanted: pa.DataType) -> None:
    batch = columns(a=column)
    assert mapped(batch, ("a", wanted)) == [batch]
    assert mapped(iter([batch, batch]), ("a", wanted)) == [batch, batch]
    assert mapped([], ("a", wanted)) == []
