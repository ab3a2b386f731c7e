"""Steps of a pipeline as they are declared: functions on record batches, resolved once their columns are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.sql.types import StructField, StructType

from roster.pipeline.errors import PipelineError
from roster.pipeline.spark_schemas import arrow_schema, as_struct
from roster.pipeline.tasks.arrow_function import ArrowFunction
from roster.pipeline.tasks.json_values import JsonColumns, unsupported
from roster.pipeline.tasks.steps import BatchFunction, Chain, Filter
from roster.pipeline.tasks.value_columns import FAILFAST, PERMISSIVE


class Step(Protocol):
    """A declared function on record batches, resolved once their columns are known."""

    def resolved(self, given: StructType, /) -> tuple[BatchFunction | None, StructType]:
        """Return the function, None for what Spark does, and the columns of its results. Raises PipelineError."""


@dataclass(frozen=True)
class BySpark:
    """What Spark makes of the rows of a stage, so that they have these columns.

    delay: how far times of rows to come may be behind the time of the operator in front, None if by any time.
    """

    columns: StructType
    delay: timedelta | None = None

    def resolved(self, _: StructType, /) -> tuple[None, StructType]:
        """Return the columns."""
        return None, self.columns


@dataclass(frozen=True)
class Mapped:
    """The step of `map_arrow`."""

    function: BatchFunction
    schema: str | StructType

    def resolved(self, _: StructType, /) -> tuple[BatchFunction, StructType]:
        """Return the function, and the columns of its results."""
        pickled(self.function, "map_arrow")
        return self.function, as_struct(self.schema)


@dataclass(frozen=True)
class Parsed:
    """The step of `json_columns`."""

    schema: str | StructType
    column: str
    mode: str
    keep: tuple[str, ...]

    def __post_init__(self) -> None:
        check_mode(self.mode)

    def resolved(self, given: StructType, /) -> tuple[BatchFunction, StructType]:
        """Return the function, and the columns of its results."""
        names = "json_columns"
        struct = as_struct(self.schema, names)
        columns = with_kept(struct, given, self.column, self.keep, names)
        return JsonColumns(checked_fields(struct), self.column, self.mode, self.keep), columns


def checked_fields(struct: StructType) -> pa.Schema:
    """Return the fields of JSON objects. Raises PipelineError for one that is not parsed."""
    fields = arrow_schema(struct)
    if (wrong := unsupported(fields)) is not None:
        kind = struct[wrong].dataType.simpleString()
        problem = f"field {wrong!r} has the type {kind}, which is not parsed"
        raise PipelineError(problem, field="json_columns", fix="Parse it in map_arrow")
    return fields


def check_mode(mode: str) -> None:
    """Raise PipelineError for an unknown mode."""
    if mode not in (PERMISSIVE, FAILFAST):
        raise PipelineError(f"{mode!r} is not a mode", field="mode", fix="Use 'PERMISSIVE' or 'FAILFAST'")


def with_kept(struct: StructType, given: StructType, column: str, keep: Sequence[str], names: str) -> StructType:
    """Return the fields of values, which may all be null, with the columns kept beside them.

    Raises PipelineError if they do not fit.
    """
    if missing := [name for name in (column, *keep) if name not in given.names]:
        raise PipelineError(f"no column {missing[0]!r}", field=names, fix=f"Name one of {', '.join(given.names)}")
    if twice := [name for name in keep if name in struct.names]:
        raise PipelineError(
            f"the schema has a field {twice[0]!r} too", field=names, fix="Leave it out of keep, or of the schema"
        )
    if given[column].dataType.typeName() not in ("binary", "string"):
        raise PipelineError(f"column {column!r} is not text", field=names, fix="Name one of text or bytes")
    fields = (StructField(child.name, child.dataType, metadata=child.metadata) for child in struct)
    return StructType([*fields, *(given[name] for name in keep)])


@dataclass(frozen=True)
class Filtered:
    """The step of `filter`."""

    condition: pc.Expression

    def __post_init__(self) -> None:
        if not isinstance(self.condition, pc.Expression):
            raise PipelineError(
                f"{self.condition!r} is not an expression of Arrow", field="filter", fix="For example pc.field('n') > 0"
            )

    def resolved(self, given: StructType, /) -> tuple[BatchFunction, StructType]:
        """Return the function, and the columns of its results."""
        try:
            arrow_schema(given).empty_table().filter(self.condition)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            problem = str(error).splitlines()[0]
            raise PipelineError(
                f"{self.condition} does not fit: {problem}", field="filter", fix=f"Columns are {given.simpleString()}"
            ) from None
        return Filter(self.condition), given


def chained(steps: Sequence[Step], columns: StructType) -> tuple[ArrowFunction | None, StructType]:
    """Return the steps as one function, None without steps, and its result columns; needs a Spark session.

    columns: of the first step's input. Raises PipelineError for steps that do not fit.
    """
    functions = []
    for step in steps:
        function, columns = step.resolved(columns)
        if function is not None:
            functions.append(ArrowFunction(function, arrow_schema(columns)))
    if len(functions) < 2:
        return (functions[0] if functions else None), columns
    return ArrowFunction(Chain(functions), arrow_schema(columns)), columns


def pickled(code: Any, field: str) -> bytes:
    """Pickle a function or an object for tasks. Raises PipelineError that says where it was defined."""
    pickle: Any = cloudpickle  # it has no type hints
    try:
        data: bytes = pickle.dumps(code)
    except Exception as error:
        where = getattr(code, "__code__", None)
        name = getattr(code, "__qualname__", type(code).__qualname__)
        place = f" ({Path(where.co_filename).name}, line {where.co_firstlineno})" if where is not None else ""
        raise PipelineError(
            f"{name}{place} cannot be sent to the tasks: {' '.join(str(error).split()).rstrip('.')}",
            field=field,
            fix="It must not refer to the session, open files or other state of the driver",
        ) from None
    return data
