"""Groups with an application's own assignor on Roster's broker and on Apache Kafka, user data going both ways."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from aiokafka import AIOKafkaConsumer

from roster.assignors import Assignor
from roster.client import GroupMember
from roster.client.errors import ClientError
from roster.model import Plan
from roster.plugins import aiokafka as for_aiokafka
from roster.plugins import kafka_python as for_kafka_python
from tests.real.realparts.kafka_python import KafkaConsumer


class ByName(Assignor):
    """Gives partition n to the member whose user data is the n-th smallest, and sends all of them what it saw."""

    name = "by-name"

    def __init__(self, own):
        self.own, self.received = own, [(None, None, None)]

    def subscription_user_data(self, join):
        return self.own

    def assign(self, problem):
        if b"bad" in problem.user_data:
            raise LookupError("bad data")
        ordered = [member for _, member in sorted(zip(problem.user_data, problem.members, strict=True))]
        given = {member: {problem.topics[0]: [n]} for n, member in enumerate(ordered[: problem.partition_count])}
        seen = b" ".join(sorted(problem.user_data))
        return Plan.from_assignment(problem, given, user_data=dict.fromkeys(problem.members, seen))

    def on_assignment(self, partitions, user_data, generation):
        self.received.append((sorted(p.partition for p in partitions), user_data, generation))


TIMES = {"heartbeat_interval_ms": 200, "session_timeout_ms": 6_000}


def roster_member(bootstrap, group, topic, assignor, done):
    with GroupMember(bootstrap, group, [topic], assignors=assignor, **TIMES) as member:
        while not done.is_set():
            now = member.ownership()
            member.release(now.revoking)
            member.wait(now.epoch, 0.1)


def kafka_python_member(bootstrap, group, topic, assignor, done):
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        partition_assignment_strategy=[for_kafka_python.RosterCustom(assignor)],
        **TIMES,
    )
    while not done.is_set():
        consumer.poll(500)
    consumer.close()


def aiokafka_member(bootstrap, group, topic, assignor, done):
    async def work():
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            partition_assignment_strategy=[for_aiokafka.RosterCustom(assignor)],
            **TIMES,
        )
        async with consumer:
            while not done.is_set():
                await consumer.getmany(timeout_ms=100)

    asyncio.run(work())


KINDS = (roster_member, roster_member, kafka_python_member, aiokafka_member)


def test_members_and_consumers_of_other_clients_exchange_user_data(cluster):
    topic = cluster.create_topic("by-name", 4)
    mine = [ByName(name) for name in (b"c", b"a", b"d", b"b")]
    done = threading.Event()
    threads = [
        threading.Thread(target=kind, args=(cluster.bootstrap, f"of-{topic}", topic, assignor, done), daemon=True)
        for kind, assignor in zip(KINDS, mine, strict=True)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 90
    while {a.received[-1][1] for a in mine} != {b"a b c d"} and time.monotonic() < deadline:
        time.sleep(0.05)
    last = [a.received[-1] for a in mine]
    done.set()
    for thread in threads:
        thread.join(60)
    assert [each[:2] for each in last] == [([n], b"a b c d") for n in (2, 0, 3, 1)]
    assert len({generation for *_, generation in last[:3]}) == 1, "aiokafka passes no generation on"


def test_an_error_of_the_assignor_reaches_the_member_and_names_it(cluster):
    topic = cluster.create_topic("broken", 1)

    def join():
        with GroupMember(cluster.bootstrap, f"of-{topic}", [topic], assignors=ByName(b"bad"), **TIMES) as member:
            raise member.ownership().error

    with pytest.raises(ClientError, match="by-name: LookupError: bad data"):
        join()
