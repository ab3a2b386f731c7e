"""Batches of stateful tasks without the records at which a function or an operator fails: these become dead letters.

A batch is done as usual until something fails. Then the rows at fault are found, all rows of their records are left
out, and the operator is called with the others: results and state are those of a log without these records.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from roster._errors import RosterError
from roster.pipeline.batch import Split
from roster.pipeline.errors import FunctionError
from roster.pipeline.tasks.arrow_function import ArrowFunction, is_of_a_record
from roster.pipeline.tasks.dead_letters import DeadLetters, Salvage
from roster.pipeline.tasks.missing_values import Seen, merged_seen
from roster.pipeline.tasks.reader import ReaderConfig, read_splits
from roster.pipeline.tasks.result_records import as_records
from roster.state.aggregate import Update
from roster.state.bad_rows import Failure, bad_rows, is_of_a_row
from roster.state.event_time import Lateness, with_entries
from roster.state.pending import WithChanges
from roster.state.store import Snapshot, Value
from roster.stateful.tasks.processing import Operator


@dataclass(frozen=True)
class Steps:
    """Functions that make rows of records, or of results, one after the other; `what` are these in errors.

    first: the first of them, if it maps records.
    """

    results: Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]]
    what: str
    first: ArrowFunction | None = None

    def failure(self, error: Exception, batch: pa.RecordBatch, *, narrow: bool) -> Exception:
        """Return the exception for an error that is of no record."""
        if isinstance(error, RosterError):
            return error
        if self.first is not None:
            return self.first.failure(error, batch, narrow=narrow)
        problem = f"{type(error).__name__}: {' '.join(str(error).split())}, given {self.what}"
        return FunctionError(problem, passing=not is_of_a_record(error))


@dataclass
class _Part:
    """Records that were mapped at once; `counts` has the number of rows of some of them, by first and length."""

    rows_of: Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]]
    records: pa.RecordBatch
    counts: dict[tuple[int, int], int]

    def count(self, first: int, length: int) -> int:
        """Return the number of rows of these records."""
        span = first, length
        if span not in self.counts:
            rows = self.rows_of(self.records.slice(first, length))
            self.counts[span] = sum(batch.num_rows for batch in rows)
        return self.counts[span]


class SettingAside:
    """Calls an operator; on an error once more, without all rows of the records that make it fail.

    `bad` has the error and the number of the first row of each; it and `failures` are of the last call.
    """

    def __init__(self, operator: Operator, rows_of_record: Callable[[int], range]) -> None:
        """rows_of_record: the numbers of all rows of the record that a row comes from."""
        self._operator, self._rows_of_record = operator, rows_of_record
        self.bad: dict[int, Exception] = {}
        self.failures: tuple[Failure, ...] = ()

    def __call__(self, table: pa.Table, store: Snapshot) -> Update:
        """Return results and changes of the rows that are left. Raises the errors that are of no row."""
        self.bad, self.failures = {}, ()
        try:
            return self._operator(table, store)
        except Exception as error:
            if not is_of_a_row(error):
                raise
        kept = np.arange(len(table))
        while True:
            update = set_aside(self._operator, table.take(pa.array(kept)), store)
            if not update.bad:
                self.failures = update.failures
                return update
            kept = kept[~np.isin(kept, self._left_out(kept, update))]

    def _left_out(self, kept: np.ndarray[Any, Any], update: Update) -> list[int]:
        """Note records at fault, and return their rows."""
        rows: list[int] = []
        for place in sorted(update.bad):
            record = self._rows_of_record(int(kept[place]))
            if record.start not in self.bad:
                self.bad[record.start] = update.bad[place]
                rows += record
            if len(record) > 1:
                break  # rows behind saw what its other rows have left in the state: once more without it
        return rows


class Aside:
    """The dead letters of one attempt of a task with operators, and the records that its rows come from."""

    def __init__(self, letters: DeadLetters, split: Split) -> None:
        """split: one of those that the task reads."""
        self.letters, self._place = letters, (split.topic, split.partition)
        self._parts: list[_Part] = []
        self._ends: list[int] = []
        """Number of rows up to the end of each part."""
        self.records = 0
        self.seen: Seen = {}

    def rows(self, config: ReaderConfig, split: Split, steps: Steps) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split's records at which the steps do not fail; note which records they come from."""

        def passed(records: pa.RecordBatch, count: int) -> None:
            if count:
                self._parts.append(
                    _Part(lambda part: steps.results(salvage.seen(part)), records, {(0, records.num_rows): count})
                )
                self._ends.append(count + (self._ends[-1] if self._ends else 0))

        salvage = Salvage(steps, self.letters.reject, hide_headers=not config.include_headers, passed=passed)
        # Others than those of the input are this application's own.
        unreadable = {} if config.dead_letters is None else {"on_unreadable": self.letters.reject_batch}
        for records in read_splits(replace(config, include_headers=True), [split], **unreadable):
            self.records += records.num_rows
            yield from salvage(records)
        if steps.first is not None:
            self.seen = merged_seen(self.seen, steps.first.values_seen())

    def operator(self, operator: Operator, store: str, *, is_first: bool) -> SettingAside:
        """Return an operator that leaves rows out; each row of one behind another counts as a record."""
        self._is_first, self._keys = is_first, operator.result_keys
        self._by = f"{operator.kept['operator']}(store={store!r})"
        self._done = SettingAside(operator, self._rows_of_record)
        return self._done

    def note(self, table: pa.Table) -> None:
        """Make dead letters of what the operator has left out of its rows."""
        for row, error in sorted(self._done.bad.items()):
            if self._is_first:
                self.letters.reject(self._record_of(row)[0], error, self._by)
            else:
                self._reject(Failure(table.slice(row, 1), error, "row of the operator before"))
        for failure in self._done.failures:
            self._reject(failure)

    def _reject(self, failure: Failure) -> None:
        keys = [name for name in self._keys if name in failure.row.column_names]
        (key,), (value,) = (column.to_pylist() for column in as_records(failure.row, keys))
        self.letters.reject_row(self._place, (key, value), failure.error, f"{self._by}, {failure.what}")

    def _rows_of_record(self, row: int) -> range:
        return self._record_of(row)[1] if self._is_first else range(row, row + 1)

    def _record_of(self, row: int) -> tuple[pa.RecordBatch, range]:
        """Return the record that a row comes from, and all rows of that record.

        Raises FunctionError if the number of rows of some records changes with the records given beside them.
        """
        place = bisect_right(self._ends, row)
        part, begin = self._parts[place], self._ends[place - 1] if place else 0
        first, length = 0, part.records.num_rows
        while length > 1:
            half = length // 2
            count = part.count(first, half)
            if row < begin + count:
                length = half
            else:
                first, length, begin = first + half, length - half, begin + count
        rows = range(begin, begin + part.count(first, 1))
        if row not in rows:
            problem = "its rows depend on how records are grouped, so the record of a row that fails is unknown"
            raise FunctionError(problem)
        return part.records.slice(first, 1), rows


def set_aside(operator: Any, table: pa.Table, store: Snapshot) -> Update:
    """Return an operator's update, or the rows at which it fails, as if they came one after the other."""
    own: Callable[[pa.Table, Snapshot], Update] | None = getattr(operator, "set_aside", None)
    if own is not None:
        return own(table, store)
    changed: dict[bytes, Value] = {}
    updates: list[Update] = []

    def attempt(begin: int, end: int) -> Exception | None:
        try:
            update = operator(table.slice(begin, end - begin), WithChanges(store, changed))
        except Exception as error:
            if not is_of_a_row(error):
                raise
            return error
        changed.update(zip(update.changes["key"].to_pylist(), update.changes["value"].to_pylist(), strict=True))
        updates.append(update)
        return None

    bad = bad_rows(len(table), attempt)
    if bad or len(updates) == 1:
        return replace(updates[0] if updates else operator(table.slice(0, 0), store), bad=bad)
    if not updates or any(update.retracted is not None for update in updates):
        whole: Update = operator(table, store)
        return whole
    # Parts of the rows can be taken that together exceed a limit, such as a sum's.
    return replace(
        updates[-1],
        results=pa.concat_tables([update.results for update in updates]),
        changes=with_entries(updates[0].changes.slice(0, 0), list(changed), list(changed.values())),
        late=sum(update.late for update in updates),
        late_rows=tuple(rows for update in updates for rows in update.late_rows),
        lateness=Lateness.joined(update.lateness for update in updates),
    )


def results_aside(
    function: ArrowFunction, results: pa.RecordBatch, what: str
) -> tuple[list[pa.RecordBatch], list[Failure]]:
    """Return a function's rows of results, and the results at which it fails."""
    failures: list[Failure] = []

    def reject(row: pa.RecordBatch, error: Exception) -> None:
        failures.append(Failure(pa.Table.from_batches([row]), error, "step at a result"))

    return list(Salvage(Steps(function.results, what), reject)(results)), failures
