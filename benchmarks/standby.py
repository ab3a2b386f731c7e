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

In the mode `join` a third application joins the group of `standby`, and its line is about the time until each of the
three has its share of tasks and copies. `batches`: how many whole batches, at most, of its old or its new owner passed
a task by, begun after the task's last one was committed and over before its next one began. `idle` is the longest
time in seconds that a task waited so, `before` is the same while nothing moved: batches begin some time apart.
`copies` is the least number of stores of a task, over all disks, that were within the acceptable lag of the log's end
at any look (five a second); the store of the application that runs the task is one of them.

Standard error says what is waited for. Ctrl-C ends it and all that it started.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
from confluent_kafka import Producer
from typing_extensions import override

from benchmarks.applications import Beside, kill_tree, say
from roster.client import Admin, ClientError
from roster.model import TopicPartition
from roster.state import StateError
from roster.stateful.tasks.store_location import open_for_reading
from roster.testing.broker import BrokerProcess

if TYPE_CHECKING:
    from roster.spark import Progress

BEGIN = time.monotonic()
PARTITIONS = 6
SESSION_MS = 10_000
PATIENCE, PATIENCE_PER_MB = 240.0, 2.0
"""Seconds until a step must be over, and as many more for each MB of state."""
SAYING = 15.0
"""Seconds between two words of what is waited for."""
KEY_BYTES = 480
ENTRY_BYTES = KEY_BYTES + 20
"""Bytes of a key, its sum and what encodes them, about."""
ACCEPTABLE_LAG = 10_000
SMALL = 2_000
"""Records of a batch, at most, once all keys have been counted."""


class Owner:
    """An application in a process of its own; `batches` and `looks` fill with what it says."""

    def __init__(self, scratch: Path, *words: str) -> None:
        """`scratch` is for temporary files, which stay behind when it is killed."""
        scratch.mkdir(exist_ok=True)
        java = f'{os.environ.get("JDK_JAVA_OPTIONS", "")} "-Djava.io.tmpdir={scratch}"'.strip()
        places = {"TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch), "JDK_JAVA_OPTIONS": java}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.standby", "--application", *words],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **places},
        )
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
        """True if its last batches were small and had its share of the partitions, and its copies are restored."""
        last, share = self.batches[-5:], PARTITIONS // owners
        if len(last) < 5 or any(len(each["owned"]) != share or each["restoring"] for each in last):
            return False
        if any(each["rows"] > SMALL for each in last):
            return False
        behind: dict[str, int] = self.looks[-1]["behind"] if self.looks else {}
        return len(behind) >= copies * share and max(behind.values(), default=0) <= ACCEPTABLE_LAG

    def __str__(self) -> str:
        if not self.batches:
            return "no batch"
        last = self.batches[-1]
        return f"{len(self.batches)} batches, owns {len(last['owned'])}, restores {last['restoring']}"


class Copies(Beside):
    """Looks five times a second how many disks have a store of each task within the acceptable lag.

    disks: the directories of the applications, which may be given while it looks. `least` of the looks so far.
    """

    def __init__(self, bootstrap: str, changelog: str, disks: Sequence[Path]) -> None:
        super().__init__()
        self.looks, self.least = 0, len(disks)
        self._admin = Admin(bootstrap, request_timeout_ms=60_000)
        self._logs = [TopicPartition(changelog, number) for number in range(PARTITIONS)]
        self._disks, self._reached = disks, dict[Path, int]()

    @override
    def __enter__(self) -> Self:
        self._admin.__enter__()
        return super().__enter__()

    @override
    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._admin.close()

    @override
    def _run(self) -> None:
        while not self._ended.wait(0.2):
            ends = self._admin.end_offsets(self._logs)
            near = [
                sum(ends[log] - reached <= ACCEPTABLE_LAG for reached in self._positions(log.partition))
                for log in self._logs
            ]
            self.least, self.looks = min(self.least, *near), self.looks + 1

    def _positions(self, partition: int) -> Iterator[int]:
        """Yield the changelog offset of each store of a task; one that cannot be read now is where it was."""
        for path in [path for disk in list(self._disks) for path in disk.glob(f"*/*/0_{partition}")]:
            with contextlib.suppress(StateError), open_for_reading(path) as store:
                self._reached[path] = store.position().changelog
            if path in self._reached:
                yield self._reached[path]


def application(words: Sequence[str]) -> None:
    """One application, until it is killed."""
    from roster.spark import KafkaSink, Pipeline, PipelineError, State, session  # noqa: PLC0415 - the benchmark itself needs no Spark

    bootstrap, group, topic, out, directory, standbys = words

    def columns(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([batch["key"].cast(pa.string()), batch["offset"]], ["name", "n"])

    def report(progress: Progress) -> None:
        say(
            at=time.time(),
            started=progress.started_at / 1000,
            generation=progress.generation,
            rows=progress.rows,
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
    options: dict[str, Any] = {
        "state": State(dir=directory, standbys=int(standbys)),
        "consumer": {"session.timeout.ms": SESSION_MS},
    }
    options["max_offsets_per_batch"] = 50_000  # a transaction ends in time on a machine that does much else, too
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


def note(text: str) -> None:
    """Say how far it is."""
    print(f"{time.monotonic() - BEGIN:7.1f} s  {text}", file=sys.stderr, flush=True)


def wait_for(condition: Callable[[], object], what: str, megabytes: int, applications: Sequence[Owner] = ()) -> None:
    """Wait for a condition. Raises RuntimeError if it does not come, or an application ends meanwhile."""
    patience = PATIENCE + PATIENCE_PER_MB * megabytes
    until, saying = time.monotonic() + patience, time.monotonic() + SAYING
    while not condition():
        if time.monotonic() > until:
            raise RuntimeError(f"no {what} within {patience:g} s")
        if any(each.process.poll() is not None for each in applications):
            raise RuntimeError(f"an application has ended by itself before the {what}")
        if time.monotonic() > saying:
            saying += SAYING
            note(f"waiting for the {what}: " + "; ".join(map(str, applications)))
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


@dataclass
class Group:
    """Applications in a steady state, under a steady stream. `start` starts another one, with a disk of its own."""

    name: str
    megabytes: int
    disk: Callable[[int], Path]
    command: Callable[[Path], Owner]
    owners: list[Owner] = field(default_factory=list)
    disks: list[Path] = field(default_factory=list)

    @property
    def changelog(self) -> str:
        """The topic that has its state."""
        return f"{self.name}-sums-changelog"

    def start(self) -> None:
        """Start an application."""
        self.disks.append(self.disk(len(self.owners)))
        self.owners.append(self.command(self.disks[-1]))

    def settle(self, what: str, copies: int) -> None:
        """Wait until each application has its share of tasks and copies."""
        count = len(self.owners)
        wait_for(lambda: all(each.is_steady(count, copies) for each in self.owners), what, self.megabytes, self.owners)


@contextlib.contextmanager
def running(bootstrap: str, folder: Path, megabytes: int, keys: int, rate: int, mode: str) -> Iterator[Group]:
    """Two applications that have counted all keys; what is left of them is gone afterwards."""
    name, topic, out = (f"{each}-{uuid.uuid4().hex[:8]}" for each in ("g", "t", "o"))
    standbys = int(mode in ("standby", "join"))
    group = Group(
        name,
        megabytes,
        lambda number: folder / (name if mode == "disk" else f"{name}-{number}"),
        lambda disk: Owner(folder / "scratch", bootstrap, name, topic, out, str(disk), str(standbys)),
    )
    with Admin(bootstrap, request_timeout_ms=60_000) as admin:
        for each in (topic, out):
            admin.create_topic(each, PARTITIONS)
        note(f"{mode}, {megabytes:,} MB: two applications start, and {keys:,} keys are sent")
        try:
            for _ in range(2):
                group.start()
            fill(bootstrap, topic, keys)
            note("all keys are in the topic")
            with stream(bootstrap, topic, keys, rate):
                group.settle("steady state", standbys)
                yield group
        finally:
            for owner in group.owners:
                kill_tree(owner.process)
            for each in (topic, out, group.changelog):
                with contextlib.suppress(ClientError):
                    admin.delete_topic(each)
            for disk in group.disks:
                shutil.rmtree(disk, ignore_errors=True)


def killed(bootstrap: str, folder: Path, megabytes: int, rate: int, mode: str) -> None:
    """Print the line of one take-over."""
    keys = 2 * megabytes * 1_000_000 // ENTRY_BYTES
    with running(bootstrap, folder, megabytes, keys, rate, mode) as group:
        victim, heir = group.owners
        moving, seen = set(victim.batches[-1]["owned"]), len(heir.batches)
        at = time.time()
        kill_tree(victim.process)
        note("one of them is killed")

        def is_over() -> bool:
            return moving <= {p for each in heir.batches[seen:] for p in each["partitions"]}

        wait_for(is_over, "result of all tasks", megabytes, [heir])
        with Admin(bootstrap, request_timeout_ms=60_000) as admin:
            ends = admin.end_offsets([TopicPartition(group.changelog, p) for p in range(PARTITIONS)])
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
    with running(bootstrap, folder, megabytes, keys, rate, "join") as group:
        begin = time.time()
        group.start()
        note("a third application starts")
        with Copies(bootstrap, group.changelog, group.disks) as copies:
            group.settle("end of the move", 1)
        end = time.time()
        batches = [list(owner.batches) for owner in group.owners]
    before = [[each for each in of if begin - 15 <= each["at"] < begin] for of in batches]
    passed, idle = longest_pause([[each for each in of if each["at"] >= begin - 5] for of in batches])
    print(
        f"{megabytes:>8,} {'join':>9} {passed:>8} {idle:>8.1f} {longest_pause(before)[1]:>8.1f} {copies.least:>8}"
        f" {copies.looks:>8} {end - begin:>9.1f}",
        flush=True,
    )


def longest_pause(applications: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[int, float]:
    """Return the whole batches that passed a task by at most, and the longest time in seconds that one waited."""
    most, seconds = 0, 0.0
    for partition in range(PARTITIONS):
        worked = sorted(
            (batch["at"], batch["started"], number)
            for number, batches in enumerate(applications)
            for batch in batches
            if partition in batch["partitions"]
        )
        for (last, _, old), (_, next_begin, new) in itertools.pairwise(worked):
            passed = [
                sum(last <= batch["started"] and batch["at"] <= next_begin for batch in applications[number])
                for number in {old, new}
            ]
            most, seconds = max(most, *passed), max(seconds, next_begin - last)
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
            of_joins = ("batches", "idle", "before", "copies", "looks", "whole")
            print("{:>8} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9}".format("MB", "mode", *of_joins), flush=True)
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
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            run(quick=False, sizes=sizes, rate=options.rate, modes=options.modes.split(","))
        except RuntimeError as error:
            sys.exit(str(error))
        except KeyboardInterrupt:
            sys.exit(130)


if __name__ == "__main__":
    main()
