"""The harness on Apache Kafka itself: every kind of client, alone and all in one group."""

from __future__ import annotations

import pytest
from realparts.cluster import unique, wait_until

KINDS = ("java", "kafka-python", "aiokafka", "confluent", "kcat")


@pytest.mark.parametrize("kind", KINDS)
def test_each_client_alone_consumes_a_topic(apache_kafka, client, kind):
    topic, group = apache_kafka.create_topic(partitions=3, records=10), unique("group")
    member = client(kind, apache_kafka, group, topics=[topic])
    member.wait_for(lambda m: m.consumed_count() == 30, what="all records")
    assert member.owned == {(topic, p) for p in range(3)}
    if kind != "kcat":
        assert member.commit() == {(topic, p): 10 for p in range(3)}
    member.close()
    wait_until(lambda: apache_kafka.committed(group) == {(topic, p): 10 for p in range(3)})
    wait_until(lambda: apache_kafka.group_state(group) == "EMPTY")


def test_clients_of_all_kinds_share_one_group(apache_kafka, client):
    topic, group = apache_kafka.create_topic(partitions=10, records=5), unique("group")
    members = [client(kind, apache_kafka, group, topics=[topic]) for kind in KINDS]
    for member in members:
        member.wait_for(lambda m: len(m.owned) == 2, 40, "a fifth of the partitions")
    assert set().union(*(m.owned for m in members)) == {(topic, p) for p in range(10)}
