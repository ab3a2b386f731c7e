"""One sync answers everybody who waits for it."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import TYPE_CHECKING

import pytest

from roster.broker import LogConfig
from roster.broker.log.files import FileSystem
from roster.broker.log.flusher import Flusher
from roster.broker.log.open_files import MANY, OPEN_FILES
from roster.broker.log.partition_log import PartitionLog
from tests.broker.batches import batch
from tests.broker.test_partition_log import append

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _nothing_of_earlier_tests_is_collected() -> Iterator[None]:
    """Segments close, and sync, when they are collected: in any thread, by the function that is patched here."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def never(error: BaseException) -> None:
    raise AssertionError(error)


async def test_what_is_appended_during_a_sync_shares_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Semaphore(0), threading.Semaphore(0)
    syncs = []

    def sync(fd: int) -> None:
        syncs.append(fd)
        begun.release()
        go_on.acquire()

    monkeypatch.setattr("roster.broker.log.open_files.sync_file", sync)
    commit = Flusher(2, never)
    log = PartitionLog(tmp_path / "log", LogConfig())
    append(log, batch([b"first"]))
    first = commit.durable(log)
    await asyncio.to_thread(begun.acquire)
    later = []
    for n in range(50):
        append(log, batch([b"%d" % n]))
        later.append(commit.durable(log))
    assert not first.done()
    go_on.release()
    await first
    assert log.high_watermark == 1
    assert not any(future.done() for future in later)
    go_on.release()
    await asyncio.gather(*later)
    assert log.high_watermark == 51
    assert len(syncs) == 2
    assert commit.durable(log).done()
    await commit.close()


async def test_after_a_failed_sync_nothing_is_acknowledged_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed fsync may have dropped the pages: a later one that succeeds proves nothing."""

    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    told: list[BaseException] = []
    commit = Flusher(1, told.append)
    log, other = PartitionLog(tmp_path / "a", LogConfig()), PartitionLog(tmp_path / "b", LogConfig())
    append(log, batch([b"a"]))
    with monkeypatch.context() as patch:
        patch.setattr("roster.broker.log.open_files.sync_file", broken)
        with pytest.raises(OSError, match="Input/output"):
            await commit.durable(log)
    append(other, batch([b"b"]))
    with pytest.raises(OSError, match="Input/output"):
        await commit.durable(other)
    assert log.high_watermark == other.high_watermark == 0
    assert len(told) == 1
    assert commit.failed
    await commit.close()


async def test_a_deleted_topic_does_not_disturb_the_others(tmp_path: Path) -> None:
    commit = Flusher(1, never)
    gone, other = PartitionLog(tmp_path / "gone", LogConfig()), PartitionLog(tmp_path / "other", LogConfig())
    append(gone, batch([b"a"]))
    append(other, batch([b"b"]))
    gone.removed = True
    for path in (tmp_path / "gone").iterdir():
        path.unlink()
    (tmp_path / "gone").rmdir()
    await asyncio.gather(commit.durable(gone), commit.durable(other))
    assert other.high_watermark == 1
    await commit.close()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Counts syncs of whole file systems and of single files, both without the disk."""
    counts = {"whole": 0, "files": 0}

    def count(what: str) -> None:
        counts[what] += 1

    monkeypatch.setattr(FileSystem, "of", FileSystem)
    monkeypatch.setattr(FileSystem, "sync", lambda _: count("whole"))
    monkeypatch.setattr("roster.broker.log.open_files.sync_file", lambda _: count("files"))
    monkeypatch.setattr(OPEN_FILES, "_disks", {})
    return counts


async def test_very_many_logs_share_one_sync(tmp_path: Path, disk: dict[str, int]) -> None:
    commit = Flusher(4, never)
    logs = [PartitionLog(tmp_path / str(n), LogConfig(segment_bytes=100)) for n in range(MANY + 1)]
    for log in logs:
        append(log, batch([b"a"]))
    append(logs[0], batch([b"b"]))  # begins a second segment: the first is sealed by itself, before
    await asyncio.gather(*map(commit.durable, logs))
    assert [log.high_watermark for log in logs] == [2, *[1] * MANY]
    assert disk == {"whole": 1, "files": 2}
    await commit.close()


async def test_files_that_are_closed_for_others_before_their_sync_share_one(
    tmp_path: Path, disk: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    OPEN_FILES.release(0)
    monkeypatch.setattr(OPEN_FILES, "limit", 2 * MANY)
    logs = [PartitionLog(tmp_path / str(n), LogConfig()) for n in range(6 * MANY)]
    for log in logs:
        append(log, batch([b"a"]))
    assert len(OPEN_FILES) <= 2 * MANY
    assert disk["whole"] <= 3
    assert disk["files"] == 0


async def test_a_failed_sync_of_the_file_system_is_one_of_each_log(
    tmp_path: Path, disk: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: FileSystem) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(FileSystem, "sync", broken)
    told: list[BaseException] = []
    commit = Flusher(4, told.append)
    logs = [PartitionLog(tmp_path / str(n), LogConfig()) for n in range(MANY)]
    for log in logs:
        append(log, batch([b"a"]))
    results = await asyncio.gather(*map(commit.durable, logs), return_exceptions=True)
    assert all(isinstance(result, OSError) for result in results)
    assert not any(log.high_watermark for log in logs)
    assert len(told) == 1
    await commit.close()
    with pytest.raises(OSError, match="Input/output"):
        logs[0].segments[0].sync()


def test_a_failed_write_is_told_to_all_that_wait_for_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([-1, 0])
    monkeypatch.setattr("roster.broker.log.files._SYNCFS", lambda _: next(answers))  # as the system: told once
    disk = FileSystem(tmp_path)
    for _ in range(2):
        with pytest.raises(OSError):  # noqa: PT011 - errno is what the last call left
            disk.sync()


async def test_many_logs_without_one_sync_have_all_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileSystem, "of", lambda _: None)
    monkeypatch.setattr(OPEN_FILES, "_disks", {})
    shares: list[int] = []
    monkeypatch.setattr("roster.broker.log.flusher._sync_all", lambda points, _: shares.append(len(points)))
    commit = Flusher(4, never)
    logs = [PartitionLog(tmp_path / str(n), LogConfig()) for n in range(MANY)]
    for log in logs:
        append(log, batch([b"a"]))
    await asyncio.gather(*map(commit.durable, logs))
    assert shares == [MANY // 4] * 4
    await commit.close()


def test_a_real_file_system_is_synced(tmp_path: Path) -> None:
    found = FileSystem.of(tmp_path)
    if found is not None:  # else each file is synced by itself
        found.sync()
