"""Tasks of an import with another number of partitions, which prove how keys were placed and place them anew.

A task of a seed places the rows of a table alike.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import Accumulator, TaskContext

from roster.pipeline.batch import Split
from roster.pipeline.tasks.reader import ReaderConfig, read_splits
from roster.state.rows import has_no_rows
from roster.state.saved.folder import Folder, Written
from roster.stateful.tasks.placement import NO_KEY, Placement, Places, Proof, SeenKeys, partitions_of

Chunk: TypeAlias = tuple[str, int, bytes]
"""Rows for one partition: the part of the store, the number of the source that they come from, and Arrow's stream."""
RECORDS = "records"
"""Part of the records of a repartition topic."""
STRUCT = "key"
"""Column of a processor's parts with the columns of the key."""


def key_rows(part: pa.Table, keys: pa.Schema) -> pa.Table:
    """Return the key columns of a part of a store."""
    if part.column_names[0] == STRUCT and pa.types.is_struct(part.schema.field(STRUCT).type):
        part = part.select([STRUCT]).flatten().rename_columns([field.name for field in part.schema.field(STRUCT).type])
    return part.select(keys.names)


@dataclass(frozen=True)
class Source:
    """The files of one partition whose rows get other partitions.

    logs: the job's numbers of the partitions that they go to, in order. keys: None for records of a repartition topic.
    """

    name: str
    number: int
    before: int
    logs: Sequence[int]
    files: Mapping[str, Written] = field(default_factory=dict)
    keys: pa.Schema | None = None


class Proven(NamedTuple):
    """What a store's keys in one partition say, None if it has no rows; or a problem with its files."""

    name: str
    proof: Proof | None = None
    problem: str = ""


class ProveTask:
    """Looks at the keys of sources by their numbers. among: the placements of each store. done: {number: rows}."""

    def __init__(
        self,
        sources: Iterable[Source],
        folder: Folder,
        among: Mapping[str, Sequence[Placement]],
        done: Accumulator[dict[object, int]],
    ) -> None:
        self._sources, self._folder, self._among, self._done = list(sources), folder, among, done

    def __call__(self, numbers: Iterable[int]) -> Iterator[Proven]:
        """Yield what the keys of each source say."""
        for number in numbers:
            source = self._sources[number]
            try:
                yield self._proven(number, source)
            except (OSError, ValueError, LookupError, pa.ArrowException) as error:
                yield Proven(source.name, problem=f"partition {source.number}: {error}")

    def _proven(self, number: int, source: Source) -> Proven:
        keys = source.keys
        assert keys is not None  # a store's
        columns = [STRUCT, *keys.names]
        parts = [key_rows(self._folder.read_table(file, columns), keys) for file in source.files.values()]
        rows = pa.concat_tables(parts).combine_chunks() if parts else keys.empty_table()
        self._done.add({number: len(rows)})
        if not len(rows):
            return Proven(source.name)
        among = self._among[source.name]
        return Proven(source.name, Proof.of(rows, source.number, source.before, len(source.logs), among))


class SplitTask:
    """Splits sources by their numbers into the partitions that their rows go to. placed: by the store's name."""

    def __init__(self, sources: Iterable[Source], folder: Folder, placed: Mapping[str, Placement]) -> None:
        self._sources, self._folder, self._placed = list(sources), folder, placed

    def __call__(self, numbers: Iterable[int]) -> Iterator[tuple[int, Chunk]]:
        """Yield the number of a log, and rows for it."""
        for number in numbers:
            source = self._sources[number]
            for part, place, rows in self._split(source):
                yield source.logs[place], (part, source.number, packed(rows))

    def _split(self, source: Source) -> Iterator[tuple[str, int, pa.Table]]:
        count = len(source.logs)
        for part, file in source.files.items():
            table = self._folder.read_table(file)
            if source.keys is None:
                # A notice is of what the partition had before it, which is elsewhere now.
                table = table.filter(pc.invert(has_no_rows(table["value"])))
                own, places = 0, partitions_of(table["key"].combine_chunks(), "murmur2", count)
            elif len(table):
                own, places = source.number, self._placed[source.name].partitions(key_rows(table, source.keys), count)
            else:
                continue
            for place, rows in by_place(table, np.where(places == NO_KEY, own, places)):
                yield part, place, rows


def by_place(table: pa.Table, places: Places) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of each place, in their order."""
    order = np.argsort(places, kind="stable")
    places_there, starts = np.unique(places[order], return_index=True)
    ordered = table.take(pa.array(order))
    for place, start, stop in zip(places_there, starts, [*starts[1:], len(table)], strict=True):
        yield int(place), ordered.slice(start, stop - start)


def packed(table: pa.Table) -> bytes:
    """Return a table as Arrow's stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(sink.getvalue().to_pybytes())


def unpacked(chunks: Iterable[Chunk]) -> dict[str, pa.Table]:
    """Return the rows of one log that tasks have yielded, by part and in the order of their sources.

    The order is the same in each attempt, as the numbers of the records must be.
    """
    tables: dict[str, list[pa.Table]] = {}
    for part, _, data in sorted(chunks, key=lambda chunk: chunk[:2]):
        tables.setdefault(part, []).append(pa.ipc.open_stream(data).read_all())
    # Tasks may have written a variable with fields that others have not yet.
    return {part: pa.concat_tables(parts, promote_options="permissive") for part, parts in tables.items()}


class Placed(NamedTuple):
    """Where a partitioner places the keys of unread records.

    until: the offset behind the last one that is not where the present number of partitions places it, 0 without.
    since: the first one that is not where the earlier number does. is_other: True if one is in neither place.
    """

    until: int = 0
    since: int = 1 << 63
    is_other: bool = False


class PlacedTask:
    """Looks where each of these partitioners places the keys of unread records, by their number.

    unread: records of an input topic, its earlier number of partitions, and the present one.
    """

    def __init__(
        self,
        config: ReaderConfig,
        unread: Sequence[tuple[Split, int, int]],
        partitioners: Sequence[str],
        done: Accumulator[dict[object, int]],
    ) -> None:
        self._config, self._unread, self._partitioners, self._done = config, unread, partitioners, done

    def __call__(self, numbers: Iterable[int]) -> Iterator[dict[str, Placed]]:
        """Yield {partitioner: what was found} for each."""
        for number in numbers:
            (split, *counts), rows = self._unread[number], 0
            by_partitioner = dict.fromkeys(self._partitioners, Placed())
            for batch in read_splits(self._config, [split]):
                rows += batch.num_rows
                offsets = batch["offset"].to_numpy()
                for partitioner, (until, since, is_other) in by_partitioner.items():
                    places = [partitions_of(batch["key"], partitioner, count) for count in counts]
                    before, after = ((places_of != split.partition) & (places_of != NO_KEY) for places_of in places)
                    by_partitioner[partitioner] = Placed(
                        max([until, *(offsets[after][-1:] + 1).tolist()]),
                        min([since, *offsets[before][:1].tolist()]),
                        is_other or bool((before & after).any()),
                    )
            self._done.add({number: rows})
            yield by_partitioner


class SeenTask:
    """Looks at the keys of partitions by their number. unread: records of each, and the topic's partitions."""

    def __init__(self, config: ReaderConfig, unread: Sequence[tuple[Split, int]]) -> None:
        self._config, self._unread = config, unread

    def __call__(self, numbers: Iterable[int]) -> Iterator[SeenKeys]:
        """Yield the keys of each."""
        for number in numbers:
            split, count = self._unread[number]
            keys = SeenKeys.none(split.partition)
            for batch in read_splits(self._config, [split]):
                keys = keys.with_records(batch["key"], count)
            yield keys


_ROWS = 1 << 32
"""More than the batches of a task."""
_BATCHES = 20
"""Spark's batches that are placed together: small pieces cost more than their rows."""


class SeedTask(NamedTuple):
    """Places batches of rows of a part of a store, in Spark's `mapInArrow`.

    columns: of the rows. keys: of them, those that the placement is by. among: so many partitions.
    """

    part: str
    columns: pa.Schema
    keys: pa.Schema
    placement: Placement
    among: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield for some batches and each partition: its number, and the fields of a `Chunk`."""
        context = TaskContext.get()
        first = 0 if context is None else context.partitionId() * _ROWS
        rest = iter(batches)
        for number, some in enumerate(iter(lambda: list(islice(rest, _BATCHES)), [])):
            table = pa.Table.from_batches(some).combine_chunks().cast(self.columns)
            for place, rows in by_place(table, self.placement.partitions(key_rows(table, self.keys), self.among)):
                yield pa.RecordBatch.from_pydict(
                    {
                        "log": pa.array([place], pa.int32()),
                        "part": [self.part],
                        "number": pa.array([first + number], pa.int64()),
                        "rows": pa.array([packed(rows)], pa.binary()),
                    }
                )
