"""A partition's log against a list of batches kept in memory."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.broker import LogConfig
from roster.broker.log.batch_check import CorruptSegmentError
from roster.broker.log.partition_log import PartitionLog
from roster.wire.records import read_header
from tests.broker.batches import base_offsets, batch, placed
from tests.examples_tried import examples, some

if TYPE_CHECKING:
    from collections.abc import Iterator

SMALL = LogConfig(segment_bytes=600, index_interval_bytes=150)
NOW = 1_700_000_000_000


MEMORY = Path("/dev/shm")


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory where syncs cost nothing, if there is one: these tests crash by hand."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        yield Path(name) / "log"


def opened(directory: Path, config: LogConfig = SMALL) -> PartitionLog:
    log = PartitionLog(directory, config)
    log.open(NOW)
    return log


def append(log: PartitionLog, data: bytes) -> int:
    return log.append(read_header(data), memoryview(data), NOW).base_offset


def flush(log: PartitionLog) -> None:
    point = log.begin_flush()
    if point is not None:
        point.sync()
        log.finish_flush(point)


@st.composite
def batches(draw: st.DrawFn, max_batches: int = 12) -> list[bytes]:
    sizes = draw(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 120)), max_size=max_batches))
    return [
        batch([bytes([n % 251]) * size] * count, times=[1_000 + n] * count) for n, (count, size) in enumerate(sizes)
    ]


@given(batches(), st.data())
def test_every_fetch_gives_whole_batches_from_the_one_with_the_offset_on(
    sent: list[bytes], data: st.DataObject
) -> None:
    with scratch() as directory:
        log = opened(directory)
        stored: list[tuple[int, int, bytes]] = []
        for each in sent:
            offset = append(log, each)
            stored.append((offset, offset + read_header(each).last_offset_delta, placed(each, offset)))
        flush(log)
        assert log.high_watermark == log.end_offset == (stored[-1][1] + 1 if stored else 0)
        for offset in range(log.end_offset + 1):
            limit = data.draw(st.integers(0, 1_000))
            got = bytes(log.read(offset, limit))
            wanted = [raw for _, last, raw in stored if last >= offset]
            assert b"".join(wanted).startswith(got)
            assert base_offsets(got) == [first for first, last, _ in stored if last >= offset][: len(base_offsets(got))]
            if wanted:
                assert got
                assert len(got) <= max(limit, len(wanted[0]))
                got_if_not_first = bytes(log.read(offset, limit, at_least_one=False))
                assert got_if_not_first == (got if len(got) <= limit else b"")
        log.close()


@given(batches())
def test_all_batches_are_read_back_as_sent_after_a_clean_stop_and_after_none(sent: list[bytes]) -> None:
    for clean in (True, False):
        with scratch() as directory:
            log = opened(directory)
            wanted = [placed(each, append(log, each)) for each in sent]
            flush(log)
            if clean:
                log.close()
            log = opened(directory)
            assert [bytes(raw) for _, raw in log.batches()] == wanted
            assert log.high_watermark == log.end_offset == sum(read_header(each).records_count for each in sent)


@settings(max_examples=examples(6))
@given(batches(max_batches=4), st.binary(max_size=3))
def test_a_crash_at_every_byte_of_the_tail_loses_only_the_batches_it_hit(sent: list[bytes], garbage: bytes) -> None:
    """Kill the process at any byte of the last write: what was whole stays, the torn rest goes, the log goes on."""
    config = LogConfig(segment_bytes=1 << 20, index_interval_bytes=100)
    with scratch() as directory:
        log = opened(directory, config)
        wanted = [placed(each, append(log, each)) for each in sent]
        del log
        whole = b"".join(wanted)
        path = directory / f"{0:020d}.log"
        for length in some(range(len(whole) + 1), quick=30):
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            left = whole[:length] + garbage
            path.write_bytes(left)
            log = opened(directory, config)
            ends = itertools.accumulate(map(len, wanted))  # garbage may happen to be what is missing
            survivors = [raw for raw, end in zip(wanted, ends, strict=True) if left[:end] == whole[:end]]
            assert [bytes(raw) for _, raw in log.batches()] == survivors
            assert path.stat().st_size == sum(map(len, survivors))
            after = batch([b"after"])
            assert append(log, after) == sum(read_header(raw).records_count for raw in survivors)
            del log
            log = opened(directory, config)
            assert len(list(log.batches())) == len(survivors) + 1
            del log


@settings(max_examples=examples(40))
@given(batches(max_batches=6).filter(bool), st.data())
def test_a_flipped_bit_in_the_tail_is_never_served(sent: list[bytes], data: st.DataObject) -> None:
    with scratch() as directory:
        log = opened(directory, LogConfig(segment_bytes=1 << 20))
        wanted = [placed(each, append(log, each)) for each in sent]
        del log
        path = directory / f"{0:020d}.log"
        raw = bytearray(path.read_bytes())
        hit = data.draw(st.integers(0, len(raw) - 1))
        raw[hit] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(raw)
        log = opened(directory, LogConfig(segment_bytes=1 << 20))
        got = [bytes(each) for _, each in log.batches()]
        before = [each for n, each in enumerate(wanted) if sum(map(len, wanted[: n + 1])) <= hit]
        assert got[: len(before)] == before
        # The leader epoch and a later base offset lie outside the CRC; nothing else may differ from what was sent.
        assert [each[16:] for each in got] == [each[16:] for each in wanted[: len(got)]]


def test_a_torn_unsealed_segment_takes_the_segments_after_it_along(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    log = opened(directory)
    for _ in range(10):
        append(log, batch([b"x" * 100]))
    del log  # never flushed: no segment is sealed
    files = sorted(directory.glob("*.log"))
    assert len(files) > 2
    assert not list(directory.glob("*.index"))
    files[1].write_bytes(files[1].read_bytes()[:-1])
    log = opened(directory)
    assert sorted(directory.glob("*.log")) == files[:2]
    assert append(log, batch([b"y"])) == log.end_offset - 1


def test_damage_to_what_was_on_the_disk_once_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    log = opened(directory)
    for _ in range(10):
        append(log, batch([b"x" * 100]))
    flush(log)
    log.close()
    first = min(directory.glob("*.log"))
    first.write_bytes(first.read_bytes()[:-1])
    before = sorted((path.name, path.stat().st_size) for path in directory.iterdir())
    with pytest.raises(CorruptSegmentError, match="lost its end"):
        opened(directory)
    assert sorted((path.name, path.stat().st_size) for path in directory.iterdir()) == before


def test_a_missing_segment_is_an_error(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    log = opened(directory)
    for _ in range(10):
        append(log, batch([b"x" * 100]))
    flush(log)
    log.close()
    sorted(directory.glob("*.log"))[1].unlink()
    with pytest.raises(CorruptSegmentError, match="missing"):
        opened(directory)


def test_only_what_is_durable_is_read(tmp_path: Path) -> None:
    log = opened(tmp_path / "log")
    append(log, batch([b"one"]))
    flush(log)
    append(log, batch([b"two"]))
    point = log.begin_flush()
    assert point is not None
    append(log, batch([b"three"]))
    assert base_offsets(log.read(0, 1 << 20)) == [0]
    assert log.read(1, 1 << 20) == b""
    point.sync()
    log.finish_flush(point)
    assert base_offsets(log.read(0, 1 << 20)) == [0, 1]
    flush(log)
    assert base_offsets(log.read(0, 1 << 20)) == [0, 1, 2]


def test_watchers_hear_of_the_high_watermark(tmp_path: Path) -> None:
    log = opened(tmp_path / "log")
    heard: list[int] = []
    log.watchers.add(lambda: heard.append(log.high_watermark))
    append(log, batch([b"a", b"b"]))
    assert heard == []
    flush(log)
    assert heard == [2]


@given(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=3), max_size=15), st.booleans())
def test_the_offset_for_a_time_is_the_first_record_at_or_after_it(times: list[list[int]], restart: bool) -> None:
    """ListOffsets: "the first offset whose timestamp is greater than or equal to the target" also if times go back."""
    with scratch() as directory:
        log = opened(directory)
        records: list[int] = []
        for each in times:
            append(log, batch([b"v" * 20] * len(each), times=each))
            records += each
        flush(log)
        if restart:
            log.close()
            log = opened(directory)
        for target in range(52):
            wanted = next(((t, n) for n, t in enumerate(records) if t >= target), None)
            assert log.offset_for_time(target) == wanted
        newest = (max(records), records.index(max(records))) if records else None
        assert log.newest_record() == newest


def test_an_idempotent_producer_is_known_after_a_restart_clean_or_not(tmp_path: Path) -> None:
    for clean in (True, False):
        directory = tmp_path / str(clean)
        log = opened(directory)
        sent = [batch([b"x" * 90] * 2, producer=(7, 0, 2 * n)) for n in range(20)]
        offsets = [append(log, each) for each in sent]
        assert len(list(directory.glob("*.log"))) > 3
        flush(log)
        if clean:
            log.close()
        log = opened(directory)
        assert [append(log, each) for each in sent[-5:]] == offsets[-5:]
        assert log.end_offset == 40
        assert append(log, batch([b"x"], producer=(7, 0, 40))) == 40


def test_a_refused_write_leaves_the_log_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(tmp_path / "log")
    append(log, batch([b"one"]))
    first = min((tmp_path / "log").glob("*.log"))
    size = first.stat().st_size

    def full(fd: int, parts: list[bytes], position: int) -> int:
        import os

        os.pwrite(fd, bytes(parts[0]), position)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("roster.broker.log.segment.write_at", full)
        with pytest.raises(OSError, match="No space"):
            append(log, batch([b"two"], producer=(1, 0, 0)))
    assert first.stat().st_size == size
    assert log.end_offset == 1
    assert append(log, batch([b"two"], producer=(1, 0, 0))) == 1
