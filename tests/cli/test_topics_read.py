"""`roster topics read` on Roster's broker and on Apache Kafka: what was written is printed, and only that."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from confluent_kafka import Producer

from roster.cli.root import run
from roster.metrics.record_times import RecordTimes
from roster.model import GroupPosition, TopicPartition
from roster.testing.broker import running_broker
from tests.librdkafka import idempotent_producer
from tests.real.realparts.cluster import unique

SILENT = {"log_level": 0}
T0 = 1_700_000_000_000
"""2023-11-14T22:13:20Z"""


def produce(bootstrap: str, topic: str, records: list[dict], **settings) -> None:
    producer = idempotent_producer(bootstrap, settings)
    for record in records:
        producer.produce(topic, **record)
    assert producer.flush(60) == 0


@pytest.fixture
def topic(cluster, capsys) -> str:
    """A topic of two partitions; record n is n seconds after T0, even ones in partition 0."""
    name = unique("read")
    assert run(["topics", "create", name, "-p", "2", "-b", cluster.bootstrap]) == 0
    records = [
        {"partition": n % 2, "key": f"k{n}", "value": f"v{n}", "timestamp": T0 + 1000 * n, "headers": [("h", str(n))]}
        for n in range(20)
    ]
    produce(cluster.bootstrap, name, records)
    capsys.readouterr()
    return name


@pytest.fixture
def read(cluster, capsys):
    """The values read with these options, sorted by their number."""

    def run_it(*arguments: str) -> list[str]:
        assert run(["topics", "read", *arguments, "--json", "-b", cluster.bootstrap]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        by_partition = {0: [-1], 1: [-1]}
        for row in rows:
            assert row["offset"] > by_partition[row["partition"]][-1]
            by_partition[row["partition"]].append(row["offset"])
        return sorted((row["value"] for row in rows), key=lambda value: int(value[1:]))

    return run_it


def values(*numbers: int) -> list[str]:
    return [f"v{n}" for n in numbers]


def test_everything_up_to_now_is_the_default(read, topic):
    assert read(topic) == values(*range(20))


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (["--partition", "1"], range(1, 20, 2)),
        (["--from", "7"], range(14, 20)),
        (["--from", "2", "--to", "4"], range(4, 8)),
        (["--to", "earliest"], []),
        (["--from", "latest"], []),
        (["--from", "2023-11-14T22:13:30"], range(10, 20)),
        (["--from", "2023-11-14T22:13:30+00:00", "--to", "2023-11-14T22:13:33.500Z"], range(10, 14)),
        (["--from", "2099-01-01"], []),
    ],
)
def test_a_part_of_it(read, topic, options, numbers):
    assert read(topic, *options) == values(*numbers)


def test_transactions_as_the_console_consumer_shows_them(cluster, read, capsys):
    name = unique("read-tx")
    assert run(["topics", "create", name, "-p", "2", "-b", cluster.bootstrap]) == 0
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": name, **SILENT})
    producer.init_transactions(30)
    for first, end in ((0, True), (3, False), (6, True)):
        producer.begin_transaction()
        for n in range(first, first + 3):
            producer.produce(name, f"v{n}", partition=0)
        assert producer.flush(60) == 0  # or what is not sent yet never is
        (producer.commit_transaction if end else producer.abort_transaction)(30)
    capsys.readouterr()
    assert read(name) == values(*range(9))
    committed = ("--isolation-level", "read_committed")
    assert read(name, *committed) == values(0, 1, 2, 6, 7, 8)
    producer.begin_transaction()
    producer.produce(name, "v9", partition=0)
    assert producer.flush(60) == 0
    assert read(name) == values(*range(10))
    assert read(name, *committed) == values(0, 1, 2, 6, 7, 8), "it does not wait for the end of the open one"
    producer.abort_transaction(30)


def test_lines_for_people(cluster, topic, capsys):
    records = [
        {"key": None, "value": None},
        {"key": b"", "value": "żółw\t\x1b[2J", "headers": [("a", None), ("b", b"\xff\x00")]},
        {"key": b"k", "value": bytes(range(128, 168))},
    ]
    produce(cluster.bootstrap, topic, [{**each, "partition": 1, "timestamp": T0} for each in records])
    assert run(["topics", "read", topic, "--from", "10", "--partition", "1", "-b", cluster.bootstrap]) == 0
    when = "2023-11-14T22:13:20.000Z"
    assert capsys.readouterr().out.splitlines() == [
        f"1  10  {when}  null  null",
        f'1  11  {when}  ""  żółw\\t\\x1b[2J  [a=null, b=0xff00]',
        f"1  12  {when}  k  0x{bytes(range(128, 160)).hex()}… (40 bytes)",
    ]


def test_objects_for_machines(cluster, topic, capsys):
    binary = bytes(range(256))
    produce(
        cluster.bootstrap,
        topic,
        [{"partition": 0, "timestamp": T0, "key": binary, "value": None, "headers": [("h", binary), ("h", "x")]}],
    )
    assert run(["topics", "read", topic, "--from", "10", "-p", "0", "--json", "-b", cluster.bootstrap]) == 0
    encoded = base64.b64encode(binary).decode()
    assert json.loads(capsys.readouterr().out) == {
        "topic": topic,
        "partition": 0,
        "offset": 10,
        "timestamp": T0,
        "timestamp_type": "CreateTime",
        "key_base64": encoded,
        "value": None,
        "headers": [{"name": "h", "value_base64": encoded}, {"name": "h", "value": "x"}],
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no-such-topic-at-all"], "no such topic: no-such-topic-at-all"),
        (["{topic}", "--partition", "2"], "--partition: {topic} has no partition 2; it has 2"),
        (["{topic}", "--follow", "--to", "3"], "--follow: has no end; leave --to out"),
        (["{topic}", "--from", "99999999999999999999"], "--from: 99999999999999999999 is larger than any offset"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(cluster, topic, capsys, arguments, words):
    filled = [argument.format(topic=topic) for argument in arguments]
    assert run(["topics", "read", *filled, "-b", cluster.bootstrap]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words.format(topic=topic) in line


def test_no_group_comes_to_be_and_none_is_left(cluster, topic, read, capsys):
    read(topic)
    assert run(["groups", "list", "--json", "-b", cluster.bootstrap]) == 0
    assert "roster-topics-read" not in capsys.readouterr().out


def test_an_empty_topic_has_no_records(cluster, capsys):
    name = unique("read-empty")
    run(["topics", "create", name, "-b", cluster.bootstrap])
    capsys.readouterr()
    assert run(["topics", "read", name, "-b", cluster.bootstrap]) == 0
    assert capsys.readouterr() == ("", "no records\n")


def follow(cluster, topic: str, *options: str) -> subprocess.Popen[str]:
    program = [sys.executable, "-m", "roster", "topics", "read", topic, "--follow", "-b", cluster.bootstrap, *options]
    return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_follow_goes_on_until_ctrl_c(cluster, topic):
    reader = follow(cluster, topic, "--from", "9", "--json")
    try:
        assert sorted(json.loads(reader.stdout.readline())["value"] for _ in range(2)) == values(18, 19)
        produce(cluster.bootstrap, topic, [{"value": f"v{n}", "partition": n % 2} for n in range(20, 24)])
        assert sorted(json.loads(reader.stdout.readline())["value"] for _ in range(4)) == values(20, 21, 22, 23)
        os.kill(reader.pid, signal.SIGINT)
        out, err = reader.communicate(timeout=90)
    finally:
        reader.kill()
        reader.wait()
    assert (reader.returncode, out, err.strip()) == (130, "", "")


def test_a_closed_pipe_ends_it_without_a_word(cluster, topic):
    reader = follow(cluster, topic, "--from", "earliest")
    try:
        assert reader.stdout.readline()
        reader.stdout.close()
        deadline = time.monotonic() + 60
        while reader.poll() is None and time.monotonic() < deadline:
            produce(cluster.bootstrap, topic, [{"value": "more"}])
        assert reader.returncode == 1
        assert reader.stderr.read() == ""
    finally:
        reader.kill()
        reader.wait()
        reader.stderr.close()


def test_a_time_that_no_timestamp_holds_is_none_to_readers_and_to_lag_in_seconds(capsys):
    never = {f"message.timestamp.{side}.max.ms": str(2**63 - 1) for side in ("before", "after")}
    with running_broker() as broker:
        settings = [word for name, value in never.items() for word in ("--config", f"{name}={value}")]
        assert run(["topics", "create", "t", "-b", broker.bootstrap, *settings]) == 0
        produce(broker.bootstrap, "t", [{"value": "v", "timestamp": 2**62}, {"value": "w", "timestamp": T0}])
        capsys.readouterr()
        assert run(["topics", "read", "t", "--json", "-b", broker.bootstrap]) == 0
        told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [(row["value"], row["timestamp"]) for row in told] == [("v", None), ("w", T0)]
        times = RecordTimes(broker.bootstrap, "tests", now=lambda: T0 + 5_000)
        for committed in (0, 1):  # the next record that has a time
            assert times.ages({TopicPartition("t", 0): GroupPosition(committed, 2, 0)}) == {TopicPartition("t", 0): 5.0}
