"""Bytes no client should send: an error on that connection, the server lives, memory stays bounded."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
import struct
import warnings
from pathlib import Path
from types import CoroutineType
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from roster.broker import BrokerConfig, refusals, request_limits
from roster.broker.connection import ReceiveBudget
from roster.broker.dispatch import HANDLERS
from roster.broker.errors import CloseConnection
from roster.broker.request_limits import SERVED
from roster.testing.broker import BrokerProcess, running_broker
from roster.wire import ApiKey
from roster.wire.frames import encode_request
from roster.wire.messages import (
    ApiVersionsRequest,
    HeartbeatRequest,
    ListOffsetsRequest,
    MetadataRequest,
    ProduceRequest,
)
from tests.broker.batches import batch
from tests.broker.rawclient import RawClient
from tests.broker.test_protocol import fetch_request, metadata, produce
from tests.broker.test_restart import address, create
from tests.examples_tried import examples
from tests.waiting import until

if TYPE_CHECKING:
    from roster.broker import Broker

MB = 1 << 20


def is_alive(broker: Broker) -> bool:
    with RawClient(broker.address) as client:
        return client.ask(ApiVersionsRequest(), 0).error_code == 0


def header(key: int, version: int, body: bytes = b"") -> bytes:
    frame = struct.pack(">hhih", key, version, 1, -1) + body
    return struct.pack(">i", len(frame)) + frame


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        pytest.param(struct.pack(">i", 2**31 - 1), "a request of 2147483647 bytes", id="2 GB claimed"),
        pytest.param(struct.pack(">i", 100 * MB + 1), "at most 104857600 are allowed", id="just over the limit"),
        pytest.param(struct.pack(">i", -1), "a request of -1 bytes", id="negative size"),
        pytest.param(struct.pack(">i", 0), "a request of 0 bytes", id="empty frame"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "a request of 1195725856 bytes", id="http"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "a request of 369295618 bytes", id="tls"),
        pytest.param(struct.pack(">i", 3) + b"abc", "request header", id="shorter than a header"),
        pytest.param(header(999, 0), "no api key 999 version 0", id="unknown key"),
        pytest.param(header(-1, 0), "no api key -1 version 0", id="negative key"),
        pytest.param(header(ApiKey.METADATA, 99), "no api key 3 version 99", id="unknown version"),
        pytest.param(header(ApiKey.METADATA, -1), "no api key 3 version -1", id="negative version"),
        pytest.param(header(ApiKey.METADATA, 1, b"\x7f\xff\xff\xff"), "topics", id="two billion topics"),
        pytest.param(header(ApiKey.HEARTBEAT, 0, b"\0\x05ab"), "group_id", id="string longer than the frame"),
        pytest.param(header(ApiKey.HEARTBEAT, 0, b"\0\x02\xff\xfe\0\0\0\0\0\0"), "UTF-8", id="not UTF-8"),
        pytest.param(
            struct.pack(">i", 17 * MB) + struct.pack(">hh", ApiKey.METADATA, 1), "not a Produce", id="17 MB of topics"
        ),
    ],
)
def test_bad_bytes_close_their_connection_with_a_warning_and_nothing_else(
    broker: Broker, caplog: pytest.LogCaptureFixture, sent: bytes, said: str
) -> None:
    broker._services.refusals.flush()  # type: ignore[union-attr]
    caplog.clear()
    with caplog.at_level(logging.WARNING), RawClient(broker.address) as bystander:
        with RawClient(broker.address) as client:
            client.socket.sendall(sent)
            assert client.is_closed()
        assert bystander.ask(ApiVersionsRequest(), 0).error_code == 0
    (warning,) = [record for record in caplog.records if record.name == "roster.broker.refusals"]
    assert warning.levelno == logging.WARNING
    assert said in warning.getMessage()


def test_bytes_behind_the_last_field_are_ignored_and_told_once_for_a_kind(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_limits, "_logged_kinds", set())
    with caplog.at_level(logging.WARNING), RawClient(broker.address) as client:
        for key, body in (
            (ApiKey.METADATA, b"\0\0\0\0x"),
            (ApiKey.METADATA, b"\0\0\0\0yz"),
            (ApiKey.LIST_GROUPS, b"\0"),
        ):
            client.socket.sendall(header(key, 1, body))
            assert client.frame()
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        f"{name}Request v1: 1 bytes behind the end of the message" for name in ("Metadata", "ListGroups")
    ]


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.sampled_from(sorted(HANDLERS)), data=st.data())
def test_any_bytes_under_any_header_leave_the_broker_alive(broker: Broker, key: int, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(list(SERVED[ApiKey(key)])))
    body = data.draw(st.binary(max_size=60))
    with RawClient(broker.address) as client:
        client.socket.sendall(header(key, version, body))
        client.socket.shutdown(1)
        while not client.is_closed():
            pass
    assert is_alive(broker)


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
@example(b"")
@example(b"\0\0\0\x0a")
def test_any_bytes_at_all_leave_the_broker_alive(broker: Broker, sent: bytes) -> None:
    with RawClient(broker.address) as client:
        client.socket.sendall(sent)
        client.socket.shutdown(1)
        while not client.is_closed():
            pass
    assert is_alive(broker)


def test_a_produce_in_front_of_bad_bytes_is_written_and_its_answer_given_up(tmp_path: Path) -> None:
    """The connection ends before the wait for the answer has begun: nothing is left that was never awaited."""
    partition = ProduceRequest.Topic.Partition(index=0, records=batch([b"x"]))
    topic = ProduceRequest.Topic(name="t", partition_data=[partition])
    request = encode_request(ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=[topic]), 9, 1, "raw")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with running_broker(tmp_path) as broker, RawClient(broker.address) as reader:
            create(reader, "t")
            for _ in range(3):
                with RawClient(broker.address) as client:
                    client.socket.sendall(request + struct.pack(">i", 0))
                    assert client.is_closed()
            until(lambda: end_of_topic(reader) == 3)
        waiting = [each for each in gc.get_objects() if type(each) is CoroutineType and each.__name__ == "_answer"]
    assert not waiting
    assert not [str(each.message) for each in caught if "never awaited" in str(each.message)]


def end_of_topic(client: RawClient) -> int:
    """The end of the first partition of topic "t"."""
    partition = ListOffsetsRequest.Topic.Partition(partition_index=0, timestamp=-1)
    asked = ListOffsetsRequest(topics=[ListOffsetsRequest.Topic(name="t", partitions=[partition])])
    end: int = client.ask(asked, 2).topics[0].partitions[0].offset
    return end


def test_many_bad_connections_are_a_few_lines_and_a_number(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        with running_broker(tmp_path) as broker:
            for _ in range(refusals.WARNINGS + 25):
                with RawClient(broker.address) as client:
                    client.socket.sendall(header(999, 0))
                    assert client.is_closed()
        said = [record.getMessage() for record in caplog.records if record.name == refusals.__name__]
    assert len(said) == refusals.WARNINGS + 1
    assert said[-1].startswith("closed 25 more connections for what they sent, the last to 127.0.0.1:")
    assert said[-1].endswith("no api key 999 version 0")


def test_a_request_may_come_byte_by_byte(broker: Broker) -> None:
    with RawClient(broker.address) as client:
        for byte in header(ApiKey.API_VERSIONS, 0):
            client.socket.sendall(bytes([byte]))
        client.frame()


def test_a_bug_in_a_handler_closes_its_connection_only(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setitem(HANDLERS, int(ApiKey.HEARTBEAT), broken)
        with RawClient(broker.address) as client:
            client.send(HeartbeatRequest(group_id="g"), 0)
            assert client.is_closed()
    assert is_alive(broker)
    assert any("internal error" in record.getMessage() and record.exc_info for record in caplog.records)


def test_an_idle_connection_and_half_a_frame_are_closed_in_time(tmp_path: Path) -> None:
    with running_broker(tmp_path, idle_timeout_ms=200) as broker:
        with RawClient(broker.address) as client:
            assert client.is_closed()
        with RawClient(broker.address) as client:
            client.socket.sendall(struct.pack(">i", 50) + b"half")
            assert client.is_closed()
        assert is_alive(broker)


def test_a_fetch_whose_client_has_left_is_given_up(broker: Broker) -> None:
    name = f"left-{random.getrandbits(40):x}"
    with RawClient(broker.address) as client:
        metadata(client, name, create=True)
        client.send(fetch_request(name, 0, max_wait_ms=2**31 - 1), 12)
        log = broker._services.topics.get(name).logs[0]  # type: ignore[union-attr]
        until(lambda: bool(log.watchers))
    until(lambda: not log.watchers)


async def test_the_receive_budget_is_shared_and_given_back() -> None:
    budget = ReceiveBudget(10)
    budget.take(6)
    with pytest.raises(CloseConnection):
        budget.take(5)
    budget.give_back(6)
    budget.take(10)
    await asyncio.sleep(0)


def test_large_requests_under_way_share_one_budget(tmp_path: Path) -> None:
    with running_broker(tmp_path, max_buffered_bytes=3 * MB) as broker:
        claim = struct.pack(">i", 50 * MB) + struct.pack(">hh", ApiKey.PRODUCE, 9)
        with RawClient(broker.address) as client:
            client.socket.sendall(claim + bytes(2 * MB))
            with RawClient(broker.address) as other:
                with contextlib.suppress(ConnectionError):
                    other.socket.sendall(claim + bytes(4 * MB))
                assert other.is_closed()
            assert is_alive(broker)
        with RawClient(broker.address) as client:  # and what the first one held is free again
            metadata(client, "t", create=True)
            until(lambda: broker._budget._left == 3 * MB)


def rss(pid: int) -> int:
    """Resident bytes of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


@pytest.mark.process
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_memory_stays_bounded_under_claims_half_frames_and_slow_readers(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as process:
        with RawClient(address(process)) as client:
            create(client, "t")
            for n in range(40):
                assert produce(client, "t", batch([b"%d" % n + b"x" * 1_000_000])).error_code == 0
            client.ask(MetadataRequest(topics=[]), 12)
        before = rss(process.pid)
        connections = []
        for _ in range(60):  # 6 GB claimed, nothing sent
            client = RawClient(address(process))
            client.socket.sendall(struct.pack(">i", 100 * MB) + struct.pack(">hh", ApiKey.PRODUCE, 9))
            connections.append(client)
        for _ in range(60):  # 2.4 GB of answers that nobody reads
            client = RawClient(address(process))
            for _ in range(20):
                client.send(fetch_request("t", 0, max_bytes=40 * MB), 12)
            connections.append(client)
        with RawClient(address(process)) as client:
            for _ in range(50):
                client.ask(ApiVersionsRequest(), 0)
        limit = BrokerConfig(data_dir=tmp_path).max_buffered_bytes
        assert rss(process.pid) - before < limit + 200 * MB
        for client in connections:
            client.socket.close()
        assert process.stop() == 0
