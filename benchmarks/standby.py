"""The owner of half of a group's state is killed: the first result of its tasks, with a standby copy and without.

    python -m benchmarks standby
    python -m benchmarks.standby [--keys 200000,2000000] [--rate 400]

Two applications, each with a Spark of one core and a disk of its own, keep a sum for each key of a topic with 4
partitions; each key comes once, then keys at random come at a steady rate. One application is killed once no copy is
being restored. Counted are the other's batches from the first after the take-over to the first with results of all
tasks, the changelog records that it read back for them, and the seconds from the end of the session (10 s) to that
batch's commit. `changelog` is the sum of its partitions' end offsets.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import Producer

from benchmarks.applications import say
from roster.client import Admin
from roster.model import TopicPartition
from roster.testing.broker import BrokerProcess

if TYPE_CHECKING:
    from roster.spark import Progress

PARTITIONS = 4
SESSION_MS = 10_000
PATIENCE = 900.0
"""Seconds until a step must be over."""


class Owner:
    """An application in a process of its own; `batches` fills with what it says of each."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-m", "benchmarks.standby", "--application", *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.batches: list[dict[str, Any]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(json.JSONDecodeError):
                self.batches.append(json.loads(line))

    def is_steady(self) -> bool:
        """True if its last batches had no copy to restore, and it has half of the partitions."""
        last = self.batches[-5:]
        return len(last) == 5 and all(len(each["owned"]) == PARTITIONS // 2 and not each["restoring"] for each in last)


def application(words: Sequence[str]) -> None:
    """One application, until it is killed."""
    from roster.spark import KafkaSink, Pipeline, session  # noqa: PLC0415 - the benchmark itself needs no Spark

    bootstrap, group, topic, out, directory, standbys = words

    def columns(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([batch["key"].cast(pa.string()), batch["offset"]], ["name", "n"])

    def report(progress: Progress) -> None:
        say(
            at=time.time(),
            generation=progress.generation,
            partitions=[partition.partition for partition in progress.ranges],
            owned=[partition.partition for partition in progress.lag],
            restored=progress.restored,
            standby_records=progress.standby_records,
            restoring=len(progress.restoring),
        )

    spark = session("bench", "local[1]", spark_driver_memory="512m")
    spark.sparkContext.setLogLevel("ERROR")
    options: dict[str, Any] = {"state_dir": directory, "standbys": int(standbys), "session_timeout_ms": SESSION_MS}
    pipeline = Pipeline(spark, bootstrap, group, topic, log="warning", on_progress=report, **options)
    pipeline.map_arrow(columns, "name string, n long").aggregate("name", {"n": "sum(n)"}, store="sums")
    pipeline.write(KafkaSink(bootstrap, out)).run()


@contextlib.contextmanager
def stream(bootstrap: str, topic: str, keys: int, rate: int) -> Iterator[None]:
    """Send keys at random until it is left."""
    producer, ended, chance = (
        Producer({"bootstrap.servers": bootstrap, "linger.ms": 5}),
        threading.Event(),
        random.Random(1),
    )

    def send() -> None:
        while not ended.wait(0.1):
            for _ in range(rate // 10):
                number = chance.randrange(keys)
                producer.produce(topic, b"", b"key-%020d" % number, partition=number % PARTITIONS)
            producer.poll(0)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        producer.flush(10)


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition. Raises RuntimeError if it does not come."""
    until = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > until:
            raise RuntimeError(f"no {what} within {PATIENCE:g} s")
        time.sleep(0.1)


def fill(bootstrap: str, topic: str, keys: int) -> None:
    """Send each key once."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    for number in range(keys):
        producer.produce(topic, b"", b"key-%020d" % number, partition=number % PARTITIONS)
        if number % 10_000 == 0:
            producer.poll(0.01)
    producer.flush(120)


def measure(bootstrap: str, folder: Path, keys: int, rate: int, standbys: int) -> None:
    """Print the line of one take-over."""
    group, topic, out = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("g", "t", "o"))
    with Admin(bootstrap) as admin:
        for each in (topic, out):
            admin.create_topic(each, PARTITIONS)
        fill(bootstrap, topic, keys)
        both = [Owner(bootstrap, group, topic, out, str(folder / f"{group}-{name}"), str(standbys)) for name in "ab"]
        try:
            with stream(bootstrap, topic, keys, rate):
                wait_for(lambda: all(each.is_steady() for each in both), "steady state")
                victim, heir = both
                moving, seen = set(victim.batches[-1]["owned"]), len(heir.batches)
                killed = time.time()
                victim.process.kill()
                done: set[int] = set()

                def is_over() -> bool:
                    done.update(p for each in heir.batches[seen:] for p in each["partitions"])
                    return moving <= done

                wait_for(is_over, "result")
            ends = admin.end_offsets([TopicPartition(f"{group}-sums-changelog", p) for p in range(PARTITIONS)])
        finally:
            for each in both:
                each.process.kill()
                each.process.wait()
    before = heir.batches[seen - 1]["generation"]
    after = [each for each in heir.batches[seen:] if each["generation"] > before]
    until_done: list[dict[str, Any]] = []
    left = set(moving)
    for each in after:
        until_done.append(each)
        left -= set(each["partitions"])
        if not left:
            break
    replayed = sum(each["restored"] + each["standby_records"] for each in until_done)
    late = until_done[-1]["at"] - killed - SESSION_MS / 1000
    print(
        f"{keys:>10,} {standbys:>9} {sum(ends.values()):>12,} {len(until_done):>8} {replayed:>12,} {late:>10.1f}",
        flush=True,
    )


def run(*, quick: bool, sizes: Sequence[int] = (), rate: int = 400) -> None:
    """Print the table."""
    print(f"{'keys':>10} {'standbys':>9} {'changelog':>12} {'batches':>8} {'replayed':>12} {'seconds':>10}", flush=True)
    with TemporaryDirectory() as folder, BrokerProcess(Path(folder) / "broker", "--log-level", "error") as broker:
        for keys in sizes or ((50_000,) if quick else (200_000, 2_000_000)):
            for standbys in (1, 0):
                measure(broker.bootstrap, Path(folder), keys, rate, standbys)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", default="", help="sizes, with commas")
    parser.add_argument("--rate", type=int, default=400, help="records a second")
    parser.add_argument("--application", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.application:
        application(options.application)
    else:
        run(quick=False, sizes=[int(each) for each in options.keys.split(",") if each], rate=options.rate)


if __name__ == "__main__":
    main()
