"""What a `map_arrow` function gives back, held against the schema it was declared with."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from roster.spark.errors import PipelineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
"""PySpark before 4.2 takes no time zone here and means UTC."""


class Mapped:
    """The function with a check behind it: Spark takes Arrow columns by position and reads their bytes as declared."""

    def __init__(
        self, function: Callable[[pa.RecordBatch], pa.RecordBatch | Iterator[pa.RecordBatch]], schema: pa.Schema
    ) -> None:
        self._function, self._schema = function, schema
        self._wanted = _shape(pa.struct(list(schema)))

    def __call__(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The function's record batches; TypeError if one does not have the declared columns."""
        mapped = self._function(batch)
        if isinstance(mapped, pa.RecordBatch):
            mapped = iter((mapped,))
        elif not hasattr(mapped, "__iter__") or isinstance(mapped, (str, bytes, pa.Table)):
            raise TypeError(
                f"map_arrow: the function returned a {type(mapped).__name__}, "
                "not a pyarrow.RecordBatch or an iterator of them"
            )
        known = None
        for result in mapped:
            if not isinstance(result, pa.RecordBatch):
                raise TypeError(f"map_arrow: the function gave a {type(result).__name__}, not a pyarrow.RecordBatch")
            if known is None or not result.schema.equals(known):
                self._check(result.schema)
                known = result.schema
            yield result

    def _check(self, schema: pa.Schema) -> None:
        if not _fits(_shape(pa.struct(list(schema))), self._wanted):
            raise TypeError(
                f"map_arrow: the function returned the columns ({_text(schema)}), "
                f"its schema names ({_text(self._schema)})"
            )


def arrow_schema(schema: str | StructType) -> pa.Schema:
    """The Arrow columns that Spark expects for a schema; PipelineError if it is none. Needs a Spark session."""
    try:
        struct = schema if isinstance(schema, StructType) else StructType.fromDDL(schema)
        if not isinstance(struct, StructType):
            raise TypeError(f"it is one {struct.simpleString()} without a name")
        return to_arrow_schema(struct, **_UTC)
    except (PySparkException, TypeError) as error:
        problem = " ".join(str(error).split("\n\n")[0].split())
        raise PipelineError(
            f"{schema!r} is not a schema: {problem}", field="map_arrow", fix="For example 'key binary, n long'"
        ) from None


def _shape(kind: pa.DataType) -> Any:
    """A type with what Spark does not look at taken out: the width of offsets, a time's zone, names inside lists."""
    if pa.types.is_struct(kind):
        return ("struct", tuple((kind.field(n).name, _shape(kind.field(n).type)) for n in range(kind.num_fields)))
    if pa.types.is_list(kind):
        return ("list", _shape(kind.value_type))
    if pa.types.is_map(kind):
        return ("map", _shape(kind.key_type), _shape(kind.item_type))
    if pa.types.is_timestamp(kind):
        return ("timestamp", kind.unit)
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    return kind


def _fits(given: Any, wanted: Any) -> bool:
    """Equal, or a column of nothing but nulls where anything may be."""
    if given == pa.null():
        return True
    if isinstance(given, tuple) and isinstance(wanted, tuple) and len(given) == len(wanted):
        return all(_fits(one, other) for one, other in zip(given, wanted, strict=True))
    return bool(given == wanted)


def _text(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in schema)
