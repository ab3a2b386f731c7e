"""Groups of the consumer protocol (KIP-848) on Apache Kafka, and a cluster's internal topics."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer

from roster.cli.root import run
from roster.client import Admin, GroupTypeError
from tests.librdkafka import idempotent_producer
from tests.real.realparts.apache import ApacheKafka
from tests.real.realparts.cluster import unique
from tests.waiting import until

pytestmark = pytest.mark.real


@pytest.fixture
def ask(apache_kafka: ApacheKafka, capsys):
    """(exit code, standard output, standard error) of a command against Apache Kafka."""

    def run_it(*arguments: str) -> tuple[int, str, str]:
        code = run([*arguments, "-b", apache_kafka.bootstrap])
        return (code, *capsys.readouterr())

    return run_it


@pytest.fixture
def group(apache_kafka: ApacheKafka, ask) -> Iterator[tuple[str, str]]:
    """(group, topic): one member of the new protocol, which has read and committed 10 records of 3 partitions."""
    topic, name = unique("new-topic"), unique("new-group")
    assert ask("topics", "create", topic, "-p", "3")[0] == 0
    producer = idempotent_producer(apache_kafka.bootstrap)
    for n in range(10):
        producer.produce(topic, str(n), partition=n % 2)
    assert producer.flush(60) == 0
    settings = {
        "bootstrap.servers": apache_kafka.bootstrap,
        "group.id": name,
        "group.protocol": "consumer",
        "client.id": "new-client",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    read: list[object] = []
    until(lambda: read.extend(consumer.consume(10, 0.2)) or len(read) == 10, 60, lambda: read)
    consumer.commit(asynchronous=False)
    yield name, topic
    consumer.close()


def test_a_group_of_the_new_protocol_is_listed_and_described(group, ask):
    name, topic = group
    listed = {row["group"]: row for row in json.loads(ask("groups", "list", name, "--json")[1])}
    kinds = {"group": name, "state": "Stable", "type": "consumer", "protocol_type": "consumer"}
    assert listed[name] == kinds | {"members": 1, "lag": 0, "lag_complete": True, "results": None}
    code, out, _ = ask("groups", "describe", name, "--json")
    assert code == 0
    document = json.loads(out)
    assert (document["type"], document["state"], document["protocol"]) == ("consumer", "Stable", "uniform")
    (member,) = document["members"]
    assert member["client_id"] == "new-client"
    assert member["assignment"] == [[topic, 0], [topic, 1], [topic, 2]]
    # Partition 2 has no commit, and no record that could be left to read.
    assert [row["lag"] for row in document["partitions"]] == [0, 0, 0]
    assert (document["lag"], document["lag_complete"]) == (0, True)
    first, second, *_ = ask("groups", "describe", name)[1].splitlines()
    assert first == f"{name}: Stable, 1 member, lag 0"
    assert second.startswith(f"consumer group, epoch {document['epoch']}, assignor uniform, coordinator ")


def test_what_cannot_be_done_with_it_is_said_truly(group, ask):
    name, topic = group
    code, _, err = ask("plan", "--group", name)
    assert code == 2
    assert f"--group: {name} is a consumer group (KIP-848): its broker assigns partitions (uniform)" in err
    code, _, err = ask("groups", "delete", name, "--yes")
    assert (code, "while it has members; stop them first" in err) == (2, True)
    code, _, err = ask("groups", "reset", name, "-t", topic, "--to", "earliest", "--yes")
    assert (code, "has members; stop them first" in err) == (2, True)
    code, _, err = ask("groups", "describe", f"{name}-not")
    assert (code, err) == (2, f"roster: error: there is no group '{name}-not'; the name may be misspelt\n")


def test_once_it_is_empty_it_can_be_reset_and_deleted(apache_kafka, ask):
    name, topic = unique("new-group"), unique("new-topic")
    assert ask("topics", "create", topic, "-p", "1")[0] == 0
    settings = {"bootstrap.servers": apache_kafka.bootstrap, "group.id": name, "group.protocol": "consumer"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    until(lambda: consumer.consume(1, 0.2) or consumer.assignment(), 60)
    consumer.close()
    code, out, _ = ask("groups", "describe", name)
    assert (code, out.splitlines()[0]) == (0, f"{name}: Empty, 0 members, lag unknown")
    assert ask("groups", "reset", name, "-t", topic, "--to", "earliest", "--yes")[0] == 0
    assert ask("groups", "delete", name, "--yes") == (0, f"deleted {name}\n", "")
    assert ask("groups", "describe", name)[0] == 2


def test_a_share_group_is_named_as_what_it_is(apache_kafka, monkeypatch):
    with Admin(apache_kafka.bootstrap) as admin:
        from roster.client import group_admin
        from roster.client.types import GroupListing

        async def listed(_: object) -> list[GroupListing]:
            return [GroupListing("shared", "share", "Stable", "share")]

        monkeypatch.setattr(group_admin, "_listed_groups", listed)
        with pytest.raises(GroupTypeError, match="group 'shared' is a share group, which this client cannot describe"):
            admin.describe_group("shared")


def test_internal_topics_of_apache_kafka_are_not_deleted(group, ask):
    code, _, err = ask("topics", "delete", "__consumer_offsets", "--yes")
    assert (code, "is an internal topic" in err) == (2, True)
    assert "__consumer_offsets" in ask("topics", "list", "--internal")[1]


def test_what_the_cluster_does_not_allow_is_a_mistake(ask):
    name = unique("refused")
    assert ask("topics", "create", name, "--replication", "9")[0] == 2
    assert ask("topics", "create", name, "--config", "retention.ms=abc")[0] == 2
    assert ask("topics", "create", name, "--config", "no.such=1")[0] == 2
    assert ask("topics", "describe", name)[0] == 2
