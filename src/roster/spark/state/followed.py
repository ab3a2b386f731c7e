"""A stateful operator whose results go on through the steps declared behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from roster.spark.arrow_function import ArrowFunction, arrow_schema
from roster.spark.errors import PipelineError
from roster.spark.state.turn import Operator
from roster.spark.steps import Step, applied, chained
from roster.spark.write.task import conformed
from roster.state.aggregate import Layout, Update
from roster.state.store import NoState, Snapshot, Store


def followed(operator: Operator, columns: pa.Schema, steps: Sequence[Step]) -> Operator:
    """Return the operator with the steps applied to its results; `columns` are those of the rows that it gets.

    Raises PipelineError for steps that do not fit, or leave out a column of the results' keys.
    """
    if not steps:
        return operator
    results = operator(columns.empty_table(), NoState()).results
    function, struct = chained(steps, from_arrow_schema(results.schema))
    if function is None:
        return operator
    if missing := [name for name in operator.result_keys if name not in struct.names]:
        raise PipelineError(
            f"the column {missing[0]!r} is missing, a part of the records' key",
            field="map_arrow",
            fix="Leave the key columns in place behind a stateful operator",
        )
    return _Followed(operator, function, arrow_schema(struct))


def sides_of(operator: Operator, columns: pa.Schema) -> tuple[pa.Schema, pa.Schema] | None:
    """Return the columns of the rows that the operator keeps of two streams, None if it does not join any."""
    sides: Callable[[pa.Schema], tuple[pa.Schema, pa.Schema] | None] | None = getattr(operator, "sides", None)
    return None if sides is None else sides(columns)


@dataclass(frozen=True)
class _Followed:
    operator: Operator
    function: ArrowFunction
    schema: pa.Schema

    @property
    def result_keys(self) -> tuple[str, ...]:
        return self.operator.result_keys

    @property
    def has_variables(self) -> bool:
        return getattr(self.operator, "has_variables", False)

    @property
    def has_timers(self) -> bool:
        return getattr(self.operator, "has_timers", False)

    def sides(self, columns: pa.Schema) -> tuple[pa.Schema, pa.Schema] | None:
        return sides_of(self.operator, columns)

    def key_columns(self, columns: pa.Schema, /) -> pa.Schema:
        return self.operator.key_columns(columns)

    def layout(self, columns: pa.Schema, /) -> Layout | None:
        return self.operator.layout(columns)

    def __call__(self, table: pa.Table, store: Store | Snapshot, /) -> Update:
        update = self.operator(table, store)
        return replace(update, results=self._mapped(update.results))

    def _mapped(self, results: pa.Table) -> pa.Table:
        mapped = [
            conformed(part, self.schema)
            for batch in results.to_batches()
            for part in applied(self.function, batch, "results of the stateful operator")
        ]
        return pa.Table.from_batches(mapped, schema=self.schema)
