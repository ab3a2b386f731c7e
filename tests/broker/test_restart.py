"""What survives: clean stops, kill -9, and disks that refuse."""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import confluent_kafka
import pytest

from roster.broker import Broker, BrokerFailedError, BrokerStartError, parse_listen
from roster.testing.broker import BrokerProcess, quick_config, running_broker
from roster.wire import ErrorCode
from roster.wire.messages import CreateTopicsRequest, OffsetCommitRequest, OffsetFetchRequest
from tests.broker.batches import base_offsets, batch
from tests.broker.rawclient import RawClient
from tests.broker.test_protocol import fetch, metadata, offset_at, produce

if TYPE_CHECKING:
    from pathlib import Path

QUICK = ("--initial-rebalance-delay-ms", "0")


def address(process: BrokerProcess) -> tuple[str, int]:
    host, _, port = process.bootstrap.rpartition(":")
    return host, int(port)


def create(client: RawClient, name: str, partitions: int = 1) -> None:
    asked = CreateTopicsRequest.Topic(name=name, num_partitions=partitions, replication_factor=1)
    assert client.ask(CreateTopicsRequest(topics=[asked]), 7).topics[0].error_code == ErrorCode.NONE


def commit(client: RawClient, group: str, topic: str, offset: int) -> int:
    one = OffsetCommitRequest.Topic.Partition(partition_index=0, committed_offset=offset, committed_metadata="")
    request = OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequest.Topic(name=topic, partitions=[one])])
    code: int = client.ask(request, 8).topics[0].partitions[0].error_code
    return code


def committed(client: RawClient, group: str) -> dict[str, int]:
    request = OffsetFetchRequest(groups=[OffsetFetchRequest.Group(group_id=group, topics=None)])
    while True:
        (answer,) = client.ask(request, 8).groups
        if answer.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return {topic.name: topic.partitions[0].committed_offset for topic in answer.topics}


@pytest.mark.process
def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """acks=all: every record and every commit that was answered is there after the broker was killed, three times."""
    acknowledged: dict[int, bytes] = {}
    commits = 0
    with BrokerProcess(tmp_path, "--segment-bytes", "20000", *QUICK) as process:
        with RawClient(address(process)) as client:
            create(client, "t")
        for life in range(3):
            stop = threading.Event()
            begun = threading.Event()

            def write(life: int = life, stop: threading.Event = stop, begun: threading.Event = begun) -> None:
                nonlocal commits
                with RawClient(address(process)) as client:
                    try:
                        for n in range(1_000_000):
                            value = b"%d-%d-" % (life, n) + b"x" * 200
                            answer = produce(client, "t", batch([value]))
                            assert answer.error_code == ErrorCode.NONE
                            acknowledged[answer.base_offset] = value
                            assert commit(client, "g", "t", len(acknowledged)) == ErrorCode.NONE
                            commits = len(acknowledged)
                            if n == 50:
                                begun.set()
                            if stop.is_set():
                                return
                    except ConnectionError:
                        return

            thread = threading.Thread(target=write)
            thread.start()
            assert begun.wait(60)
            process.kill()
            thread.join(60)
            stop.set()
            process.start()
            with RawClient(address(process)) as client:
                assert offset_at(client, "t", -1).offset >= max(acknowledged) + 1
                assert committed(client, "g")["t"] >= commits
        with RawClient(address(process)) as client:
            position, found = 0, {}
            end = offset_at(client, "t", -1).offset
            while position < end:
                records = bytes(fetch(client, "t", position).records)
                for offset in base_offsets(records):
                    size = 12 + int.from_bytes(records[8:12], "big")
                    found[offset], records = records[:size], records[size:]
                    position = offset + 1
            for offset, value in acknowledged.items():
                assert value in found[offset]
        assert process.stop() == 0


@pytest.mark.process
def test_a_consumer_group_goes_on_after_the_broker_was_killed(tmp_path: Path) -> None:
    """The member keeps its id, its generation and its partitions; its next commit is accepted."""
    with BrokerProcess(tmp_path, *QUICK) as process:
        with RawClient(address(process)) as client:
            create(client, "t", 2)
            for n in range(10):
                produce(client, "t", batch([b"%d" % n]), partition=n % 2)
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": process.bootstrap,
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 100,
            }
        )
        lost: list[object] = []
        consumer.subscribe(["t"], on_revoke=lambda _, tps: lost.append(tps), on_lost=lambda _, tps: lost.append(tps))
        values = read(consumer, 10)
        consumer.commit(asynchronous=False)
        member = consumer.memberid()
        process.kill()
        process.start()
        with RawClient(address(process)) as client:
            assert committed(client, "g") == {"t": 5}
            for n in range(10, 20):
                produce(client, "t", batch([b"%d" % n]), partition=n % 2)
        values += read(consumer, 10)
        consumer.commit(asynchronous=False)
        assert sorted(map(int, values)) == list(range(20))
        assert consumer.memberid() == member
        assert not lost
        consumer.close()


def read(consumer: confluent_kafka.Consumer, count: int) -> list[bytes]:
    values: list[bytes] = []
    deadline = time.monotonic() + 60
    while len(values) < count and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            values.append(message.value())
    return values


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_cleanly_and_the_next_start_reads_no_log(tmp_path: Path, number: signal.Signals) -> None:
    process = BrokerProcess(tmp_path, *QUICK).start()
    with RawClient(address(process)) as client:
        create(client, "t")
        produce(client, "t", batch([b"x"]))
        assert process._signal(number) == 0
        assert client.is_closed()
    assert (tmp_path / "topics/t/0/00000000000000000000.index").exists()


def test_topics_ids_settings_and_offsets_are_the_same_after_a_restart(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker, RawClient(broker.address) as client:
        create(client, "t", 3)
        produce(client, "t", batch([b"a", b"b"]), partition=2)
        assert commit(client, "g", "t", 1) == ErrorCode.NONE
        (before,) = metadata(client, "t")
        cluster = broker._services.meta.cluster_id  # type: ignore[union-attr]
    with running_broker(tmp_path) as broker, RawClient(broker.address) as client:
        (after,) = metadata(client, "t")
        assert (after.topic_id, len(after.partitions)) == (before.topic_id, 3)
        assert base_offsets(fetch(client, "t", 0, partition=2).records) == [0]
        assert committed(client, "g") == {"t": 1}
        assert broker._services.meta.cluster_id == cluster  # type: ignore[union-attr]


# What cannot be: one clear error


def refusal(tmp_path: Path, *arguments: str) -> str:
    program = [sys.executable, "-c", "from roster.cli import main; main()", "broker"]
    result = subprocess.run([*program, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode in (1, 2)
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    return result.stderr.splitlines()[-1]


@pytest.mark.process
def test_a_data_directory_serves_one_broker_at_a_time(tmp_path: Path) -> None:
    with running_broker(tmp_path):
        said = refusal(tmp_path, "--listen", "127.0.0.1:0", "--data", str(tmp_path))
    assert "in use by another broker (process " in said


@pytest.mark.process
def test_a_port_in_use_and_a_bad_address_are_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refusal(tmp_path, "--listen", f"127.0.0.1:{port}", "--data", str(tmp_path))
    assert f"cannot listen on 127.0.0.1:{port}" in said
    assert "--listen: 'nonsense' is not host:port; add the port, as in nonsense:9092" in refusal(
        tmp_path, "--listen", "nonsense"
    )


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv4 and IPv6")
def test_all_addresses_of_ipv6_are_those_of_ipv4_too(tmp_path: Path) -> None:
    with running_broker(tmp_path, host="::", allow_plaintext=True) as broker:
        for host in ("127.0.0.1", "::1"):
            with RawClient((host, int(broker.bootstrap.rpartition(":")[2]))) as client:
                create(client, host.replace(":", "-"))


def test_addresses_are_host_and_port() -> None:
    assert parse_listen("127.0.0.1:9092") == ("127.0.0.1", 9092)
    assert parse_listen("[::1]:0") == ("::1", 0)
    for bad in ("", "nonsense", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000", ":1", "::1:9", "h:-1", "h:\u0661"):
        with pytest.raises(BrokerStartError, match="is not host:port"):
            parse_listen(bad)


@pytest.mark.process
def test_data_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "cannot use data directory" in refusal(tmp_path, "--listen", "127.0.0.1:0", "--data", f"{tmp_path}/file/x")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "broker.json").write_text("{")
    assert "broker.json is damaged: " in refusal(tmp_path, "--listen", "127.0.0.1:0", "--data", f"{tmp_path}/bad")


@pytest.mark.process
def test_a_full_disk_refuses_what_does_not_fit_and_the_broker_goes_on(tmp_path: Path) -> None:
    """The limit on file sizes stands in for the full disk: the write fails half-way, with a real OSError."""
    with BrokerProcess(tmp_path, *QUICK) as process:
        with RawClient(address(process)) as client:
            create(client, "t", 2)
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
            stored = 0
            while True:
                answer = produce(client, "t", batch([b"x" * 7_000]))
                if answer.error_code != ErrorCode.NONE:
                    break
                stored += 1
            assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert stored == 14
            assert produce(client, "t", batch([b"x" * 7_000]), partition=1).error_code == ErrorCode.NONE
            assert produce(client, "t", batch([b"small"])).base_offset == stored
        process.kill()
        process.start()
        with RawClient(address(process)) as client:
            assert offset_at(client, "t", -1).offset == stored + 1


def test_a_failed_sync_stops_the_broker_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    async def run() -> BrokerFailedError:
        async with Broker(quick_config(tmp_path)) as broker:

            def talk() -> None:
                with RawClient(broker.address) as client:
                    create(client, "t")
                    monkeypatch.setattr("roster.broker.log.open_files.sync_file", broken)
                    assert produce(client, "t", batch([b"x"])).error_code == ErrorCode.KAFKA_STORAGE_ERROR
                    assert produce(client, "t", batch([b"x"])).error_code == ErrorCode.KAFKA_STORAGE_ERROR

            await asyncio.to_thread(talk)
            return await broker.failed()

    assert "Input/output error" in str(asyncio.run(run()))
