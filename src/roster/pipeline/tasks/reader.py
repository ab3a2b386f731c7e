"""The task's side: reads ranges of offsets as Arrow record batches, with the same rows each time."""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from typing_extensions import override

from roster._errors import RosterError
from roster.model.address import parse_addresses
from roster.pipeline.errors import FunctionError
from roster.pipeline.spark_types import AccumulatorParam
from roster.pipeline.tasks.missing_values import OUT_OF_RANGE, Seen, Sought, merged_seen
from roster.pipeline.tasks.python_workers import SentOnce, freeze_loaded, is_in_task
from roster.records.fetch import read_ranges
from roster.records.fetch_decisions import FetchError, Settings
from roster.records.native import Compiled
from roster.security import PLAINTEXT, Security

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    from roster.model.offsets import Arrival
    from roster.pipeline.batch import Split
    from roster.pipeline.tasks.arrow_function import ArrowFunction
    from roster.records.produce import KafkaWriter
    from roster.wire.columns.reader import Unreadable

SCHEMA = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
HEADERS = ", headers array<struct<key: string, value: binary>>"


T_contra = TypeVar("T_contra", contravariant=True)


class TaskAccumulator(Protocol[T_contra]):
    """Spark's accumulator, as tasks use it."""

    def add(self, term: T_contra) -> None:
        """Add to the driver's value once the task has ended."""


class ByTask(AccumulatorParam[dict[Any, Any]]):
    """Accumulates a value per task: a task that runs twice counts once."""

    @override
    def zero(self, value: dict[Any, Any]) -> dict[Any, Any]:
        return {}

    @override
    def addInPlace(self, value1: dict[Any, Any], value2: dict[Any, Any]) -> dict[Any, Any]:
        return {**value1, **value2}


class ByAttempt(ByTask):
    """Accumulates the values of each task's attempts, as a tuple."""

    @override
    def addInPlace(self, value1: dict[Any, Any], value2: dict[Any, Any]) -> dict[Any, Any]:
        return {task: value1.get(task, ()) + value2.get(task, ()) for task in value1.keys() | value2.keys()}


class ReadError(RosterError):
    """A range could not be read whole: the task fails, Spark retries it, then the batch fails."""

    is_lost = False
    """True if the records are no longer in the log."""


@dataclass(frozen=True, slots=True)
class ReaderConfig(SentOnce):
    """Settings of a task except its ranges; pickled to the executors."""

    bootstrap: str
    group: str
    isolation_level: str = "read_uncommitted"
    fail_on_data_loss: bool = True
    read_timeout_ms: int = 60_000
    include_headers: bool = False
    client_id: str = ""
    """Name in the brokers' logs; "": the group's."""
    fetch: Settings = field(default_factory=Settings, repr=False)
    security: Security = PLAINTEXT
    compiled: Compiled | None = field(default=None, repr=False)
    dead_letters: KafkaWriter | None = field(default=None, repr=False)

    @property
    def schema(self) -> str:
        """The columns of Spark's Kafka source, as Spark DDL."""
        return SCHEMA + (HEADERS if self.include_headers else "")


class Counts(NamedTuple):
    """What a task read: the number of records, of dead letters among them, and which columns had values.

    first_letter: what the first of these failed at.
    """

    records: int
    dead_letters: int
    seen: Seen
    first_letter: str = ""


class ReadTask:
    """The function given to `mapInArrow`: each `id` it receives names a task's splits, which it reads.

    `function` maps each record batch in the same process; `counted` collects `{task: Counts}`. With `failed`, an error
    of the function that a retry cannot cure is collected there as `{task: (text, details)}`, and the task ends without
    an error. `records`: the only task's, if they were read already.
    """

    def __init__(
        self,
        config: ReaderConfig,
        tasks: Sequence[Sequence[Split]],
        function: ArrowFunction | None = None,
        counted: TaskAccumulator[dict[object, Counts]] | None = None,
        failed: TaskAccumulator[dict[int, tuple[str, str]]] | None = None,
        records: Sequence[pa.RecordBatch] | None = None,
    ) -> None:
        self._config, self._tasks, self._function = config, tasks, function
        self._counted, self._failed, self._records = counted, failed, records
        self.refused: Sequence[Mapping[int, Mapping[int, str]]] = ()
        """Rows by task that the sink has refused: their records become dead letters, as if the function had failed."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Reads every task named by the rows of `batches`."""
        return self.read(task for batch in batches for task in batch.column(0).to_pylist())

    def read(self, tasks: Iterable[int]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the tasks with these numbers."""
        leave_interrupts_to_driver()
        for task in tasks:
            try:
                yield from self._task(task)
            except FunctionError as error:
                if self._failed is None or error.passing:
                    raise
                self._failed.add({task: (str(error), error.details)})
                return
        freeze_loaded()

    def _task(self, task: int) -> Iterator[pa.RecordBatch]:
        config, records = self._config, 0
        function: Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]] | None = self._function
        queue, on_unreadable = None, _refuse
        if config.dead_letters is not None:
            from roster.pipeline.tasks.dead_letters import DeadLetterQueue, salvage_of  # noqa: PLC0415 - brings the producer

            queue = DeadLetterQueue(config.dead_letters, config.group, task)
            on_unreadable = queue.reject_batch
            if self._function is not None or self.refused:
                # A dead letter keeps its headers, even if the function does not see them.
                rounds = [rows.get(task, {}) for rows in self.refused]
                function = salvage_of(self._function, queue, rounds, hide_headers=not config.include_headers)
                config = replace(config, include_headers=True)
        splits = self._tasks[task]
        values_seen: Seen = {}
        try:
            for read in read_splits(config, splits, on_unreadable) if self._records is None else self._records:
                records += read.num_rows
                if "timestamp" in read.schema.names and read["timestamp"].null_count:
                    values_seen = {
                        Sought("timestamp", OUT_OF_RANGE, tuple(dict.fromkeys(s.topic for s in splits))): False
                    }
                if function is None:
                    yield read
                else:
                    yield from function(read)
        except BaseException:
            if queue is not None:
                queue.abort()
            raise
        if queue is not None:
            queue.close()
        if self._counted is not None:
            values_seen = (
                values_seen if self._function is None else merged_seen(values_seen, self._function.values_seen())
            )
            letters = (0, values_seen) if queue is None else (queue.sent, values_seen, queue.first)
            self._counted.add({task: Counts(records, *letters)})


def leave_interrupts_to_driver() -> None:
    """Ignore Ctrl-C in a worker, which a terminal sends there too: the driver decides what is cancelled."""
    if is_in_task() and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


class PartitionTask:
    """Replaces `ReadTask` for tasks with a store for each partition: a split is a partition's whole range.

    `_numbers` are each task's indexes in `_splits`. `_reading` reads `_alone`: a task for each split, and at the end
    one that reads nothing.
    """

    def __init__(self, config: ReaderConfig, tasks: Sequence[Sequence[Split]], **reading: Any) -> None:
        """`reading` are the other arguments of `ReadTask`."""
        self._config = config
        self._splits = [split for task in tasks for split in task]
        ends = [sum(map(len, tasks[:number])) for number in range(len(tasks) + 1)]
        self._numbers = [range(*span) for span in itertools.pairwise(ends)]
        self._alone: list[Sequence[Split]] = [*((split,) for split in self._splits), ()]
        self._reading: ReadTask | PartitionTask = ReadTask(config, self._alone, **reading)
        self._counted: TaskAccumulator[dict[object, Counts]] | None = reading.get("counted")

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run every task named by the rows of `batches`."""
        return self.read(task for batch in batches for task in batch.column(0).to_pylist())

    def read(self, tasks: Iterable[int]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the tasks with these numbers."""
        raise NotImplementedError

    def _report_seen(self, number: int, counts: Counts) -> None:
        """Tell the driver which key columns had values in the rows of a split, or of it and others."""
        if self._counted is not None:
            self._counted.add({("keys", number): counts})


def _refuse(batch: Unreadable) -> None:
    raise ReadError(f"{batch}; with dead_letter_topic a batch of an input topic goes there, and the run goes on")


_MOST_OFFSETS, _MOST_BYTES = 10_000, 16 << 20
"""Most that is read together and held: beyond it requests are few for their records."""

_held: dict[tuple[str, bool, Split], list[pa.RecordBatch]] = {}
"""Records that were read together with those of other splits, until they are asked for."""
_arrivals: Sequence[Arrival] = ()
"""Records of this task that the driver has received."""


def take_arrivals(arrivals: Sequence[Arrival]) -> None:
    """Have the ranges of a task begin with these records, which the driver has received."""
    global _arrivals  # noqa: PLW0603 - a process's own, as tasks are done one after the other
    _arrivals = arrivals


_MOST_HELD = 4 << 30
"""Bytes of rows that a task may hold, as one that keeps state does until it has all of its part of a batch."""
_most_held: int | None = None
"""The same in a process that stays; None in Spark's own."""


def hold_little() -> None:
    """Have tasks of this process, which stays, hold no more rows than small batches have."""
    global _most_held  # noqa: PLW0603 - a process's own
    _most_held = 256 << 20


def held(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows that a task holds: compressed records may become thousands of times their bytes.

    Raises ReadError for more than a task may hold, MemoryError in a process that stays: Spark then does the batch.
    """
    size = 0
    for batch in rows:
        size += batch.nbytes
        if size > (_most_held or _MOST_HELD):
            if _most_held is not None:
                raise MemoryError(f"the rows of one task have more than {_most_held >> 20} MiB")
            raise ReadError(
                f"the rows of one task's part of a batch have more than {_MOST_HELD >> 30} GiB; with a smaller"
                " max_offsets_per_batch there are fewer"
            )
        yield batch


@contextlib.contextmanager
def read_together(config: ReaderConfig, splits: Sequence[Split]) -> Iterator[None]:
    """Read these splits with one request to each leader; while this lasts `read_splits` of one of them has its records.

    Those that are many, or cannot all be read, are left to `read_splits`, whose caller knows what to do. Raises as it
    does.
    """
    splits = [split for split in splits if not split.is_empty]
    if len(splits) > 1 and sum(split.end - split.start for split in splits) <= _MOST_OFFSETS:
        by_split = _by_split(config, splits)
        _held.update({(config.isolation_level, config.include_headers, split): by_split[split] for split in by_split})
    try:
        yield
    finally:
        _held.clear()


def are_held(splits: Iterable[Split]) -> bool:
    """Return True if the records of these splits have been read together, so that they are few."""
    known = {split for _, _, split in _held}
    return all(split.is_empty or split in known for split in splits)


def _by_split(config: ReaderConfig, splits: Sequence[Split]) -> dict[Split, list[pa.RecordBatch]]:
    """Return the records of each split; {} if they are too large, gone or unreadable."""
    by_split: dict[Split, list[pa.RecordBatch]] = {split: [] for split in splits}
    split_of, size = {(split.topic, split.partition): split for split in splits}, 0
    unreadable: list[Unreadable] = []
    with contextlib.closing(read_splits(config, splits, unreadable.append)) as read:
        try:
            for records in read:
                size += records.nbytes
                if size > _MOST_BYTES or unreadable:
                    return {}
                codes = [records[name].dictionary_encode().indices.to_numpy() for name in ("topic", "partition")]
                changes = np.flatnonzero(np.any(np.diff(codes) != 0, axis=0)) + 1
                for begin, end in itertools.pairwise([0, *changes.tolist(), records.num_rows]):
                    place = records["topic"][begin].as_py(), records["partition"][begin].as_py()
                    by_split[split_of[place]].append(records.slice(begin, end - begin))
        except ReadError as error:
            if not error.is_lost:
                raise
            return {}
    return {} if unreadable else by_split


def read_splits(
    config: ReaderConfig, splits: Sequence[Split], on_unreadable: Callable[[Unreadable], None] = _refuse
) -> Generator[pa.RecordBatch]:
    """Yield all records of the splits (each of another partition), in order within a partition.

    A split ends once a record at or past its end offset was seen, or the partition's end.
    Unreadable batches are passed to `on_unreadable`, and left out if it returns.
    Raises ReadError when nothing arrives for `read_timeout_ms` or records of the split are gone.
    """
    if len(splits) == 1 and (records := _held.pop((config.isolation_level, config.include_headers, splits[0]), None)):
        yield from records
        return
    is_committed = config.isolation_level == "read_committed"
    settings = replace(config.fetch, is_committed=is_committed, fail_on_data_loss=config.fail_on_data_loss)
    try:
        yield from read_ranges(
            parse_addresses(config.bootstrap, default_port=9092),
            config.client_id or config.group,
            splits,
            settings,
            headers=config.include_headers,
            timeout=config.read_timeout_ms / 1000,
            shipped=config.compiled,
            security=config.security,
            on_unreadable=on_unreadable,
            arrivals=_arrivals,
        )
    except FetchError as error:
        failure = ReadError(f"reading from {config.bootstrap}: {error}")
        failure.is_lost = error.is_lost
        raise failure from error
