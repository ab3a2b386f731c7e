"""A repartition topic: the upstream task gives its rows another key, and the task that owns the key reads them.

A record's key is that of a result (text, or of several columns a JSON array), and Kafka's default partitioner, murmur2
of the key, says where it goes; rows whose key is null go to partition 0, so that they are one group. Without a key
they go to the partition of the task that sends them. The value has
all columns of the row, types and nulls kept. The record's time is the row's column `timestamp`, if it has one.

A value has a label of its row's source where a stored row has its time, and a notice is a value without rows, followed
by the notice. Releases that know neither read the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roster.model.topology import Subtopology
from roster.pipeline.errors import PipelineError
from roster.pipeline.tasks.arrow_function import ArrowFunction
from roster.pipeline.tasks.result_records import key_of_records
from roster.pipeline.tasks.steps import applied
from roster.state.event_time import times_of
from roster.state.keys import encode_keys
from roster.state.rows import PREFIX_LENGTH as ROWS_PREFIX
from roster.state.rows import RowLayout, StoredRows
from roster.state.source_times import (
    DELAY,
    LABELS,
    NOTICE,
    SOURCE,
    UNLABELLED,
    UNTIMED,
    Front,
    Notice,
    SourceClock,
    labelled,
    read_labels,
)
from roster.state.source_times import labels as label_numbers
from roster.state.store import OtherRowsError, StateError
from roster.stateful.tasks.placement import NO_KEY, partitions_of

FIELD = "repartition"
_TIME = "timestamp"
_MICROSECONDS = pa.timestamp("us", "UTC")
_RECORD = ["key", "value", "partition", "timestamp"]
_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True)
class RepartitionTopic:
    """How rows are written to the topic and read back; pickled to the executors.

    before: the upstream sub-topology. others: further ones. keys: columns of the new key. columns: of the rows. then:
    function applied to rows that were read. partitions: of the topic, None: as many as the largest source has.
    is_labelled: whether rows have labels of their sources. is_relayed: the labels are those that rows came with.
    is_framed: whether Spark makes them of the operators' results. time: column by which the first operator behind it
    goes, None if `then` makes it. lag: microseconds that rows of a source may be behind its largest one so far. delay:
    microseconds that times of rows to come may be behind the time of the operator in front, None if they may be behind
    it by any time. names: of all sources, if several sub-topologies send rows.
    """

    before: Subtopology
    topic: str
    keys: tuple[str, ...]
    columns: pa.Schema
    then: ArrowFunction | None = None
    partitions: int | None = None
    is_labelled: bool = False
    is_relayed: bool = False
    is_framed: bool = False
    time: str | None = None
    lag: int = 0
    delay: int | None = None
    others: tuple[Subtopology, ...] = ()
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if missing := [name for name in self.keys if name not in self.columns.names]:
            raise PipelineError(
                f"no column {missing[0]!r}", field=FIELD, fix=f"Name one of {', '.join(self.columns.names)}"
            )
        try:
            if self.keys:
                encode_keys(self.columns.empty_table(), self.keys)
            RowLayout.of(self.columns)
        except StateError as error:
            problem = str(error).partition(": ")[2]
            raise PipelineError(problem, field=FIELD, fix="Cast or leave it out in map_arrow before") from None

    @cached_property
    def layout(self) -> RowLayout:
        """The layout of records' values."""
        return RowLayout.of(self.columns)

    def to_records(self, rows: pa.Table, clock: SourceClock | None = None, home: int = 0) -> pa.Table:
        """Return the records of rows: columns key, value, partition (null: by the key) and timestamp (null: now).

        clock: of the rows' source, which their labels are of, unless they have labels. home: partition of the task,
        where rows without a key go.

        Producers know a topic's number of partitions for minutes, so its keys are placed here once it is known.
        """
        keys = key_of_records(rows, self.keys).cast(pa.binary())
        count = len(rows)
        if SOURCE in rows.column_names:
            labels = label_numbers(rows[SOURCE].to_numpy(), np.minimum(rows[DELAY].to_numpy(), UNTIMED - 1))
            rows = rows.select(self.columns.names)
        else:
            labels = np.zeros(count, np.int64) if clock is None else clock.labels(rows)
        values = self.layout.appended(pa.repeat(b"", count), rows, labels, np.arange(count))
        home = 0 if self.keys else home
        partitions: pa.Array = pc.if_else(pc.is_null(keys), pa.scalar(home, pa.int32()), pa.scalar(None, pa.int32()))
        if self.partitions is not None and count and self.keys:
            whole = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
            places = partitions_of(whole, "murmur2", self.partitions)
            partitions = pa.array(np.where(places == NO_KEY, 0, places), pa.int32())
        return pa.table([keys, values, partitions, self._times(rows)], _RECORD)

    def _times(self, rows: pa.Table) -> pa.ChunkedArray | pa.Array:
        if _TIME in rows.column_names and pa.types.is_timestamp(rows.schema.field(_TIME).type):
            return rows[_TIME].cast(_MICROSECONDS, safe=False)
        return pa.nulls(len(rows), _MICROSECONDS)

    def notices(self, notice: Notice, partitions: Iterable[int], log_ends: Mapping[int, int]) -> pa.Table:
        """Return the records of a notice for these partitions. log_ends: of these, see `Notice`."""
        (empty,) = self.layout.appended([None], self.columns.empty_table(), _NONE, _NONE).to_pylist()
        numbers = pa.array(list(partitions), pa.int32())
        encoded = notice.encode_each(map(log_ends.get, numbers.to_pylist()))
        values = pa.array((empty + data for data in encoded), pa.large_binary())
        empty_columns = pa.nulls(len(numbers), pa.binary()), pa.nulls(len(numbers), _MICROSECONDS)
        return pa.table([empty_columns[0], values, numbers, empty_columns[1]], _RECORD)

    def to_rows(self, records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows of records, with labels and notices if it has them.

        Raises StateError for others' records, FunctionError if `then` fails.
        """
        try:
            stored = self.layout.decode(records.column("value"))
        except StateError:
            raise OtherRowsError(
                f"the records in {self.topic} have not the columns {', '.join(self.columns.names)} as they are now:"
                " bring the release that wrote them to its end of the input first, or use another group"
            ) from None
        rows = stored.table.combine_chunks()
        if not self.is_labelled:
            yield from self._mapped(rows.to_batches())
            return
        read = self._labelled(records, stored)
        columns = None if self.then is None else labelled(self.then.columns)
        yield from read if columns is None else through_labelled(self._mapped, columns, read)

    def _labelled(self, records: pa.RecordBatch, stored: StoredRows) -> Iterator[pa.RecordBatch]:
        rows, (sources, delays) = stored.table.combine_chunks(), read_labels(stored.times)
        notices = np.setdiff1d(np.arange(records.num_rows), stored.places)
        before = np.searchsorted(stored.places, notices)
        for begin, end in pairwise([*np.unique([0, *before, len(rows)]), len(rows)]):
            for record in records.select(["offset", "value"]).take(pa.array(notices[before == begin])).to_pylist():
                yield notice_row(record["value"][ROWS_PREFIX:], labelled(self.columns), record["offset"])
            for batch in rows.slice(begin, end - begin).to_batches():
                yield with_source(batch, sources[begin:end], delays[begin:end])

    def _mapped(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from (batch,) if self.then is None else applied(self.then, batch, "rows behind repartition")


def through_labelled(
    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    columns: pa.Schema,
    labelled_rows: Iterator[pa.RecordBatch],
    *,
    keeps_rows: bool = False,
    time: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield what a function makes of rows with labels, and notices, all with these columns.

    It gets rows of one source at a time, so that what it makes of them is of that source. keeps_rows: it adds columns
    to rows, so it gets them with their labels and leaves these in place. time: column of times that rows have before
    it, too: the delay of a result is then by how much they were made less.
    """
    for batch in labelled_rows:
        if batch.num_rows == 1 and batch.column(NOTICE).is_valid()[0].as_py():
            yield notice_row(batch.column(NOTICE)[0].as_py(), columns, batch.column(DELAY)[0].as_py())
            continue
        if not batch.num_rows:
            continue
        if keeps_rows:
            yield from function(iter((batch,)))
            continue
        source, delay = (batch.column(name).to_numpy() for name in (SOURCE, DELAY))
        is_untimed = delay == UNTIMED
        names = [name for name in batch.schema.names if name not in LABELS]
        changes = np.flatnonzero(np.diff(source) | np.diff(is_untimed)) + 1
        for begin, end in pairwise([0, *changes, batch.num_rows]):
            rows = batch.select(names).slice(begin, end - begin)
            for results in function(iter((rows,))):
                label = UNTIMED if is_untimed[begin] else 0
                if time is not None:
                    before, after = (times_of(pa.Table.from_batches([batch]), time)[0] for batch in (rows, results))
                    label = min(Front(times=before).stepped(after) or 0, UNTIMED - 1)
                yield with_source(results, source[begin], label)


def notice_row(notice: bytes, columns: pa.Schema, offset: int = 0) -> pa.RecordBatch:
    """Return a notice with these columns."""
    row = {SOURCE: UNLABELLED, DELAY: offset, NOTICE: notice}
    return pa.RecordBatch.from_arrays(
        [pa.array([row.get(field.name)], field.type) for field in columns], schema=columns
    )


def with_source(batch: pa.RecordBatch, sources: object, delays: object) -> pa.RecordBatch:
    """Return rows with labels. sources, delays: of each row, or the same for all."""
    arrays = [np.broadcast_to(np.asarray(labels, np.int64), batch.num_rows) for labels in (sources, delays)]
    columns = [*batch.columns, *map(pa.array, arrays), pa.nulls(batch.num_rows, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=labelled(batch.schema.remove_metadata()))
