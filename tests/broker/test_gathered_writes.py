"""Writes of one turn of the event loop are one batch of each partition, and each is answered once it is durable."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from roster.broker import LogConfig
from roster.broker import shell as coordinators
from roster.broker.log.flusher import Flusher
from roster.broker.log.partition_log import PartitionLog
from roster.broker.shell import GatheredWrites
from roster.broker.stored_records import read_records
from roster.coordinator_common import Write, WriteCompleted
from roster.wire import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def never(error: BaseException) -> None:
    raise AssertionError(error)


class Shell:
    """Two partitions, and what was completed when the log was durable up to where."""

    def __init__(self, directory: Path, on_failure: Any = never) -> None:
        self.logs = [PartitionLog(directory / str(number), LogConfig()) for number in range(2)]
        self.flusher = Flusher(1, on_failure)
        self.writes = GatheredWrites(self.logs, self.flusher, self.completed)
        self.done: list[WriteCompleted] = []
        self.durable: dict[int, int] = {}
        self.partition: dict[int, int] = {}
        self.adding = False

    def completed(self, event: WriteCompleted) -> None:
        assert not self.adding
        self.done.append(event)
        self.durable[event.id] = self.logs[self.partition[event.id]].high_watermark

    def add(self, write: Write) -> None:
        self.partition[write.id] = write.partition
        self.adding = True
        self.writes.add(write)
        self.adding = False

    async def settled(self) -> None:
        async with asyncio.timeout(120):
            while len(self.done) < len(self.partition):
                await asyncio.sleep(0.001)

    def batches(self, partition: int) -> list[int]:
        """Records of each batch."""
        return [header.records_count for header, _ in self.logs[partition].batches()]


def writes(ids: Iterable[int], partition: int, size: int = 8, producer: tuple[int, int] | None = None) -> list[Write]:
    return [Write(n, partition, ((b"key-%d" % n, b"v" * size), (b"more-%d" % n, None)), producer) for n in ids]


async def test_writes_of_one_turn_share_a_batch_of_each_partition(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    for mine, theirs in zip(writes(range(1, 41), 0), writes(range(101, 141), 1), strict=True):
        shell.add(mine)
        shell.add(theirs)
    await shell.settled()
    shell.add(*writes([41], 0))
    await shell.settled()
    assert shell.batches(0) == [80, 2]
    assert shell.batches(1) == [80]
    assert [each.id for each in shell.done if each.id < 100] == list(range(1, 42))
    assert [each.id for each in shell.done if each.id > 100] == list(range(101, 141))
    assert {each.error for each in shell.done} == {ErrorCode.NONE}
    assert all(shell.durable[n] >= 80 for n in shell.durable)
    keys = [key for key, _ in read_records(shell.logs[0])]
    assert keys == [key for n in range(1, 42) for key in (b"key-%d" % n, b"more-%d" % n)]
    await shell.flusher.close()


async def test_a_transactional_write_keeps_its_place_between_others(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    for write in [*writes([1, 2], 0), *writes([3], 0, producer=(7, 0)), *writes([4, 5], 0)]:
        shell.add(write)
    await shell.settled()
    assert shell.batches(0) == [4, 2, 4]
    assert [header.is_transactional for header, _ in shell.logs[0].batches()] == [False, True, False]
    assert [each.id for each in shell.done] == [1, 2, 3, 4, 5]
    await shell.flusher.close()


async def test_a_batch_does_not_grow_without_end(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    for write in writes(range(1, 11), 0, coordinators.MAX_BYTES // 4):
        shell.add(write)
    await shell.settled()
    assert shell.batches(0) == [8, 8, 4]
    assert [each.id for each in shell.done] == list(range(1, 11))
    await shell.flusher.close()


async def test_a_full_disk_refuses_every_write_of_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    shell = Shell(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(coordinators, "append_records", full)
        for write in writes([1, 2, 3], 0):
            shell.add(write)
        await shell.settled()
    for write in writes([4, 5], 0):
        shell.add(write)
    await shell.settled()
    assert [each.error for each in shell.done] == [ErrorCode.KAFKA_STORAGE_ERROR] * 3 + [ErrorCode.NONE] * 2
    assert [key for key, _ in read_records(shell.logs[0])] == [b"key-4", b"more-4", b"key-5", b"more-5"]
    await shell.flusher.close()


async def test_a_failed_sync_acknowledges_none_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[OSError] = []

    def fails(_: int) -> None:
        raise OSError(5, "Input/output error")

    shell = Shell(tmp_path, failures.append)
    monkeypatch.setattr("roster.broker.log.open_files.sync_file", fails)
    for write in writes([1, 2, 3], 0):
        shell.add(write)
    await shell.settled()
    assert [each.error for each in shell.done] == [ErrorCode.KAFKA_STORAGE_ERROR] * 3
    assert len(failures) == 1
    assert shell.logs[0].high_watermark == 0
    await shell.flusher.close()
