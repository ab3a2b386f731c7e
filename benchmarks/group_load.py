"""Large groups against a broker, seen from outside.

    python -m benchmarks group_load
    python -m benchmarks.group_load [--members 100,1000,2000] [--rounds 3] [--seconds 3] [--processes 2] [--no-peer]

Members are raw frames (`benchmarks.group_members`) in several processes. Timed is what they see: from the command to
the last SyncGroup answered, everybody in the same new generation. Both brokers' first rebalance waits 0 ms for late
joiners, and both run with one core, the generator with the others.

Roster's broker and an Apache Kafka take turns, round by round, with a new group each time; a figure is the median of
the rounds, so that what else runs on the machine meets both alike. CPU is the broker's own, "generator" the CPU seconds
of the members' processes in the same phase. Everybody rejoins with another subscription than before: a follower that
rejoins with the same one, before its leader does, is answered at once in the old generation. The ratio is Roster's
time, or its peer's rate, in multiples: below 1 Roster is faster. Roster syncs the disk before it answers a commit,
Apache Kafka does not.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.broker import cpu_seconds
from benchmarks.group_members import process
from roster.client import Admin
from roster.testing.broker import BrokerProcess

SIZES = (100, 1_000, 2_000)
Row = dict[str, float]
SERVER_JVM = ("-XX:TieredStopAtLevel=4", "-XX:-UseSerialGC", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
"""As Kafka's own start script has it; tests start faster without the second compiler."""
RATES = {"heartbeats/s", "heartbeats a CPU s", "commits/s", "commits a CPU s"}


class Group:
    """The generator's processes for one group."""

    def __init__(self, bootstrap: str, members: int, processes: int, cores: list[int]) -> None:
        self.name = f"load-{uuid.uuid4().hex[:8]}"
        with Admin(bootstrap) as admin:
            admin.create_topic(self.name, 1)
        context = multiprocessing.get_context("fork")
        self.pipes: list[Any] = []
        self.number = 0
        self.generation = -1
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
        self.tell_each([command] * len(self.pipes))

    def tell_each(self, commands: list[tuple[Any, ...]]) -> None:
        self.number += 1
        for pipe, command in zip(self.pipes, commands, strict=True):
            pipe.send((self.number, command))

    def told(self) -> list[Any]:
        return [self.reply(pipe) for pipe in self.pipes]

    def reply(self, pipe: Any) -> Any:
        """What a process replies to the last command; replies to earlier ones are dropped."""
        while True:
            number, value = pipe.recv()
            if number == self.number:
                return value

    def add(self, shares: list[int]) -> None:
        self.tell_each([("add", share) for share in shares])
        self.told()

    def settled(self, begin: float) -> float:
        """Seconds until every process had its members in one generation."""
        last: list[Any] = [None] * len(self.pipes)
        while True:
            for number, pipe in enumerate(self.pipes):
                while pipe.poll(0.002):
                    last[number] = self.reply(pipe)
            if all(last) and len({generation for generation, _ in last}) == 1:
                break
        self.generation = last[0][0]
        self.tell("go")
        return float(max(at for _, at in last) - begin)

    def timed(self, command: str) -> float:
        begin = time.monotonic()
        self.tell(command, self.generation)
        return self.settled(begin)

    def rate(self, what: str, seconds: float) -> tuple[float, int]:
        """Answers a second, and all that were given once the seconds were over and no member waited any more."""
        self.tell(what, seconds)
        rates, answers = zip(*self.told(), strict=True)
        return sum(rates), sum(answers)

    def cpu_seconds(self) -> float:
        """CPU that the generator has taken."""
        return sum(cpu_seconds(worker.pid) for worker in self.workers if worker.pid is not None)

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


@dataclass
class Side:
    """A broker under load."""

    bootstrap: str
    pid: int
    restart: Callable[[], int]
    """Kills the broker, starts another on the same data, and returns its pid."""

    def pin(self) -> None:
        """Keep the broker on the first core."""
        pin(self.pid, cores()[0])


def cores() -> list[int]:
    """The cores of this process."""
    return sorted(os.sched_getaffinity(0))


def measure(side: Side, members: int, processes: int, seconds: float) -> Row:
    """What one broker does with one new group."""
    side.pin()
    group = Group(side.bootstrap, members, processes, cores()[1:])
    row: Row = {}

    def timed(what: str, command: str) -> None:
        begin, generator = cpu_seconds(side.pid), group.cpu_seconds()
        row[f"{what}, s"] = group.timed(command)
        row[f"{what}, CPU s"] = cpu_seconds(side.pid) - begin
        row[f"{what}, generator"] = group.cpu_seconds() - generator

    try:
        before = resident(side.pid)
        group.add(group.shares)
        timed("cold herd", "join")
        row["memory a member, KiB"] = (resident(side.pid) - before) / members
        timed("everybody rejoins", "join")
        group.add([1, *(0 for _ in group.shares[1:])])
        timed("one joins", "join_new")
        begin, cpu = time.monotonic(), cpu_seconds(side.pid)
        others = [("watch", group.generation)] * (len(group.pipes) - 1)
        group.tell_each([("leave_one", group.generation), *others])
        row["one leaves, s"] = group.settled(begin)
        row["one leaves, CPU s"] = cpu_seconds(side.pid) - cpu
        for what in ("heartbeat", "commit"):
            cpu = cpu_seconds(side.pid)
            row[f"{what}s/s"], answers = group.rate(what, seconds)
            row[f"{what}s a CPU s"] = answers / max(cpu_seconds(side.pid) - cpu, 0.01)
    finally:
        group.stop()
    return row


def restarted(side: Side, members: int, processes: int) -> float:
    """Seconds from the start after a kill -9 until every member's heartbeat was answered in its old generation."""
    group = Group(side.bootstrap, members, processes, [])
    try:
        group.add(group.shares)
        group.timed("join")
        group.tell("hold")
        group.told()
        begin = time.monotonic()
        side.pid = side.restart()
        group.tell("reconnect")
        answers = group.told()
        return float(max(at for at, _ in answers) - begin)
    finally:
        group.stop()


@contextlib.contextmanager
def roster(directory: Path) -> Iterator[Side]:
    """A Roster broker of its own."""
    with BrokerProcess(directory / "roster", "--initial-rebalance-delay-ms", "0", "--log-level", "error") as broker:

        def restart() -> int:
            broker.kill()
            broker.start()
            return broker.pid

        yield Side(broker.bootstrap, broker.pid, restart)


@contextlib.contextmanager
def apache(directory: Path) -> Iterator[Side]:
    """An Apache Kafka from its published jars."""
    from tests.real.realparts.apache import ApacheKafka  # noqa: PLC0415

    (directory / "apache").mkdir()
    broker = ApacheKafka(directory / "apache", initial_delay_ms=0, options=SERVER_JVM)

    def restart() -> int:
        broker.process.kill()
        broker.process.wait()
        broker._launch(broker.directory / "server.properties")
        return broker.process.pid

    try:
        yield Side(broker.bootstrap, broker.process.pid, restart)
    finally:
        broker.stop()


def median(rows: list[Row], what: str) -> float:
    """The median of the rounds; of memory the first round's, later ones use what that has left."""
    values = [row[what] for row in rows]
    return values[0] if what.startswith("memory") else statistics.median(values)


def report(members: int, mine: list[Row], theirs: list[Row] | None) -> None:
    """Print a table."""
    peer = f"{'kafka':>12}{'ratio':>8}{'of rounds':>16}" if theirs else ""
    print(f"\n{f'{members} members':<28}{'roster':>12}{peer}")
    for what in mine[0]:
        value = median(mine, what)
        line = f"  {what:<26}{value:12.3f}"
        if theirs:
            other = median(theirs, what)
            ratios = sorted(ratio(what, a[what], b[what]) for a, b in zip(mine, theirs, strict=True))
            line += f"{other:12.3f}{ratio(what, value, other):8.2f}{f'{ratios[0]:.2f}-{ratios[-1]:.2f}':>16}"
        print(line, flush=True)


def ratio(what: str, mine: float, theirs: float) -> float:
    """Roster's time, memory or time of one as a multiple of its peer's."""
    mine, theirs = max(mine, 1e-3), max(theirs, 1e-3)
    return theirs / mine if what in RATES else mine / theirs


def compare(sizes: list[int], seconds: float, processes: int, rounds: int, *, peer: bool) -> None:
    """Measure both brokers in turns: neither is busy while the other is timed."""
    print(f"load {os.getloadavg()[0]:.1f}, {len(cores())} cores")
    with TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        starts = (roster, apache) if peer else (roster,)
        sides = [stack.enter_context(start(Path(directory))) for start in starts]
        for side in sides:
            for _ in range(2 if peer else 1):
                measure(side, 50, processes, seconds)  # warm
        for size in sizes:
            rows: list[list[Row]] = [[] for _ in sides]
            for _ in range(rounds):
                for side, mine in zip(sides, rows, strict=True):
                    mine.append(measure(side, size, processes, seconds))
            report(size, rows[0], rows[1] if peer else None)
            back = [f"{restarted(side, size, processes):.2f} s" for side in sides]
            print(f"  all are back after kill -9: {', '.join(back)}; load {os.getloadavg()[0]:.1f}", flush=True)


def run(*, quick: bool = False) -> None:
    """The section of `python -m benchmarks`."""
    compare([100, 500] if quick else list(SIZES), 2.0 if quick else 3.0, 2, 1 if quick else 3, peer=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", default=",".join(map(str, SIZES)))
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--no-peer", action="store_true")
    chosen = parser.parse_args()
    sizes = [int(n) for n in chosen.members.split(",")]
    compare(sizes, chosen.seconds, chosen.processes, chosen.rounds, peer=not chosen.no_peer)
