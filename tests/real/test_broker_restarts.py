"""A group of every kind of client survives `kill -9` of Roster's broker."""

from __future__ import annotations

import pytest

from roster.testing.broker import BrokerProcess
from tests.real.realparts.cluster import Cluster, unique
from tests.real.realparts.groups import commit_all, consumed_since, consumed_up_to, marks_of, partitions, shared_out

KINDS = ("java", "kafka-python", "aiokafka", "confluent", "roster")


@pytest.fixture
def mortal_broker(tmp_path):
    settings = ("--initial-rebalance-delay-ms", "150", "--min-session-timeout-ms", "1000", "--log-level", "error")
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        yield broker


@pytest.mark.parametrize("ending", ["kill", "stop"])
def test_members_go_on_after_the_broker_came_back(mortal_broker, client, ending):
    cluster = Cluster("roster", mortal_broker.bootstrap)
    count = len(KINDS)
    topic, group = cluster.create_topic(partitions=count, records=5), unique("group")
    everything = partitions(topic, count)
    members = [client(kind, cluster, group, topics=[topic], session_ms=20_000) for kind in KINDS]
    shared_out(members, everything)
    consumed_up_to(members, dict.fromkeys(everything, 5))
    commit_all(cluster, group, members, dict.fromkeys(everything, 5))
    held = {member.id: set(member.owned) for member in members}
    marks = marks_of(members)
    getattr(mortal_broker, ending)()
    mortal_broker.start()
    assert mortal_broker.bootstrap == cluster.bootstrap
    cluster = Cluster("roster", mortal_broker.bootstrap)  # a new admin client, not one that waits to connect again
    cluster.produce(dict.fromkeys(everything, 5))
    consumed_up_to(members, dict.fromkeys(everything, 10), 45)
    assert not [piece for piece in consumed_since(members, marks) if piece[2] < 5], "committed records were read again"
    commit_all(cluster, group, members, dict.fromkeys(everything, 10))
    shared_out(members, everything)
    assert {member.id: set(member.owned) for member in members} == held, "a restart is no reason to rebalance"
