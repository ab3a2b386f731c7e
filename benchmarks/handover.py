"""The gap of partitions that move: an application joins a steady stream, leaves it, is killed.

    python -m benchmarks handover
    python -m benchmarks.handover [--bootstrap HOST:PORT] [--rate 240] [--minute 60]

Two applications with default settings (a session of 10 s) in processes of their own count 240 records/s on 12
partitions. A partition's gap is the longest time between two committed batches with records of it, the time until the
first one after the change included. It is compared with the longest gap of the time before the change, in which nothing
moved: what a partition waits anyway. Partition-seconds are what the gaps of the partitions that moved have above that,
added up. Without an address a Roster broker is started.
"""

from __future__ import annotations

import argparse
import contextlib
import time
import uuid
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.applications import PARTITIONS, Application, Stream
from roster.client import Admin
from roster.testing.broker import BrokerProcess

SESSION_MS = 10_000
PATIENCE = 600.0
"""Seconds until a change must be over."""


def await_batches(applications: Sequence[Application], since: float, least: int = PARTITIONS) -> None:
    """Wait until each application has committed a batch, and together those of all partitions, after `since`."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        done = [set().union(*(batch.partitions for batch in a.batches if batch.at > since)) for a in applications]
        if all(done) and len(set().union(*done)) >= least:
            return
        time.sleep(0.1)
    raise RuntimeError("the applications have not shared the topic in time")


def commits(applications: Sequence[Application], begin: float, end: float) -> dict[int, list[tuple[float, int]]]:
    """Of each partition the times of committed batches with records of it, and the application."""
    found: dict[int, list[tuple[float, int]]] = {p: [] for p in range(PARTITIONS)}
    for index, application in enumerate(applications):
        for batch in list(application.batches):
            if begin <= batch.at <= end:
                for partition in batch.partitions:
                    found[partition].append((batch.at, index))
    return {partition: sorted(times) for partition, times in found.items()}


def longest(times: Sequence[tuple[float, int]]) -> float:
    """The longest time between two batches."""
    return max((after[0] - before[0] for before, after in pairwise(times)), default=0.0)


def report(what: str, applications: Sequence[Application], change: float, before: float, after: float) -> None:
    """Print the gaps of one change; `before` and `after` are the seconds to look at around it."""
    quiet = commits(applications, change - before, change)
    usual = max(longest(times) for times in quiet.values())
    around = commits(applications, change - before, change + after)
    owners = {partition: times[-1][1] for partition, times in quiet.items() if times}
    moved = [p for p, times in around.items() if any(at > change and index != owners[p] for at, index in times)]
    gaps = {p: longest([time for time in times if time[0] > change - usual - 1]) for p, times in around.items()}
    kept = [gap for partition, gap in gaps.items() if partition not in moved]
    of_moved = [gaps[partition] for partition in moved]
    print(
        f"{what:<28}{len(moved):>6}{max(of_moved, default=0):>10.2f}{max(kept, default=0):>10.2f}{usual:>10.2f}"
        f"{sum(max(gap - usual, 0) for gap in of_moved):>10.1f}",
        flush=True,
    )


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap")
    parser.add_argument("--rate", type=int, default=240)
    parser.add_argument("--minute", type=float, default=60.0, help="seconds to watch before each change")
    arguments = parser.parse_args(words)
    minute = arguments.minute
    with contextlib.ExitStack() as stack:
        bootstrap = arguments.bootstrap
        if bootstrap is None:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            bootstrap = stack.enter_context(BrokerProcess(folder / "data")).bootstrap
        topic = f"handover-{uuid.uuid4().hex[:8]}"
        with contextlib.closing(Admin(bootstrap)) as admin:
            admin.create_topic(topic, PARTITIONS)
        stack.enter_context(Stream(bootstrap, topic, arguments.rate))

        def application() -> Application:
            return stack.enter_context(Application(bootstrap, topic, topic, session_timeout_ms=SESSION_MS))

        print(f"{'seconds':<28}{'moved':>6}{'moved':>10}{'kept':>10}{'before':>10}{'part.-s':>10}")
        first = application()
        await_batches([first], 0)
        time.sleep(minute)
        started = time.time()
        second = application()
        await_batches([second], started, PARTITIONS // 2)
        joined = second.batches[0].at
        time.sleep(15)
        report("an application joins", [first, second], started, minute, time.time() - started)
        print(f"{'':<4}its first batch was committed {joined - started:.1f} s after its process began", flush=True)
        time.sleep(minute)
        left = time.time()
        second.leave()
        await_batches([first], left + 1)
        time.sleep(5)
        report("an application leaves", [first, second], left, minute, time.time() - left)
        started = time.time()
        third = application()
        await_batches([third], started, PARTITIONS // 2)
        time.sleep(minute)
        killed = time.time()
        third.kill()
        time.sleep(SESSION_MS / 1000)
        await_batches([first], killed + SESSION_MS / 1000)
        time.sleep(5)
        report(f"killed, session {SESSION_MS / 1000:g} s", [first, third], killed, minute, time.time() - killed)


def run(*, quick: bool) -> None:
    """With the default sizes, or less time before each change."""
    main(["--minute", "15"] if quick else [])


if __name__ == "__main__":
    main()
