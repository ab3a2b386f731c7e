"""Where the CPU time of a stateful task goes: each stage of a batch, for each operator.

    python -m benchmarks stages
    python -m benchmarks.stages [--records 100000] [--keys 10000] [--many 1000000] [--zipf 0] [--rounds 10]
                                [--only aggregate …]

One process, one core, without Spark and sockets: the functions that a task calls, one after the other, on batches of
`records` rows of `keys` keys in random order (`many` for the aggregate of many keys, whose store has them all before).
Values are JSON objects of a key, a price and a time. With `zipf`, the key of rank n is as often as n to the power of
minus that number. Figures are million records a second of a core, medians of the
rounds: read, record batches into columns; parse, JSON into rows; store, reads of the operator, and the batch before
applied and this one kept; operator, the rest of it; changelog and results, up to encoded records. The rows of
`repartition` are written to its topic and read back.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from roster.model.topology import Subtopology
from roster.pipeline.tasks.json_values import JsonReader
from roster.pipeline.tasks.result_records import as_records
from roster.records.native import WRITE, kernel
from roster.state import Position, byte_slices
from roster.state.aggregate import Aggregation
from roster.state.aggregate_functions import Aggregate, Kind
from roster.state.deduplicate import Deduplication
from roster.state.file_store import TaskStore
from roster.state.pending import Pending
from roster.state.sessions import SessionAggregation
from roster.state.stream_join import StreamJoin, in_columns, joined_columns
from roster.state.windows import Window, WindowedAggregation
from roster.stateful.tasks.repartition import RepartitionTopic
from roster.stateful.tasks.store_location import open_store
from roster.stateful.tasks.subtopology import definition_of
from roster.wire.columns.reader import Part, RecordColumns, scan
from roster.wire.columns.writer import Encoder, framed

ROWS = pa.schema([("key", pa.string()), ("price", pa.float64()), ("at", pa.timestamp("us", "UTC"))])
TOTALS = {"n": Aggregate(Kind.COUNT, "*"), "total": Aggregate(Kind.SUM, "price")}
STAGES = ("read", "parse", "store", "operator", "changelog", "results")
START = 1_790_000_000
STEP_S = 10
"""Seconds of event time in a batch."""
SECONDS = timedelta(seconds=1)

OPERATORS: dict[str, Any] = {
    "aggregate": Aggregation(("key",), TOTALS),
    "aggregate, many": Aggregation(("key",), TOTALS),
    "windows": WindowedAggregation(("key",), TOTALS, Window("at", 10 * SECONDS), final=False),
    "sessions": SessionAggregation(("key",), TOTALS, Window.session("at", 30 * SECONDS), final=True),
    "deduplicate": Deduplication(("key",), "at", 60 * SECONDS),
    "join": StreamJoin(("key",), ("at", "at"), (), SECONDS / 10, timedelta(), "inner"),
    "repartition": None,
}


class Stages:
    """CPU seconds of stages, by round."""

    def __init__(self) -> None:
        self.took: defaultdict[str, list[float]] = defaultdict(list)
        self._open: dict[str, float] = {}

    @contextmanager
    def of(self, name: str, without: str = "") -> Iterator[None]:
        """Time a part of a stage; `without` what another one takes meanwhile."""
        began, other = time.process_time(), self._open.get(without, 0.0)
        yield
        taken = time.process_time() - began - (self._open.get(without, 0.0) - other)
        self._open[name] = self._open.get(name, 0.0) + taken

    def end(self) -> None:
        """End a round."""
        for name, seconds in self._open.items():
            self.took[name].append(seconds)
        self._open.clear()


class TimedReads:
    """A snapshot whose reads are a stage of their own."""

    def __init__(self, snapshot: Any, stages: Stages) -> None:
        self._snapshot, self._stages = snapshot, stages

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._snapshot, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            with self._stages.of("store"):
                return found(*arguments, **named)

        return timed if callable(found) else found


def key_name(number: int) -> str:
    """The key of a number."""
    return f"key {number:08}"


class Bench:
    """Batches of one operator."""

    def __init__(self, records: int, keys: int, zipf: float = 0.0) -> None:
        self.records, self.keys, self._chance = records, keys, np.random.default_rng(1)
        weights = np.arange(1, keys + 1, dtype=np.float64) ** -zipf
        self._upto = np.cumsum(weights) / weights.sum()
        self._ranks = self._chance.permutation(keys)
        self._encoder, self._json = Encoder(kernel(None, WRITE), 4), JsonReader(ROWS)
        self.stages = Stages()

    def values(self, number: int) -> pa.RecordBatch:
        """The records of a batch."""
        drawn = np.searchsorted(self._upto, self._chance.random(self.records))
        names = [key_name(place) for place in self._ranks[np.minimum(drawn, self.keys - 1)].tolist()]
        prices = self._chance.integers(100_000, 1_000_000, self.records) / 100
        seconds = START + STEP_S * (number + np.arange(self.records) / self.records)
        at = np.datetime_as_string((seconds * 1e6).astype("datetime64[us]"))
        given = zip(names, prices.tolist(), at.tolist(), strict=True)
        texts = [f'{{"key":"{name}","price":{price},"at":"{time}Z"}}'.encode() for name, price, time in given]
        return pa.RecordBatch.from_pydict({"key": pa.array([name.encode() for name in names]), "value": texts})

    def encoded(self, rows: pa.Table) -> list[Any]:
        """Records of rows with key and value, in one partition."""
        rows = rows.append_column("partition", pa.repeat(pa.scalar(1, pa.int32()), len(rows)))
        times = np.zeros(len(rows), np.int64)
        return [each for batch in rows.combine_chunks().to_batches() for each in self._encoder.encode(batch, times)]

    def read(self, number: int) -> pa.Table:
        """A batch's rows."""
        bodies = [each.body for each in self.encoded(pa.Table.from_batches([self.values(number)]))]
        offsets = np.cumsum([0, *(body.records for body in bodies)]).tolist()
        pieces = [at.to_bytes(8, "big") + framed(body)[8:] for at, body in zip(offsets, bodies, strict=False)]
        data = np.frombuffer(b"".join(pieces), np.uint8)
        with self.stages.of("read"):
            table = scan(kernel(), data, [Part(0, len(data), 0, self.records)]).table
            read = list(RecordColumns(kernel(), [("t", 1)]).batches(data, table))
        with self.stages.of("parse"):
            return pa.Table.from_batches(
                [self._json.read(batch.column("value").cast(pa.binary()))[0] for batch in read]
            )

    def records_of(self, table: pa.Table, keys: Sequence[str]) -> None:
        """Results as records."""
        key, value = as_records(table, keys)
        self.encoded(pa.table({"key": key.cast(pa.binary()), "value": value.cast(pa.binary())}))

    def turn(self, store: TaskStore, operator: Any, number: int) -> None:
        """One batch."""
        rows, stages = self.read(number), self.stages
        if isinstance(operator, StreamJoin):
            halves = [rows.slice(side, len(rows) // 2) for side in (0, len(rows) // 2)]
            columns = joined_columns(ROWS, ROWS)
            parts = [half.combine_chunks().to_batches()[0] for half in halves]
            rows = pa.Table.from_batches([in_columns(p, columns, is_other=bool(n)) for n, p in enumerate(parts)])
        with stages.of("store"):
            store.settle("batch", Position(number))
        with store.snapshot() as snapshot, stages.of("operator", without="store"):
            update = operator(rows, TimedReads(snapshot, stages))
        with stages.of("store"):
            store.keep(Pending("batch", update.changes["key"], update.changes["value"], Position(number + 1)))
        with stages.of("changelog"):
            self.encoded(update.changes)
        with stages.of("results"):
            self.records_of(update.results, operator.result_keys)

    def repartition(self, number: int) -> None:
        """One batch of rows to a topic by another key, and back."""
        rows, stages = self.read(number), self.stages
        topic = RepartitionTopic(Subtopology(0, ("t",)), "repartition", ("key",), ROWS, partitions=4)
        with stages.of("operator"):
            records = topic.to_records(rows)
        with stages.of("results"):
            self.encoded(records.select(["key", "value"]))
        with stages.of("operator"):
            for batch in records.combine_chunks().to_batches():
                for _ in topic.to_rows(batch):
                    pass


def measured(name: str, records: int, keys: int, rounds: int, zipf: float = 0.0) -> None:
    """Print an operator's line."""
    bench, operator = Bench(records, keys, zipf), OPERATORS[name]
    is_ordered = operator is None or definition_of(operator, ROWS).is_ordered
    with (
        tempfile.TemporaryDirectory() as folder,
        open_store(Path(folder) / "store", is_ordered=is_ordered) as store,
    ):
        if name == "aggregate, many":
            for begin in range(0, keys, 200_000):
                known = [key_name(number) for number in range(begin, min(begin + 200_000, keys))]
                update = operator(pa.table({"key": known, "price": np.zeros(len(known))}), store)
                store.commit(*(update.changes[name].to_pylist() for name in ("key", "value")), Position())
        work: Callable[[int], None] = (
            bench.repartition if operator is None else lambda number: bench.turn(store, operator, number)
        )
        for number in range(rounds + 2):
            work(number)
            bench.stages.end()
    took = {stage: statistics.median(bench.stages.took[stage][2:]) for stage in STAGES if stage in bench.stages.took}
    figures = "".join(f"{records / took[stage] / 1e6:11.2f}" if stage in took else f"{'':>11}" for stage in STAGES)
    print(f"{f'{name}: {keys:,}':30}{figures}{records / sum(took.values()) / 1e6:11.2f}", flush=True)


def main(words: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--many", type=int, default=1_000_000)
    parser.add_argument("--zipf", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", action="append", choices=OPERATORS, help="an operator; several; default: all")
    given = parser.parse_args(words)
    byte_slices.use(kernel())
    print(f"{'operator: keys':30}{''.join(f'{stage:>11}' for stage in STAGES)}{'all':>11}")
    for name in given.only or OPERATORS:
        measured(name, given.records, given.many if name == "aggregate, many" else given.keys, given.rounds, given.zipf)


def run(*, quick: bool) -> None:
    """With the default sizes, or a tenth of them."""
    main(["--records", "20000", "--keys", "2000", "--many", "100000", "--rounds", "3"] if quick else [])


if __name__ == "__main__":
    main()
