"""Metrics of a broker: what was counted against what clients did, what is looked up against what admin clients see."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry

from roster.broker.hooks import Hooks, Measures
from roster.cli.root import run
from roster.client import Admin
from roster.metrics import broker as broker_metrics
from roster.metrics.broker import BrokerMetrics
from roster.metrics.families import metrics_page
from roster.model import TopicPartition
from roster.model.timers import BOUNDS
from roster.testing.broker import BrokerThread, quick_config
from roster.wire import ErrorCode
from roster.wire.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    ListGroupsRequest,
    MetadataRequest,
    SyncGroupRequest,
)
from tests.broker.batches import batch
from tests.broker.rawclient import RawClient
from tests.broker.test_protocol import produce_request
from tests.broker.test_restart import create
from tests.librdkafka import idempotent_producer
from tests.listed_transactions import states_of_transactions
from tests.metrics.test_exporter import Series, series
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKEN = "0123456789abcdef"
PROTOCOL = JoinGroupRequest.Protocol(name="range", metadata=b"x")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[BrokerThread]:
    with BrokerThread(quick_config(tmp_path), Hooks(measures=Measures())) as thread:
        yield thread


def text_of(thread: BrokerThread) -> str:
    registry = CollectorRegistry()
    registry.register(BrokerMetrics(thread.broker, thread.loop))
    return metrics_page(registry).answer("/metrics").body.decode()


def counts(text: str, name: str = "roster_broker_request_seconds_count") -> Series:
    return {labels: value for labels, value in series(text, name).items() if value}


def test_every_request_is_counted_once_by_its_api(running: BrokerThread) -> None:
    with RawClient(running.broker.address) as client:
        create(client, "t", 2)
        for _ in range(3):
            client.ask(MetadataRequest(), 9)
        for acks in (-1, -1, 0):
            client.send(produce_request("t", batch([b"x"]), acks=acks), 9)
        for _ in range(2):
            client.receive(produce_request("t", b""), 9)
        first = JoinGroupRequest(group_id="g", session_timeout_ms=30_000, protocol_type="c", protocols=[PROTOCOL])
        joined = client.ask(first, 9)
        assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
        generation = client.ask(replace(first, member_id=joined.member_id), 9).generation_id
        who: dict[str, Any] = {"group_id": "g", "generation_id": generation, "member_id": joined.member_id}
        assert client.ask(SyncGroupRequest(**who, protocol_type="c", protocol_name="range"), 5).error_code == 0
        beat = HeartbeatRequest(**who)
        for _ in range(5):  # the first is read, the others are the same bytes
            assert client.ask(beat, 4).error_code == ErrorCode.NONE
        client.ask(ListGroupsRequest(), 3)
        expected = {"Produce": 3, "Metadata": 3, "JoinGroup": 2, "SyncGroup": 1, "Heartbeat": 5, "ListGroups": 1}
        wanted = {(api,): count for api, count in (expected | {"CreateTopics": 1}).items()}
        until(lambda: counts(text_of(running)) == wanted, 60)  # a request counts once its answer is on its way
        text = text_of(running)
        assert counts(text) == wanted
        assert series(text, "roster_broker_connections") == {(): 1}
        assert series(text, "roster_broker_groups") == {("Stable",): 1}
        assert series(text, "roster_broker_group_members") == {(): 1}
    assert counts(text, "roster_broker_sync_seconds_count")[()] >= 3
    buckets = series(text, "roster_broker_request_seconds_bucket")
    for (api,), count in counts(text).items():
        of_api = [buckets[api, str(bound)] for bound in BOUNDS] + [buckets[api, "+Inf"]]
        assert of_api == sorted(of_api)
        assert of_api[-1] == count
        assert 0 < series(text, "roster_broker_request_seconds_sum")[api,] < 60 * count
    until(lambda: series(text_of(running), "roster_broker_connections") == {(): 0}, 60)


def test_logs_groups_and_transactions_are_those_that_clients_see(running: BrokerThread) -> None:
    bootstrap = running.broker.bootstrap
    with Admin(bootstrap) as admin:
        admin.create_topic("orders", 2)
        producer = idempotent_producer(bootstrap, {"transactional.id": "t1"})
        producer.init_transactions()
        for is_commit in (True, False, True):
            producer.begin_transaction()
            producer.produce("orders", b"x" * 50, partition=1)
            producer.flush()
            (producer.commit_transaction if is_commit else producer.abort_transaction)()
        ended = {("committed",): 2, ("aborted",): 1}  # the last one's markers are written after its answer
        until(lambda: counts(text_of(running), "roster_broker_transactions_ended_total") == ended, 60)
        text = text_of(running)
        places = [TopicPartition("orders", 0), TopicPartition("orders", 1)]
        ends, begins = admin.end_offsets(places), admin.beginning_offsets(places)
        listed = Counter(states_of_transactions(admin))
    assert ends[places[1]] == 6, "three records and three markers"
    for name, offsets in (("end", ends), ("start", begins)):
        found = series(text, f"roster_broker_log_{name}_offset")
        assert {tp: found[str(tp.partition), tp.topic] for tp in places} == offsets
    assert counts(text, "roster_broker_transactional_ids") == {(state,): n for state, n in listed.items()}
    sizes = series(text, "roster_broker_log_bytes")
    on_disk = sum(each.stat().st_size for each in running.broker.config.data_dir.glob("topics/orders*/**/*.log"))
    assert sizes["0", "orders"] + sizes["1", "orders"] == on_disk > 150
    assert series(text, "roster_broker_data_bytes") == {(): sum(sizes.values())}


def test_many_partitions_are_shown_as_sums_only(running: BrokerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    with RawClient(running.broker.address) as client:
        create(client, "t", 3)
    monkeypatch.setattr(broker_metrics, "MOST_PARTITIONS", 1)
    text = text_of(running)
    assert series(text, "roster_broker_log_bytes") == {}
    assert series(text, "roster_broker_partitions")[()] >= 3


def test_a_broker_that_has_ended_leaves_what_was_counted(tmp_path: Path) -> None:
    with BrokerThread(quick_config(tmp_path), Hooks(measures=Measures())) as thread:
        with RawClient(thread.broker.address) as client:
            client.ask(MetadataRequest(), 9)
        assert series(text_of(thread), "roster_broker_up") == {(): 1}
        thread.run(thread.broker.stop())
        assert series(text_of(thread), "roster_broker_up") == {(): 0}
    text = text_of(thread)
    assert series(text, "roster_broker_up") == {(): 0}
    assert counts(text) == {("Metadata",): 1}


@pytest.mark.process
def test_roster_broker_serves_them_behind_its_token(tmp_path: Path) -> None:
    settings = tmp_path / "http.properties"
    settings.write_text(f"token={TOKEN}\n")
    command = [sys.executable, "-m", "roster", "broker", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0"]
    command += ["--http", "127.0.0.1:0", "--http-config", str(settings)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            bootstrap = process.stdout.readline().split()[-1]
            found = re.fullmatch(r"metrics at (http://127.0.0.1:\d+)/metrics\n", process.stderr.readline())
            assert found
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(f"{found[1]}/metrics", timeout=60)
            with urllib.request.urlopen(f"{found[1]}/health", timeout=60) as response:
                assert response.status == 200
            with contextlib.closing(Admin(bootstrap)) as admin:
                admin.create_topic("made", 3)
            asking = urllib.request.Request(f"{found[1]}/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
            with urllib.request.urlopen(asking, timeout=60) as response:
                text = response.read().decode()
            assert counts(text)["CreateTopics",] == 1
            assert series(text, "roster_broker_log_end_offset")["2", "made"] == 0
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--http", "nowhere"], "'nowhere' is not host:port"),
        (["--http-config", "x"], "--http-config: nothing is served over HTTP"),
        (["--http", "127.0.0.1:0", "--http-config", "/no/such"], "--http-config: /no/such cannot be read"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["broker", "--data", str(tmp_path), *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
