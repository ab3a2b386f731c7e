"""Values with schemas, written inside the tasks: columns become keys and values of records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from roster.pipeline.tasks.protobuf_values import Message
from roster.pipeline.tasks.result_records import as_records, json_column, key_of_records
from roster.records.native import AVRO_ENCODE, Compiled, kernel
from roster.sinks.tasks.sql_values import final_error
from roster.state.byte_slices import Column
from roster.wire.avro.encoder import AvroEncoder
from roster.wire.avro.schema import SchemaError, Type


class Encoding(Protocol):
    """Makes the bytes of values, null for null; can be pickled."""

    def encoded(self, values: pa.Array, name: str = "") -> pa.Array:
        """Return the bytes. Raises SchemaError, which names the column, for a value that cannot be written."""


@dataclass(frozen=True)
class AvroValues:
    """Avro, by the compiled loop."""

    schema: Type
    prefix: bytes
    compiled: Compiled = field(repr=False)

    def encoded(self, values: pa.Array, name: str = "") -> pa.Array:
        """Return the bytes. In Confluent's frame the schema "bytes" has no length, as for its clients."""
        if self.prefix and self.schema.kind == "bytes" and pa.types.is_binary(values.type):
            return _behind(self.prefix, values)
        return AvroEncoder(kernel(self.compiled, AVRO_ENCODE), self.schema, self.prefix).encode(values, name)


@dataclass(frozen=True)
class ProtobufValues:
    """Protobuf, by ptars, which leaves out what does not fit: so all is cast and checked before."""

    message: Message
    prefix: bytes
    cached: dict[str, Any] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> Mapping[str, object]:
        """Leave out what only this process has."""
        return self.__dict__ | {"cached": {}}

    def encoded(self, values: pa.Array, name: str = "") -> pa.Array:
        """Return the bytes. Null is a missing field."""
        if not self.cached:
            handlers = {with_zeros: self.message.handler(with_zeros=with_zeros) for with_zeros in (False, True)}
            self.cached.update(handlers=handlers, type=self.message.descriptor())
        if not pa.types.is_struct(values.type):
            raise SchemaError(f"column {name!r}: {values.type} is not a message")
        handler = self.cached["handlers"][_check_message(self.cached["type"], values, "")]
        wanted, columns = handler.schema(), []
        for number, column in enumerate(values.type):
            kind = wanted.field(column.name).type
            try:
                columns.append(values.field(number).cast(kind))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
                problem = str(error).splitlines()[0]
                raise SchemaError(f"column {column.name!r}: it cannot be written as {kind}: {problem}") from None
        if not columns:
            return _behind(self.prefix, pa.array([b""] * len(values), pa.binary()))
        rows = pa.RecordBatch.from_arrays(columns, values.type.names)
        return _behind(self.prefix, handler.record_batch_to_array(rows))


@dataclass(frozen=True)
class JsonValues:
    """JSON by the type that a schema's values have."""

    kind: Any
    prefix: bytes

    def encoded(self, values: pa.Array, name: str = "") -> pa.Array:
        """Return the bytes."""
        text = json_column(values, self.kind, name).cast(pa.binary())
        return _behind(self.prefix, pc.if_else(values.is_valid(), text, pa.scalar(None, pa.binary())))


def _behind(prefix: bytes, values: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(pa.scalar(prefix, pa.binary()), values, pa.scalar(b"", pa.binary()))


def _check_message(message: Any, values: pa.Array, path: str) -> bool:
    """Raise SchemaError for columns that the message has not, null in lists, and names that an enum has not.

    Return whether there is a -0.0.
    """
    has_zero = False
    for number, column in enumerate(values.type):
        name, column_values = f"{path}{column.name}", values.field(number)
        field_ = message.fields_by_name.get(column.name)
        if field_ is None:
            raise SchemaError(f"column {name!r}: {message.full_name} has no such field")
        inner = field_.message_type
        if pa.types.is_map(column_values.type) and inner is not None and inner.GetOptions().map_entry:
            field_, inner = inner.fields_by_name["value"], inner.fields_by_name["value"].message_type
            column_values = _without_null(column_values.items, name)
        elif pa.types.is_list(column_values.type):
            column_values = _without_null(column_values.flatten(), name)
        if inner is not None and pa.types.is_struct(column_values.type):
            has_zero |= _check_message(inner, column_values, f"{name}.")
        elif not (pa.types.is_null(column_values.type) or _takes(field_, column_values.type)):
            raise SchemaError(
                f"column {name!r}: {column_values.type} is not written as such a field of {message.full_name}"
            )
        elif field_.enum_type is not None:
            names = pa.array(field_.enum_type.values_by_name, pa.string())
            lost = column_values.filter(
                pc.and_(column_values.is_valid(), pc.invert(pc.is_in(column_values.cast(pa.string()), names)))
            )
            if len(lost):
                raise SchemaError(f"column {name!r}: {field_.enum_type.full_name} has no {lost[0].as_py()!r}")
        elif pa.types.is_floating(column_values.type) and not has_zero:
            bits = column_values.type.bit_width
            has_zero = pc.any(pc.equal(column_values.view(f"int{bits}"), -(1 << (bits - 1)))).as_py() is True
    return has_zero


def _takes(field_: Any, kind: pa.DataType) -> bool:
    """Return whether a cast to a field's type keeps the values, or refuses them."""
    if field_.type in (field_.TYPE_STRING, field_.TYPE_ENUM):
        is_decimal = pa.types.is_decimal(kind) and field_.type == field_.TYPE_STRING
        return is_decimal or kind in (pa.string(), pa.large_string())
    if field_.type == field_.TYPE_BYTES:
        return kind in (pa.binary(), pa.large_binary())
    if field_.type in (field_.TYPE_BOOL, field_.TYPE_FLOAT):
        return bool(kind == (pa.bool_() if field_.type == field_.TYPE_BOOL else pa.float32()))
    is_whole = pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale == 0)
    is_wide = field_.type == field_.TYPE_DOUBLE and pa.types.is_floating(kind)
    return field_.message_type is not None or is_whole or is_wide


def _without_null(items: pa.Array, name: str) -> pa.Array:
    if items.null_count:
        raise SchemaError(f"column {name!r}: a list or map has a null, which Protobuf cannot have")
    return items


@dataclass(frozen=True)
class RecordEncoding:
    """How rows become records. `beside`: columns of rows that are not fields of the value."""

    key: Encoding | None = None
    value: Encoding | None = None
    beside: tuple[str, ...] = ()

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with their keys and values encoded. Raises WriteError."""
        columns = {name: rows.column(name) for name in self.beside if name in rows.schema.names}
        if self.key is not None:
            columns["key"] = _written(self.key, columns["key"], "key")
        if self.value is not None:
            fields = rows.select([name for name in rows.schema.names if name not in self.beside])
            columns["value"] = _written(self.value, fields.to_struct_array())
        return pa.RecordBatch.from_pydict(columns)

    def as_records(self, results: pa.Table, keys: Sequence[str]) -> tuple[Column, Column]:
        """Return keys and values of the records for the results of a stateful operator. Raises WriteError."""
        if self.value is not None:
            return self.keys(results, keys), _written(self.value, _structs(results))
        columns, values = as_records(results, keys)
        return columns if self.key is None else self.keys(results, keys), values

    def keys(self, rows: pa.Table, keys: Sequence[str]) -> Column:
        """Return the records' keys: of one column its values, of several a record of them."""
        if self.key is None:
            return key_of_records(rows, keys)
        if not keys:
            return pa.nulls(len(rows), pa.binary())
        values = rows[keys[0]].combine_chunks() if len(keys) == 1 else _structs(rows.select(list(keys)))
        return _written(self.key, values, keys[0])


class OwnRecords(RecordEncoding):
    """Results that have the columns of records: a value, and perhaps a key."""

    def as_records(self, results: pa.Table, keys: Sequence[str]) -> tuple[Column, Column]:
        """Return these columns."""
        has_key = "key" in results.column_names
        return results["key"] if has_key else pa.chunked_array([pa.nulls(len(results), pa.binary())]), results["value"]


AS_JSON = RecordEncoding()
"""Rows with a key and a value of their own, and results as JSON."""


def _structs(rows: pa.Table) -> pa.Array:
    return pa.concat_arrays(
        [batch.to_struct_array() for batch in rows.to_batches()] or [pa.array([], pa.struct(list(rows.schema)))]
    )


def _written(encoding: Encoding, values: pa.Array, name: str = "") -> pa.Array:
    try:
        return encoding.encoded(values, name)
    except SchemaError as error:
        raise final_error(str(error)) from None
