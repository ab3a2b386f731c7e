"""Schemas as a user of Spark writes them, and their columns in Arrow."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from roster.spark.errors import PipelineError

_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
"""PySpark before 4.2 takes no time zone here and means UTC."""


def arrow_schema(schema: str | StructType) -> pa.Schema:
    """Return the Arrow columns that Spark expects for a schema; needs a Spark session.

    Raises PipelineError if it is not a schema.
    """
    struct = as_struct(schema)
    try:
        return to_arrow_schema(struct, **_UTC)
    except (PySparkException, TypeError) as error:
        raise _no_schema(schema, error) from None


def as_struct(schema: str | StructType, field: str = "map_arrow") -> StructType:
    """Return the columns as Spark's type; needs a Spark session. Raise PipelineError if it is not a schema."""
    try:
        if not isinstance(schema, StructType | str):
            raise TypeError("it is neither text nor a StructType")
        struct = schema if isinstance(schema, StructType) else StructType.fromDDL(schema)
        if not isinstance(struct, StructType):
            raise TypeError(f"it is one {struct.simpleString()} without a name")
    except (PySparkException, TypeError) as error:
        raise _no_schema(schema, error, field) from None
    return struct


def _no_schema(schema: object, error: Exception, field: str = "map_arrow") -> PipelineError:
    problem = " ".join(str(error).split("\n\n")[0].split())
    return PipelineError(f"{schema!r} is not a schema: {problem}", field=field, fix="For example 'key binary, n long'")
