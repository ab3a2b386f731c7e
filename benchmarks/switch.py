"""Two groups with state that take turns in writing: the pause in batches and seconds, and each result once.

    python -m benchmarks switch
    python -m benchmarks.switch [--bootstrap HOST:PORT] [--rate 20000] [--switches 20] [--seconds 3]

Two pipelines in one Spark of two cores deduplicate the records of a topic with 12 partitions, and write to one topic.
`batches` are those that the new group ran for a partition between the last batch of the old group with results and its
own first one with results, the most of any partition; `pause` is the seconds between the ends of these two, likewise;
`command` is how long `roster groups switch` took. Between two switches are --seconds. At the end the results that a
reader of committed records gets are counted: each record has one.
Without an address a Roster broker is started.
"""

from __future__ import annotations

import argparse
import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar
from unittest import mock

import pyarrow as pa

from benchmarks.applications import PARTITIONS, Stream
from roster.cli.root import run
from roster.client import Admin
from roster.model import TopicPartition
from roster.model.switch import Results, Seen, Standing
from roster.spark import KafkaSink, Pipeline, State, session
from roster.spark.batch import Progress, Split
from roster.spark.driver.reporting import Reporter
from roster.spark.tasks.reader import ReaderConfig, read_splits
from roster.testing.broker import BrokerProcess

PATIENCE = 300.0
COLUMNS = "partition int, offset long, timestamp timestamp"


def columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select(["partition", "offset", "timestamp"])


class Group:
    """A pipeline, with the end of each batch and the offset from which on its tasks wrote results or did not."""

    def __init__(self, spark: Any, bootstrap: str, topic: str, out: str, directory: Path, *, paused: bool) -> None:
        self.name = f"{'green' if paused else 'blue'}-{uuid.uuid4().hex[:8]}"
        self.batches: list[tuple[float, Progress]] = []
        made = Pipeline(
            spark,
            bootstrap,
            self.name,
            topic,
            paused=paused,
            state=State(dir=str(directory / self.name)),
            on_progress=lambda done: self.batches.append((time.time(), done)),
        ).map_arrow(columns, COLUMNS)
        made.deduplicate(["partition", "offset"], within="1 minute", column="timestamp", store="seen")
        self.pipeline = made.write(KafkaSink(bootstrap, out)).start()

    def has(self, batches: int) -> bool:
        return len(self.batches) > batches

    def has_read(self, admin: Admin, ends: Mapping[TopicPartition, int]) -> bool:
        return {p: at.offset for p, at in admin.group_offsets(self.name).items()} == ends

    def ends(self, partition: TopicPartition) -> list[tuple[int, float]]:
        """The end of each batch of a partition: its offset, and when."""
        return [(done.ranges[partition].end, at) for at, done in self.batches if partition in done.ranges]


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.1)


class Handed(Reporter):
    """Notes the offset at which each group handed over a partition."""

    at: ClassVar[dict[tuple[str, TopicPartition], int]] = {}

    def switched(
        self, standings: Mapping[TopicPartition, Standing], positions: Mapping[TopicPartition, int], silent: int
    ) -> None:
        super().switched(standings, positions, silent)
        for partition, standing in standings.items():
            if standing.results is Results.HANDED_OVER:
                self.at[self._group, partition] = positions[partition]


def pauses(old: Group, new: Group, topic: str) -> tuple[int, float]:
    """The most batches and seconds of any partition without results."""
    most, longest = 0, 0.0
    for number in range(PARTITIONS):
        partition = TopicPartition(topic, number)
        at = Handed.at[old.name, partition]
        stopped = max(when for end, when in old.ends(partition) if end <= at)
        silent = [end for end, when in new.ends(partition) if when > stopped and end <= at]
        began = min(when for end, when in new.ends(partition) if end > at)
        most, longest = max(most, len(silent)), max(longest, began - stopped)
    return most, longest


def count(bootstrap: str, admin: Admin, out: str) -> Counter[str]:
    """The results that a reader of committed records gets."""
    results: Counter[str] = Counter()
    config = ReaderConfig(bootstrap=bootstrap, group="count", isolation_level="read_committed", client_id="count")
    ends = admin.end_offsets([TopicPartition(out, number) for number in range(PARTITIONS)])
    for batch in read_splits(config, [Split(*partition, 0, end) for partition, end in ends.items()]):
        results.update(batch["value"].cast(pa.string()).to_pylist())
    return results


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap")
    parser.add_argument("--rate", type=int, default=20_000)
    parser.add_argument("--switches", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3.0)
    arguments = parser.parse_args(words)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        bootstrap = arguments.bootstrap or stack.enter_context(BrokerProcess(folder / "data")).bootstrap
        admin = stack.enter_context(Admin(bootstrap))
        topic, out = (f"switch-{uuid.uuid4().hex[:8]}" for _ in range(2))
        for name in (topic, out):
            admin.create_topic(name, PARTITIONS)
        spark = session("switch", master="local[2]")
        stack.callback(spark.stop)
        stack.enter_context(mock.patch("roster.spark.pipeline.Reporter", Handed))
        old, new = (Group(spark, bootstrap, topic, out, folder, paused=paused) for paused in (False, True))
        with Stream(bootstrap, topic, arguments.rate):
            until(lambda: len(old.batches) > 5 and len(new.batches) > 5, "both work")
            print(f"{'batches':>8} {'pause':>6} {'command':>8}")
            for _ in range(arguments.switches):
                began = time.monotonic()
                assert run(["groups", "switch", old.name, new.name, "-b", bootstrap]) == 0
                took = time.monotonic() - began
                until(partial(new.has, len(new.batches) + 3), "the new group works")
                batches, pause = pauses(old, new, topic)
                print(f"{batches:>8} {pause:>6.1f} {took:>8.1f}", flush=True)
                time.sleep(arguments.seconds)
                old, new = new, old
        ends = admin.end_offsets([TopicPartition(topic, number) for number in range(PARTITIONS)])
        for each in (old, new):
            until(partial(each.has_read, admin, ends), f"{each.name} has read all")
        for each in (old, new):
            each.pipeline.stop()
            each.pipeline.wait()
        standing = {Seen.of(at).standing.results for at in admin.group_offsets(old.name).values()}
        assert standing == {Results.WRITES}
        results = count(bootstrap, admin, out)
        double = sum(number - 1 for number in results.values())
        print(f"{sum(ends.values())} records, {len(results)} with a result, {double} double")


if __name__ == "__main__":
    main()
