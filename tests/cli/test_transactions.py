"""`roster transactions` and pending offsets in `roster groups describe`, on Roster's broker and on Apache Kafka."""

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


def test_an_open_transaction_is_listed_described_and_aborted(cluster, roster):
    topic, name, group = cluster.create_topic(partitions=2), unique("cli-tx"), unique("cli-group")
    tx = producer(cluster.bootstrap, name)
    tx.begin_transaction()
    tx.produce(topic, "v", partition=1)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, **SILENT})
    metadata = consumer.consumer_group_metadata()
    tx.send_offsets_to_transaction([TopicPartition(topic, 0, 7)], metadata, 30)
    tx.flush(30)

    _, out, _ = roster(cluster.bootstrap, "transactions", "list", "--json")
    (listed,) = [each for each in json.loads(out) if each["transactional_id"] == name]
    assert listed["state"] == "Ongoing"
    assert name in roster(cluster.bootstrap, "transactions", "list", "--state", "Ongoing")[1]
    assert name not in roster(cluster.bootstrap, "transactions", "list", "--state", "Empty")[1]

    _, out, _ = roster(cluster.bootstrap, "transactions", "describe", name, "--json")
    described = json.loads(out)
    assert (described["state"], described["producer_id"]) == ("Ongoing", listed["producer_id"])
    assert [topic, 1] in described["partitions"]
    assert [where for where, _ in described["partitions"]].count("__consumer_offsets") == 1
    assert f"{name}: Ongoing" in roster(cluster.bootstrap, "transactions", "describe", name)[1]

    assert roster(cluster.bootstrap, "transactions", "abort", name, "--yes")[:2] == (0, f"aborted {name}\n")
    until(lambda: name in roster(cluster.bootstrap, "transactions", "list", "--state", "Empty")[1])
    consumer.close()


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


def test_mistakes_are_named(cluster, roster):
    for arguments, said in (
        (("describe", "no-such-id"), "no such transactional id: no-such-id"),
        (("abort", "no-such-id", "--yes"), "no such transactional id: no-such-id"),
        (("abort", "x"), "--yes"),
    ):
        code, out, err = roster(cluster.bootstrap, "transactions", *arguments)
        assert (code, out) == (2, ""), arguments
        assert said in err
