"""Schemas as a user of Spark writes them, and their columns in Arrow."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from inspect import signature
from typing import Any

import pyarrow as pa

from roster.pipeline.errors import PipelineError
from roster.pipeline.spark_types import StructType


def arrow_schema(schema: str | StructType) -> pa.Schema:
    """Return the Arrow columns that Spark expects for a schema; needs a Spark session.

    Raises PipelineError if it is not a schema.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    struct = as_struct(schema)
    try:
        return to_arrow_schema(struct, **_in_utc())
    except (PySparkException, TypeError) as error:
        raise _no_schema(schema, error) from None


def as_struct(schema: str | StructType, field: str = "map_arrow") -> StructType:
    """Return the columns as Spark's type; needs a Spark session. Raise PipelineError if it is not a schema."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        if not isinstance(schema, StructType | str):
            raise TypeError("it is neither text nor a StructType")
        struct = schema if isinstance(schema, StructType) else StructType.fromDDL(schema)
        if not isinstance(struct, StructType):
            raise TypeError(f"it is one {struct.simpleString()} without a name")
    except (PySparkException, TypeError) as error:
        raise _no_schema(schema, error, field) from None
    return struct


@cache
def _in_utc() -> dict[str, Any]:
    """Return the argument for UTC: PySpark before 4.2 takes no time zone, and means that."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}


def _no_schema(schema: object, error: Exception, field: str = "map_arrow") -> PipelineError:
    problem = " ".join(str(error).split("\n\n")[0].split())
    return PipelineError(f"{schema!r} is not a schema: {problem}", field=field, fix="For example 'key binary, n long'")


def column_types(schema: StructType) -> dict[str, str]:
    """Return each column's type as Spark names it."""
    return {field.name: field.dataType.simpleString() for field in schema}


def column_differences(given: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    """Return all differences between columns and those wanted, "" if there are none."""
    missing = [f"{name} {kind} is missing" for name, kind in wanted.items() if name not in given]
    others = [f"{name} {kind} is too many" for name, kind in given.items() if name not in wanted]
    common = [name for name in wanted if name in given]
    changed = [f"{name} is {given[name]}, not {wanted[name]}" for name in common if given[name] != wanted[name]]
    return "; ".join([*missing, *changed, *others])
