"""Rewriting a compacted log: the newest record of each key stays, under its old offset."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from roster.broker import LogConfig
from roster.broker.log.compaction import Compactor, rewrite
from roster.broker.log.flusher import Flusher
from roster.broker.log.partition_log import PartitionLog
from roster.wire.records import Record, read_batch
from tests.broker.batches import batch
from tests.broker.test_partition_log import NOW, append, flush, scratch
from tests.examples_tried import examples

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100, compact_min_bytes=2_000)


def opened(directory: Path) -> PartitionLog:
    log = PartitionLog(directory, CONFIG, compacted=True)
    log.open(NOW)
    return log


def records(log: PartitionLog) -> list[Record]:
    return [record for _, raw in log.batches() for record in read_batch(raw)]


def newest(every: list[Record]) -> dict[bytes, bytes]:
    """What a reader of the whole log ends up with."""
    state: dict[bytes, bytes] = {}
    for record in every:
        if record.key is None:
            continue
        if record.value is None:
            state.pop(record.key, None)
        else:
            state[record.key] = record.value
    return state


writes = st.lists(
    st.lists(
        st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.one_of(st.none(), st.binary(max_size=60))),
        min_size=1,
        max_size=3,
    ),
    min_size=1,
    max_size=25,
)


def fill(log: PartitionLog, batches: list[list[tuple[bytes, bytes | None]]]) -> None:
    for each in batches:
        append(log, batch([value for _, value in each], keys=[key for key, _ in each]))
    log.roll(NOW)
    flush(log)


@given(writes, st.booleans())
def test_a_rewritten_log_says_the_same_in_fewer_records(
    batches: list[list[tuple[bytes, bytes | None]]], keep: bool
) -> None:
    with scratch() as directory:
        log = opened(directory)
        fill(log, batches)
        before = records(log)
        old = log.sealed_segments()
        log.replace(old, rewrite(old, CONFIG.index_interval_bytes, 0 if keep else NOW))
        after = records(log)
        assert set(after) <= set(before)
        assert newest(after) == newest(before)
        last = {record.key: record for record in before}
        end = len(before) - 1
        assert set(after) == {r for r in last.values() if keep or r.value is not None or r.offset == end}
        assert log.end_offset == len(before)
        for offset in range(len(before)):
            if any(record.offset >= offset for record in after):
                assert log.read(offset, 1)
        log.close()
        again = opened(directory)
        assert records(again) == after
        assert append(again, batch([b"x"], keys=[b"new"])) == len(before)


@settings(max_examples=examples(30))
@given(writes, st.integers(0, 12))
def test_a_crash_at_any_step_of_a_rewriting_changes_nothing_a_reader_ends_up_with(
    batches: list[list[tuple[bytes, bytes | None]]], steps: int
) -> None:
    """Stop after so many renames, deletions and sidecars; then recover, more than once."""

    class Crash(Exception):
        pass

    left = steps

    def step(*_: object) -> None:
        nonlocal left
        if left == 0:
            raise Crash
        left -= 1

    import roster.broker.log.compaction as module
    from roster.broker.log import segment as segment_module

    with scratch() as directory:
        log = opened(directory)
        fill(log, batches)
        wanted, end = newest(records(log)), log.end_offset
        old = log.sealed_segments()
        saved = module.sync_path, segment_module.sync_path, segment_module.write_atomically
        original_write = segment_module.write_atomically

        def write(path: Path, data: bytes) -> None:
            step()
            original_write(path, data)

        module.sync_path = segment_module.sync_path = step
        segment_module.write_atomically = write
        try:
            rewrite(old, CONFIG.index_interval_bytes, NOW)
        except Crash:
            pass
        finally:
            module.sync_path, segment_module.sync_path, segment_module.write_atomically = saved
        for _ in range(2):
            shutil.copytree(directory, directory.with_name("copy"), dirs_exist_ok=True)
            log = opened(directory)
            assert newest(records(log)) == wanted
            assert log.end_offset <= end
            del log


async def test_a_log_is_compacted_once_it_is_dirty_enough_and_goes_on_meanwhile(tmp_path: Path) -> None:
    failures: list[BaseException] = []
    compactor: Compactor
    commit = Flusher(2, failures.append, lambda log: compactor.consider(log))  # noqa: PLW0108 (made below)
    compactor = Compactor(commit)
    log = opened(tmp_path / "log")
    for n in range(200):
        append(log, batch([b"%d" % n], keys=[b"k%d" % (n % 3)]))
        if n % 20 == 0:
            await commit.durable(log)
    await commit.durable(log)
    while compactor._task is not None:
        await asyncio.wait([compactor._task])
    await compactor.stop()
    await commit.close()
    assert not failures
    assert log.size < 2_000
    assert newest(records(log)) == {b"k%d" % (n % 3): b"%d" % n for n in range(197, 200)}
    assert log.end_offset == 200
    await asyncio.to_thread(log.close)
    assert newest(records(opened(tmp_path / "log"))) == {b"k%d" % (n % 3): b"%d" % n for n in range(197, 200)}
