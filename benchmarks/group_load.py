"""Large groups against a broker, seen from outside.

    python -m benchmarks group_load
    python -m benchmarks.group_load [--members 100,1000,2000] [--rounds 3] [--seconds 3] [--processes 2] [--no-peer]
                                    [--peer-syncs] [--patience 240]

Members are raw frames (`benchmarks.group_members`) in several processes. Timed is what they see: from the command to
the last SyncGroup answered, everybody in the same new generation. Both brokers' first rebalance waits 0 ms for late
joiners, and both run with one core, the generator with the others.

Roster's broker and an Apache Kafka take turns, round by round, with a new group each time; a figure is the median of
the rounds, so that what else runs on the machine meets both alike. CPU is the broker's own, "generator" the CPU seconds
of the members' processes in the same phase. Everybody rejoins with another subscription than before: a follower that
rejoins with the same one, before its leader does, is answered at once in the old generation. The ratio is Roster's
time, or its peer's rate, in multiples: below 1 Roster is faster. Roster syncs the disk before it answers a commit, an
assignment or a generation; Apache Kafka does not, unless told so by --peer-syncs (`log.flush.interval.messages=1`).

Progress goes to the standard error. A phase that takes longer than the patience ends the run with what its members
wait for, exit code 1.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.broker import cpu_seconds
from benchmarks.group_members import StuckError, process
from benchmarks.peers import SERVER_JVM
from roster.client import Admin
from roster.testing.broker import BrokerProcess

SIZES = (100, 1_000, 2_000)
Row = dict[str, float]
PATIENCE_SECONDS = 240.0
GRACE_SECONDS = 30.0
"""Beyond the patience of the members' processes, which say what they wait for."""
RATES = {"heartbeats/s", "heartbeats a CPU s", "commits/s", "commits a CPU s"}


class Group:
    """The generator's processes for one group."""

    def __init__(self, bootstrap: str, members: int, processes: int, cores: list[int], patience: float) -> None:
        self.name = f"load-{uuid.uuid4().hex[:8]}"
        with Admin(bootstrap) as admin:
            admin.create_topic(self.name, 1)
        context = multiprocessing.get_context("fork")
        self.pipes: list[Any] = []
        self.number = 0
        self.patience = patience
        self.generation = -1
        self.workers = []
        self.shares = [members // processes + (n < members % processes) for n in range(processes)]
        for number in range(processes):
            mine, theirs = context.Pipe()
            core = cores[number % len(cores)] if cores else None
            arguments = (bootstrap, self.name, self.name, theirs, core, patience)
            worker = context.Process(target=process, args=arguments, daemon=True)
            worker.start()
            theirs.close()
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
        """What a process replies to the last command; replies to earlier ones are dropped. StuckError if none comes."""
        deadline = time.monotonic() + self.patience + GRACE_SECONDS
        while pipe.poll(max(deadline - time.monotonic(), 0)):
            try:
                number, value = pipe.recv()
            except EOFError:
                raise StuckError("a process of the generator has ended") from None
            if number is None:
                raise StuckError(value)
            if number == self.number:
                return value
        raise StuckError(f"a process of the generator gives no reply after {self.patience + GRACE_SECONDS:.0f} s")

    def add(self, shares: list[int]) -> None:
        self.tell_each([("add", share) for share in shares])
        self.told()

    def settled(self, begin: float) -> float:
        """Seconds until every process had its members in one generation."""
        last: list[Any] = [None] * len(self.pipes)
        deadline = time.monotonic() + self.patience + GRACE_SECONDS
        while time.monotonic() < deadline:
            for number, pipe in enumerate(self.pipes):
                while pipe.poll(0.002):
                    last[number] = self.reply(pipe)
            if all(last) and len({generation for generation, _ in last}) == 1:
                break
        else:
            raise StuckError(f"the processes of the generator saw {last} and no common generation")
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
        with contextlib.suppress(OSError):  # a process that has ended
            self.tell("stop")
        for worker in self.workers:
            worker.join(GRACE_SECONDS)
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

    name: str
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


@dataclass(frozen=True)
class Load:
    """How one group is made and for how long it asks."""

    members: int
    processes: int
    seconds: float
    patience: float

    def group(self, side: Side, cores: list[int]) -> Group:
        return Group(side.bootstrap, self.members, self.processes, cores, self.patience)


def progress(side: Side, load: Load, what: str, value: float) -> None:
    """Say what has been measured."""
    print(f"{load.members} members, {side.name}: {what} {value:.3f}", file=sys.stderr, flush=True)


class Measurement:
    """What one broker does with one new group: `row`, filled phase by phase."""

    def __init__(self, side: Side, load: Load) -> None:
        side.pin()
        self.side, self.load = side, load
        self.group = load.group(side, cores()[1:])
        self.row: Row = {}

    def timed(self, what: str, act: Callable[[], float]) -> None:
        """Time of a phase, and the CPU that the broker and the generator take for it."""
        begin, generator = cpu_seconds(self.side.pid), self.group.cpu_seconds()
        self.row[f"{what}, s"] = act()
        self.row[f"{what}, CPU s"] = cpu_seconds(self.side.pid) - begin
        self.row[f"{what}, generator"] = self.group.cpu_seconds() - generator
        progress(self.side, self.load, f"{what}, s", self.row[f"{what}, s"])

    def one_leaves(self) -> float:
        group, begin = self.group, time.monotonic()
        others = [("watch", group.generation)] * (len(group.pipes) - 1)
        group.tell_each([("leave_one", group.generation), *others])
        return group.settled(begin)

    def rate(self, what: str) -> None:
        """Answers a second of a closed loop, by the clock and by the broker's CPU."""
        cpu = cpu_seconds(self.side.pid)
        self.row[f"{what}s/s"], answers = self.group.rate(what, self.load.seconds)
        self.row[f"{what}s a CPU s"] = answers / max(cpu_seconds(self.side.pid) - cpu, 0.01)
        progress(self.side, self.load, f"{what}s/s", self.row[f"{what}s/s"])

    def run(self) -> Row:
        group, before = self.group, resident(self.side.pid)
        group.add(group.shares)
        self.timed("cold herd", lambda: group.timed("join"))
        self.row["memory a member, KiB"] = (resident(self.side.pid) - before) / self.load.members
        self.timed("everybody rejoins", lambda: group.timed("join"))
        group.add([1, *(0 for _ in group.shares[1:])])
        self.timed("one joins", lambda: group.timed("join_new"))
        self.timed("one leaves", self.one_leaves)
        for what in ("heartbeat", "commit"):
            self.rate(what)
        return self.row


def measure(side: Side, load: Load) -> Row:
    """What one broker does with one new group."""
    measurement = Measurement(side, load)
    try:
        return measurement.run()
    finally:
        measurement.group.stop()


def restarted(side: Side, load: Load) -> float:
    """Seconds from a kill -9 and start until every member's heartbeat was answered in its old generation."""
    group = load.group(side, [])
    try:
        group.add(group.shares)
        group.timed("join")
        group.tell("hold")
        group.told()
        begin = time.monotonic()
        side.pid = side.restart()
        group.tell("reconnect")
        answers = group.told()
        seconds = float(max(at for at, _ in answers) - begin)
    finally:
        group.stop()
    progress(side, load, "back after kill -9, s", seconds)
    return seconds


@contextlib.contextmanager
def roster(directory: Path) -> Iterator[Side]:
    """A Roster broker of its own."""
    with BrokerProcess(directory / "roster", "--initial-rebalance-delay-ms", "0", "--log-level", "error") as broker:

        def restart() -> int:
            broker.kill()
            broker.start()
            return broker.pid

        yield Side("roster", broker.bootstrap, broker.pid, restart)


@contextlib.contextmanager
def apache(directory: Path, *, syncs: bool = False) -> Iterator[Side]:
    """An Apache Kafka from its published jars; with `syncs` it syncs the disk for every append, as Roster does."""
    from tests.real.realparts import apache as real  # noqa: PLC0415

    (directory / "apache").mkdir()
    real.PROPERTIES += "message.max.bytes=67108864\n"  # the record of a group of 10,000 is larger than the default
    if syncs:
        real.PROPERTIES += "log.flush.interval.messages=1\n"
    broker = real.ApacheKafka(directory / "apache", initial_delay_ms=0, options=SERVER_JVM)

    def restart() -> int:
        broker.process.kill()
        broker.process.wait(GRACE_SECONDS)
        broker._launch(broker.directory / "server.properties", SERVER_JVM)
        return broker.process.pid

    try:
        yield Side("kafka", broker.bootstrap, broker.process.pid, restart)
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


def compare(sizes: list[int], load: Load, rounds: int, *, peer: bool, peer_syncs: bool = False) -> None:
    """Measure both brokers in turns: neither is busy while the other is timed."""
    print(
        f"load {os.getloadavg()[0]:.1f}, {len(cores())} cores{', Apache Kafka syncs' if peer_syncs else ''}", flush=True
    )
    with TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        sides = [stack.enter_context(roster(Path(directory)))]
        if peer:
            sides.append(stack.enter_context(apache(Path(directory), syncs=peer_syncs)))
        for side in sides:
            for _ in range(2 if peer else 1):
                measure(side, replace(load, members=50))  # warm
        for size in sizes:
            sized = replace(load, members=size)
            rows: list[list[Row]] = [[] for _ in sides]
            for _ in range(rounds):
                for side, mine in zip(sides, rows, strict=True):
                    mine.append(measure(side, sized))
            report(size, rows[0], rows[1] if peer else None)
            back = [f"{restarted(side, sized):.2f} s" for side in sides]
            print(f"  all are back after kill -9: {', '.join(back)}; load {os.getloadavg()[0]:.1f}", flush=True)


def run(*, quick: bool = False) -> None:
    """The section of `python -m benchmarks`."""
    load = Load(members=50, processes=2, seconds=2.0 if quick else 3.0, patience=PATIENCE_SECONDS)
    compare([100, 500] if quick else list(SIZES), load, 1 if quick else 3, peer=True)


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", default=",".join(map(str, SIZES)))
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--peer-syncs", action="store_true")
    parser.add_argument("--patience", type=float, default=PATIENCE_SECONDS)
    chosen = parser.parse_args()
    sizes = [int(n) for n in chosen.members.split(",")]
    load = Load(members=50, processes=chosen.processes, seconds=chosen.seconds, patience=chosen.patience)
    try:
        compare(sizes, load, chosen.rounds, peer=not chosen.no_peer, peer_syncs=chosen.peer_syncs)
    except StuckError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
