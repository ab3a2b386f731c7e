"""An operator behind a repartition topic that tells sources: it goes by a time for each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from roster.spark.state.tasks.bad_records import set_aside
from roster.spark.state.tasks.processing import Operator
from roster.state.aggregate import Layout, Update
from roster.state.event_time import AT, NOW_KEY, OF, time_bytes, with_entries
from roster.state.pending import WithChanges
from roster.state.source_times import NOTICE, SOURCES_KEY, SourceTimes
from roster.state.store import Snapshot, Store


def by_source(operator: Operator) -> Operator:
    """Return the operator for rows with labels and notices; steps that follow it stay outside."""
    inner: Operator | None = getattr(operator, "operator", None)
    if inner is not None:
        return replace(operator, operator=by_source(inner))  # type: ignore[type-var]
    return BySource(operator)


@dataclass(frozen=True)
class BySource:
    """`operator` has a column of times."""

    operator: Operator

    @property
    def result_keys(self) -> tuple[str, ...]:
        """Columns that form the record key."""
        return self.operator.result_keys

    @property
    def kept(self) -> Mapping[str, Any]:
        """What is kept, by name."""
        return self.operator.kept

    def key_columns(self, columns: pa.Schema, /) -> pa.Schema:
        """Return the columns of the state's keys."""
        return self.operator.key_columns(columns)

    def layout(self, columns: pa.Schema, /) -> Layout | None:
        """Return the layout of the state's values."""
        return self.operator.layout(columns)

    def __call__(self, table: pa.Table, store: Store | Snapshot, /) -> Update:
        """Return results and changes of a batch's rows."""
        return self._with_times(table, store, self.operator)

    @property
    def set_aside(self) -> Callable[[pa.Table, Snapshot], Update] | None:
        """What finds the rows at which a processor fails; other operators are called with parts of the rows."""
        return self._set_aside if hasattr(self.operator, "set_aside") else None

    def _set_aside(self, table: pa.Table, store: Snapshot) -> Update:
        update = self._with_times(table, store, lambda rows, view: set_aside(self.operator, rows, view))
        places = np.flatnonzero(table[NOTICE].is_null().to_numpy(zero_copy_only=False))
        return replace(update, bad={int(places[row]): error for row, error in update.bad.items()})

    def _with_times(self, table: pa.Table, store: Any, operator: Callable[[pa.Table, Any], Update]) -> Update:
        column: str = self.operator.time_column  # type: ignore[attr-defined]
        if NOTICE not in table.column_names:  # a warm-up
            return operator(table, store)
        times = SourceTimes.over(table, column, store)
        if times is None:
            return operator(table.select(table.column_names[:-3]), store)
        rows = times.rows
        if not getattr(self.operator, "has_variables", False):  # a processor's watermark is that of the whole batch
            rows = rows.append_column(AT, pa.array(times.at))
        rows = rows.append_column(OF, pa.array(times.sources))
        update = operator(rows, WithChanges(store, {NOW_KEY: time_bytes(times.now)}))
        update = replace(update, held_by=times.held_by, held_ms=times.held // 1000)
        if times.known is None:
            return update
        return replace(update, changes=with_entries(update.changes, [SOURCES_KEY], [times.known]))
