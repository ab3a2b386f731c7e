"""Values of records as columns: what all formats share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roster.model.arrays import Int64
from roster.pipeline.tasks.missing_values import BAD, READ, Seen, Sought, columns_with_values, merged_seen

PERMISSIVE, FAILFAST = "PERMISSIVE", "FAILFAST"


class BadValuesError(ValueError):
    """Values cannot be read; raised in mode FAILFAST. `rows` has the problem of each such row of `batch`, by number."""

    def __init__(self, text: str, batch: pa.RecordBatch | None = None, rows: Mapping[int, str] | None = None) -> None:
        super().__init__(text)
        self.batch, self.rows = batch, rows or {}


class Read(NamedTuple):
    """The rows of values, the error for bad ones, and their problems by row number in ascending order."""

    rows: pa.RecordBatch
    error: type[BadValuesError]
    bad: Mapping[int, str]


def rows_at_fault(error: Exception, batch: pa.RecordBatch) -> dict[int, Exception]:
    """Return the errors of single rows of a batch, by row number; none if the error does not name its rows."""
    if not isinstance(error, BadValuesError) or error.batch is not batch:
        return {}
    return {row: type(error)(text) for row, text in error.rows.items()}


def in_order(parts: Sequence[pa.RecordBatch], order: Int64, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of all parts by their numbers in `order`, a row of nulls for each -1."""
    if len(parts) == 1 and parts[0].num_rows == len(order):
        return parts[0]
    table = pa.Table.from_batches(parts, schema)
    taken = table.take(pa.array(order, mask=order < 0)).combine_chunks()
    return pa.RecordBatch.from_arrays([column.combine_chunks() for column in taken.columns], schema=schema)


class ValueColumns:
    """Maps record batches to the columns of the values in one of theirs, and kept columns; can be pickled."""

    method: str
    """By which a pipeline has it."""

    def __init__(self, fields: pa.Schema, column: str, mode: str, keep: Sequence[str]) -> None:
        self._names, self._column, self._keep = fields.names, column, list(keep)
        self._is_strict = mode == FAILFAST
        self._sought = [Sought(name) for name in (*fields.names, *keep)]
        self._seen: Seen = {}

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns. Raises BadValuesError for a value that cannot be read, if the mode is FAILFAST."""
        values = batch.column(self._column).cast(pa.binary())
        read = self._read(batch, values)
        if "topic" in batch.schema.names:
            self._seen = merged_seen(self._seen, self._formats(batch.column("topic"), values, read))
        if read.bad and self._is_strict:
            raise read.error(next(iter(read.bad.values())), batch, read.bad)
        columns = [*read.rows.columns, *(batch.column(name) for name in self._keep)]
        result = pa.RecordBatch.from_arrays(columns, [*self._names, *self._keep])
        self._seen = merged_seen(self._seen, columns_with_values(result, self._sought))
        return result

    def _formats(self, topics: pa.Array, values: pa.Array, read: Read) -> Seen:
        """Return which topics have values of the format, and how many values are of another one."""
        has_none = np.zeros(len(values), bool)
        has_none[list(read.bad)] = True
        for column in read.rows.columns if read.bad else ():
            has_none &= np.asarray(column.is_null())
        formats: dict[Sought, int] = {}
        for topic in pc.unique(topics).to_pylist():
            is_given = np.asarray(pc.and_(pc.equal(topics, topic), values.is_valid()))
            if (is_given & ~has_none).any():
                formats[Sought("", READ, (topic,))] = True
            elif is_given.any():
                problem = read.bad[int(np.flatnonzero(is_given)[0])]
                formats[Sought(f"{self.method}: {problem}", BAD, (topic,))] = int(is_given.sum())
        return formats

    def _read(self, batch: pa.RecordBatch, values: pa.Array) -> Read:
        """Return a row for each value; a null one, and one that cannot be read, makes a row of nulls."""
        raise NotImplementedError

    def values_seen(self) -> Seen:
        """Return which columns had a value so far; since the last call, how many values had nothing of the format."""
        values_seen, self._seen = self._seen, {sought: has for sought, has in self._seen.items() if sought.use != BAD}
        return values_seen
