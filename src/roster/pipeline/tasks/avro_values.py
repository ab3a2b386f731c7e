"""Avro values parsed into columns inside the task, each by the schema of its writer; tasks never ask a registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from roster.pipeline.tasks.schema_frames import Frames, Key, Known
from roster.pipeline.tasks.value_columns import BadValuesError, Read, ValueColumns
from roster.records.native import AVRO, Compiled, kernel
from roster.wire.avro.reader import AvroReader
from roster.wire.avro.schema import SchemaError, Type
from roster.wire.columns.avro_layout import PROBLEMS


class AvroError(BadValuesError):
    """A value cannot be read as Avro of its schema; raised in mode FAILFAST."""


class AvroColumns(ValueColumns):
    """Maps record batches to the columns of the Avro values in one of theirs, and kept columns; can be pickled."""

    method = "avro_columns"

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
        self._programs: dict[Key, tuple[int | None, str]] = {}

    def __getstate__(self) -> Mapping[str, object]:
        """Leave out machine code that is loaded, and what belongs to it."""
        return self.__dict__ | {"_reader": None, "_programs": {}}

    def _read(self, batch: pa.RecordBatch, values: pa.Array) -> Read:
        frames = Frames.of(values, self._known, batch)
        if self._reader is None:
            self._reader = AvroReader(kernel(self._compiled, AVRO), self._schema)
        reader, bad = self._reader, dict(frames.bad)
        programs = np.full(len(frames.keys) + 1, reader.nulls)  # the last one is that of -1
        for number, key in enumerate(frames.keys):
            if key not in self._known.writers and key not in self._known.absent:
                continue
            program, problem = self._program(reader, key)
            if program is not None:
                programs[number] = program
                continue
            rows = np.flatnonzero(frames.numbers == number).tolist()
            bad |= dict.fromkeys(rows, f"{self._known.named(key)} does not fit: {problem}")
        of_rows = programs[frames.numbers]
        starts = np.where(of_rows == reader.nulls, frames.ends, frames.starts)
        decoded = reader.decode(of_rows, frames.data, starts, frames.ends)
        refused = np.flatnonzero(decoded.problems)
        if not self._is_strict and len(refused) + len(bad) < len(values) - values.null_count:
            refused = refused[:0]  # only if all are bad, it matters
        for row, problem, number in zip(refused, decoded.problems[refused], frames.numbers[refused], strict=True):
            reason = f"the value is not Avro of {self._known.named(frames.keys[number])}: {PROBLEMS[problem]}"
            bad[int(row)] = reason
        return Read(decoded.rows, AvroError, dict(sorted(bad.items())))

    def _program(self, reader: AvroReader, key: Key) -> tuple[int | None, str]:
        """Return how a writer's values are read, or why they cannot be."""
        if key not in self._programs:
            try:
                self._programs[key] = reader.program(self._known.avro(key)), ""
            except SchemaError as error:
                self._programs[key] = None, str(error)
        return self._programs[key]
