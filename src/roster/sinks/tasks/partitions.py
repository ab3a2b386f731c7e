"""Rows split by the values of partition columns, and the folders that Spark gives them."""

import datetime
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roster.pipeline.errors import PipelineError
from roster.pipeline.spark_types import StructType

NULL = "__HIVE_DEFAULT_PARTITION__"
"""Folder of null and of the empty string, which Spark treats alike."""

_ESCAPED = {*map(chr, range(1, 32)), *"\"#%'*/:=?[\\]^{\x7f"}
_PLAIN = frozenset({"boolean", "byte", "short", "integer", "long", "string", "date"})
"""Spark's names of the types whose text is the same here as in Spark, whatever the session's settings."""


def check_partition_by(names: Sequence[str], schema: StructType) -> None:
    """Raise PipelineError if rows of these columns cannot be partitioned by these names."""
    for name in names:
        if name not in schema.names:
            problem = f"the rows have no column `{name}` (they have {', '.join(schema.names)})"
            raise PipelineError(problem, field="partition_by", fix="Name one of these")
    if names and len(names) == len(schema.names):
        raise PipelineError("all columns partition the output", field="partition_by", fix="Leave one out")


def check_partition_types(names: Sequence[str], schema: StructType) -> None:
    """Raise PipelineError unless values of these columns become the same folders here as in Spark."""
    for name in names:
        if (kind := schema[name].dataType.typeName()) not in _PLAIN:
            raise PipelineError(
                f"column `{name}` is {kind}: only text, whole numbers, dates and booleans partition a table",
                field="partition_by",
                fix="Add such a column, for example the day of a timestamp",
            )


def escaped(text: str) -> str:
    """Return a column's name or value as part of a folder's name, with Hive's %XX escapes."""
    return "".join(f"%{ord(c):02X}" if c in _ESCAPED else c for c in text)


def folder(names: Sequence[str], values: Sequence[object]) -> str:
    """Return the folders of a partition: `day=2024-01-01/shop=7`."""
    texts = [value_text(value) for value in values]
    shown = [NULL if text is None else escaped(text) for text in texts]
    return "/".join(f"{escaped(name)}={text}" for name, text in zip(names, shown, strict=True))


def value_text(value: object) -> str | None:
    """Return a partition's value as text, as Spark and Delta's protocol have it: None for null and the empty text."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, datetime.date) else str(value)


def split(rows: pa.Table, names: Sequence[str]) -> Iterator[tuple[tuple[object, ...], pa.Table]]:
    """Yield each combination of the columns' values with its rows in order, without those columns."""
    codes = np.zeros(rows.num_rows, np.int64)
    for name in names:
        encoded = pc.dictionary_encode(rows.column(name).combine_chunks(), null_encoding="encode")
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy(zero_copy_only=False)
        # Renumber densely, so that a product over many columns does not overflow.
        codes = np.unique(codes, return_inverse=True)[1]
    order = np.argsort(codes, kind="stable")
    ends = np.flatnonzero(np.diff(codes[order], append=-1)) + 1
    rest = rows.drop_columns(list(names))
    start = 0
    for end in ends.tolist():
        first = int(order[start])
        values = tuple(rows.column(name)[first].as_py() for name in names)
        yield values, rest if end - start == rows.num_rows else rest.take(pa.array(order[start:end]))
        start = end
