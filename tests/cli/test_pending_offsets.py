"""Pending offsets in `roster groups describe`, on Roster's broker and on Apache Kafka."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from roster.cli.root import run
from tests.real.realparts.cluster import unique
from tests.waiting import until

SILENT = {"log_level": 0}


@pytest.fixture
def roster(capsys):
    """Run a command on a cluster; exit code, standard output, standard error."""

    def command(bootstrap: str, *arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run([*arguments, "-b", bootstrap])
        told = capsys.readouterr()
        return code, told.out, told.err

    return command


def producer(bootstrap: str, transactional_id: str) -> Producer:
    made = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 0, **SILENT})
    made.init_transactions(30)
    return made


def test_groups_describe_shows_pending_offsets(cluster, roster):
    topic, name, group = cluster.create_topic(partitions=2), unique("cli-tx"), unique("cli-group")
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, **SILENT})
    consumer.commit(offsets=[TopicPartition(topic, 0, 3), TopicPartition(topic, 1, 4)], asynchronous=False)
    tx = producer(cluster.bootstrap, name)
    tx.begin_transaction()
    tx.send_offsets_to_transaction([TopicPartition(topic, 0, 7)], consumer.consumer_group_metadata(), 30)

    def pending() -> dict[int, tuple[int, bool]]:
        _, out, _ = roster(cluster.bootstrap, "groups", "describe", group, "--json")
        return {each["partition"]: (each["committed"], each["pending"]) for each in json.loads(out)["partitions"]}

    assert pending() == {0: (3, True), 1: (4, False)}
    assert "offset pending" in roster(cluster.bootstrap, "groups", "describe", group)[1]
    tx.commit_transaction(30)
    until(lambda: pending() == {0: (7, False), 1: (4, False)}, what=pending)
    assert "pending" not in roster(cluster.bootstrap, "groups", "describe", group)[1]
    consumer.close()
