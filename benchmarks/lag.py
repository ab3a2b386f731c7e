"""The lag-aware assignors: `python -m benchmarks.lag [--slopes] [WORKLOAD ...]`.

Lags are drawn from an exponential distribution with a mean of 10,000 records. Figures are milliseconds of CPU, the
least of three rounds: `lag` on a fresh group; `lag-cooperative-sticky` fresh, unchanged, with one more member, and with
3 % noise in the lags. `ratio` is the fullest member's lag over the lower bound no assignment can be under; `text` the
same for KIP-169 as it is written (topic by topic), with its time in Python; `moved` counts partitions that change hands
when one joins, and when there is only noise. With --slopes: time against partitions and members as fitted exponents.
"""

from __future__ import annotations

import argparse
import heapq
import math
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks.assignors import WORKLOADS, equal
from roster.assignors import LAG, LAG_COOPERATIVE_STICKY
from roster.model import Claims, MemberInfo, Plan, Problem

CHOSEN = ("10x1000/500", "100x100/1000", "100x200/500 in 4 classes", "500x2000/2000")
NEWCOMER = "member-newcomer"


def cpu(work: Callable[[], Plan]) -> tuple[float, Plan]:
    """(milliseconds, the plan): the least of three rounds."""
    least, plan = math.inf, None
    for _ in range(3):
        began = time.process_time()
        plan = work()
        least = min(least, 1000 * (time.process_time() - began))
    assert plan is not None
    return least, plan


def lagging(topics: dict[str, int], group: dict[str, list[str]]) -> Problem:
    """The group with its lags."""
    problem = Problem.build({m: MemberInfo(names) for m, names in group.items()}, topics)
    lag = np.random.default_rng(1).exponential(10_000, problem.partition_count).astype(np.int64)
    return replace(problem, lag=lag)


def claiming(problem: Problem, plan: Plan) -> Problem:
    """The members of `problem` claim what the plan of another set of members gave them."""
    place = {m: i for i, m in enumerate(problem.members)}
    number = np.array([place[m] for m in plan.problem.members], dtype=np.int32)
    claims = Claims(number[plan.owner], np.arange(len(plan.owner)))
    return replace(
        problem, claims=claims, generation=np.full(len(problem.members), 7, dtype=np.int32), lag=plan.problem.lag
    )


def by_the_text(problem: Problem) -> tuple[float, float]:
    """(milliseconds, fullest member's lag) of KIP-169, each topic by itself with a heap of its subscribers."""
    began = time.process_time()
    assert problem.lag is not None
    lags, first = problem.lag.tolist(), problem.first.tolist()
    subscribed = [set(topics.tolist()) for topics in problem.subscriptions]
    load = [0] * len(problem.members)
    for topic in range(len(problem.topics)):
        heap = [(0, 0, m) for m, s in enumerate(problem.subscription_of.tolist()) if topic in subscribed[s]]
        for lag in sorted(lags[first[topic] : first[topic + 1]], reverse=True):
            count, total, member = heap[0]
            heapq.heapreplace(heap, (count + 1, total + lag, member))
            load[member] += lag
    return 1000 * (time.process_time() - began), max(load)


def measure(name: str) -> None:
    """Print one workload."""
    topics, group = WORKLOADS[name]()
    problem = lagging(topics, group)
    fresh, plan = cpu(lambda: LAG.assign(problem))
    sticky, held = cpu(lambda: LAG_COOPERATIVE_STICKY.assign(problem))
    steady = claiming(problem, held)
    again, unchanged = cpu(lambda: LAG_COOPERATIVE_STICKY.assign(steady))
    more = claiming(lagging(topics, {**group, NEWCOMER: next(iter(group.values()))}), held)
    joins, joined = cpu(lambda: LAG_COOPERATIVE_STICKY.assign(more))
    assert problem.lag is not None
    noise = np.random.default_rng(2).uniform(0.97, 1.03, problem.partition_count)
    noisy = replace(steady, lag=(problem.lag * noise).astype(np.int64))
    wobble, wobbled = cpu(lambda: LAG_COOPERATIVE_STICKY.assign(noisy))
    text_ms, text_fullest = by_the_text(problem)
    assert plan.lag is not None and joined.lag is not None  # noqa: PT018 - for the type checker
    assert not unchanged.moved().any()
    print(
        f"{name:28}{fresh:9.0f}{sticky:9.0f}{again:11.0f}{joins:8.0f}{wobble:8.0f}{text_ms:9.0f}"
        f"{plan.lag.ratio:9.4f}{text_fullest / plan.lag.bound:8.4f}{joined.lag.ratio:9.4f}"
        f"{int(joined.moved().sum()):7}{int(wobbled.moved().sum()):7}",
        flush=True,
    )


def slopes() -> None:
    """Print how time grows."""
    for what, sizes, make in (
        ("partitions", (10, 30, 100, 300, 1000), lambda n: equal(n, 1000, 500)),
        ("members", (10, 100, 1000, 10_000), lambda n: equal(100, 1000, n)),
    ):
        times = []
        for size in sizes:
            problem = lagging(*make(size))
            times.append(cpu(lambda p=problem: LAG.assign(p))[0])
        slope = np.polyfit(np.log(sizes), np.log(times), 1)[0]
        print(f"{what}: {', '.join(f'{t:.0f} ms' for t in times)}; exponent {slope:.2f}")


def main() -> None:
    """Run the workloads named, or those chosen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", nargs="*", default=CHOSEN)
    parser.add_argument("--slopes", action="store_true")
    options = parser.parse_args()
    if options.slopes:
        slopes()
        return
    print(
        f"{'ms CPU':28}{'lag':>9}{'sticky':>9}{'unchanged':>11}{'joins':>8}{'noise':>8}{'text':>9}"
        f"{'ratio':>9}{'text':>8}{'joined':>9}{'moved':>7}{'noise':>7}"
    )
    for name in options.workload:
        measure(name)


if __name__ == "__main__":
    main()
