"""Functions on record batches, applied one after the other inside a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructField, StructType

from roster.spark.errors import FunctionError, MissingSchemasError, PipelineError
from roster.spark.tasks.arrow_function import ArrowFunction, arrow_schema, as_struct, pickled
from roster.spark.tasks.json_values import JsonColumns, unsupported
from roster.spark.tasks.missing_values import Seen, together
from roster.spark.tasks.value_columns import FAILFAST, PERMISSIVE

BatchFunction: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch | Iterator[pa.RecordBatch]]
"""Maps a record batch; fit for pickle."""


class Step(Protocol):
    """A declared function on record batches, resolved once their columns are known."""

    def resolved(self, given: StructType, /) -> tuple[BatchFunction, StructType]:
        """Return the function, and the columns of its results. Raises PipelineError."""


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
    """Raise PipelineError for a mode that is none."""
    if mode not in (PERMISSIVE, FAILFAST):
        raise PipelineError(f"{mode!r} is no mode", field="mode", fix="Use 'PERMISSIVE' or 'FAILFAST'")


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
        raise PipelineError(f"column {column!r} is no text", field=names, fix="Name one of text or bytes")
    fields = (StructField(each.name, each.dataType, metadata=each.metadata) for each in struct)
    return StructType([*fields, *(given[name] for name in keep)])


@dataclass(frozen=True)
class Filtered:
    """The step of `filter`."""

    condition: pc.Expression

    def __post_init__(self) -> None:
        if not isinstance(self.condition, pc.Expression):
            raise PipelineError(
                f"{self.condition!r} is no expression of Arrow", field="filter", fix="For example pc.field('n') > 0"
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
        return self, given

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows for which the condition is true."""
        return batch.filter(self.condition)


def chained(steps: Sequence[Step], columns: StructType) -> tuple[ArrowFunction | None, StructType]:
    """Return the steps as one function, None without steps, and its result columns; needs a Spark session.

    columns: of the first step's input. Raises PipelineError for steps that do not fit.
    """
    functions = []
    for step in steps:
        function, columns = step.resolved(columns)
        functions.append(ArrowFunction(function, arrow_schema(columns)))
    if len(functions) < 2:
        return (functions[0] if functions else None), columns
    return ArrowFunction(_Chain(functions), arrow_schema(columns)), columns


class _Chain:
    def __init__(self, functions: Sequence[ArrowFunction]) -> None:
        self._functions = functions

    def __call__(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        batches: Iterator[Any] = iter((batch,))
        for function in self._functions:
            batches = _each(function, batches)
        return batches

    def values_seen(self) -> Seen:
        """Return which columns of all functions had a value so far."""
        return together(*(function.values_seen() for function in self._functions))


def _each(function: ArrowFunction, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from function.results(batch)


def applied(function: ArrowFunction, batch: pa.RecordBatch, what: str) -> Iterator[pa.RecordBatch]:
    """Yield the function's results for rows that are not records; its FunctionError calls them `what`."""
    try:
        yield from function.results(batch)
    except MissingSchemasError:
        raise
    except Exception as error:
        problem = f"{type(error).__name__}: {' '.join(str(error).split())}, given {what}"
        raise FunctionError(problem) from error
