"""Updates for a table with one row a key: the last row of each key of a task, as Arrow's IPC bytes for the driver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from roster.pipeline.tasks.writer import conformed
from roster.state.keys import encode_keys

_HELD_BYTES = 32 << 20
"""Bytes of rows after which a task first drops those that a later row of their key replaces."""
_DELETES = "roster deletes"
"""Name of the column that is true for a row that deletes its key."""
_RETRACTED = {b"rows": b"retracted"}
"""Metadata of rows that delete their keys."""


@dataclass(frozen=True)
class Updates:
    """Rows of distinct keys, sorted by key.

    keys: encoded as `encode_keys` does. deletes: true where the key is deleted; the row has only its key columns then.
    """

    keys: pa.Array
    rows: pa.Table
    deletes: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class UpdateWriter:
    """Settings of one batch's updates. `schema` has all columns, `keys` are those that tell rows apart."""

    schema: pa.Schema
    keys: tuple[str, ...]

    def open(self) -> UpdateOutput:
        """Start the output of one attempt of a task."""
        return UpdateOutput(self)

    @property
    def marked(self) -> pa.Schema:
        """The columns with the mark of deletes."""
        return self.schema.append(pa.field(_DELETES, pa.bool_()))


class UpdateOutput:
    """Rows of one attempt of a task."""

    def __init__(self, writer: UpdateWriter) -> None:
        self._writer, self._schema = writer, writer.marked
        self._held: list[pa.RecordBatch] = []
        self._held_bytes, self._most_bytes = 0, _HELD_BYTES

    def write(self, rows: pa.RecordBatch) -> None:
        """Buffer the rows; of each key the last one counts."""
        if not rows.num_rows:
            return
        deletes = pa.array(np.full(rows.num_rows, is_retracted(rows)))
        columns = conformed(rows.replace_schema_metadata(None), self._writer.schema).columns
        self._held.append(pa.RecordBatch.from_arrays([*columns, deletes], schema=self._schema))
        self._held_bytes += rows.nbytes
        if self._held_bytes >= self._most_bytes:
            left = last_of_keys(pa.Table.from_batches(self._held), self._writer.keys)
            self._held, self._held_bytes = left.combine_chunks().to_batches(), left.nbytes
            self._most_bytes = max(_HELD_BYTES, 2 * left.nbytes)

    def close(self) -> bytes | None:
        """Return the rows as IPC bytes; None if there are none."""
        if not self._held:
            return None
        rows = last_of_keys(pa.Table.from_batches(self._held), self._writer.keys).combine_chunks()
        with pa.BufferOutputStream() as out:
            with pa.ipc.new_stream(out, self._schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
                stream.write_table(rows)
            return bytes(out.getvalue())

    def abort(self) -> None:
        """Drop the rows."""
        self._held.clear()


def retracted(keys: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows of these columns that delete keys; other columns than those of `keys` are null."""
    columns = [
        keys[field.name].cast(field.type) if field.name in keys.column_names else pa.nulls(len(keys), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema.with_metadata(_RETRACTED))


def is_retracted(rows: pa.RecordBatch) -> bool:
    """Return True for rows that `retracted` has made."""
    return bool(rows.schema.metadata == _RETRACTED)


def collected(writer: UpdateWriter, results: Iterable[bytes | None], *, empty_is_null: Sequence[str] = ()) -> Updates:
    """Return the updates of a batch from what its tasks returned, in the order of the tasks.

    empty_is_null: columns of text in which the table cannot tell "" from null.
    """
    tables = [pa.ipc.open_stream(result).read_all() for result in results if result is not None]
    rows = pa.concat_tables(tables) if tables else writer.marked.empty_table()
    for name in empty_is_null:
        index = rows.schema.get_field_index(name)
        if pa.types.is_string(rows.schema.field(index).type):
            texts = rows.column(index)
            plain = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
            rows = rows.set_column(index, rows.schema.field(index), plain)
    rows = last_of_keys(rows, writer.keys)
    keys = encode_keys(rows, writer.keys).combine_chunks()
    order = pc.sort_indices(keys)
    rows = rows.take(order).combine_chunks()
    deletes = rows[_DELETES].combine_chunks().to_numpy(zero_copy_only=False)
    return Updates(keys.take(order), rows.drop_columns([_DELETES]), deletes)


def last_of_keys(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the last row of each key, in their order."""
    codes = encode_keys(rows, keys).combine_chunks().dictionary_encode().indices.to_numpy()
    _, last = np.unique(codes[::-1], return_index=True)
    if len(last) == len(codes):
        return rows
    return rows.take(np.sort(len(codes) - 1 - last))
