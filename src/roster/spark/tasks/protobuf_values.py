"""Protobuf values parsed into columns inside the task by ptars, and by Google's parser to find those it refuses."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roster.schemas.protobuf_schema import make_optional
from roster.spark.tasks.schema_frames import CONFLUENT
from roster.spark.tasks.value_columns import BadValuesError, Read, ValueColumns, in_order
from roster.wire.avro.defaults import varint

_END = (1 << 31) - 1
_LONG = 8192
"""Longer values go through Google's parser first: ptars calls itself for each nested group, and a value of 100,000 of
them would end the process."""
_KNOWN = re.compile(r"google/(protobuf|type)/(\w+)\.proto")


class ProtobufError(BadValuesError):
    """A value cannot be read as a Protobuf message; raised in mode FAILFAST."""


class Message:
    """A message type of some files, which are given as FileDescriptorProtos in order of their use; can be pickled."""

    def __init__(self, files: Sequence[bytes], name: str) -> None:
        """name: the full name; "": the first message of the last file.

        Raises KeyError without it, TypeError for files that do not fit, ValueError for a message that contains itself.
        """
        self._files = tuple(files)
        file = self._pool().FindFileByName(_file(files[-1]).name)
        self.name: str = name or next((each.full_name for each in file.message_types_by_name.values()), "")
        found = self._pool().FindMessageTypeByName(self.name)
        _check_depth(found, ())
        path: list[int] = []
        while (parent := found.containing_type) is not None:
            path.insert(0, [each.full_name for each in parent.nested_types].index(found.full_name))
            found = parent
        path.insert(0, list(found.file.message_types_by_name).index(found.name))
        self.prefix = b"\0" if path == [0] else b"".join(map(varint, [len(path), *path]))
        """What Confluent's frame names the message by, behind the schema's id."""

    def _pool(self) -> Any:
        from google.protobuf.descriptor_pool import DescriptorPool  # noqa: PLC0415 - an extra

        pool = DescriptorPool()
        for data in self._all():
            pool.AddSerializedFile(data)
        return pool

    def _all(self) -> Iterator[bytes]:
        """Yield the files, each behind those that it imports; those of Google come from their packages."""
        given, seen = {_file(data).name: data for data in self._files}, set[str]()

        def needed(name: str) -> Iterator[bytes]:
            if name in seen:
                return
            seen.add(name)
            data = given[name] if name in given else _of_google(name)
            for each in _file(data).dependency:
                yield from needed(each)
            yield data

        for name in given:
            yield from needed(name)

    def handler(self, *, with_zeros: bool = False) -> Any:
        """Return what makes record batches of values, and values of record batches. with_zeros: -0.0 is written."""
        from ptars import PtarsConfig  # noqa: PLC0415 - an extra
        from ptars._lib import ProtoRegistry  # noqa: PLC0415

        config = PtarsConfig(timestamp_unit="us", duration_unit="us", list_value_name="element", enum_repr="string")
        files = map(_with_presence, self._all()) if with_zeros else self._all()
        return ProtoRegistry(list(files)).create_for_message(self.name, config)

    def descriptor(self) -> Any:
        """Return the descriptor of the message, by Google's own library."""
        return self._pool().FindMessageTypeByName(self.name)

    def parser(self) -> Any:
        """Return the class of the message, by Google's own library."""
        from google.protobuf.message_factory import GetMessageClass  # noqa: PLC0415 - an extra

        return GetMessageClass(self.descriptor())


def _check_depth(message: Any, inside: tuple[str, ...]) -> None:
    """Raise ValueError if a message contains itself."""
    if message.full_name in inside:
        raise ValueError(f"{message.full_name} contains itself, and columns cannot")
    for field in message.fields:
        if field.message_type is not None:
            _check_depth(field.message_type, (*inside, message.full_name))


def _file(data: bytes) -> Any:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto  # noqa: PLC0415 - an extra

    return FileDescriptorProto.FromString(data)


def _with_presence(data: bytes) -> bytes:
    """Return a file in which each fraction is `optional`: ptars leaves -0.0 out of other fields, as if it were 0."""
    file = _file(data)
    messages = list(file.message_type) if file.syntax == "proto3" else []
    for message in messages:  # which grows
        messages += message.nested_type
        for field in () if message.options.map_entry else message.field:
            is_fraction = field.type in (field.TYPE_DOUBLE, field.TYPE_FLOAT) and field.label != field.LABEL_REPEATED
            if is_fraction and not field.HasField("oneof_index"):
                make_optional(message, field)
    made: bytes = file.SerializeToString()
    return made


def files_of(data: bytes) -> list[bytes]:
    """Return the files of a FileDescriptorSet. Raises ValueError if it is none."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet  # noqa: PLC0415 - an extra
    from google.protobuf.message import DecodeError  # noqa: PLC0415

    try:
        return [each.SerializeToString() for each in FileDescriptorSet.FromString(data).file]
    except DecodeError:
        raise ValueError("descriptors are no FileDescriptorSet") from None


def renamed(data: bytes, name: str) -> bytes:
    """Return a file under the name by which others import it."""
    file = _file(data)
    file.name = name
    renamed: bytes = file.SerializeToString()
    return renamed


def _of_google(name: str) -> bytes:
    found = _KNOWN.fullmatch(name)
    if found is None:
        raise KeyError(f"the file {name} is missing")
    module = importlib.import_module(f"google.{found[1]}.{found[2]}_pb2")
    data: bytes = module.DESCRIPTOR.serialized_pb
    return data


def as_spark(kind: pa.DataType) -> pa.DataType:
    """Return Spark's type for one of ptars': those without a sign become wider ones, as Spark upcasts them."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(as_spark(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(as_spark(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(as_spark(kind.key_type), as_spark(kind.item_type))
    wider = {pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0)}
    return wider.get(kind, kind)


class ProtobufColumns(ValueColumns):
    """Maps record batches to the fields of the Protobuf messages in a column, and kept columns; can be pickled."""

    def __init__(
        self, message: Message, fields: pa.Schema, framing: str, column: str, mode: str, keep: Sequence[str] = ()
    ) -> None:
        super().__init__(fields, column, mode, keep)
        self._message, self._fields, self._framing = message, fields, framing
        self._problem = f"the value is no {message.name}"
        self._handler: Any = None
        self._parser: Any = None

    def __getstate__(self) -> Mapping[str, Any]:
        """Leave out what only this process has."""
        return self.__dict__ | {"_handler": None, "_parser": None}

    def _read(self, _: pa.RecordBatch, values: pa.Array) -> Read:
        bad: dict[int, str] = {}
        if self._framing == CONFLUENT:
            begin = 5 + len(self._message.prefix)
            fits = pc.equal(pc.binary_slice(values, 0, 1), b"\0")
            fits = pc.and_(fits, pc.equal(pc.binary_slice(values, 5, begin), self._message.prefix))
            other = np.flatnonzero(np.asarray(pc.invert(fits).fill_null(False)))
            bad = dict.fromkeys(other.tolist(), f"the value has no frame of {self._message.name}")
            values = pc.binary_slice(values, begin, _END)
        is_good = np.array(values.is_valid())
        is_good[list(bad)] = False
        parts: list[pa.RecordBatch | None] = [None]
        for suspects in (pc.greater(pc.binary_length(values), _LONG).fill_null(False), values.is_valid()):
            bad |= self._refused(values, np.flatnonzero(is_good & np.asarray(suspects)))
            is_good[list(bad)] = False
            parts = [self._parsed(values.filter(pa.array(is_good)))]
            if parts[0] is not None:
                break
        else:
            rows = np.flatnonzero(is_good).tolist()
            parts = [self._parsed(values.slice(row, 1)) for row in rows]
            bad |= {row: self._problem for row, part in zip(rows, parts, strict=True) if part is None}
            is_good[list(bad)] = False
        order = np.where(is_good, np.cumsum(is_good) - 1, -1)
        kept = [part for part in parts if part is not None]
        return Read(in_order(kept, order, self._fields), ProtobufError, dict(sorted(bad.items())))

    def _parsed(self, values: pa.Array) -> pa.RecordBatch | None:
        """Return the rows of values; None if one of them is refused."""
        if self._handler is None:
            self._handler = self._message.handler()
        try:
            rows = self._handler.array_to_record_batch(values)
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException:  # its panics are none of Exception
            return None
        columns = [rows.column(field.name).cast(field.type) for field in self._fields]
        return pa.RecordBatch.from_arrays(columns, schema=self._fields)

    def _refused(self, values: pa.Array, rows: Any) -> dict[int, str]:
        """Return the problems of values that Google's own parser refuses."""
        from google.protobuf.message import DecodeError  # noqa: PLC0415 - an extra

        if self._parser is None:
            self._parser = self._message.parser()
        refused: dict[int, str] = {}
        for row, value in zip(rows.tolist(), values.take(pa.array(rows)).to_pylist(), strict=True):
            try:
                self._parser.FromString(value)
            except DecodeError:
                refused[row] = self._problem
        return refused
