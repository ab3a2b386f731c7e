"""`roster transactions` and pending offsets in `roster groups describe`, on Roster's broker and on Apache Kafka."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from roster.broker import LogConfig
from roster.broker.log.partition_log import PartitionLog
from roster.cli.root import run
from roster.testing.broker import running_broker
from roster.wire.records import read_header
from tests.broker.batches import batch
from tests.broker.test_partition_log import flush
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

    _, out, _ = roster(cluster.bootstrap, "transactions", "list", "--open", "--topic", topic, "--json")
    (open_,) = json.loads(out)
    assert (open_["partition"], open_["transactional_id"], open_["hanging"]) == ([topic, 1], name, False)
    assert "no open transactions" in roster(cluster.bootstrap, "transactions", "list", "--hanging", "-t", topic)[1]
    by_partition = ("--topic", topic, "--partition", "1", "--producer-id", str(listed["producer_id"]), "--yes")
    code, _, err = roster(cluster.bootstrap, "transactions", "abort", *by_partition)
    assert code == 2
    assert f"roster transactions abort {name}" in err

    assert roster(cluster.bootstrap, "transactions", "abort", name, "--yes")[:2] == (0, f"aborted {name}\n")
    until(lambda: "no open" in roster(cluster.bootstrap, "transactions", "list", "--open", "-t", topic)[1])
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
        (("abort", "--yes"), "give TRANSACTIONAL_ID, or --topic, --partition and --producer-id"),
        (("abort", "x", "--topic", "t", "--yes"), "give TRANSACTIONAL_ID, or --topic, --partition and --producer-id"),
        (("list", "--topic", "t"), "--topic: needs --open or --hanging"),
        (("list", "--open", "--topic", "no-such-topic"), "--topic: no such topic: no-such-topic"),
        (("abort", "x"), "--yes"),
    ):
        code, out, err = roster(cluster.bootstrap, "transactions", *arguments)
        assert (code, out) == (2, ""), arguments
        assert said in err


def test_a_hanging_transaction_is_found_and_aborted(tmp_path: Path, roster):
    """Left by a producer that no coordinator knows: its records stand in the log since before the broker's start."""
    with running_broker(tmp_path) as broker:
        assert roster(broker.bootstrap, "topics", "create", "t", "-p", "2")[0] == 0
    log = PartitionLog(tmp_path / "topics" / "t" / "1", LogConfig())
    log.open(0)
    data = batch([b"v"], producer=(77, 3, 0), attributes=0x10)
    log.append(read_header(data), memoryview(data), 1_700_000_000_000)
    flush(log)
    log.close()
    with running_broker(tmp_path) as broker:
        _, out, _ = roster(broker.bootstrap, "transactions", "list", "--hanging", "--json")
        (found,) = json.loads(out)
        assert (found["partition"], found["producer_id"], found["first_offset"]) == (["t", 1], 77, 0)
        assert (found["transactional_id"], found["hanging"]) == (None, True)
        assert "hanging" in roster(broker.bootstrap, "transactions", "list", "--hanging")[1]
        where = ("--topic", "t", "--partition", "1", "--yes", "--producer-id")
        assert roster(broker.bootstrap, "transactions", "abort", *where, "78")[0] == 2
        code, out, _ = roster(broker.bootstrap, "transactions", "abort", *where, "77")
        assert (code, out) == (0, "aborted the transaction of producer 77 in t-1\n")
        assert "no open transactions" in roster(broker.bootstrap, "transactions", "list", "--open")[1]
