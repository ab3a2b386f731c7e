"""An assignor in a process of its own that answers `peers`' questions: `python -m benchmarks.python_peer LIBRARY`.

LIBRARY is kafka-python or aiokafka (their sticky assignors), plugin (Roster's sticky assignor as kafka-python's leader
calls it) or roster (`roster.lead`). The first three are timed from parsed members to assignments, as their client's
leader calls them; times are the process's CPU.
"""

# ruff: noqa: PLC0415 (a library is imported only where it is asked for)
from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

from benchmarks.groups import Group
from roster.member.assign_group import lead


class Cluster:
    """As much of a client's cluster metadata as assignors look at."""

    def __init__(self, topics: dict[str, int]) -> None:
        self._partitions = {topic: set(range(count)) for topic, count in topics.items()}

    def topics(self) -> Collection[str]:
        """Names."""
        return set(self._partitions)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Their numbers."""
        return self._partitions.get(topic)


Work = Callable[[], Any]


def kafka_python(group: Group, plugin: bool) -> Work:
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from kafka.coordinator.assignors.sticky.user_data import StickyAssignorUserData
    from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

    from roster.plugins.kafka_python import RosterSticky

    members = []
    for member, topics in group.members.items():
        claims = StickyAssignorUserData(group.owned(member), group.generation.get(member, -1)).encode()
        subscription = ConsumerProtocolSubscription(0, topics, claims if group.owned(member) else b"")
        metadata = ConsumerProtocolSubscription.decode(subscription.encode())
        members.append(SimpleNamespace(member_id=member, group_instance_id=None, metadata=metadata))
    assignor = RosterSticky() if plugin else StickyPartitionAssignor()
    cluster = Cluster(group.topics)
    return lambda: assignor.assign(cluster, members)


def aiokafka(group: Group) -> Work:
    from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyAssignorUserDataV1, StickyPartitionAssignor
    from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata

    members = {}
    for member, topics in group.members.items():
        claims = b""
        if owned := group.owned(member):
            claims = StickyAssignorUserDataV1(owned, group.generation.get(member, -1)).encode()
        members[member] = ConsumerProtocolMemberMetadata(0, topics, claims)
    cluster = Cluster(group.topics)
    return lambda: StickyPartitionAssignor.assign(cluster, members)


def roster(group: Group) -> Work:
    subscriptions = group.subscriptions()
    return lambda: lead("cooperative-sticky", subscriptions, group.topics)


LIBRARIES: dict[str, Callable[[Group], Work]] = {
    "kafka-python": lambda group: kafka_python(group, plugin=False),
    "plugin": lambda group: kafka_python(group, plugin=True),
    "aiokafka": aiokafka,
    "roster": roster,
}


def measure(work: Work, warmups: int, rounds: int, budget: float) -> dict[str, Any]:
    """CPU milliseconds of each round; warm-ups do nothing for an interpreter, so there is one at most."""
    begin = time.perf_counter()
    figures = []
    for number in range(-min(warmups, 1), rounds):
        start = time.process_time()
        work()
        spent = (time.process_time() - start) * 1000
        late = time.perf_counter() - begin > budget
        if number >= 0 or late:
            figures.append(spent)
        if late:
            break
    return {"assign": figures}


def main() -> None:
    prepare = LIBRARIES[sys.argv[1]]
    group = Group({}, {}, {}, {})
    work: Work | None = None
    for line in sys.stdin:
        kind, *field = line.rstrip("\n").split(" ")
        if kind == "T":
            group.topics[field[0]] = int(field[1])
        elif kind == "M":
            group.members[field[0]] = field[2].split(",") if field[2] else []
            group.generation[field[0]] = int(field[1])
        elif kind == "O":
            group.held.setdefault(field[0], {})[field[1]] = list(map(int, field[2].split(",")))
        elif kind == "G":
            work = prepare(group)
            print("ready", flush=True)
        elif kind == "E":
            assert work is not None
            try:
                answer = measure(work, int(field[1]), int(field[2]), int(field[3]) / 1000)
            except Exception as problem:
                answer = {"error": type(problem).__name__}
            print(json.dumps(answer), flush=True)
        else:
            group, work = Group({}, {}, {}, {}), None


if __name__ == "__main__":
    main()
