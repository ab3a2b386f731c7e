"""Retention and DeleteRecords: what goes, what stays, and a crash at every file operation in between."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from roster._clock import wall_ms
from roster.broker import LogConfig
from roster.broker.log import log_start
from roster.broker.log.batch_check import CorruptSegmentError
from roster.broker.log.flusher import Flusher
from roster.broker.log.partition_log import PartitionLog
from roster.broker.log.retention import Retention
from roster.broker.topic_config import InvalidConfigError, check_settings, log_config
from roster.wire import ErrorCode
from roster.wire.messages import (
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DescribeConfigsRequest,
    FetchRequest,
    IncrementalAlterConfigsRequest,
    ListOffsetsRequest,
    ProduceRequest,
)
from roster.wire.records import read_batch, read_header
from tests.broker.batches import batch
from tests.broker.kills import copies_at_each_operation
from tests.broker.rawclient import RawClient
from tests.broker.test_compaction import rewrite

HOUR = 3_600_000
PRODUCER = 7


def value(number: int) -> bytes:
    return b"%03d" % number * 20


def append(log: PartitionLog, number: int, time: int, producer: tuple[int, int, int] = (-1, -1, -1)) -> int:
    data = batch([value(number)], times=[time], keys=[b"%d" % number], producer=producer)
    return log.append(read_header(data), memoryview(data), wall_ms()).base_offset


@asynccontextmanager
async def kept(log: PartitionLog):
    """Retention for one log, looked at by hand."""
    failures: list[BaseException] = []
    flusher = Flusher(1, failures.append)
    cleaner = Retention(flusher, lambda: [log], HOUR)
    yield cleaner, flusher
    await cleaner.stop()
    await flusher.close()
    assert failures == []


def opened(directory: Path, *, is_compacted: bool = False, **settings: int) -> PartitionLog:
    config = LogConfig(**{"segment_bytes": 400, "index_interval_bytes": 100, **settings})
    log = PartitionLog(directory, config, compacted=is_compacted)
    log.open(wall_ms())
    return log


def held(log: PartitionLog) -> list[int]:
    """The numbers of the records that can be read."""
    return [
        int(record.value[:3])
        for _, data in log.batches()
        for record in read_batch(data)
        if record.offset >= log.log_start_offset
    ]


async def test_segments_that_are_too_old_go_and_the_active_one_ends_if_all_are(tmp_path):
    log = opened(tmp_path / "log", retention_ms=10 * HOUR)
    async with kept(log) as (cleaner, flusher):
        now = wall_ms()
        for number in range(9):  # three batches a segment
            append(log, number, now - (20 - number) * HOUR if number < 6 else now)
        await flusher.durable(log)
        bases = [segment.base_offset for segment in log.segments]
        assert len(bases) >= 3
        await cleaner.check_all()
        assert log.log_start_offset == max(base for base in bases if base <= 6)
        assert held(log) == list(range(log.log_start_offset, 9))
        log.configure(LogConfig(segment_bytes=400, retention_ms=0), compacted=False)
        await asyncio.to_thread(_until_later_than, now)
        await cleaner.check_all()
        assert (held(log), log.log_start_offset, log.end_offset) == ([], 9, 9)
        assert [path.name for path in (tmp_path / "log").glob("*.log")] == [f"{9:020d}.log"]
        append(log, 9, wall_ms() + HOUR)
        await flusher.durable(log)
        assert held(log) == [9]


@pytest.mark.parametrize("time", [-1, -5, -(2**63), 2**63 - 1, 1_700_000_000_000_000_000])
async def test_without_a_time_records_are_as_old_as_their_file(tmp_path, time):
    log = opened(tmp_path / "log", retention_ms=10 * HOUR)
    async with kept(log) as (cleaner, flusher):
        for number in range(9):
            append(log, number, time)
        await flusher.durable(log)
        await cleaner.check_all()
        assert held(log) == list(range(9))
        log.close()
        log = opened(tmp_path / "log", retention_ms=10 * HOUR)
        assert held(log) == list(range(9))
        assert log.newest_record() is None or time in (-1, -5)
        for path in (tmp_path / "log").glob("*.log"):
            os.utime(path, (0, 0))
    async with kept(log) as (cleaner, flusher):
        await cleaner.check_all()
        assert held(log) == []


def _until_later_than(time: int) -> None:
    while wall_ms() <= time:
        pass


async def test_segments_go_while_enough_is_left(tmp_path):
    log = opened(tmp_path / "log")
    async with kept(log) as (cleaner, flusher):
        for number in range(40):
            append(log, number, wall_ms())
        await flusher.durable(log)
        sizes = [segment.size for segment in log.segments]
        await cleaner.check_all()
        assert log.log_start_offset == 0  # no limit
        limit = sum(sizes[-3:]) - 1
        log.configure(LogConfig(segment_bytes=400, retention_bytes=limit), compacted=False)
        await cleaner.check_all()
        assert [segment.size for segment in log.segments] == sizes[-3:]
        assert log.size >= limit
        assert held(log) == list(range(log.log_start_offset, 40))


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete, compact"])
async def test_compacted_logs_expire_if_their_policy_has_delete_too(tmp_path, policy):
    settings = check_settings({"cleanup.policy": policy, "retention.ms": "0", "retention.bytes": "0"})
    config = log_config(LogConfig(segment_bytes=400, retention_ms=0), settings)
    log = PartitionLog(tmp_path / "log", config, compacted=True)
    async with kept(log) as (cleaner, flusher):
        for number in range(9):
            append(log, number, 1_000)
        await flusher.durable(log)
        await cleaner.check_all()
        assert log.log_start_offset == (0 if policy == "compact" else 9)


def test_a_batch_that_is_much_newer_begins_a_segment(tmp_path):
    log = opened(tmp_path / "log", segment_ms=1_000, segment_bytes=1 << 20)
    for time in (5_000, 6_000, 4_000, 6_001, 6_500):
        append(log, 0, time)
    assert [segment.base_offset for segment in log.segments] == [0, 3]
    flush_by_hand(log)
    log.close()
    again = opened(tmp_path / "log", segment_ms=1_000, segment_bytes=1 << 20)
    append(again, 0, 7_001)
    append(again, 0, 7_002)
    assert [segment.base_offset for segment in again.segments] == [0, 3, 6]


def flush_by_hand(log: PartitionLog) -> None:
    point = log.begin_flush()
    if point is not None:
        point.sync()
        log.finish_flush(point)


@pytest.mark.parametrize("offset", [1, 3, 4, 8, 12])
@pytest.mark.parametrize("is_compacted", [False, True])
async def test_a_kill_at_any_step_loses_nothing_that_was_not_to_go(tmp_path, is_compacted, offset):
    directory = tmp_path / "log"
    log = opened(directory, is_compacted=is_compacted)
    async with kept(log) as (cleaner, flusher):
        for number in range(12):
            append(log, number, wall_ms(), (PRODUCER, 0, number))
        await flusher.durable(log)
        if is_compacted:  # every record is kept, in other segments
            log.configure(replace(log.config, segment_bytes=800), compacted=True)
            rewrite(log, 0)
        with copies_at_each_operation(directory) as copies:
            assert await cleaner.delete_records(log, offset) == offset
        assert held(log) == list(range(offset, 12))
    assert len(copies) >= 3
    for left, step in copies:
        again = opened(left, is_compacted=is_compacted)
        assert again.log_start_offset == offset or step != "at the end"
        assert again.log_start_offset in (0, offset)
        assert held(again) == list(range(again.log_start_offset, 12))
        assert again.high_watermark == again.end_offset == 12
        repeated = batch([value(11)], times=[1], keys=[b"11"], producer=(PRODUCER, 0, 11))
        assert again.append(read_header(repeated), memoryview(repeated), wall_ms()).base_offset == 11
        assert append(again, 12, wall_ms(), (PRODUCER, 0, 12)) == 12
        flush_by_hand(again)
        again.close()
        assert held(opened(left, is_compacted=is_compacted)) == list(range(again.log_start_offset, 13))


async def test_the_start_never_goes_back_and_producers_are_known_without_sidecars(tmp_path):
    log = opened(tmp_path / "log")
    async with kept(log) as (cleaner, flusher):
        for number in range(12):
            append(log, number, wall_ms(), (PRODUCER, 0, number))
        await flusher.durable(log)
        log.roll(wall_ms())
        await flusher.durable(log)
        assert await cleaner.delete_records(log, 12) == 12
        assert await cleaner.delete_records(log, 5) == 12
        assert (held(log), len(log.segments)) == ([], 1)
    again = opened(tmp_path / "log")
    assert (again.log_start_offset, again.end_offset) == (12, 12)
    assert append(again, 12, wall_ms(), (PRODUCER, 0, 12)) == 12


def test_a_damaged_start_is_said(tmp_path):
    (tmp_path / "log").mkdir()
    log_start.write_log_start(tmp_path / "log", log_start.LogStart(5))
    path = tmp_path / "log" / log_start.NAME
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(CorruptSegmentError, match="log-start is damaged; restore it from a backup, or delete it"):
        opened(tmp_path / "log")


# Over the wire


def create(client: RawClient, name: str, **configs: str) -> None:
    topic = CreateTopicsRequest.Topic(name=name, num_partitions=1, replication_factor=1)
    topic.configs = [CreateTopicsRequest.Topic.Config(name=key, value=text) for key, text in configs.items()]
    assert client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=9_000), 7).topics[0].error_code == ErrorCode.NONE


def produce(client: RawClient, name: str, count: int) -> None:
    for number in range(count):
        part = ProduceRequest.Topic.Partition(index=0, records=batch([value(number)]))
        topic = ProduceRequest.Topic(name=name, partition_data=[part])
        client.ask(ProduceRequest(acks=-1, timeout_ms=9_000, topic_data=[topic]), 9)


def delete(client: RawClient, name: str, offset: int, partition: int = 0) -> tuple[int, int]:
    part = DeleteRecordsRequest.Topic.Partition(partition_index=partition, offset=offset)
    asked = DeleteRecordsRequest(topics=[DeleteRecordsRequest.Topic(name=name, partitions=[part])], timeout_ms=9_000)
    answer = client.ask(asked, 2).topics[0].partitions[0]
    return answer.low_watermark, answer.error_code


def test_deleted_records_are_out_of_range(client):
    create(client, "deleting")
    produce(client, "deleting", 5)
    assert delete(client, "deleting", 3) == (3, ErrorCode.NONE)
    assert delete(client, "deleting", 2) == (3, ErrorCode.NONE)
    assert delete(client, "deleting", 6) == (-1, ErrorCode.OFFSET_OUT_OF_RANGE)
    part = ListOffsetsRequest.Topic.Partition(partition_index=0, timestamp=-2)
    asked = ListOffsetsRequest(topics=[ListOffsetsRequest.Topic(name="deleting", partitions=[part])])
    assert client.ask(asked, 6).topics[0].partitions[0].offset == 3
    for offset, error in ((2, ErrorCode.OFFSET_OUT_OF_RANGE), (3, ErrorCode.NONE)):
        wanted = FetchRequest.Topic.Partition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(max_bytes=1 << 20, topics=[FetchRequest.Topic(topic="deleting", partitions=[wanted])])
        answer = client.ask(request, 12).responses[0].partitions[0]
        assert answer.error_code == error
        assert answer.log_start_offset == (3 if error == ErrorCode.NONE else -1)
    assert delete(client, "deleting", -1) == (5, ErrorCode.NONE)


def test_settings_of_retention_are_taken_and_checked(client):
    create(client, "kept", **{"retention.ms": "1000", "retention.bytes": "5000000000", "segment.ms": "60000"})

    def alter(name: str, text: str) -> int:
        config = IncrementalAlterConfigsRequest.Resource.Config(name=name, config_operation=0, value=text)
        resource = IncrementalAlterConfigsRequest.Resource(resource_type=2, resource_name="kept", configs=[config])
        return client.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses[0].error_code

    for name, text in (("retention.ms", "-1"), ("retention.bytes", "-2"), ("segment.ms", "1")):
        assert alter(name, text) == ErrorCode.NONE
    for text in ("compact,delete", "delete,compact", "compact", "delete"):
        assert alter("cleanup.policy", text) == ErrorCode.NONE
    for text in ("", "compact,", "compact;delete", "keep"):
        assert alter("cleanup.policy", text) == ErrorCode.INVALID_CONFIG
    for name, text in (("retention.ms", "-2"), ("retention.ms", "x"), ("segment.ms", "0"), ("retention.bytes", "1e9")):
        assert alter(name, text) == ErrorCode.INVALID_CONFIG


def test_policies_are_appended_and_subtracted(client):
    """Operations 2 and 3 of IncrementalAlterConfigs (KIP-339), on lists only."""
    create(client, "grows")

    def alter(name: str, operation: int, text: str) -> int:
        config = IncrementalAlterConfigsRequest.Resource.Config(name=name, config_operation=operation, value=text)
        resource = IncrementalAlterConfigsRequest.Resource(resource_type=2, resource_name="grows", configs=[config])
        return client.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses[0].error_code

    def policy() -> str:
        resource = DescribeConfigsRequest.Resource(
            resource_type=2, resource_name="grows", configuration_keys=["cleanup.policy"]
        )
        (result,) = client.ask(DescribeConfigsRequest(resources=[resource]), 4).results
        return result.configs[0].value

    assert policy() == "delete"
    for operation, text, after in (
        (2, "compact", "delete,compact"),
        (2, "delete", "delete,compact"),
        (3, "delete", "compact"),
    ):
        assert alter("cleanup.policy", operation, text) == ErrorCode.NONE
        assert policy() == after
    assert alter("cleanup.policy", 3, "compact") == ErrorCode.INVALID_CONFIG, "a topic has a policy"
    assert alter("retention.ms", 2, "5") == ErrorCode.INVALID_CONFIG, "not a list"
    assert policy() == "compact"


def test_settings_are_read_as_java_reads_them() -> None:
    given = {
        "retention.ms": " +5\t",
        "compression.type": " gzip",
        "cleanup.policy": " compact , delete",
        "segment.ms": "7 ",
    }
    checked = check_settings(given)
    assert (checked["retention.ms"], checked["compression.type"], checked["segment.ms"]) == ("5", "gzip", "7")
    for wrong in ("+-5", "5 5", "+", " ", "\u00a05"):
        with pytest.raises(InvalidConfigError, match=r"retention\.ms=.* is not a number from"):
            check_settings({"retention.ms": wrong})
