"""A task of an export: one partition of a changelog becomes Parquet files, without a store and without its owner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from roster.pipeline.batch import Split
from roster.pipeline.tasks.reader import ReaderConfig, ReadError, read_splits
from roster.state.changelog import latest
from roster.state.definition import STATE_KEY, UNSAID, OtherDefinitionError
from roster.state.saved.folder import Folder, Written
from roster.state.saved.parts import StoreEntries
from roster.state.store import StateError

if TYPE_CHECKING:
    from pyspark import Accumulator

_LEAST, _LEAST_BYTES = 500_000, 256 << 20
"""Records, and their bytes, that are held before those that a later one replaces are dropped."""
_RECORDS = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("timestamp", pa.timestamp("us", "UTC"))])


class LogSpan(NamedTuple):
    """Offsets of one partition to export, and the folder of its files. name: of the files, by task.

    store: of a changelog; None for a repartition topic, whose records stay as they are.
    """

    split: Split
    store: str | None
    folder: str
    name: str


@dataclass(frozen=True)
class ExportedLog:
    """One partition's files by part, the types of their columns, the store's marks; `problem` if it cannot be read.

    is_lost: True if records were deleted before they could be read.
    """

    span: LogSpan
    records: int = 0
    marks: Mapping[bytes, bytes] = field(default_factory=dict)
    files: Mapping[str, Written] = field(default_factory=dict)
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    problem: str = ""
    is_lost: bool = False


class ExportTask:
    """Exports spans of logs by their numbers. done: collects {number: records}."""

    def __init__(
        self,
        config: ReaderConfig,
        spans: Iterable[LogSpan],
        folder: Folder,
        done: Accumulator[dict[object, int]] | None = None,
    ) -> None:
        self._config, self._spans, self._folder, self._done = config, list(spans), folder, done

    def __call__(self, numbers: Iterable[int]) -> Iterator[ExportedLog]:
        """Yield what became of each span."""
        for number in numbers:
            exported = self._export(self._spans[number])
            if self._done is not None:
                self._done.add({number: exported.records})
            yield exported

    def _export(self, span: LogSpan) -> ExportedLog:
        try:
            return self._records(span) if span.store is None else self._state(span)
        except ReadError as error:
            if not error.is_lost:
                raise
            return ExportedLog(span, problem=str(error), is_lost=True)
        except OtherDefinitionError as error:
            return ExportedLog(span, problem=str(error))
        except (StateError, ValueError, LookupError, TypeError, pa.ArrowException) as error:
            return ExportedLog(span, problem=f"{type(error).__name__}: {error}")

    def _records(self, span: LogSpan) -> ExportedLog:
        """Copy the records of a repartition topic."""
        tables = (pa.Table.from_batches([batch]).select(_RECORDS.names).cast(_RECORDS) for batch in self._read(span))
        first = next(filter(len, tables), None)
        if first is None:
            return ExportedLog(span)
        written = self._folder.write_table(f"{span.folder}/{span.name}.parquet", chain([first], tables), _RECORDS)
        return ExportedLog(span, written.rows, files={"records": written})

    def _state(self, span: LogSpan) -> ExportedLog:
        """Write the entries of a store part by part."""
        records, pending, count, size = 0, list[pa.Table](), 0, 0
        most_rows, most_bytes = _LEAST, _LEAST_BYTES
        for batch in self._read(span):
            table = pa.Table.from_batches([batch]).select(["key", "value"]).cast(_LARGE)
            if table["key"].null_count:
                raise StateError("a record has no key; the topic is written by something else than this group")
            pending.append(table)
            records += len(table)
            count, size = count + len(table), size + table.nbytes
            if count > most_rows or size > most_bytes:
                pending = [latest(pa.concat_tables(pending))]
                count, size = len(pending[0]), pending[0].nbytes
                most_rows, most_bytes = max(_LEAST, 2 * count), max(_LEAST_BYTES, 2 * size)
        entries = StoreEntries.of(latest(pa.concat_tables(pending)) if pending else _LARGE.empty_table())
        if records and STATE_KEY not in entries.marks:
            problem = f"{UNSAID}, or the broker has compacted its changelog meanwhile"
            return ExportedLog(span, problem=problem, is_lost=True)
        files, columns = {}, {}
        for part, run in groupby(entries.tables(), key=itemgetter(0)):
            tables = (table for _, table in run)
            first = next(tables)
            whole = chain([first], tables)
            files[part] = self._folder.write_table(f"{span.folder}/{part}/{span.name}.parquet", whole, first.schema)
            columns[part] = {field.name: str(field.type) for field in first.schema}
        return ExportedLog(span, records, entries.marks, files, columns)

    def _read(self, span: LogSpan) -> Iterator[pa.RecordBatch]:
        if not span.split.is_empty:
            yield from read_splits(self._config, [span.split])


_LARGE = pa.schema([("key", pa.large_binary()), ("value", pa.large_binary())])
