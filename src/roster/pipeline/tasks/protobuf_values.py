"""Protobuf values parsed into columns inside the task by ptars, and by Google's parser to find those it refuses."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roster._errors import one_line
from roster.pipeline.tasks.schema_frames import ANY_ID, CONFLUENT, FRAME, Frames, Key, Known
from roster.pipeline.tasks.value_columns import BadValuesError, Read, ValueColumns, in_order
from roster.schemas.protobuf_schema import make_optional
from roster.wire.avro.defaults import varint
from roster.wire.avro.schema import SchemaError

_END = (1 << 31) - 1
_LONG = 8192
"""Longer values go through Google's parser first: ptars calls itself for each nested group, and a value of 100,000 of
them would end the process."""
_DEEPEST, _MOST = 64, 5_000
"""How deep messages may be nested, and the most fields that one may have, each counted as often as it is used."""
_ANY = Known("", ANY_ID, "")
_KNOWN = re.compile(r"google/(protobuf|type)/(\w+)\.proto")


class ProtobufError(BadValuesError):
    """A value cannot be read as a Protobuf message; raised in mode FAILFAST."""


class Message:
    """A message type of some files, which are given as FileDescriptorProtos in order of their use; can be pickled."""

    def __init__(self, files: Sequence[bytes], name: str) -> None:
        """name: the full name; "": the first message of the last file.

        Raises SchemaError for files that do not fit together, and a message that is missing or that columns cannot be
        made of.
        """
        self._files = tuple(files)
        pool = self._pool()
        file = pool.FindFileByName(_file(files[-1]).name)
        self.name: str = name or next((message.full_name for message in file.message_types_by_name.values()), "")
        try:
            message = pool.FindMessageTypeByName(self.name)
        except KeyError:
            raise SchemaError(f"there is no message {self.name!r} in its files") from None
        _size(message, (), {})
        path: list[int] = []
        while (parent := message.containing_type) is not None:
            path.insert(0, [nested.full_name for nested in parent.nested_types].index(message.full_name))
            message = parent
        path.insert(0, list(message.file.message_types_by_name).index(message.name))
        self.path = path
        """Which message of its file it is, and of those that are in it."""
        self.prefix = b"\0" if path == [0] else b"".join(map(varint, [len(path), *path]))
        """What Confluent's frame names the message by, behind the schema's id."""

    def with_symbols(self, other: Message) -> Message:
        """Return the message with the values of enums that another version of it has, too; itself if it has them."""
        theirs = {name: enum for data in other._all() for name, enum in _enums(_file(data))}
        files, is_new = [], False
        for data in self._files:
            file = _file(data)
            for name, enum in _enums(file):
                known = {value.number for value in enum.value}
                added = [value for value in getattr(theirs.get(name), "value", ()) if value.number not in known]
                enum.value.extend(added)
                is_new |= bool(added)
            files.append(file.SerializeToString())
        try:
            return Message(files, self.name) if is_new else self
        except SchemaError:  # a name that is taken
            return self

    def _pool(self) -> Any:
        from google.protobuf.descriptor_pool import DescriptorPool

        pool, name = DescriptorPool(), ""
        try:
            for data in self._all():
                file = _file(data)
                name = file.name
                if file.syntax == "editions":  # ptars reads none
                    raise SchemaError(f"the file {name!r} has an edition; use syntax = 'proto3' or 'proto2'")
                pool.AddSerializedFile(data)
        except (TypeError, RecursionError) as error:
            raise SchemaError(f"the file {name!r} does not fit the others: {one_line(error, 200)}") from None
        return pool

    def _all(self) -> Iterator[bytes]:
        """Yield the files, each behind those that it imports; those of Google come from their packages."""
        files, visited = {_file(data).name: data for data in self._files}, set[str]()

        def needed(name: str) -> Iterator[bytes]:
            if name in visited:
                return
            visited.add(name)
            data = files[name] if name in files else _of_google(name)
            for dependency in _file(data).dependency:
                yield from needed(dependency)
            yield data

        for name in files:
            yield from needed(name)

    def handler(self, *, with_zeros: bool = False) -> Any:
        """Return what makes record batches of values, and values of record batches. with_zeros: -0.0 is written.

        Raises SchemaError if it can make no columns.
        """
        from ptars import PtarsConfig
        from ptars._lib import ProtoRegistry

        config = PtarsConfig(timestamp_unit="us", duration_unit="us", list_value_name="element", enum_repr="string")
        files = map(_with_presence, self._all()) if with_zeros else self._all()
        try:
            handler = ProtoRegistry(list(files)).create_for_message(self.name, config)
            handler.schema()
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # its panics are none of Exception
            problem = one_line(error, 200).rpartition(" on an `Err` value: ")[2]
            raise SchemaError(f"no columns can be made of {self.name}: {problem}") from None
        return handler

    def descriptor(self) -> Any:
        """Return the descriptor of the message, by Google's own library."""
        return self._pool().FindMessageTypeByName(self.name)

    def parser(self) -> object:
        """Return the class of the message, by Google's own library."""
        from google.protobuf.message_factory import GetMessageClass

        return GetMessageClass(self.descriptor())


def _size(message: Any, inside: tuple[str, ...], done: dict[str, tuple[int, int]]) -> tuple[int, int]:
    """Return the fields and the levels of a message. Raises ValueError if it contains itself, or has too many."""
    name = message.full_name
    if name in inside:
        raise SchemaError(f"{name} contains itself, and columns cannot")
    if name not in done:
        inner = [field.message_type for field in message.fields if field.message_type is not None]
        sizes = [_size(inner_message, (*inside, name), done) for inner_message in inner if len(inside) <= _DEEPEST]
        done[name] = len(message.fields) + sum(count for count, _ in sizes), 1 + max((d for _, d in sizes), default=0)
        if done[name][0] > _MOST or done[name][1] + len(inside) > _DEEPEST:
            raise SchemaError(f"{name} has more than {_MOST} fields, or is nested deeper than {_DEEPEST} levels")
    return done[name]


def _file(data: bytes) -> Any:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        return FileDescriptorProto.FromString(data)
    except (DecodeError, RecursionError):
        raise SchemaError("a schema is not a FileDescriptorProto, or nested too deep") from None


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
    content: bytes = file.SerializeToString()
    return content


def files_of(data: bytes) -> list[bytes]:
    """Return the files of a FileDescriptorSet. Raises SchemaError if it is none."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError

    try:
        return [file.SerializeToString() for file in FileDescriptorSet.FromString(data).file]
    except DecodeError:
        raise SchemaError("descriptors are not a FileDescriptorSet") from None


def renamed(data: bytes, name: str) -> bytes:
    """Return a file under the name by which others import it."""
    file = _file(data)
    file.name = name
    renamed: bytes = file.SerializeToString()
    return renamed


def _of_google(name: str) -> bytes:
    match = _KNOWN.fullmatch(name)
    try:
        module = match and importlib.import_module(f"google.{match[1]}.{match[2]}_pb2")
    except ModuleNotFoundError:
        module = None
    if module is None:
        raise SchemaError(f"the file {name} is missing")
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

    method = "protobuf_columns"

    def __init__(
        self,
        message: Message,
        fields: pa.Schema,
        framing: str,
        column: str,
        mode: str,
        keep: Sequence[str] = (),
        known: Known | None = None,
    ) -> None:
        """known: the schemas of writers by id; None: the id in a frame does not matter."""
        super().__init__(fields, column, mode, keep)
        self._message, self._fields, self._framing = message, fields, framing
        self._known, self._paths = known, dict[Key, list[int]]()
        self._problem = f"the value is no {message.name}"
        self._handler: Any = None
        self._parser: Any = None

    def __getstate__(self) -> Mapping[str, object]:
        """Leave out what only this process has."""
        return self.__dict__ | {"_handler": None, "_parser": None, "_paths": {}}

    def _read(self, batch: pa.RecordBatch, values: pa.Array) -> Read:
        bad: dict[int, str] = {}
        if self._framing == CONFLUENT:
            values, bad = self._unframed(batch, values)
        numbers = np.flatnonzero(values.is_valid())
        numbers = numbers[~np.isin(numbers, list(bad))]
        values = values.take(pa.array(numbers))
        is_long = np.asarray(pc.greater(pc.binary_length(values), _LONG))
        if is_long.any():
            refused = self._written_anew(values.filter(pa.array(is_long))).is_null()
            is_long[is_long] = refused
            bad |= dict.fromkeys(numbers[is_long].tolist(), self._problem)
            numbers, values = numbers[~is_long], values.filter(pa.array(~is_long))
        parts = [self._parsed(values)]
        if parts[0] is None:
            written = self._written_anew(values)
            parts = list(self._in_parts(written.drop_null()))
            is_good = np.asarray(written.is_valid()).copy()
            is_good[is_good] = np.repeat(
                [part is not None for part in parts], [part.num_rows if part else 1 for part in parts]
            )
            bad |= dict.fromkeys(numbers[~is_good].tolist(), self._problem)
            numbers, values = numbers[is_good], written.filter(pa.array(is_good))
        order, kept = np.full(len(batch), -1), [part for part in parts if part is not None]
        order[numbers] = np.arange(len(numbers))
        rows = pa.Table.from_batches(kept).combine_chunks().to_batches() if len(kept) > 1 else kept
        for is_plain in (False, True):  # an enum's unknown value is a field that is unknown
            suspects = sorted(self._suspects(rows[-1])) if rows and len(values) else []
            numbers, values = numbers[suspects], values.take(pa.array(suspects, pa.int64()))
            anew = self._parsed(self._written_anew(values, is_plain=is_plain)) if suspects else None
            if anew is None:
                break
            order[numbers] = sum(part.num_rows for part in rows) + np.arange(len(suspects))
            rows.append(anew)
        return Read(
            in_order([self._typed(part) for part in rows], order, self._fields),
            ProtobufError,
            dict(sorted(bad.items())),
        )

    def _unframed(self, batch: pa.RecordBatch, values: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """Return the messages behind the frames, null without one, and the problems by number."""
        frames = Frames.of(values, self._known or _ANY, batch.select([self._column]))
        bad, begins = dict(frames.bad), np.zeros(len(values), np.int64)
        for key, numbers in frames.by_key():
            try:
                path = self._path(key)
            except SchemaError as error:
                bad |= dict.fromkeys(numbers.tolist(), f"schema {key} does not fit: {error}")
                continue
            framed = values.take(pa.array(numbers))
            for form in _forms(path):
                fits = np.asarray(pc.equal(pc.binary_slice(framed, FRAME, FRAME + len(form)), form))
                begins[numbers[fits]] = FRAME + len(form)
            for number in numbers[begins[numbers] == 0].tolist():
                index, begins[number] = _index(values[number].as_py())
                if index != path:
                    bad[number] = f"the value has no frame of {self._message.name}"
        is_bad = np.zeros(len(values), bool)
        is_bad[list(bad)] = True
        plain = pa.array([None], pa.binary()).take(pa.array(np.zeros(len(values), np.int64)))
        for begin in np.unique(begins[~is_bad]).tolist():
            plain = pc.if_else(pa.array((begins == begin) & ~is_bad), pc.binary_slice(values, begin, _END), plain)
        return plain, bad

    def _path(self, key: Key) -> list[int]:
        """Return which message of a writer's schema is read, whose enums may have new values. Raises SchemaError."""
        if self._known is None:
            return self._message.path
        if key not in self._paths:
            writer = self._known.writer(key, "PROTOBUF")
            try:
                message = Message(writer.files, self._message.name)
            except SchemaError as error:
                raise SchemaError(f"it has no message {self._message.name} ({error})") from None
            self._message, self._paths[key] = self._message.with_symbols(message), message.path
            self._handler = self._parser = None
        return self._paths[key]

    def _in_parts(self, values: pa.Array) -> Iterator[pa.RecordBatch | None]:
        """Yield the rows of values in order, None for each single one that is refused."""
        rows = self._parsed(values)
        if rows is not None or len(values) < 2:
            yield self._parsed(self._written_anew(values, is_plain=True)) if rows is None and len(values) else rows
            return
        half = len(values) // 2
        yield from self._in_parts(values.slice(0, half))
        yield from self._in_parts(values.slice(half))

    def _written_anew(self, values: pa.Array, *, is_plain: bool = False) -> pa.Array:
        """Return the values as Google's own parser reads and writes them, null if it refuses.

        It writes the values of all entries of maps, and one field of a oneof. is_plain: without unknown fields.
        """
        from google.protobuf.message import DecodeError

        if self._parser is None:
            self._parser = self._message.parser()
        written = list[bytes | None]()
        for value in values.to_pylist():
            try:
                message = self._parser.FromString(value)
                if is_plain:
                    message.DiscardUnknownFields()
                written.append(message.SerializePartialToString())
            except DecodeError:
                written.append(None)
        return pa.array(written, pa.binary())

    def _suspects(self, rows: pa.RecordBatch) -> set[int]:
        """Return the numbers of rows that ptars reads otherwise than the specification says."""
        if self._parser is None:
            self._parser = self._message.parser()
        by_name = dict(zip(rows.schema.names, rows.columns, strict=True))
        suspects = _suspects(self._parser.DESCRIPTOR, by_name, np.arange(rows.num_rows))
        return {number for numbers in suspects for number in numbers.tolist()}

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
        return pa.RecordBatch.from_arrays(rows.columns, schema=rows.schema)

    def _typed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with the types of the columns."""
        columns = [rows.column(field.name).cast(field.type) for field in self._fields]
        return pa.RecordBatch.from_arrays(columns, schema=self._fields)


def _forms(path: Sequence[int]) -> list[bytes]:
    """Return the ways in which a serializer names a message: [0] also by a zero alone."""
    written = b"".join(map(varint, [len(path), *path]))
    return [written, b"\0"] if path == [0] else [written]


def _index(value: bytes) -> tuple[list[int] | None, int]:
    """Return the path to a message that a frame names, and where it ends; None for bytes that are none."""
    path, end, count = list[int](), FRAME, 0
    while len(path) <= count:
        number = shift = 0
        while True:
            if end == len(value) or shift > 63:
                return None, end
            number |= (value[end] & 127) << shift
            shift, end = shift + 7, end + 1
            if value[end - 1] < 128:
                break
        number = number >> 1 ^ -(number & 1)
        if not path:
            count = number
        path.append(number)
    return (path[1:] or [0]) if count >= 0 else None, end


def _enums(scope: Any) -> Iterator[tuple[str, Any]]:
    """Yield the enums of a file, with their names in it."""
    messages = [("", scope, scope.message_type)]
    for path, scope_of, inner in messages:  # which grows
        yield from ((f"{path}{enum.name}", enum) for enum in scope_of.enum_type)
        messages += [(f"{path}{message.name}.", message, message.nested_type) for message in inner]


def _suspects(message: Any, by_name: Mapping[str, Any], numbers: Any) -> Iterator[Any]:
    """Yield the numbers of rows in which a oneof has two fields, a map a key twice, or a closed enum a new value."""
    for oneof in message.oneofs:
        if len(oneof.fields) > 1:
            present = sum(np.asarray(by_name[field.name].is_valid()).astype(np.int64) for field in oneof.fields)
            yield numbers[present > 1]
    for field in message.fields:
        values, of_values, inner = by_name[field.name], numbers, field
        if pa.types.is_list(values.type) or pa.types.is_map(values.type):
            parents = np.repeat(np.arange(len(values)), np.diff(np.asarray(values.offsets)))
            of_values = numbers[parents]
            if pa.types.is_map(values.type):
                keys = np.asarray(values.keys.dictionary_encode().indices)
                _, first = np.unique(np.stack([parents, keys]), axis=1, return_index=True)
                yield np.delete(of_values, first)
                inner, values = field.message_type.fields_by_name["value"], values.items
            else:
                values = values.flatten()
        if pa.types.is_struct(values.type):
            parts = dict(zip((field_of.name for field_of in values.type), values.flatten(), strict=True))
            yield from _suspects(inner.message_type, parts, of_values)
        elif inner.enum_type is not None and inner.enum_type.is_closed:
            yield of_values[np.asarray(pc.match_substring_regex(values, r"^-?\d+$").fill_null(False))]
