"""A processor that works with rows, as given to PySpark's `transformWithState`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.types import Row
from typing_extensions import override

from roster.spark.processor.code import Given, ProcessorCode
from roster.spark.processor.handle import SchemaReader, make_row
from roster.state.processor.results import Rows


class RowCode(ProcessorCode):
    """Passes Rows of all columns; takes Rows of the output schema."""

    def __init__(self, given: Given, reader: SchemaReader | None = None) -> None:
        super().__init__(given, Rows(given.output), reader)
        self._names: list[str] = []
        self._values: list[tuple[Any, ...]] = []

    @override
    def give(self, table: pa.Table) -> None:
        local = in_zone(table, self._given.zone)
        self._names = list(local.column_names)
        self._values = list(zip(*(column.to_pylist() for column in local.columns), strict=True))

    @override
    def given(self, begin: int, end: int) -> Iterator[Row]:
        names = self._names
        return (make_row(names, values) for values in self._values[begin:end])

    @override
    def initial(self, table: pa.Table) -> Iterator[Row]:
        local = in_zone(table, self._given.zone)
        columns = [column.to_pylist() for column in local.columns]
        return (make_row(local.column_names, values) for values in zip(*columns, strict=True))


def in_zone(table: pa.Table, zone: str) -> pa.Table:
    """Return the table with zoned times converted to this zone, those inside nested values too."""
    return table.cast(pa.schema([field.with_type(_in_zone(field.type, zone)) for field in table.schema]))


def _in_zone(kind: pa.DataType, zone: str) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit, zone) if kind.tz else kind
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_zone(field.type, zone)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(*(field.with_type(_in_zone(field.type, zone)) for field in (kind.key_field, kind.item_field)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_zone(kind.value_type, zone)))
    return kind
