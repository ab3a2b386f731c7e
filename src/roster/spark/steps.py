"""Functions of record batches, applied one after the other inside a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.types import StructType

from roster.spark.arrow_function import ArrowFunction, arrow_schema, as_struct

BatchFunction: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch | Iterator[pa.RecordBatch]]
"""Maps a record batch; fit for pickle."""


@dataclass(frozen=True)
class Step:
    """A function with the columns of its results; None: those that it is given."""

    function: BatchFunction
    schema: str | StructType | None


def chained(steps: Sequence[Step], columns: str | StructType) -> tuple[ArrowFunction | None, StructType]:
    """Return the steps as one function, None without any, and the columns of its results; needs a Spark session.

    columns: of the rows that the first step gets. Raises PipelineError for what is no schema.
    """
    struct = as_struct(columns)
    functions = []
    for step in steps:
        struct = struct if step.schema is None else as_struct(step.schema)
        functions.append(ArrowFunction(step.function, arrow_schema(struct)))
    if len(functions) < 2:
        return (functions[0] if functions else None), struct
    return ArrowFunction(_Chain(functions), arrow_schema(struct)), struct


class _Chain:
    def __init__(self, functions: Sequence[ArrowFunction]) -> None:
        self._functions = functions

    def __call__(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        batches: Iterator[Any] = iter((batch,))
        for function in self._functions:
            batches = _each(function, batches)
        return batches


def _each(function: ArrowFunction, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from function.results(batch)
