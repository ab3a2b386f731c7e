"""A task of an import: the files of one partition become records in the driver's transaction."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark import Accumulator, TaskContext

from roster.records.produce import KafkaWriter, WriteError
from roster.saved.tasks.moving import RECORDS, Chunk, unpacked
from roster.state.saved.folder import Folder, Written
from roster.state.saved.parts import StoreEntries
from roster.state.store import StateError

_ROWS = 50_000
_TIME = pa.timestamp("us", "UTC")
_NO_RECORDS = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("timestamp", _TIME)]).empty_table()


@dataclass(frozen=True)
class LogFiles:
    """A partition to write. marks: the store's own entries, the definition among them. files: of its parts.

    A partition that gets rows of several ones has no files. One without marks is of a repartition topic, whose records
    are written as they are.
    """

    topic: str
    partition: int
    marks: Mapping[bytes, bytes] = field(default_factory=dict)
    files: Mapping[str, Written] = field(default_factory=dict)


class ImportedLog(NamedTuple):
    """What became of a partition: its records, or a `problem`, after which the transaction must not be committed."""

    records: int = 0
    problem: str = ""


class ImportTask:
    """Writes partitions by their numbers. done: collects {number: records}.

    A partition's sequence numbers begin at 0 in each attempt, so a second one would pass for the first: it is a
    problem.
    """

    def __init__(
        self,
        writer: KafkaWriter,
        logs: Iterable[LogFiles],
        folder: Folder,
        done: Accumulator[dict[object, int]] | None = None,
    ) -> None:
        self._writer, self._logs, self._folder, self._done = writer, list(logs), folder, done

    def __call__(self, numbers: Any, moved: Iterable[tuple[int, Chunk]] | None = None) -> Iterator[ImportedLog]:
        """Yield what became of each partition. numbers: a single one with `moved`, the rows that a split gave it."""
        context = TaskContext.get()
        if context is not None and context.attemptNumber():
            yield ImportedLog(problem="Spark ran a task a second time")
            return
        for number in numbers if moved is None else [numbers]:
            chunks = [] if moved is None else [chunk for _, chunk in moved]
            imported = self._write(self._logs[number], chunks)
            if self._done is not None:
                self._done.add({number: imported.records})
            yield imported

    def _write(self, log: LogFiles, chunks: Sequence[Chunk]) -> ImportedLog:
        output = replace(self._writer, topic=log.topic).open()
        try:
            count = 0
            for rows in self._rows(log, chunks):
                count += rows.num_rows
                output.write(rows)
            written = output.close()
        except (StateError, WriteError, ValueError, LookupError, TypeError, pa.ArrowException) as error:
            output.abort()
            return ImportedLog(problem=f"{log.topic}, partition {log.partition}: {error}")
        except BaseException:
            output.abort()
            raise
        return ImportedLog(written, "" if written == count else f"{log.topic}: {written} of {count} records written")

    def _rows(self, log: LogFiles, chunks: Sequence[Chunk]) -> Iterator[pa.RecordBatch]:
        for rows in self._records(log, chunks).combine_chunks().to_batches(max_chunksize=_ROWS):
            partition = pa.repeat(pa.scalar(log.partition, pa.int32()), rows.num_rows)
            records = [rows["key"].cast(pa.binary()), rows["value"].cast(pa.binary()), rows["timestamp"]]
            yield pa.RecordBatch.from_arrays([partition, *records], ["partition", "key", "value", "timestamp"])

    def _records(self, log: LogFiles, chunks: Sequence[Chunk]) -> pa.Table:
        """Return key, value and timestamp of the partition's records."""
        moved = unpacked(chunks)
        tables = moved or {part: self._folder.read_table(file) for part, file in log.files.items()}
        if not log.marks:
            # Rows of several partitions in the order of their times, so that none is late for the order alone.
            return tables.get(RECORDS, _NO_RECORDS).sort_by("timestamp") if moved else tables.get(RECORDS, _NO_RECORDS)
        table = StoreEntries.join(log.marks, tables).table()
        return table.append_column("timestamp", pa.nulls(len(table), _TIME))
