"""Rewriting a compacted log: the newest record of each key stays, under its old offset."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import struct
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster._clock import wall_ms
from roster.broker import LogConfig
from roster.broker.log.compaction import Compactor, Rewriting, Stopped
from roster.broker.log.flusher import Flusher
from roster.broker.log.partition_log import PartitionLog
from roster.broker.log.producer_state import SequenceError
from roster.broker.log.retention import Retention, expired_segments
from roster.broker.log.segment import Segment
from roster.wire import ErrorCode
from roster.wire.records import Record, read_batch, read_header
from tests.broker.batches import HEADER, batch, record
from tests.broker.kills import copies_at_each_operation
from tests.broker.test_partition_log import NOW, append, flush, scratch
from tests.examples_tried import examples

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from roster.broker.log.aborted_transactions import AbortedTransaction
    from roster.broker.log.segment import Segment

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
    for each in every:
        if each.key is None:
            continue
        if each.value is None:
            state.pop(each.key, None)
        else:
            state[each.key] = each.value
    return state


def rewrite(
    log: PartitionLog,
    keep_tombstones_since: int,
    aborted: Sequence[AbortedTransaction] = (),
    old: list[Segment] | None = None,
    **settings: int,
) -> Rewriting:
    """Compact all sealed segments, as the compactor does in the background; `settings` are those of `replaced`."""
    work = Rewriting(old or log.sealed_segments(), log.config, keep_tombstones_since, aborted, clean_end=log.clean_end)
    for replaced in work.replaced(**settings):
        log.replace(*replaced)
    log.compacted_to(work.covered)
    return work


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
        rewrite(log, 0 if keep else NOW)
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


@settings(max_examples=examples(20))
@given(writes)
def test_a_kill_at_any_step_of_a_rewriting_changes_nothing_a_reader_ends_up_with(
    batches: list[list[tuple[bytes, bytes | None]]],
) -> None:
    with scratch() as directory:
        log = opened(directory)
        fill(log, batches)
        wanted, end = newest(records(log)), log.end_offset
        with copies_at_each_operation(directory) as copies:
            rewrite(log, NOW)
        for copy, step in copies:
            for _ in range(2):
                left = opened(copy)
                assert newest(records(left)) == wanted, step
                assert left.end_offset == end, step
                left.close()


@pytest.mark.parametrize("segment_bytes", [400, 3_000, 100_000], ids=["many segments", "a few", "one"])
def test_a_kill_at_any_step_of_a_rewriting_forgets_no_producer(tmp_path: Path, segment_bytes: int) -> None:
    """Compaction drops all records of producer 1 but the first, and all of producer 3: only the sidecars know them."""
    directory = tmp_path / "log"
    config = replace(CONFIG, segment_bytes=segment_bytes)

    def opened(directory: Path) -> PartitionLog:
        log = PartitionLog(directory, config, compacted=True)
        log.open(NOW)
        return log

    def write(log: PartitionLog, key: bytes, producer: tuple[int, int, int]) -> int:
        return append(log, batch([b"v" * 40], keys=[key], producer=producer))

    log = opened(directory)
    write(log, b"kept", (1, 2, 0))
    last = [write(log, b"k", (1, 2, sequence)) for sequence in range(1, 10)][-1]
    for epoch in (4, 5):
        write(log, b"k", (3, epoch, 0))
    for sequence in range(30):
        write(log, b"k", (2, 0, sequence))
    log.roll(NOW)
    flush(log)
    end = log.end_offset
    with copies_at_each_operation(directory) as copies:
        rewrite(log, NOW)
    assert {read_header(raw).producer_id for _, raw in log.batches()} == {1, 2}
    assert len(copies) > 8
    for copy, step in copies:
        for goes_on in range(2):
            left = opened(copy)
            assert left.end_offset == end + goes_on, step
            assert write(left, b"k", (1, 2, 9)) == last, f"{step}: a batch sent again is known"
            for producer, code in (
                ((1, 2, 11 + goes_on), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
                ((3, 4, 1), ErrorCode.INVALID_PRODUCER_EPOCH),
            ):
                with pytest.raises(SequenceError) as refused:
                    write(left, b"k", producer)
                assert refused.value.code == code, step
            assert write(left, b"k", (1, 2, 10 + goes_on)) == end + goes_on, f"{step}: the next one is taken"
            flush(left)
            left.close()


@given(writes, st.integers(1, 4), st.integers(1, 200))
def test_a_rewriting_that_is_stopped_or_short_of_memory_goes_on_the_next_time(
    batches: list[list[tuple[bytes, bytes | None]]], most_keys: int, stop_at: int
) -> None:
    class Turns:
        left = stop_at

        def check(self) -> None:
            self.left -= 1
            if self.left < 0:
                raise Stopped

    with scratch() as directory:
        log = opened(directory)
        fill(log, batches)
        before = records(log)
        work = Rewriting(log.sealed_segments(), CONFIG, 0, check=Turns().check)
        with contextlib.suppress(Stopped):
            for replaced in work.replaced():
                log.replace(*replaced)
        assert newest(records(log)) == newest(before)
        assert not list(directory.glob("*.tmp"))
        while log.clean_end < log.end_offset:
            clean_end = log.clean_end
            assert rewrite(log, 0, most_keys=most_keys).covered > clean_end
        assert newest(records(log)) == newest(before)
        last = {record.key: record for record in before}
        assert set(records(log)) == set(last.values())
        log.close()
        assert newest(records(opened(directory))) == newest(before)


def raw_batch(body: bytes, count: int, codec: int) -> bytes:
    """A batch of any bytes, with a good CRC."""
    rest = struct.pack(">hiqqqhii", codec, count - 1, 1_000, 1_000, -1, -1, -1, count) + body
    return struct.pack(">qiibI", 0, 4 + 1 + 4 + len(rest), -1, 2, google_crc32c.value(rest)) + rest


UNREADABLE = {
    "garbage": raw_batch(b"\xff" * 100, 1, 0),
    "compressed garbage": raw_batch(b"\xff" * 100, 1, 1),
    "an unknown codec": raw_batch(b"\xff" * 100, 1, 7),
    "readable at first": raw_batch(record(0, 0, b"k", b"v") + b"\xff" * 20, 2, 0),
    "a bomb": raw_batch(zlib.compress(record(0, 0, b"k", None) * 1_000_000, wbits=31), 1_000_000, 1),
    "more than a reader takes": raw_batch(pa.compress(bytes(300 << 20), codec="zstd", asbytes=True), 1, 4),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_a_batch_that_cannot_be_read_stays_and_hinders_nothing(tmp_path: Path, what: str) -> None:
    """Older records of the keys in it stay, too: nobody can read what superseded them."""
    bad = UNREADABLE[what]
    log = opened(tmp_path / "log")
    append(log, batch([b"old"], keys=[b"k"]))
    for number in range(20):
        append(log, batch([b"%d" % number * 20], keys=[b"other"]))
    place = append(log, bad)
    for number in range(20):
        append(log, batch([b"%d" % number * 20], keys=[b"other"]))
    log.roll(NOW)
    flush(log)
    assert rewrite(log, 0).unreadable == [place]
    raws = {header.base_offset: bytes(raw) for header, raw in log.batches()}
    assert list(raws) == [0, place, log.end_offset - 1]
    assert raws[place][17:] == bad[17:]
    assert records_of(raws[0]) == [(b"k", b"old")]


def records_of(raw: bytes) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in read_batch(raw)]


def test_a_rewritten_batch_keeps_its_producer_its_offsets_and_its_compression(tmp_path: Path) -> None:
    log = opened(tmp_path / "log")
    body = b"".join(record(n, 10 * n, key, b"%d" % n) for n, key in enumerate([b"a", b"b", b"a", b"c"]))
    rest = struct.pack(">hiqqqhii", 1, 3, 1_000, 1_030, 5, 6, 7, 4) + zlib.compress(body, wbits=31)
    append(log, struct.pack(">qiibI", 0, 9 + len(rest), -1, 2, google_crc32c.value(rest)) + rest)
    append(log, batch([b"new"], keys=[b"c"]))
    log.roll(NOW)
    flush(log)
    rewrite(log, 0)
    (raw, _) = [bytes(raw) for _, raw in log.batches()]
    header = HEADER.unpack_from(raw)
    assert header[4] == google_crc32c.value(raw[21:])
    assert (header[0], *header[5:]) == (0, 1, 3, 1_000, 1_020, 5, 6, 7, 2)
    kept = zlib.decompress(raw[61:], wbits=31)
    assert kept == record(1, 10, b"b", b"1") + record(2, 20, b"a", b"2")


def test_rewritten_segments_stay_within_size_and_time_so_that_they_can_expire(tmp_path: Path) -> None:
    hour = 3_600_000
    config = LogConfig(segment_bytes=1_000, segment_ms=hour, index_interval_bytes=100, retention_ms=5 * hour)
    log = PartitionLog(tmp_path / "log", config, compacted=True)
    log.open(NOW)
    for number in range(100):
        key = b"hot" if number % 2 else b"k%d" % number
        append(log, batch([b"v" * 50], keys=[key], times=[number * hour // 10]))
    log.roll(NOW)
    flush(log)
    before = len(log.segments)
    rewrite(log, 0)
    sealed = log.sealed_segments()
    assert 10 <= len(sealed) < before
    for segment in sealed:
        times = [header.max_timestamp for header, _, _ in segment.batches()]
        assert segment.size <= 1_000
        assert times[-1] - times[0] <= hour
    left = sealed[expired_segments(log, 10 * hour) :]
    assert 4 * hour <= 10 * hour - left[0].max_timestamp <= 5 * hour


def test_a_segment_of_which_everything_is_kept_stays_as_it_is(tmp_path: Path) -> None:
    log = opened(tmp_path / "log")
    for number in range(3):
        append(log, batch([b"v"], keys=[b"%d" % number]))
    log.roll(NOW)
    flush(log)
    before = log.segments
    assert rewrite(log, 0).covered == 3
    assert log.segments == before
    assert not log.is_worth_compacting(log.sealed_segments(), NOW)
    assert not list((tmp_path / "log").glob("*.tmp"))


async def test_records_younger_than_min_compaction_lag_ms_stay(tmp_path: Path) -> None:
    def write(each: str, age: int) -> None:
        append(log, batch([each.encode()], keys=[b"k"], times=[wall_ms() - age]))

    flusher = Flusher(1, lambda error: None)
    compactor = Compactor(flusher)
    config = replace(CONFIG, min_compaction_lag_ms=60_000, max_compaction_lag_ms=60_000)
    log = PartitionLog(tmp_path / "log", config, compacted=True)
    log.open(NOW)

    async def looked_at() -> list[bytes | None]:
        await flusher.durable(log)
        compactor.consider(log)
        while compactor._task is not None:
            await asyncio.wait([compactor._task])
        return [record.value for record in records(log)]

    for name, age in (("old", 90_000), ("also old", 80_000)):
        write(name, age)
    log.roll(wall_ms())
    for name, age in (("young", 30_000), ("between", 70_000)):
        write(name, age)
    assert await looked_at() == [b"also old", b"young", b"between"]
    log.configure(replace(config, min_compaction_lag_ms=0, max_compaction_lag_ms=25_000), compacted=True)
    assert await looked_at() == [b"between"]
    await compactor.stop()
    await flusher.close()


async def test_records_of_an_open_transaction_replace_none(tmp_path: Path) -> None:
    def write(value: bytes, **more: Any) -> None:
        append(log, batch([value], keys=[b"k"], times=[wall_ms() - 90_000], **more))

    flusher = Flusher(1, lambda error: None)
    compactor = Compactor(flusher)
    config = replace(CONFIG, min_compaction_lag_ms=60_000, max_compaction_lag_ms=60_000)
    log = PartitionLog(tmp_path / "log", config, compacted=True)
    log.open(NOW)
    write(b"old")
    write(b"committed")
    log.roll(wall_ms())
    write(b"open", producer=(1, 0, 0), attributes=0x10)
    log.roll(wall_ms())
    write(b"behind")
    await flusher.durable(log)
    compactor.consider(log)
    while compactor._task is not None:
        await asyncio.wait([compactor._task])
    assert [record.value for record in records(log)] == [b"committed", b"open", b"behind"]
    await compactor.stop()
    await flusher.close()


async def test_a_record_waits_no_longer_than_max_compaction_lag_ms(tmp_path: Path) -> None:
    def write(each: str, age: int) -> None:
        append(log, batch([each.encode()], keys=[b"k"], times=[wall_ms() - age]))

    flusher = Flusher(1, lambda error: None)
    compactor = Compactor(flusher)
    cleaner = Retention(flusher, lambda: [log], 1, compactor.consider)
    log = PartitionLog(tmp_path / "log", replace(CONFIG, max_compaction_lag_ms=60_000), compacted=True)
    log.open(NOW)

    async def looked_at() -> list[bytes | None]:
        await flusher.durable(log)
        await cleaner.check_all()
        while compactor._task is not None:
            await asyncio.wait([compactor._task])
        return [record.value for record in records(log)]

    write("young", 30_000)
    write("younger", 20_000)
    assert await looked_at() == [b"young", b"younger"], "small, and nothing is old"
    log.configure(replace(log.config, max_compaction_lag_ms=25_000), compacted=True)
    assert await looked_at() == [b"younger"]
    before = [segment.base_offset for segment in log.segments]
    assert await looked_at() == [b"younger"]
    assert [segment.base_offset for segment in log.segments] == before, "what was compacted is not due again"
    write("old", 40_000)
    write("new", 0)
    assert len(log.segments) == len(before) + 1, "a segment ends where its first record is due"
    assert await looked_at() == [b"new"]
    await cleaner.stop()
    await compactor.stop()
    await flusher.close()


async def test_a_compaction_that_fails_is_tried_again_once_the_log_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compactor: Compactor
    flusher = Flusher(1, lambda error: None, lambda log: compactor.consider(log))  # noqa: PLW0108 (made below)
    compactor = Compactor(flusher)
    log = opened(tmp_path / "log")

    async def grow(least: int) -> None:
        while log.size < least:
            append(log, batch([b"v" * 100], keys=[b"k"]))
        await flusher.durable(log)
        while compactor._task is not None:
            await asyncio.wait([compactor._task])

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Segment, "take_place", full)
        await grow(4_000)
        size = log.size
        assert size >= 4_000
    await grow(size + 500)
    assert log.size >= 4_500, "not for every batch"
    await grow(7_000)
    assert log.size < 1_000
    await compactor.stop()
    await flusher.close()


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
