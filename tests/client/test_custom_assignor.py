"""Groups with an application's own assignor on Roster's broker and on Apache Kafka, user data going both ways."""

from __future__ import annotations

import threading
import time

import pytest
from kafka import KafkaConsumer

from roster.assignors import Assignor
from roster.client import GroupMember
from roster.client.errors import ClientError
from roster.model import Plan
from roster.plugins.kafka_python import RosterCustom


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
        partition_assignment_strategy=[RosterCustom(assignor)],
        **TIMES,
    )
    while not done.is_set():
        consumer.poll(500)
    consumer.close()


def test_members_and_a_kafka_python_consumer_exchange_user_data(cluster):
    topic = cluster.create_topic("by-name", 3)
    mine = [ByName(name) for name in (b"c", b"a", b"b")]
    done = threading.Event()
    threads = [
        threading.Thread(target=kind, args=(cluster.bootstrap, f"of-{topic}", topic, assignor, done), daemon=True)
        for kind, assignor in zip((roster_member, roster_member, kafka_python_member), mine, strict=True)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 40
    while {a.received[-1][1] for a in mine} != {b"a b c"} and time.monotonic() < deadline:
        time.sleep(0.05)
    last = [a.received[-1] for a in mine]
    done.set()
    for thread in threads:
        thread.join(20)
    assert [each[:2] for each in last] == [([n], b"a b c") for n in (2, 0, 1)]
    assert len({generation for *_, generation in last}) == 1


def test_an_error_of_the_assignor_reaches_the_member_and_names_it(cluster):
    topic = cluster.create_topic("broken", 1)

    def join():
        with GroupMember(cluster.bootstrap, f"of-{topic}", [topic], assignors=ByName(b"bad"), **TIMES) as member:
            raise member.ownership().error

    with pytest.raises(ClientError, match="by-name: LookupError: bad data"):
        join()
