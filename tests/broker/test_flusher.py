"""One sync answers everybody who waits for it."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import TYPE_CHECKING

import pytest

from roster.broker import LogConfig
from roster.broker.log.flusher import Flusher
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
