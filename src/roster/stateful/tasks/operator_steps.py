"""A stateful operator with the stateless steps that follow it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from roster.pipeline.errors import PipelineError
from roster.pipeline.tasks.arrow_function import ArrowFunction
from roster.pipeline.tasks.steps import applied
from roster.pipeline.tasks.writer import conformed
from roster.state.aggregate import Layout, Update
from roster.state.definition import Document
from roster.state.source_times import NOTICE, labelled
from roster.state.store import Snapshot
from roster.stateful.tasks.bad_records import results_aside, set_aside
from roster.stateful.tasks.processing import Operator
from roster.stateful.tasks.repartition import through_labelled


def with_function(
    operator: Operator, given: pa.Schema, function: ArrowFunction, schema: pa.Schema, store: str
) -> Operator:
    """Return the operator with a function applied to its results, which have the columns `given`.

    schema: columns of the function's results. store: names the operator in errors.
    """
    return _WithSteps(operator, given, function, schema, store)


def check_keys(keys: Sequence[str], columns: Sequence[str]) -> None:
    """Raise PipelineError if results lack columns of the record key."""
    if missing := [name for name in keys if name not in columns]:
        raise PipelineError(
            f"the column {missing[0]!r} is missing, a part of the records' key",
            field="map_arrow",
            fix="Leave the key columns in place behind a stateful operator or a repartition",
        )


def sides_of(operator: Operator, columns: pa.Schema) -> tuple[pa.Schema, pa.Schema] | None:
    """Return the columns of the rows that a stream join keeps of each side, None for other operators."""
    sides: Callable[[pa.Schema], tuple[pa.Schema, pa.Schema] | None] | None = getattr(operator, "sides", None)
    return None if sides is None else sides(columns)


def innermost(operator: Operator) -> Operator:
    """Return an operator without what is around it."""
    return innermost(operator.operator) if isinstance(operator, Around) else operator


def declared_by(operator: Operator, registry: bytes) -> None:
    """Let the operator declare its variables, if any, in a store with this list of variables.

    Raises StateError or FunctionError if they do not fit.
    """
    declare: Callable[[bytes], None] | None = getattr(operator, "declare", None)
    if declare is not None:
        declare(registry)


@dataclass(frozen=True)
class Around:
    """What is around an operator, and is otherwise as it is."""

    operator: Operator

    @property
    def result_keys(self) -> tuple[str, ...]:
        """Columns that form the record key."""
        return self.operator.result_keys

    @property
    def kept(self) -> Document:
        """What is kept, by name."""
        return self.operator.kept

    @property
    def time_column(self) -> str | None:
        """The column of times, if any."""
        return getattr(self.operator, "time_column", None)

    @property
    def has_variables(self) -> bool:
        """True for a processor."""
        return getattr(self.operator, "has_variables", False)

    @property
    def registry(self) -> bytes:
        """The list of variables that a processor declares."""
        return getattr(self.operator, "registry", b"")

    @property
    def has_timers(self) -> bool:
        """True if keys may have processing-time timers."""
        return getattr(self.operator, "has_timers", False)

    def sides(self, columns: pa.Schema) -> tuple[pa.Schema, pa.Schema] | None:
        """Return the columns of a stream join's sides."""
        return sides_of(self.operator, columns)

    def declare(self, registry: bytes) -> None:
        """Let a processor declare its variables."""
        declared_by(self.operator, registry)

    def key_columns(self, columns: pa.Schema, /) -> pa.Schema:
        """Return the columns of the state's keys."""
        return self.operator.key_columns(columns)

    def layout(self, columns: pa.Schema, /) -> Layout | None:
        """Return the layout of the state's values."""
        return self.operator.layout(columns)

    def __call__(self, table: pa.Table, store: Snapshot, /) -> Update:
        """Return results and changes of a batch's rows."""
        return self.operator(table, store)


@dataclass(frozen=True)
class _WithSteps(Around):
    """`given`: columns of the operator's results with Spark's types. `schema`: columns of the function's results."""

    given: pa.Schema
    function: ArrowFunction
    schema: pa.Schema
    store: str = ""

    def __call__(self, table: pa.Table, store: Snapshot, /) -> Update:
        return self._mapped(self.operator(table, store), lambda batch: applied(self.function, batch, self._what))

    def set_aside(self, table: pa.Table, store: Snapshot) -> Update:
        """Return the operator's rows at fault, or its update without the results at which the steps fail."""
        update = set_aside(self.operator, table, store)
        if update.bad:
            return update
        failures = [*update.failures]

        def passed(batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
            parts, failed = results_aside(self.function, batch, self._what)
            failures.extend(failed)
            return parts

        update = self._mapped(update, passed)
        return replace(update, failures=tuple(failures))

    @property
    def _what(self) -> str:
        return "results of the stateful operator" + (f" with the store {self.store!r}" if self.store else "")

    def _mapped(self, update: Update, function: Callable[[pa.RecordBatch], Iterable[pa.RecordBatch]]) -> Update:
        """Return an update with what a function makes of its results; those with labels keep them."""

        def through(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return (part for batch in rows for part in function(batch))

        given, schema = self.given, self.schema
        batches: Iterable[pa.RecordBatch] = update.results.to_batches()
        if NOTICE in update.results.column_names:
            given, schema = labelled(given), labelled(schema)
            parts = through_labelled(through, schema, (conformed(batch, given) for batch in batches))
        else:
            parts = through(conformed(batch, given) for batch in batches)
        mapped = [conformed(part, schema) for part in parts]
        return replace(update, results=pa.Table.from_batches(mapped, schema=schema))
