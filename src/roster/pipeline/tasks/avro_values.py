"""Avro values parsed into columns inside the task, each by the schema of its writer, whose id is in a frame or header.

Tasks never ask a registry.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roster.model.arrays import Int64
from roster.pipeline.errors import MissingSchemasError
from roster.pipeline.tasks.value_columns import BadValuesError, Read, ValueColumns
from roster.records.native import AVRO, Compiled, kernel
from roster.state.byte_slices import Bytes
from roster.wire.avro.reader import AvroReader
from roster.wire.avro.schema import SchemaError, Type, parse
from roster.wire.columns.avro_layout import PROBLEMS

CONFLUENT, BARE = "confluent", "none"
Key: TypeAlias = int | str
"""A schema's id, or its GUID as text."""
ONLY: Key = 0
"""Key of the only schema of values without a frame."""
_HEADERS = {"value": "__value_schema_id", "key": "__key_schema_id"}
_MOST_ASKED, _MOST_ABSENT, _ABSENT_SECONDS = 100, 1_000, 300.0
"""Of how many unknown schemas of one batch the registry is asked at a time, how many that it does not have are known,
and how long: others are bad meanwhile, so that random ids do not keep it busy."""
_FRAME = 5
"""Bytes of Confluent's frame: a zero, and the id."""


def framed(key: int) -> bytes:
    """Return what a value in Confluent's frame begins with."""
    return b"\0" + key.to_bytes(4)


class Writer(NamedTuple):
    """A schema that values were written by."""

    kind: str
    text: str
    references: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Known:
    """The schemas that tasks know, and the ids that the registry does not have; the driver adds to them.

    name: by which the driver finds where to ask for others; "" if there is nowhere. column: of the values. absent: when
    the registry may be asked again for each such id, on the driver's monotonic clock.
    """

    name: str
    framing: str
    column: str
    writers: dict[Key, Writer] = field(default_factory=dict)
    absent: dict[Key, float] = field(default_factory=dict)

    def __getstate__(self) -> Mapping[str, object]:
        """Forget what the registry is to be asked for again."""
        now = time.monotonic()
        for key in [key for key, until in self.absent.items() if until < now]:
            del self.absent[key]
        return self.__dict__

    def note_absent(self, keys: Sequence[Key]) -> None:
        """Know that the registry does not have schemas."""
        self.absent.update(dict.fromkeys(keys, time.monotonic() + _ABSENT_SECONDS))

    def to_ask(self, keys: Sequence[Key]) -> list[Key]:
        """Return for which of these unknown schemas, the most important ones first, the registry is asked."""
        return list(keys)[: max(0, min(_MOST_ASKED, _MOST_ABSENT - len(self.absent)))]

    def avro(self, key: Key) -> Type:
        """Return an Avro schema. Raises SchemaError."""
        writer = self.writers.get(key)
        if writer is None:
            raise SchemaError("the registry does not have it")
        if writer.kind != "AVRO":
            raise SchemaError(f"it is of type {writer.kind}")
        return parse(writer.text, writer.references)

    def named(self, key: Key) -> str:
        """Return what an error calls a schema."""
        return "the schema" if self.framing == BARE else f"schema {key}"


class Frames(NamedTuple):
    """Values without their frames: `keys` of each by number in `known`, -1 for null and bad ones."""

    data: Bytes
    starts: Int64
    ends: Int64
    numbers: Int64
    keys: list[Key]
    bad: Mapping[int, str]

    @classmethod
    def of(cls, values: pa.Array, known: Known, batch: pa.RecordBatch) -> Frames:
        """Read the frames of binary values, and ids in headers. Raises MissingSchemasError for unknown ids."""
        count, (_, ends_buffer, data_buffer) = len(values), values.buffers()
        ends = np.frombuffer(ends_buffer, np.int32)[values.offset : values.offset + count + 1].astype(np.int64)
        data = np.frombuffer(data_buffer if data_buffer is not None and data_buffer.size else b"\0", np.uint8)
        starts, ends = ends[:-1], ends[1:]
        is_null = np.asarray(values.is_null())
        if known.framing == BARE:
            return cls(data, starts, ends, np.where(is_null, -1, 0), [ONLY], {})
        has_frame = ~is_null & (ends - starts >= _FRAME)
        has_frame &= data[np.where(has_frame, starts, 0)] == 0
        rows = np.flatnonzero(has_frame)
        ids, numbers = _distinct(_ids(data, starts[rows]))
        keys: list[Key] = [int(number) for number in ids]
        number_of = np.full(count, -1)
        number_of[rows] = numbers
        begins = starts + _FRAME
        for key, rows_of_key in _in_headers(batch, known.column):
            number_of[rows_of_key], begins[rows_of_key] = len(keys), starts[rows_of_key]
            keys.append(key)
        number_of[is_null] = -1
        counts = np.bincount(number_of[number_of >= 0], minlength=len(keys))
        unknown = [
            n for n, key in enumerate(keys) if counts[n] and key not in known.writers and key not in known.absent
        ]
        if unknown and known.name:
            keys_to_ask = known.to_ask(
                [keys[number] for number in sorted(unknown, key=lambda n: (-counts[n], _rank(keys[n])))]
            )
            if keys_to_ask:
                raise MissingSchemasError(known.name, keys_to_ask)
        unframed = np.flatnonzero((number_of < 0) & ~is_null).tolist()
        bad = dict.fromkeys(unframed, f"the value does not begin with a frame ({known.framing})")
        for number in unknown:
            bad |= dict.fromkeys(np.flatnonzero(number_of == number).tolist(), f"schema {keys[number]} is not known")
        number_of[np.isin(number_of, unknown)] = -1
        return cls(data, begins, ends, number_of, keys, bad)


def _rank(key: Key) -> int:
    """Return the number by which equally frequent schemas are in order: registries count ids up from 1."""
    return key & 0xFFFFFFFF if isinstance(key, int) else 0


def _distinct(ids: Int64) -> tuple[Int64, Int64]:
    """Return the ids, each once, and for each value the number of its own."""
    if len(ids) and (ids == ids[0]).all():
        return ids[:1], np.zeros(len(ids), np.int64)
    return np.unique(ids, return_inverse=True)


def _ids(data: Bytes, starts: Int64) -> Int64:
    """Return the ids in frames, big-endian in 4 bytes."""
    if not len(starts):
        return np.zeros(0, np.int64)
    kind = np.dtype(">i4")
    numbers = np.ndarray((len(data) - kind.itemsize + 1,), kind, data, strides=(1,))  # one begins at each byte
    ids: Int64 = numbers[starts + 1].astype(np.int64)
    return ids


def _in_headers(batch: pa.RecordBatch, column: str) -> Iterator[tuple[Key, Int64]]:
    """Yield the keys in headers, where Confluent's newer serializers put them, and the numbers of their rows."""
    if "headers" not in batch.schema.names or column not in _HEADERS:
        return
    headers = batch.column("headers")
    parents, flat = pc.list_parent_indices(headers), headers.flatten()
    is_id = pc.equal(flat.field("key"), _HEADERS[column])
    rows = np.asarray(parents.filter(is_id))
    ids = flat.field("value").filter(is_id).dictionary_encode()
    for number, text in enumerate(ids.dictionary.to_pylist()):
        key: Key | None = None
        if len(text) == 17 and text[0] == 1:
            key = str(uuid.UUID(bytes=text[1:]))
        elif len(text) == 5 and text[0] == 0:
            key = int.from_bytes(text[1:])
        if key is not None:
            yield key, rows[np.flatnonzero(np.asarray(ids.indices) == number)]


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
