"""A processor that works with rows, as given to PySpark's `transformWithState`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.types import Row
from typing_extensions import override

from roster.spark.state.processor.code import Given, ProcessorCode
from roster.spark.state.processor.handle import SchemaReader, make_row
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
    """Return the table with zoned times converted to this zone."""
    for place, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz not in (None, zone):
            kind = pa.timestamp(field.type.unit, zone)
            table = table.set_column(place, field.name, table.column(place).cast(kind))
    return table
