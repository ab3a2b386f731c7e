"""`roster groups watch` on living groups: its lines, and every way it can end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from roster.cli.root import run
from roster.client import Admin, GroupMember, OffsetAndMetadata
from roster.model import TopicPartition
from roster.testing.broker import BrokerProcess
from tests.real.realparts.cluster import Cluster, unique
from tests.waiting import until

Line = dict[str, Any]


@contextmanager
def watching(bootstrap: str, group: str, *more: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "roster", "groups", "watch", group, "-b", bootstrap, "--interval", "0.2", *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def lines_until(process: subprocess.Popen[str], wanted: Callable[[str], object]) -> list[str]:
    """Lines, without their times, up to the first that is wanted."""
    found: list[str] = []
    for line in process.stdout:
        found.append(line[10:].rstrip())
        if wanted(found[-1]):
            return found
    pytest.fail(f"it ended before that: {found[-1:]} {process.stderr.read()}")


def member(bootstrap: str, group: str, topic: str, name: str) -> GroupMember:
    return GroupMember(
        bootstrap,
        group,
        [topic],
        client_id=name,
        assignors=["cooperative-sticky"],
        heartbeat_interval_ms=200,
        session_timeout_ms=6_000,
    )


def test_members_partitions_and_lag_of_a_living_group(cluster: Cluster):
    topic, group = cluster.create_topic(partitions=4, records=10), unique("watched")
    with watching(cluster.bootstrap, group) as watch:
        assert lines_until(watch, lambda _: True) == ["there is no such group yet"]
        with member(cluster.bootstrap, group, topic, "one") as one:
            shared = "Stable, 1 member, 4 partitions, lag unknown, "
            text = "\n".join(lines_until(watch, lambda line: line.startswith(shared)))
            for words in ("the group appears: ", " joined", "rebalance", f"→ A: {topic} 0-3"):
                assert words in text
            now = one.ownership()
            one.commit({TopicPartition(topic, 0): OffsetAndMetadata(4)}, now)
            lines_until(watch, lambda line: "lag at least 6" in line)
        text = "\n".join(lines_until(watch, lambda line: line.startswith(("Empty, ", "there is no such group;"))))
        assert " left (or its session ended)" in text
        with Admin(cluster.bootstrap) as admin:
            assert {tp: at.offset for tp, at in admin.group_offsets(group).items()} == {TopicPartition(topic, 0): 4}


def shown_generation(line: str) -> int:
    found = re.search(r"generation ≥ (\d+)", line)
    return int(found[1]) if found else 0


def test_the_generation_shown_never_exceeds_the_members_own(cluster: Cluster):
    topic, group = cluster.create_topic(partitions=4), unique("generations")
    one_there = member(cluster.bootstrap, group, topic, "one")
    with watching(cluster.bootstrap, group) as watch, one_there as one:
        lines_until(watch, lambda line: "4 partitions" in line)
        with member(cluster.bootstrap, group, topic, "two") as two:
            while len(two.ownership().partitions) != 2:
                now = one.ownership()
                one.release(now.revoking)
                one.wait(now.epoch, 0.1)
            reached = one.ownership().generation
            lines = lines_until(watch, lambda line: shown_generation(line) >= reached)
            assert reached > 1
            assert shown_generation(lines[-1]) <= one.ownership().generation


@pytest.mark.process
def test_a_broker_that_is_away_is_said_and_watched_for(tmp_path):
    with BrokerProcess(tmp_path / "data", "--log-level", "error") as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t", 2)
            admin.commit_group_offsets("g", {TopicPartition("t", 0): OffsetAndMetadata(0)})
        with watching(broker.bootstrap, "g") as watch:
            lines_until(watch, lambda line: ", lag 0, " in line)
            broker.kill()
            away = lines_until(watch, lambda line: line.startswith("no answer for "))
            assert broker.bootstrap in away[-1]
            assert away[-2] == "the coordinator does not answer"
            broker.start()
            back = lines_until(watch, lambda line: line.startswith("Empty, "))
            assert sum("the coordinator answers again" in line for line in back) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_130_and_no_word(roster_broker: Cluster, number):
    with watching(roster_broker.bootstrap, unique("g")) as watch:
        watch.stdout.readline()
        os.kill(watch.pid, number)
        _, err = watch.communicate(timeout=90)
        assert (watch.returncode, err.strip()) == (130, "")


def test_a_closed_pipe_ends_it_with_0_and_no_word(roster_broker: Cluster):
    with watching(roster_broker.bootstrap, unique("g")) as watch:
        watch.stdout.readline()
        watch.stdout.close()
        assert watch.wait(90) == 0
        assert watch.stderr.read() == ""


def test_plain_lines_are_events_and_a_summary_each_interval(roster_broker: Cluster):
    with watching(roster_broker.bootstrap, unique("g")) as watch:
        lines = [watch.stdout.readline().rstrip() for _ in range(3)]
    assert lines[0][10:] == "there is no such group yet"
    assert all(line[10:].startswith("there is no such group; the name may be misspelt") for line in lines[1:])


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo terminals")
def test_on_a_terminal_it_fills_the_screen_and_leaves_the_last_picture(roster_broker: Cluster):
    import pty

    group = unique("g")
    main, side = pty.openpty()
    command = [sys.executable, "-m", "roster", "groups", "watch", group, "-b", roster_broker.bootstrap]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    watch = subprocess.Popen(command, stdin=side, stdout=side, stderr=side, env=environment)
    os.close(side)
    seen = b""
    try:
        while b"no such group" not in seen:
            seen += os.read(main, 65536)
        assert b"\x1b[?1049h" in seen  # the alternate screen
        watch.terminate()
        with suppress(OSError):  # EIO, once the other side is closed
            while chunk := os.read(main, 65536):
                seen += chunk
        assert watch.wait(90) == 130
    finally:
        watch.kill()
        os.close(main)
    rest = seen.split(b"\x1b[?1049l")[-1].decode()
    assert group in rest
    assert "Traceback" not in rest


@pytest.mark.parametrize("value", ["0", "nan", "-1"])
def test_an_interval_that_cannot_be_is_refused(value, capsys):
    assert run(["groups", "watch", "g", "--interval", value]) == 2
    assert "--interval" in capsys.readouterr().err


def test_a_broker_that_never_answered_is_a_failure_at_once(capsys, monkeypatch):
    monkeypatch.setattr("roster.cli.admin.REQUEST_TIMEOUT_MS", 500)
    assert run(["groups", "watch", "g", "-b", "127.0.0.1:1"]) == 1
    assert "--bootstrap" in capsys.readouterr().err


@pytest.mark.gate
def test_a_group_of_kip_848_shows_its_epoch_and_owners(apache_kafka, capsys):
    from confluent_kafka import Consumer

    topic, group = apache_kafka.create_topic(partitions=3, records=5), unique("kip848")
    consumer = Consumer(
        {
            "bootstrap.servers": apache_kafka.bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "client.id": "new",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    try:

        def look() -> Line:
            consumer.poll(0.1)
            if run(["groups", "describe", group, "-b", apache_kafka.bootstrap, "--json"]):
                capsys.readouterr()
                return {}
            return json.loads(capsys.readouterr().out)

        found = until(lambda: (line := look()) and len(line["partitions"]) == 3 and line, 60)
        assert found["epoch"] >= 1
        assert {part["owner"] for part in found["partitions"]} == {found["members"][0]["member_id"]}
        assert found["members"][0]["client_id"] == "new"
        with watching(apache_kafka.bootstrap, group) as watch:
            lines_until(watch, lambda line: f"epoch {found['epoch']}" in line)
        assert run(["groups", "describe", group, "-b", apache_kafka.bootstrap]) == 0
        assert f"epoch {found['epoch']}" in capsys.readouterr().out
    finally:
        consumer.close()
