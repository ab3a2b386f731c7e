"""Values with schemas, written inside the tasks: columns become keys and values of records."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from roster.pipeline.tasks.result_records import as_records, key_of_records
from roster.records.native import AVRO_ENCODE, Compiled, kernel
from roster.sinks.tasks.sql_values import final_error
from roster.state.byte_slices import Column
from roster.wire.avro.encoder import AvroEncoder
from roster.wire.avro.schema import SchemaError, Type


@dataclass(frozen=True)
class AvroValues:
    """Makes the bytes of values by the compiled loop, null for null; can be pickled."""

    schema: Type
    prefix: bytes
    compiled: Compiled = field(repr=False)

    def encoded(self, values: pa.Array, name: str = "") -> pa.Array:
        """Return the bytes. Raises SchemaError, which names the column, for a value that cannot be written.

        In Confluent's frame the schema "bytes" has no length, as for its clients.
        """
        if self.prefix and self.schema.kind == "bytes" and pa.types.is_binary(values.type):
            return pc.binary_join_element_wise(pa.scalar(self.prefix, pa.binary()), values, pa.scalar(b"", pa.binary()))
        return AvroEncoder(kernel(self.compiled, AVRO_ENCODE), self.schema, self.prefix).encode(values, name)


@dataclass(frozen=True)
class RecordEncoding:
    """How rows become records. `beside`: columns of rows that are not fields of the value."""

    key: AvroValues | None = None
    value: AvroValues | None = None
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


def _written(encoding: AvroValues, values: pa.Array, name: str = "") -> pa.Array:
    try:
        return encoding.encoded(values, name)
    except SchemaError as error:
        raise final_error(str(error)) from None
