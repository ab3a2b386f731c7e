"""An owner of state is killed, with a standby copy, with its disk, with neither; and an application joins the group.

    python -m benchmarks standby
    python -m benchmarks.standby [--megabytes 100,1000] [--rate 400] [--modes standby,disk,none,join]

Two applications, each with a Spark of one core, keep a sum for each key of a topic with 6 partitions; keys have 480
bytes, and each comes once, then keys at random come at a steady rate. MB is the state of one owner.

One application is killed once no copy is being restored. Counted are the other's batches from the first after the
take-over to the first with results of all tasks, the changelog records that it read back for them, and the seconds from
the end of the session (10 s) to that batch's commit. `changelog` is the sum of its partitions' end offsets. In the mode
`standby` each has a disk of its own and the group one copy of each task; in `disk` there is no copy, but both keep
their stores in one directory, so that the dead one's are still there; in `none` there is neither.

In the mode `join` a third application joins the group of `standby`. Its line says how many batches a task stood still
at most: those of its old owner after the task's last batch there, or of its new owner before the first one, whichever
are more. `copies` is the least number of applications that had a copy of a task within the acceptable lag, at any look
(five a second) from the start of the third to the end of the move: the one that runs the task is one of them.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import Producer

from benchmarks.applications import say
from roster.client import Admin, ClientError
from roster.model import TopicPartition
from roster.testing.broker import BrokerProcess

if TYPE_CHECKING:
    from roster.spark import Progress

    Start = Callable[[], "Owner"]

PARTITIONS = 6
SESSION_MS = 10_000
PATIENCE = 2400.0
"""Seconds until a step must be over."""
KEY_BYTES = 480
ENTRY_BYTES = KEY_BYTES + 20
"""Bytes of a key, its sum and what encodes them, about."""
ACCEPTABLE_LAG = 10_000


class Owner:
    """An application in a process of its own; `batches` and `looks` fill with what it says."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-m", "benchmarks.standby", "--application", *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.batches: list[dict[str, Any]] = []
        self.looks: list[dict[str, Any]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(json.JSONDecodeError):
                said = json.loads(line)
                (self.looks if "whole" in said else self.batches).append(said)

    def is_steady(self, owners: int, copies: int) -> bool:
        """True if its last batches had its share of the partitions, its copies are there, and none is restored."""
        last, share = self.batches[-5:], PARTITIONS // owners
        if len(last) < 5 or any(len(each["owned"]) != share or each["restoring"] for each in last):
            return False
        behind: dict[str, int] = self.looks[-1]["behind"] if self.looks else {}
        return len(behind) >= copies * share and max(behind.values(), default=0) <= ACCEPTABLE_LAG

    def copies_at(self, moment: float) -> set[int]:
        """Return the tasks of which it had a copy within the acceptable lag, by its last look before."""
        before = [each for each in self.looks if each["at"] <= moment]
        if not before:
            return set()
        last = before[-1]
        near = {int(task) for task, gap in last["behind"].items() if gap <= ACCEPTABLE_LAG}
        return near | set(last["whole"])


def application(words: Sequence[str]) -> None:
    """One application, until it is killed."""
    from roster.spark import KafkaSink, Pipeline, PipelineError, session  # noqa: PLC0415 - the benchmark itself needs no Spark

    bootstrap, group, topic, out, directory, standbys = words

    def columns(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([batch["key"].cast(pa.string()), batch["offset"]], ["name", "n"])

    def report(progress: Progress) -> None:
        say(
            at=time.time(),
            started=progress.started_at / 1000,
            generation=progress.generation,
            partitions=[partition.partition for partition in progress.ranges],
            owned=[partition.partition for partition in progress.lag],
            restored=progress.restored,
            standby_records=progress.standby_records,
            restoring=len(progress.restoring),
        )

    def look() -> None:
        while True:
            time.sleep(0.2)
            with contextlib.suppress(PipelineError):
                store = pipeline.store("sums")
                whole = [int(task.partition("_")[2]) for task in store.tasks]
                say(at=time.time(), whole=whole, behind={t.partition("_")[2]: gap for t, gap in store.behind.items()})

    spark = session("bench", "local[1]", spark_driver_memory="512m")
    spark.sparkContext.setLogLevel("ERROR")
    options: dict[str, Any] = {"state_dir": directory, "standbys": int(standbys), "session_timeout_ms": SESSION_MS}
    pipeline = Pipeline(spark, bootstrap, group, topic, log="warning", on_progress=report, **options)
    pipeline.map_arrow(columns, "name string, n long")
    pipeline.aggregate("name", {"n": "sum(n)"}, store="sums")
    threading.Thread(target=look, daemon=True).start()
    pipeline.write(KafkaSink(bootstrap, out)).run()


def key_of(number: int) -> bytes:
    """Return a key of KEY_BYTES, keys of near numbers far from each other."""
    return (b"%016x" % (number * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)).ljust(KEY_BYTES, b"-")


@contextlib.contextmanager
def stream(bootstrap: str, topic: str, keys: int, rate: int) -> Iterator[None]:
    """Send keys at random until it is left."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    ended, chance = threading.Event(), random.Random(1)

    def send() -> None:
        while not ended.wait(0.1):
            for _ in range(rate // 10):
                number = chance.randrange(keys)
                producer.produce(topic, b"", key_of(number), partition=number % PARTITIONS)
            producer.poll(0)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        producer.flush(10)


def wait_for(condition: Callable[[], object], what: str, applications: Sequence[Owner] = ()) -> None:
    """Wait for a condition. Raises RuntimeError if it does not come, or an application ends meanwhile."""
    until = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > until:
            raise RuntimeError(f"no {what} within {PATIENCE:g} s")
        if any(each.process.poll() is not None for each in applications):
            raise RuntimeError(f"an application has ended by itself before the {what}")
        time.sleep(0.1)


def fill(bootstrap: str, topic: str, keys: int) -> None:
    """Send each key once."""
    queue = {"queue.buffering.max.messages": 50_000, "queue.buffering.max.kbytes": 100_000}
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, **queue})
    for number in range(keys):
        while True:
            try:
                producer.produce(topic, b"", key_of(number), partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush(120)


@contextlib.contextmanager
def running(bootstrap: str, folder: Path, keys: int, rate: int, mode: str) -> Iterator[tuple[str, list[Owner], Start]]:
    """Two applications in a steady state, under a steady stream; and what starts another one."""
    group, topic, out = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("g", "t", "o"))
    standbys = int(mode in ("standby", "join"))
    owners: list[Owner] = []

    def start() -> Owner:
        disk = folder / (group if mode == "disk" else f"{group}-{len(owners)}")
        owners.append(Owner(bootstrap, group, topic, out, str(disk), str(standbys)))
        return owners[-1]

    with Admin(bootstrap, request_timeout_ms=60_000) as admin:
        for each in (topic, out):
            admin.create_topic(each, PARTITIONS)
        fill(bootstrap, topic, keys)
        try:
            for _ in range(2):
                start()
            with stream(bootstrap, topic, keys, rate):
                wait_for(lambda: all(each.is_steady(2, standbys) for each in owners), "steady state", owners)
                yield group, owners, start
        finally:
            for owner in owners:
                owner.process.kill()
                owner.process.wait()
            for name in (topic, out, f"{group}-sums-changelog"):
                with contextlib.suppress(ClientError):
                    admin.delete_topic(name)
            for disk in folder.glob(f"{group}*"):
                shutil.rmtree(disk, ignore_errors=True)


def killed(bootstrap: str, folder: Path, megabytes: int, rate: int, mode: str) -> None:
    """Print the line of one take-over."""
    keys = 2 * megabytes * 1_000_000 // ENTRY_BYTES
    with running(bootstrap, folder, keys, rate, mode) as (group, (victim, heir), _):
        moving, seen = set(victim.batches[-1]["owned"]), len(heir.batches)
        at = time.time()
        victim.process.kill()

        def is_over() -> bool:
            return moving <= {p for each in heir.batches[seen:] for p in each["partitions"]}

        wait_for(is_over, "result", [heir])
        with Admin(bootstrap, request_timeout_ms=60_000) as admin:
            ends = admin.end_offsets([TopicPartition(f"{group}-sums-changelog", p) for p in range(PARTITIONS)])
        before = heir.batches[seen - 1]["generation"]
        until_done: list[dict[str, Any]] = []
        left = set(moving)
        for each in [each for each in heir.batches[seen:] if each["generation"] > before]:
            until_done.append(each)
            left -= set(each["partitions"])
            if not left:
                break
    replayed = sum(each["restored"] + each["standby_records"] for each in until_done)
    late = until_done[-1]["at"] - at - SESSION_MS / 1000
    print(
        f"{megabytes:>8,} {mode:>9} {sum(ends.values()):>12,} {len(until_done):>8} {replayed:>12,} {late:>10.1f}",
        flush=True,
    )


def joined(bootstrap: str, folder: Path, megabytes: int, rate: int) -> None:
    """Print the line of one application that joins; the group has as many MB of state."""
    keys = megabytes * 1_000_000 // ENTRY_BYTES
    with running(bootstrap, folder, keys, rate, "join") as (_, owners, start):
        begin = time.time()
        start()
        wait_for(lambda: all(each.is_steady(3, 1) for each in owners), "end of the move", owners)
        end = time.time()
    batches, seconds = longest_pause([[each for each in o.batches if each["at"] >= begin - 5] for o in owners])
    looks = sorted(look["at"] for owner in owners for look in owner.looks if begin <= look["at"] <= end)
    copies = min(sum(p in owner.copies_at(at) for owner in owners) for at in looks for p in range(PARTITIONS))
    print(
        f"{megabytes:>8,} {'join':>9} {batches:>8} {seconds:>9.1f} {copies:>8} {len(looks):>8} {end - begin:>9.1f}",
        flush=True,
    )


def longest_pause(applications: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[int, float]:
    """Return the batches and the seconds for which a task stood still at most."""
    most, seconds = 0, 0.0
    for partition in range(PARTITIONS):
        worked = sorted(
            (batch["at"], number)
            for number, batches in enumerate(applications)
            for batch in batches
            if partition in batch["partitions"]
        )
        for (last, old), (first, new) in itertools.pairwise(worked):
            missed = [sum(last < batch["at"] < first for batch in applications[number]) for number in {old, new}]
            most, seconds = max(most, *missed), max(seconds, first - last)
    return most, seconds


MODES = ("standby", "disk", "none", "join")


def run(*, quick: bool, sizes: Sequence[int] = (), rate: int = 400, modes: Sequence[str] = MODES) -> None:
    """Print the tables."""
    sizes = sizes or ((10,) if quick else (100, 1_000))
    with TemporaryDirectory() as folder, BrokerProcess(Path(folder) / "broker", "--log-level", "error") as broker:
        heading = ("changelog", "batches", "replayed", "seconds")
        print("{:>8} {:>9} {:>12} {:>8} {:>12} {:>10}".format("MB", "mode", *heading), flush=True)
        for megabytes in sizes:
            for mode in [each for each in modes if each != "join"]:
                killed(broker.bootstrap, Path(folder), megabytes, rate, mode)
        if "join" in modes:
            of_joins = ("batches", "seconds", "copies", "looks", "whole")
            print("{:>8} {:>9} {:>8} {:>9} {:>8} {:>8} {:>9}".format("MB", "mode", *of_joins), flush=True)
            for megabytes in sizes:
                joined(broker.bootstrap, Path(folder), megabytes, rate)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", default="", help="sizes, with commas")
    parser.add_argument("--modes", default=",".join(MODES), help="which, with commas")
    parser.add_argument("--rate", type=int, default=400, help="records a second")
    parser.add_argument("--application", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.application:
        application(options.application)
    else:
        sizes = [int(each) for each in options.megabytes.split(",") if each]
        run(quick=False, sizes=sizes, rate=options.rate, modes=options.modes.split(","))


if __name__ == "__main__":
    main()
