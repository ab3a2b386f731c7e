"""Avro values parsed into columns inside the task, each by the schema of its writer; tasks never ask a registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from roster.records.native import AVRO, Compiled, kernel
from roster.spark.tasks.schema_frames import Frames, Key, Known
from roster.spark.tasks.value_columns import BadValuesError, Read, ValueColumns, in_order
from roster.wire.avro.program import Program
from roster.wire.avro.reader import AvroReader
from roster.wire.avro.schema import SchemaError, Type
from roster.wire.columns.avro_layout import PROBLEMS


class AvroError(BadValuesError):
    """A value cannot be read as Avro of its schema; raised in mode FAILFAST."""


class AvroColumns(ValueColumns):
    """Maps record batches to the columns of the Avro values in one of theirs, and kept columns; can be pickled."""

    def __init__(
        self,
        schema: Type,
        fields: pa.Schema,
        known: Known,
        compiled: Compiled,
        column: str,
        mode: str,
        keep: Sequence[str] = (),
    ) -> None:
        super().__init__(fields, column, mode, keep)
        self._schema, self._known, self._compiled = schema, known, compiled
        self._reader: AvroReader | None = None
        self._programs: dict[Key, tuple[Program | None, str]] = {}

    def __getstate__(self) -> Mapping[str, Any]:
        """Leave out machine code that is loaded, and what belongs to it."""
        return self.__dict__ | {"_reader": None, "_programs": {}}

    def _read(self, batch: pa.RecordBatch, values: pa.Array) -> Read:
        frames = Frames.of(values, self._known, batch)
        if self._reader is None:
            self._reader = AvroReader(kernel(self._compiled, AVRO), self._schema)
        bad = dict(frames.bad)
        parts, order, count = [], np.full(len(values), -1, np.int64), 0
        for key, rows in frames.by_key():
            program, problem = self._program(self._reader, key)
            if program is None:
                bad |= dict.fromkeys(rows.tolist(), f"{self._known.named(key)} does not fit: {problem}")
                continue
            places = frames.starts, frames.ends
            if len(rows) < len(values):
                places = frames.starts[rows], frames.ends[rows]
            found = self._reader.decode(program, frames.data, *places)
            if found.rows.num_rows == len(values):
                return Read(found.rows, AvroError, {})
            good = rows[found.problems == 0]
            order[good] = np.arange(count, count + len(good))
            count += len(good)
            parts.append(found.rows)
            for problem in np.unique(found.problems[found.problems > 0]).tolist():
                told = f"the value is no Avro of {self._known.named(key)}: {PROBLEMS[problem]}"
                bad |= dict.fromkeys(rows[found.problems == problem].tolist(), told)
        return Read(in_order(parts, order, self._reader.schema), AvroError, dict(sorted(bad.items())))

    def _program(self, reader: AvroReader, key: Key) -> tuple[Program | None, str]:
        """Return how a writer's values are read, or why they cannot be."""
        if key not in self._programs:
            try:
                self._programs[key] = reader.program(self._known.avro(key)), ""
            except SchemaError as error:
                self._programs[key] = None, str(error)
        return self._programs[key]
