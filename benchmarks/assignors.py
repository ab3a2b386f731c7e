"""The sticky assignors against those of other clients: `python -m benchmarks assignors`.

Each workload is a fresh group, then one member joins, then one leaves, then one whose members claim what cannot be
true. Roster's three figures are medians of CPU milliseconds: the decision alone on columns; the plan for people, which
is the decision and the plan as dictionaries; and bytes to bytes (`roster.lead`: read every member's subscription,
decide, write every assignment).
"""

from __future__ import annotations

import math
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from benchmarks import peers
from benchmarks.groups import WORKLOADS, Group, Members, Topics, equal, events, four_classes
from benchmarks.peers import MissingError, Peer, TooSlowError
from roster.assignors import COOPERATIVE_STICKY
from roster.assignors.certificate import verify
from roster.cli.plan.output import collector_paused
from roster.member.assign_group import lead, plan_group
from roster.member.group_snapshot import GroupSnapshot
from roster.model import Problem

Answer: TypeAlias = dict[str, Any]
"""What a peer measured: lists of milliseconds by figure, or an `error`."""

LIMIT = 60.0
"""Seconds of wall clock that a peer gets for one group, warm-ups and all."""


def for_people(problem: Problem) -> dict[str, dict[str, list[int]]]:
    """The decision and the plan as dictionaries, as `roster plan` makes them."""
    with collector_paused():
        return COOPERATIVE_STICKY.assign(problem).assignment()


def times(work: Callable[[], object], rounds: int) -> list[float]:
    """CPU milliseconds of calls, after one that is not counted."""
    work()
    figures = []
    for _ in range(rounds):
        begin = time.process_time()
        work()
        figures.append((time.process_time() - begin) * 1000)
    return figures


def median(work: Callable[[], object], rounds: int) -> float:
    """Median CPU milliseconds of a call, after one that is not counted."""
    return statistics.median(times(work, rounds))


def short(milliseconds: float) -> str:
    """Three digits are enough."""
    return f"{milliseconds:.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"


class Table:
    """Roster's figures beside its peers', row by row."""

    def __init__(self, quick: bool) -> None:
        self.rounds = 3 if quick else 7
        self.budget = 2.0 if quick else 6.0
        self.limit = 10.0 if quick else LIMIT
        self.java = Peer("Java", lambda: peers.java("AssignorPeer"), self.limit)
        self.franz = Peer("franz-go", peers.franz_go, self.limit)
        self.python = [
            Peer(name, lambda name=name: peers.python(name), self.limit) for name in ("kafka-python", "aiokafka")
        ]
        self.plugin = Peer("plugin", lambda: peers.python("plugin"), self.limit)

    def stop(self) -> None:
        """End the peers."""
        for peer in (self.java, self.franz, self.plugin, *self.python):
            peer.stop()

    def header(self) -> None:
        """Name the columns."""
        self.said: set[str] = set()
        print(f"{'milliseconds of CPU, medians':36}{'Roster':>26}{'':>24}{'Java':>17}{'franz-go':>34}")
        print(
            f"{'':36}{'decision':>9}{'people':>8}{'bytes':>9}{'moves':>9}{'loads':>10} {'':4}"
            f"{'assign':>9}{'ratio':>8}{'plan':>9}{'ratio':>8}{'bytes':>9}{'ratio':>8}"
        )

    def row(self, name: str, event: str, group: Group) -> None:
        """One group."""
        subscriptions = group.subscriptions()
        plan = plan_group(COOPERATIVE_STICKY, GroupSnapshot(subscriptions=subscriptions, partitions=group.topics))
        problem = plan.problem
        figures = {
            "decision": lambda: COOPERATIVE_STICKY.assign(problem),
            "people": lambda: for_people(problem),
            "bytes": lambda: lead("cooperative-sticky", subscriptions, group.topics),
        }
        samples: dict[str, list[float]] = {figure: [] for figure in figures}
        answers = []
        for peer in (self.java, self.franz, None):  # before, between and after the peers: the machine's pace changes
            for figure, work in figures.items():
                samples[figure] += times(work, self.rounds)
            answers += [] if peer is None else [self._answer(peer, group)]
        ours = {figure: statistics.median(found) for figure, found in samples.items()}
        loads = plan.loads()
        proof = "ok" if verify(problem, plan).ok else "BAD"
        line = f"{name:27}{event:9}{short(ours['decision']):>9}{short(ours['people']):>8}{short(ours['bytes']):>9}"
        line += f"{int(plan.moved().sum()):>9}{f'{loads.min()}-{loads.max()}':>10} {proof:4}"
        line += self._compared(answers[0], [("decision", ours["bytes"])])
        line += self._compared(answers[1], [("plan", ours["people"]), ("bytes", ours["bytes"])])
        print(line, flush=True)

    def _answer(self, peer: Peer, group: Group) -> Answer | str | None:
        """What a peer measured; None if it took too long; "" if there is no such peer here."""
        try:
            return peer.time(group, rounds=self.rounds, budget=self.budget)
        except TooSlowError:
            return None
        except MissingError as missing:
            if str(missing) not in self.said:
                self.said.add(str(missing))
                print(f"*** MISSING: {peer.name}: {missing}", flush=True)
            return ""

    def _compared(self, answer: Answer | str | None, figures: list[tuple[str, float]]) -> str:
        """Columns of a peer: its figure, and Roster's as a multiple of it."""
        if answer is None:
            return "".join(f"{f'>{self.limit:.0f} s':>9}{f'<{ours / self.limit / 1000:.1g}':>8}" for _, ours in figures)
        if isinstance(answer, str):
            return "".join(f"{'-':>9}{'':>8}" for _ in figures)
        if "error" in answer:
            return f"{answer['error'][:15]:>17}" + " " * 17 * (len(figures) - 1)
        columns = ((statistics.median(answer[figure]), ours) for figure, ours in figures)
        return "".join(f"{short(theirs):>9}{ours / theirs:>8.2g}" for theirs, ours in columns)

    def python_rows(self, name: str) -> None:
        """Python's own clients; Roster's figure is its plug-in for kafka-python, in the same place.

        A library that was too slow for a workload is not asked again about what else happens to it.
        """
        gave_up = set()
        for event, group in events(*WORKLOADS[name]()):
            ours = statistics.median(self.plugin.time(group, rounds=self.rounds, budget=self.budget)["assign"])
            line = f"{name:27}{event:9}{short(ours):>9}"
            for peer in self.python:
                if peer in gave_up:
                    line += f"{'not tried':>20}"
                    continue
                try:
                    answer = peer.time(group, rounds=1, budget=0)
                except TooSlowError:
                    gave_up.add(peer)
                    line += f"{f'>{self.limit:.0f} s':>12}{f'>{self.limit * 1000 / ours:.0f}x':>8}"
                    continue
                if "error" in answer:
                    line += f"{answer['error'][:19]:>20}"
                    continue
                theirs = statistics.median(answer["assign"])
                line += f"{short(theirs):>12}{f'{theirs / ours:.0f}x':>8}"
            print(line, flush=True)

    def other_policies(self, topics: Topics, members: Members, name: str) -> None:
        """range, roundrobin and the eager sticky assignor: bytes to bytes against Java's `assign`."""
        for event, group in list(events(topics, members))[:2]:
            subscriptions = group.subscriptions()
            line = f"{name:27}{event:9}"
            for policy in ("range", "roundrobin", "sticky"):
                ours = median(lambda p=policy, s=subscriptions: lead(p, s, topics), self.rounds)
                try:
                    answer = self.java.time(group, policy=policy, rounds=self.rounds, budget=self.budget)
                    theirs = statistics.median(answer["decision"])
                    line += f"{short(ours):>11}{short(theirs):>8}{ours / theirs:>8.2g}"
                except TooSlowError:
                    line += f"{short(ours):>11}{f'>{self.limit:.0f} s':>8}{'':8}"
                except MissingError:
                    line += f"{short(ours):>11}{'-':>8}{'':8}"
            print(line, flush=True)


def memory(quick: bool) -> None:
    """What one rebalance needs on top of the group itself."""
    print("\nMemory of one member joining, MB: what Python and numpy allocate at most at one time (tracemalloc),")
    print("and how far the resident memory of a fresh process rises (Java's as its collector leaves it)")
    print(f"{'':27}{'tracemalloc':>12}{'Roster':>10}{'Java':>10}{'franz-go':>10}")
    names = [
        "100x200/500 in 4 classes",
        "20000x1/500, 40 each",
        *([] if quick else ["500x2000/2000", "500x2000/2001 one narrow"]),
    ]
    for name in names:
        topics, members = WORKLOADS[name]()
        group = dict(events(topics, members))["join"]
        subscriptions = group.subscriptions()
        tracemalloc.start()
        lead("cooperative-sticky", subscriptions, topics)
        line = f"{name:27}{tracemalloc.get_traced_memory()[1] / 1e6:>12.0f}"
        tracemalloc.stop()
        commands = {
            "Roster": lambda: peers.python("roster"),
            "Java": lambda: peers.java("AssignorPeer"),
            "franz-go": peers.franz_go,
        }
        for peer, command in commands.items():
            try:
                line += f"{Peer(peer, command, 2 * LIMIT).growth(group):>10.0f}"
            except (MissingError, OSError, TooSlowError):
                line += f"{'-':>10}"
        print(line, flush=True)


def slope(sizes: Sequence[int], times: Sequence[float]) -> float:
    """Exponent of the power law through the points, least squares on logarithms."""
    x, y = [math.log(size) for size in sizes], [math.log(t) for t in times]
    mean_x, mean_y = statistics.mean(x), statistics.mean(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)


def slopes(quick: bool) -> None:
    """How the time of a join, bytes to bytes, grows."""
    print("\nGrowth: one member joins, bytes to bytes, CPU ms; slope: exponent of the power law through all points")
    rounds = 3 if quick else 5

    def joins(topics: Topics, members: Members) -> float:
        group = dict(events(topics, members))["join"]
        subscriptions = group.subscriptions()
        return median(lambda: lead("cooperative-sticky", subscriptions, topics), rounds)

    for shape, make in (("equal", equal), ("4 classes", four_classes)):
        counts = [10_000, 30_000, 100_000] if quick else [10_000, 30_000, 100_000, 300_000, 1_000_000]
        times = [joins(*make(100, count // 100, 1000)) for count in counts]
        _growth(f"{shape}, 1000 members, partitions", counts, times)
        counts = [10, 100, 1000] if quick else [10, 100, 1000, 10_000]
        times = [joins(*make(100, 1000, count)) for count in counts]
        _growth(f"{shape}, 100,000 partitions, members", counts, times)


def _growth(what: str, sizes: list[int], times: list[float]) -> None:
    points = ", ".join(f"{size:,}: {short(t)}" for size, t in zip(sizes, times, strict=True))
    print(f"{what:44} {points}; slope {slope(sizes, times):.2f}", flush=True)


def run(*, quick: bool) -> None:
    """All of it."""
    skipped = {"500x2000/2000", "500x2000/2001 one narrow"} if quick else set()
    print(
        f"peers: Apache Kafka {peers.kafka_version()} (cooperative-sticky), franz-go {peers.franz_version()}.\n"
        "ratio: Roster's time as a multiple of the peer's, below 1 is faster. Java's `assign` reads and writes no\n"
        "bytes, yet it stands against Roster's bytes to bytes; franz-go's balancing into maps stands against Roster's\n"
        "plan for people, its bytes to bytes against Roster's. ok: the certificate of the plan verifies."
    )
    table = Table(quick)
    try:
        table.header()
        for name in WORKLOADS:
            if name not in skipped:
                for event, group in events(*WORKLOADS[name]()):
                    table.row(name, event, group)
        print("\nOther policies: Roster bytes to bytes, Java `assign`, ratio")
        print(f"{'':36}{'range':>27}{'roundrobin':>27}{'sticky':>27}")
        for name in ("100x100/1000", "100x200/500 in 4 classes"):
            table.other_policies(*WORKLOADS[name](), name)
        print("\nPython clients' sticky assignors, and Roster's as a plug-in of kafka-python: CPU ms, times faster")
        print(f"{'':36}{'plug-in':>9}{'kafka-python':>20}{'aiokafka':>20}")
        for name in ("40 nested/200", "1x2100/2100", "10x1000/500"):
            table.python_rows(name)
    finally:
        table.stop()
    memory(quick)
    slopes(quick)
