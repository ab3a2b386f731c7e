"""The consumer groups that the assignors are timed on, and what happens to each: the workloads of the comparison."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from roster.member.assign_group import lead
from roster.wire.consumer.messages import Subscription, TopicPartitions, decode_assignment, encode_subscription

Topics = dict[str, int]
Members = dict[str, list[str]]
Held = dict[str, dict[str, list[int]]]

NOW, BEFORE = 7, 3
"""The generation of what members hold, and one that lies behind."""


@dataclass(frozen=True)
class Group:
    """One rebalance: the topics' sizes, what each member subscribes to, what it claims to own and since when."""

    topics: Topics
    members: Members
    held: Held
    generation: dict[str, int]

    def subscriptions(self) -> dict[str, bytes]:
        """What each member sends."""
        return {
            member: encode_subscription(
                Subscription(
                    topics=topics,
                    owned_partitions=[TopicPartitions(topic=t, partitions=p) for t, p in self.owned(member)],
                    generation_id=self.generation.get(member, -1),
                )
            )
            for member, topics in self.members.items()
        }

    def owned(self, member: str) -> list[tuple[str, list[int]]]:
        """What a member claims, topic by topic."""
        return [(topic, numbers) for topic, numbers in self.held.get(member, {}).items() if numbers]

    def lines(self) -> str:
        """The same as text for peers, see `peers`."""
        lines = [f"T {topic} {count}" for topic, count in self.topics.items()]
        lines += [f"M {m} {self.generation.get(m, -1)} {','.join(topics)}" for m, topics in self.members.items()]
        lines += [f"O {m} {topic} {','.join(map(str, n))}" for m in self.members for topic, n in self.owned(m)]
        return "\n".join(lines)


def named(topics: int, partitions: int) -> Topics:
    """Topics of one size."""
    return {f"topic-{t:05}": partitions for t in range(topics)}


def equal(topics: int, partitions: int, members: int) -> tuple[Topics, Members]:
    """Everybody subscribes to everything."""
    sizes = named(topics, partitions)
    return sizes, {f"member-{m:05}": list(sizes) for m in range(members)}


def one_narrow(topics: int, partitions: int, members: int) -> tuple[Topics, Members]:
    """One more member, which subscribes to the first topic only; it is there from the beginning."""
    sizes, group = equal(topics, partitions, members)
    return sizes, {"member-narrow": ["topic-00000"], **group}


def four_classes(topics: int, partitions: int, members: int) -> tuple[Topics, Members]:
    """All, the first half, the second half, the middle half."""
    sizes = named(topics, partitions)
    names, quarter = list(sizes), topics // 4
    kinds = [names, names[: 2 * quarter], names[2 * quarter :], names[quarter : 3 * quarter]]
    return sizes, {f"member-{m:05}": kinds[m % 4] for m in range(members)}


def nested(topics: int, members: int) -> tuple[Topics, Members]:
    """Member m subscribes to the first 1 + m mod topics; topics have 1 to 10 partitions."""
    chance = random.Random(1)
    sizes = {name: chance.randint(1, 10) for name in named(topics, 1)}
    return sizes, {f"member-{m:05}": list(sizes)[: 1 + m % topics] for m in range(members)}


def scattered(topics: int, partitions: int, members: int, each: int | None) -> tuple[Topics, Members]:
    """Random subscriptions, all different; of one size, or of any."""
    chance = random.Random(2)
    sizes = named(topics, partitions)
    return sizes, {
        f"member-{m:05}": sorted(chance.sample(list(sizes), each or chance.randint(1, topics))) for m in range(members)
    }


WORKLOADS: Mapping[str, Callable[[], tuple[Topics, Members]]] = {
    "1x2100/2100": lambda: equal(1, 2100, 2100),
    "10x1000/500": lambda: equal(10, 1000, 500),
    "100x100/1000": lambda: equal(100, 100, 1000),
    "500x2000/2000": lambda: equal(500, 2000, 2000),
    "500x2000/2001 one narrow": lambda: one_narrow(500, 2000, 2000),
    "40 nested/200": lambda: nested(40, 200),
    "100x20/500 all distinct": lambda: scattered(100, 20, 500, None),
    "20000x1/500, 40 each": lambda: scattered(20_000, 1, 500, 40),
    "100x200/500 in 4 classes": lambda: four_classes(100, 200, 500),
}
"""topics x partitions / members"""


def events(topics: Topics, members: Members) -> Iterator[tuple[str, Group]]:
    """A fresh group without the last member; the last one joins; the fourth leaves; what they claim cannot be true."""
    *early, _ = members
    smaller = {member: members[member] for member in early}
    fresh = Group(topics, smaller, {}, {})
    yield "fresh", fresh
    held = received(lead("sticky", fresh.subscriptions(), topics))
    current = dict.fromkeys(early, NOW)
    yield "join", Group(topics, members, held, current)
    gone = early[min(3, len(early) - 1)]
    yield (
        "leave",
        Group(
            topics,
            {member: names for member, names in smaller.items() if member != gone},
            {member: owned for member, owned in held.items() if member != gone},
            {member: NOW for member in early if member != gone},
        ),
    )
    yield "hostile", hostile(Group(topics, smaller, held, current))


def hostile(group: Group) -> Group:
    """Every tenth member also claims what its neighbour holds, every tenth does so from a past generation; and every
    twentieth claims partitions and topics that do not exist.
    """
    held = {member: dict(owned) for member, owned in group.held.items()}
    generation = dict(group.generation)
    names = list(group.members)
    for number, member in enumerate(names):
        neighbour = group.held.get(names[number - 1], {})
        if number % 10 in {4, 9}:
            for topic, numbers in neighbour.items():
                held[member][topic] = sorted({*held[member].get(topic, []), *numbers})
        if number % 10 == 9:
            generation[member] = BEFORE
        if number % 20 == 1:
            held[member]["no-such-topic"] = [0, 1]
            topic = group.members[member][0]
            held[member][topic] = [*held[member].get(topic, []), -1, group.topics[topic], 2**31 - 1]
    return Group(group.topics, group.members, held, generation)


def received(assignments: Mapping[str, bytes]) -> Held:
    """What each member then owns."""
    return {
        member: {entry.topic: entry.partitions for entry in decode_assignment(data).assigned_partitions}
        for member, data in assignments.items()
    }
