"""A group of very many applications in one process: real members and a real coordinator in virtual time.

    python -m benchmarks many_members
    python -m benchmarks.many_members [--members 100,300,1000] [--partitions 3]

Members are `roster.member`'s state machines with cooperative-sticky, requests and responses are bytes, and the
simulator's checks look at every event (`tests.simulation`). CPU is that of all; in brackets that of the coordinator's
state machine and of all members' alone, without the network, the bytes of requests and the checks. Partitions are
those of each member on average. Virtual seconds are what the group would wait for: heartbeats, delays of a network
without faults. `leader` is the CPU of the leader's part alone, from every member's subscription to every member's
assignment, and the most memory that it holds.
"""

from __future__ import annotations

import argparse
import os
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.groups import Group, equal
from roster.coordinator import Coordinator
from roster.member.assign_group import lead
from roster.member.member import Member
from tests.simulation.network import NetworkFaults
from tests.simulation.scenario import Scenario
from tests.simulation.world import SUBSCRIBED, World

SPENT: Counter[type[Any]] = Counter()
"""CPU seconds in the steps of each state machine."""


def group_of(members: int, partitions: int) -> World:
    """A world without faults, in which nobody has joined yet."""
    topics = dict.fromkeys(sorted(SUBSCRIBED), members * partitions // len(SUBSCRIBED))
    policies, network = (("cooperative-sticky",),), NetworkFaults(delay=2)
    world = World(Scenario(1, topics, policies, 0, 0.0, 0.0, network, 0.0, 1, session_ms=45_000, rebalance_ms=60_000))
    world.boot()
    world.stop_faults()
    return world


def measure(members: int, partitions: int) -> None:
    """Everybody joins, one more joins, one leaves; a line for each."""
    world = group_of(members, partitions)
    phase(world, f"{members:,} join", lambda: [world.start_member() for _ in range(members)])
    phase(world, "one more joins", world.start_member)
    phase(world, "one leaves", lambda: world.processes[0].close(leave=True))
    begin, commits, cpu = world.scheduler.now, world.books.acknowledged_commits, time.process_time()
    world.scheduler.run(begin + 30_000)
    took, done = time.process_time() - cpu, world.books.acknowledged_commits - commits
    print(f"  30 virtual seconds at rest: {done:,} commits, {took:.2f} CPU s{parts()}", flush=True)


def phase(world: World, name: str, change: Callable[[], object]) -> None:
    """Make a change and run until the group is at rest."""
    begin, rounds, cpu = world.scheduler.now, world.books.rounds, time.process_time()
    change()
    while True:
        world.scheduler.run(world.scheduler.now + 100)
        if world.unrest() is None:
            break
    took = time.process_time() - cpu
    virtual = (world.scheduler.now - begin) / 1000
    print(
        f"  {name}: {world.books.rounds - rounds} rebalances, {virtual:.1f} virtual s, {took:.2f} CPU s{parts()}",
        flush=True,
    )


def clocked(kind: type[Any]) -> None:
    """Count the CPU of a state machine's steps."""
    original = kind.step

    def step(*arguments: Any) -> Any:
        begin = time.process_time()
        try:
            return original(*arguments)
        finally:
            SPENT[kind] += time.process_time() - begin

    kind.step = step


def parts() -> str:
    """What the state machines took since the last call."""
    text = f" (coordinator {SPENT[Coordinator]:.2f}, members {SPENT[Member]:.2f})"
    SPENT.clear()
    return text


def leader(members: int, partitions: int) -> None:
    """The leader's part of the first rebalance: CPU without tracing, then memory."""
    topics, subscribed = equal(3, members * partitions // 3, members)
    sent = Group(topics, subscribed, {}, {}).subscriptions()
    cpu = time.process_time()
    lead("cooperative-sticky", sent, topics)
    took = time.process_time() - cpu
    tracemalloc.start()
    lead("cooperative-sticky", sent, topics)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(f"  leader: {1000 * took:.0f} ms of CPU, {most / 1e6:.1f} MB", flush=True)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", default="100,300,1000")
    parser.add_argument("--partitions", type=int, default=3)
    arguments = parser.parse_args(words)
    for kind in (Coordinator, Member):
        clocked(kind)
    for members in map(int, arguments.members.split(",")):
        print(f"{members:,} members, {members * arguments.partitions:,} partitions, load {os.getloadavg()[0]:.1f}")
        measure(members, arguments.partitions)
        leader(members, arguments.partitions)


def run(*, quick: bool) -> None:
    """With all sizes, or the smallest."""
    main(["--members", "100"] if quick else [])


if __name__ == "__main__":
    main()
