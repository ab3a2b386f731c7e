"""Functions on record batches, applied one after the other inside a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from roster.pipeline.errors import FunctionError, MissingSchemasError
from roster.pipeline.tasks.arrow_function import ArrowFunction
from roster.pipeline.tasks.missing_values import Seen, merged_seen

BatchFunction: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch | Iterator[pa.RecordBatch]]
"""Maps a record batch; fit for pickle."""


@dataclass(frozen=True)
class Filter:
    """Keeps the rows for which a condition is true."""

    condition: pc.Expression

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return these rows."""
        return batch.filter(self.condition)


class Chain:
    """Functions as one."""

    def __init__(self, functions: Sequence[ArrowFunction]) -> None:
        self._functions = functions

    def __call__(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield what the last one makes of the results of those before."""
        batches: Iterator[object] = iter((batch,))
        for function in self._functions:
            batches = _each(function, batches)
        return batches

    def values_seen(self) -> Seen:
        """Return which columns of all functions had a value so far."""
        return merged_seen(*(function.values_seen() for function in self._functions))


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
