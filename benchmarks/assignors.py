"""The sticky assignors: `python -m benchmarks.assignors [--java CLASSPATH] [--slopes] [WORKLOAD ...]`.

Per workload a fresh group, then one member joins, then one leaves. Figures are milliseconds of CPU, the least of
several rounds: the decision alone, the plan as dictionaries for people, and bytes to bytes (`roster.lead`: decode,
decide, encode). With --java the last columns are Kafka's own cooperative-sticky assignor (its `assign` alone, CPU of
its thread, so without its garbage collector) and how many times faster Roster's bytes to bytes is than that.
With --slopes: time against partitions and against members, as exponents of a power law fitted over the sizes shown.
"""

from __future__ import annotations

import argparse
import math
import random
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from roster.assignors import COOPERATIVE_STICKY
from roster.assignors.certificate import verify
from roster.member.leader import lead, plan_group
from roster.model import Plan
from roster.wire.consumer_protocol import Subscription, TopicPartitions, decode_assignment, encode_subscription

Topics = dict[str, int]
Group = dict[str, list[str]]
Held = dict[str, dict[str, list[int]]]

PEER = Path(__file__).parent / "java" / "AssignorPeer.java"


def named(topics: int, partitions: int) -> Topics:
    """Topics of one size."""
    return {f"topic-{t:05}": partitions for t in range(topics)}


def equal(topics: int, partitions: int, members: int) -> tuple[Topics, Group]:
    """Everybody subscribes to everything."""
    sizes = named(topics, partitions)
    return sizes, {f"member-{m:05}": list(sizes) for m in range(members)}


def one_narrow(topics: int, partitions: int, members: int) -> tuple[Topics, Group]:
    """One more member, which subscribes to the first topic only; it is the one that joins."""
    sizes, group = equal(topics, partitions, members)
    return sizes, {**group, "member-narrow": ["topic-00000"]}


def four_classes(topics: int, partitions: int, members: int) -> tuple[Topics, Group]:
    """All, the first half, the second half, the middle half."""
    sizes = named(topics, partitions)
    names, quarter = list(sizes), topics // 4
    kinds = [names, names[: 2 * quarter], names[2 * quarter :], names[quarter : 3 * quarter]]
    return sizes, {f"member-{m:05}": kinds[m % 4] for m in range(members)}


def nested(topics: int, members: int) -> tuple[Topics, Group]:
    """Member m subscribes to the first 1 + m mod topics."""
    chance = random.Random(1)
    sizes = {name: chance.randint(1, 10) for name in named(topics, 1)}
    return sizes, {f"member-{m:05}": list(sizes)[: 1 + m % topics] for m in range(members)}


def scattered(topics: int, partitions: int, members: int, each: int | None) -> tuple[Topics, Group]:
    """Random subscriptions, all different; of one size, or of any."""
    chance = random.Random(2)
    sizes = named(topics, partitions)
    return sizes, {
        f"member-{m:05}": sorted(chance.sample(list(sizes), each or chance.randint(1, topics))) for m in range(members)
    }


WORKLOADS: Mapping[str, Callable[[], tuple[Topics, Group]]] = {
    "1x2100/2100": lambda: equal(1, 2100, 2100),
    "10x1000/500": lambda: equal(10, 1000, 500),
    "100x100/1000": lambda: equal(100, 100, 1000),
    "500x2000/2000": lambda: equal(500, 2000, 2000),
    "500x2000/2001 one narrow": lambda: one_narrow(500, 2000, 2000),
    "100x200/500 in 4 classes": lambda: four_classes(100, 200, 500),
    "40 nested/200": lambda: nested(40, 200),
    "100x20/500 all distinct": lambda: scattered(100, 20, 500, None),
    "20000x1/500, 40 each": lambda: scattered(20_000, 1, 500, 40),
}


def sent(group: Group, held: Held, generation: int) -> dict[str, bytes]:
    """The members' subscriptions as they send them."""
    return {
        member: encode_subscription(
            Subscription(
                topics=topics,
                owned_partitions=[TopicPartitions(topic=t, partitions=p) for t, p in held.get(member, {}).items()],
                generation_id=generation if member in held else -1,
            )
        )
        for member, topics in group.items()
    }


def received(assignments: Mapping[str, bytes]) -> Held:
    """What each member then owns."""
    return {
        member: {entry.topic: entry.partitions for entry in decode_assignment(data).assigned_partitions}
        for member, data in assignments.items()
    }


def events(topics: Topics, group: Group) -> Iterator[tuple[str, Group, Held]]:
    """(event, group, what is held before it): fresh without the last member, the last joins, the fourth leaves."""
    *early, last = group
    smaller = {member: group[member] for member in early}
    yield "fresh", smaller, {}
    held = received(lead("sticky", sent(smaller, {}, -1), topics))
    yield "join", {**smaller, last: group[last]}, held
    gone = early[min(3, len(early) - 1)]
    yield (
        "leave",
        {member: names for member, names in smaller.items() if member != gone},
        {member: partitions for member, partitions in held.items() if member != gone},
    )


def least(work: Callable[[], object], rounds: int) -> float:
    """Least CPU milliseconds of a call."""
    figures = []
    for _ in range(rounds):
        begin = time.process_time()
        work()
        figures.append(time.process_time() - begin)
    return min(figures) * 1000


class Java:
    """Kafka's assignor in a JVM of its own."""

    def __init__(self, classpath: str) -> None:
        command = ["java", "-Xmx3g", "-cp", classpath, str(PEER)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def time(self, topics: Topics, group: Group, held: Held, rounds: int) -> tuple[float, int]:
        """(milliseconds of `assign`, partitions it takes from members that had them)."""
        lines = [f"T {topic} {count}" for topic, count in topics.items()]
        lines += [f"M {m} {1 if m in held else -1} {','.join(names)}" for m, names in group.items()]
        lines += [f"O {m} {t} {','.join(map(str, p))}" for m, owned in held.items() for t, p in owned.items()]
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n".join([*lines, f"E {rounds}", ""]))
        self.process.stdin.flush()
        spent, moved = self.process.stdout.readline().split()
        return float(spent), int(moved)


def measure(name: str, java: Java | None, rounds: int) -> None:
    """One workload's rows."""
    topics, group = WORKLOADS[name]()
    for event, members, held in events(topics, group):
        subscriptions = sent(members, held, 1)
        plan: Plan = plan_group(COOPERATIVE_STICKY, subscriptions, topics)
        problem = plan.problem
        decision = least(lambda problem=problem: COOPERATIVE_STICKY.assign(problem), rounds)
        people = decision + least(plan.assignment, rounds)
        whole = least(lambda sent=subscriptions: lead("cooperative-sticky", sent, topics), rounds)
        loads, proof = (
            plan.loads(),
            "proved" if problem.partition_count > 200_000 or verify(problem, plan).ok else "WRONG",
        )
        proof = "" if problem.partition_count > 200_000 else proof
        row = f"{name:26} {event:6} {decision:9.2f} {people:9.2f} {whole:9.2f}  {int(plan.moved().sum()):6}"
        row += f" {loads.min():5}-{loads.max():<5} {proof:7}"
        if java is not None:
            spent, moved = java.time(topics, members, held, max(1, rounds // 2))
            row += f" {spent:10.1f} {moved if held else 0:7} {spent / whole:8.1f}x"
        print(row, flush=True)


def slope(sizes: list[int], times: list[float]) -> float:
    """Exponent of the power law through the points, least squares on logarithms."""
    x, y = [math.log(size) for size in sizes], [math.log(t) for t in times]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)


def slopes(rounds: int) -> None:
    """How a join's bytes to bytes grows."""

    def joins(topics: Topics, group: Group) -> float:
        _, (_, members, held), _ = events(topics, group)
        subscriptions = sent(members, held, 1)
        return least(lambda: lead("cooperative-sticky", subscriptions, topics), rounds)

    for shape, make in (("equal", equal), ("4 classes", four_classes)):
        counts = [10_000, 30_000, 100_000, 300_000, 1_000_000]
        times = [joins(*make(100, count // 100, 1000)) for count in counts]
        report(f"{shape}: partitions at 1000 members", counts, times)
        counts = [10, 100, 1000, 10_000]
        times = [joins(*make(100, 1000, count)) for count in counts]
        report(f"{shape}: members at 100,000 partitions", counts, times)


def report(what: str, sizes: list[int], times: list[float]) -> None:
    """One line of sizes, times and the exponent."""
    print(f"{what}: {sizes}: {[round(t) for t in times]} ms, slope {slope(sizes, times):.2f}", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of: {'; '.join(WORKLOADS)}")
    parser.add_argument("--java", metavar="CLASSPATH", help="classpath with kafka-clients and slf4j-api")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slopes", action="store_true")
    options = parser.parse_args()
    if options.slopes:
        slopes(options.rounds)
        return
    java = Java(options.java) if options.java else None
    peer = f" {'Java':>10} {'moves':>7} {'faster':>9}" if java else ""
    print(f"{'':26} {'':6} {'decision':>9} {'people':>9} {'bytes':>9}  {'moves':>6} {'loads':>9} {'':7}{peer}")
    for name in options.workloads or WORKLOADS:
        measure(name, java, options.rounds)
    if java is not None:
        java.process.kill()


if __name__ == "__main__":
    main()
