"""Large groups against a broker, seen from outside.

    python -m benchmarks group_load
    python -m benchmarks.group_load [--members 100,1000,2000] [--seconds 5] [--processes 2] [--no-peer]

Members are raw frames (`benchmarks.group_members`) in several processes. Timed is what they see: from the command to
the last SyncGroup answered, everybody in the same new generation. The broker is pinned to one core and the members to
the others; its own CPU time says more than the wall clock where others use the machine too. The same is asked of an
Apache Kafka in the same run; the ratio is Roster's time (or its peer's rate) in multiples, below 1 Roster is faster.
Both groups' first rebalance waits 0 ms for late joiners.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.broker import cpu_seconds
from benchmarks.group_members import process
from roster.client import Admin
from roster.testing.broker import BrokerProcess

SIZES = (100, 1_000, 2_000)
Row = dict[str, float]
RATES = {"heartbeats/s", "commits/s, fsync"}


class Group:
    """The generator's processes for one group."""

    def __init__(self, bootstrap: str, members: int, processes: int, cores: list[int]) -> None:
        self.name = f"load-{uuid.uuid4().hex[:8]}"
        with Admin(bootstrap) as admin:
            admin.create_topic(self.name, 1)
        context = multiprocessing.get_context("fork")
        self.pipes: list[Any] = []
        self.workers = []
        self.shares = [members // processes + (n < members % processes) for n in range(processes)]
        for number in range(processes):
            mine, theirs = context.Pipe()
            core = cores[number % len(cores)] if cores else None
            worker = context.Process(target=process, args=(bootstrap, self.name, self.name, theirs, core), daemon=True)
            worker.start()
            self.pipes.append(mine)
            self.workers.append(worker)

    def tell(self, *command: Any) -> None:
        for pipe in self.pipes:
            pipe.send(command)

    def told(self) -> list[Any]:
        return [pipe.recv() for pipe in self.pipes]

    def add(self, shares: list[int]) -> None:
        for pipe, share in zip(self.pipes, shares, strict=True):
            pipe.send(("add", share))
        self.told()

    def settled(self, begin: float) -> float:
        """Seconds until every process had its members in one generation."""
        last: list[Any] = [None] * len(self.pipes)
        while True:
            for number, pipe in enumerate(self.pipes):
                if pipe.poll(0.002):
                    last[number] = pipe.recv()
            if all(last) and len({generation for generation, _ in last}) == 1:
                break
        self.tell("go")
        return float(max(at for _, at in last) - begin)

    def timed(self, *command: Any) -> float:
        begin = time.monotonic()
        self.tell(*command)
        return self.settled(begin)

    def rate(self, what: str, seconds: float) -> float:
        self.tell(what, seconds)
        return float(sum(self.told()))

    def stop(self) -> None:
        self.tell("stop")
        for worker in self.workers:
            worker.join(30)
            if worker.is_alive():
                worker.kill()


def resident(pid: int) -> float:
    """Resident memory in KiB."""
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS"))
    return float(line.split()[1])


def pin(pid: int, core: int) -> None:
    """Keep every thread of a process on one core."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            os.sched_setaffinity(int(task.name), {core})


def measure(bootstrap: str, pid: int, members: int, processes: int, seconds: float) -> Row:
    """What one broker does with one group."""
    cores = sorted(os.sched_getaffinity(0))
    pin(pid, cores[0])
    group = Group(bootstrap, members, processes, cores[1:])
    row: Row = {}
    try:
        before = resident(pid)
        group.add(group.shares)
        row["cold herd, s"] = group.timed("join")
        row["memory a member, KiB"] = (resident(pid) - before) / members
        row["everybody rejoins, s"] = min(group.timed("join") for _ in range(3))
        group.add([1, *(0 for _ in group.shares[1:])])
        row["one joins, s"] = group.timed("join_new")
        begin = time.monotonic()
        group.pipes[0].send(("leave_one",))
        for pipe in group.pipes[1:]:
            pipe.send(("watch",))
        row["one leaves, s"] = group.settled(begin)
        for what, unit in (("heartbeat", "heartbeats/s"), ("commit", "commits/s, fsync")):
            begin = cpu_seconds(pid)
            row[unit] = group.rate(what, seconds)
            row[f"CPU of a {what}, us"] = 1e6 * (cpu_seconds(pid) - begin) / max(row[unit] * seconds, 1)
    finally:
        group.stop()
    return row


def restarted(broker: BrokerProcess, members: int, processes: int) -> float:
    """Seconds from the start after a kill -9 until every member's heartbeat was answered in its old generation."""
    group = Group(broker.bootstrap, members, processes, [])
    try:
        group.add(group.shares)
        group.timed("join")
        group.add([0] * processes)  # answered once no request is under way
        broker.kill()
        begin = time.monotonic()
        broker.start()
        group.tell("reconnect")
        answers = group.told()
        return float(max(at for at, _ in answers) - begin)
    finally:
        group.stop()


@contextlib.contextmanager
def roster(directory: Path) -> Iterator[tuple[str, int, BrokerProcess]]:
    """A Roster broker of its own."""
    with BrokerProcess(directory / "roster", "--initial-rebalance-delay-ms", "0", "--log-level", "error") as broker:
        yield broker.bootstrap, broker.pid, broker


@contextlib.contextmanager
def apache(directory: Path) -> Iterator[tuple[str, int, None]]:
    """An Apache Kafka from its published jars."""
    from tests.real.realparts.apache import ApacheKafka  # noqa: PLC0415

    (directory / "apache").mkdir()
    broker = ApacheKafka(directory / "apache", initial_delay_ms=0)
    try:
        yield broker.bootstrap, broker.process.pid, None
    finally:
        broker.stop()


def report(members: int, mine: Row, theirs: Row | None) -> None:
    """Print a table."""
    print(f"\n{members} members{'':<22}{'roster':>12}{'kafka':>12}{'ratio':>8}")
    for what, value in mine.items():
        other = theirs.get(what) if theirs else None
        ratio = "" if other is None else f"{(other / value if what in RATES else value / other):8.2f}"
        print(f"  {what:<28}{value:12.3f}{'' if other is None else f'{other:12.3f}'}{ratio}")


def compare(sizes: list[int], seconds: float, processes: int, *, peer: bool) -> None:
    """Measure both brokers on every size, one after the other: neither is busy while the other is timed."""
    results: list[dict[int, Row]] = []
    for start in (roster, apache) if peer else (roster,):
        with TemporaryDirectory() as directory, start(Path(directory)) as (bootstrap, pid, _):
            measure(bootstrap, pid, 50, processes, 2.0)  # warm
            rows = {size: measure(bootstrap, pid, size, processes, seconds) for size in sizes}
            results.append(rows)
    for size in sizes:
        report(size, results[0][size], results[1][size] if peer else None)
    with TemporaryDirectory() as directory, roster(Path(directory)) as (_, _, broker):
        for size in sizes:
            print(
                f"{size} members are back {restarted(broker, size, processes):.2f} s after kill -9 of Roster's broker"
            )


def run(*, quick: bool = False) -> None:
    """The section of `python -m benchmarks`."""
    compare([100, 500] if quick else list(SIZES), 2.0 if quick else 5.0, 2, peer=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", default=",".join(map(str, SIZES)))
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--no-peer", action="store_true")
    chosen = parser.parse_args()
    compare([int(n) for n in chosen.members.split(",")], chosen.seconds, chosen.processes, peer=not chosen.no_peer)
