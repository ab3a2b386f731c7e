"""Transactions in one partition: last stable offset, aborted transactions, markers, and what survives what."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from roster.broker import LogConfig
from roster.broker.log.partition_log import PartitionLog
from roster.broker.log.producer_state import SequenceError
from roster.wire import ErrorCode
from roster.wire.control_records import ControlType, EndTxnMarker
from roster.wire.records import read_batch, read_header
from tests.broker.batches import batch
from tests.broker.kills import copies_at_each_operation
from tests.broker.test_compaction import rewrite
from tests.broker.test_partition_log import NOW, flush, scratch
from tests.examples_tried import examples

CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100)
TRANSACTIONAL = 0x10
COMMIT, ABORT = True, False


def opened(directory: Path, *, compacted: bool = False, config: LogConfig = CONFIG) -> PartitionLog:
    log = PartitionLog(directory, config, compacted=compacted)
    log.open(NOW)
    return log


def write(log: PartitionLog, producer: tuple[int, int, int], key: bytes = b"k", value: bytes = b"v") -> int:
    data = batch([value], keys=[key], producer=producer, attributes=TRANSACTIONAL)
    return log.append(read_header(data), memoryview(data), NOW).base_offset


def end(log: PartitionLog, producer_id: int, epoch: int, *, commit: bool, coordinator_epoch: int = 0) -> int:
    marker = EndTxnMarker(ControlType.COMMIT if commit else ControlType.ABORT, coordinator_epoch)
    return log.append_marker(marker, producer_id, epoch, NOW)


def aborted(log: PartitionLog, first: int = 0, last: int = 1 << 40) -> list[tuple[int, int, int]]:
    return [tuple(entry) for entry in log.producers.aborted.overlapping(first, last)]


def committed(log: PartitionLog, first: int = 0) -> list[tuple[int, bytes]]:
    """What a reader of committed records sees: the algorithm of Kafka's consumer, from what Fetch gives it."""
    seen = []
    offset = first
    while (place := log.locate(offset, 150, at_least_one=True, before=log.last_stable_offset)) is not None:
        segment, start, stop = place
        left_out = sorted(log.aborted_in(offset, segment, stop), key=lambda entry: entry.first_offset)
        skipping: set[int] = set()
        data = memoryview(segment.read(start, stop))
        while data:
            header = read_header(data)
            whole, data = data[: header.size], data[header.size :]
            while left_out and left_out[0].first_offset <= header.last_offset:
                skipping.add(left_out.pop(0).producer_id)
            if header.is_control:
                if read_batch(whole)[0].key == bytes((0, 0, 0, 0)):
                    skipping.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in skipping):
                seen += [(record.offset, record.value or b"") for record in read_batch(whole)]
            offset = header.last_offset + 1
    return [entry for entry in seen if entry[0] >= first]


def test_the_last_stable_offset_waits_for_the_first_open_transaction(tmp_path: Path) -> None:
    log = opened(tmp_path / "p")
    write(log, (1, 0, 0))
    write(log, (2, 0, 0))
    write(log, (1, 0, 1))
    flush(log)
    assert (log.last_stable_offset, log.high_watermark) == (0, 3)
    end(log, 1, 0, commit=COMMIT)
    assert log.last_stable_offset == 0  # until the marker is durable
    flush(log)
    assert log.last_stable_offset == 1
    end(log, 2, 0, commit=ABORT)
    flush(log)
    assert log.last_stable_offset == log.high_watermark == 5
    assert aborted(log) == [(2, 1, 4)]
    assert aborted(log, 0, 1) == []
    assert aborted(log, 5) == []


def test_a_marker_without_a_transaction_changes_no_offset_but_fences(tmp_path: Path) -> None:
    log = opened(tmp_path / "p")
    end(log, 1, 3, commit=ABORT)
    flush(log)
    assert aborted(log) == []
    with pytest.raises(SequenceError) as refused:
        write(log, (1, 2, 0))
    assert refused.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(SequenceError) as refused:
        write(log, (1, 3, 4))
    assert refused.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert write(log, (1, 3, 0)) == 1


def test_version_2_begins_each_transaction_at_sequence_0(tmp_path: Path) -> None:
    log = opened(tmp_path / "p")
    write(log, (1, 0, 0))
    end(log, 1, 1, commit=COMMIT)
    with pytest.raises(SequenceError, match="epoch 1"):
        write(log, (1, 0, 0))
    assert write(log, (1, 1, 0)) == 2
    assert write(log, (1, 1, 0)) == 2  # sent again


def test_version_1_goes_on_with_its_sequences(tmp_path: Path) -> None:
    log = opened(tmp_path / "p")
    write(log, (1, 0, 0))
    end(log, 1, 0, commit=ABORT)
    assert write(log, (1, 0, 0)) == 0  # a repetition is found behind the marker
    assert write(log, (1, 0, 1)) == 2


def test_a_plain_batch_in_a_transaction_is_refused(tmp_path: Path) -> None:
    log = opened(tmp_path / "p")
    write(log, (1, 0, 0))
    plain = batch([b""], producer=(1, 0, 1))
    with pytest.raises(SequenceError) as refused:
        log.append(read_header(plain), memoryview(plain), NOW)
    assert refused.value.code == ErrorCode.INVALID_TXN_STATE


def test_an_older_coordinator_is_fenced(tmp_path: Path) -> None:
    log = opened(tmp_path / "p")
    write(log, (1, 0, 0))
    end(log, 1, 0, commit=COMMIT, coordinator_epoch=5)
    with pytest.raises(SequenceError) as refused:
        end(log, 1, 0, commit=COMMIT, coordinator_epoch=4)
    assert refused.value.code == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    with pytest.raises(SequenceError) as refused:
        end(log, 1, -1, commit=COMMIT, coordinator_epoch=5)
    assert refused.value.code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_producer_with_an_open_transaction_is_not_forgotten(tmp_path: Path) -> None:
    log = opened(tmp_path / "p")
    write(log, (1, 0, 0))
    write(log, (2, 0, 0))
    end(log, 2, 0, commit=COMMIT)
    log.producers.expire(NOW + 1)
    assert [producer for producer, _ in log.producers] == [1]


Step = tuple[str, int]
steps = st.lists(
    st.tuples(st.sampled_from(["write", "write", "commit", "abort", "flush", "restart", "kill"]), st.integers(1, 3)),
    max_size=60,
)


def closed(log: PartitionLog) -> None:
    flush(log)
    log.close()


def killed(log: PartitionLog) -> None:
    for segment in log.segments:
        segment.close()


@settings(max_examples=examples(60))
@given(steps)
def test_readers_of_committed_records_see_a_plain_models_records(history: list[Step]) -> None:
    """A model with lists of open and committed records, against the log with restarts and kills in between."""
    with scratch() as directory:
        log = opened(directory)
        sequences = {1: 0, 2: 0, 3: 0}
        open_: dict[int, list[tuple[int, bytes]]] = {}
        decided: list[tuple[int, bytes]] = []
        stable = 0
        for number, (what, producer) in enumerate(history):
            if what == "write":
                value = b"%d" % number
                offset = write(log, (producer, 0, sequences[producer]), b"k%d" % (number % 5), value)
                sequences[producer] += 1
                open_.setdefault(producer, []).append((offset, value))
            elif what in ("commit", "abort"):
                end(log, producer, 0, commit=what == "commit")
                records = open_.pop(producer, [])
                decided += records if what == "commit" else []
            elif what == "flush":
                flush(log)
            else:
                {"restart": closed, "kill": killed}[what](log)
                log = opened(directory)
            assert log.last_stable_offset >= stable, "it goes back"
            stable = log.last_stable_offset
        flush(log)
        first_open = min((records[0][0] for records in open_.values()), default=log.end_offset)
        assert log.last_stable_offset == first_open
        assert committed(log) == sorted(entry for entry in decided if entry[0] < first_open)
        middle = log.end_offset // 2
        assert committed(log, middle) == sorted(entry for entry in decided if middle <= entry[0] < first_open)
        log.close()


def state(records: list[tuple[int, bytes]], keys: Callable[[int], bytes]) -> dict[bytes, bytes]:
    return {keys(offset): value for offset, value in sorted(records)}


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(st.sampled_from(["write", "write", "commit", "abort", "compact"]), st.integers(1, 2)), max_size=60
    )
)
@example([("write", 1), ("write", 2), ("commit", 1), ("abort", 2)])
def test_compaction_keeps_what_is_undecided_and_drops_what_was_aborted_and_may_be_killed(
    history: list[Step],
) -> None:
    with scratch() as directory:
        log = opened(directory, compacted=True)
        sequences = {1: 0, 2: 0}
        open_: dict[int, list[tuple[int, bytes]]] = {}
        decided: list[tuple[int, bytes]] = []
        dropped: set[bytes] = set()
        key_of: dict[int, bytes] = {}
        copies: list[tuple[Path, str]] = []
        for number, (what, producer) in enumerate([*history, ("compact", 0)]):
            if what == "write":
                key, value = b"k%d" % (number % 4), b"%d" % number
                offset = write(log, (producer, 0, sequences[producer]), key, value)
                sequences[producer] += 1
                key_of[offset] = key
                open_.setdefault(producer, []).append((offset, value))
            elif what in ("commit", "abort"):
                end(log, producer, 0, commit=what == "commit")
                records = open_.pop(producer, [])
                if what == "commit":
                    decided += records
                else:
                    dropped |= {value for _, value in records}
            else:
                flush(log)
                if log.segments and log.last_stable_offset == log.end_offset:
                    log.roll(NOW)
                    flush(log)
                stable = log.last_stable_offset
                old = [segment for segment in log.sealed_segments() if segment.next_offset <= stable]
                if old:
                    left_out = log.producers.aborted.overlapping(0, old[-1].next_offset)
                    with copies_at_each_operation(directory) if number == len(history) else nullcontext([]) as copies:
                        rewrite(log, 0, left_out, old)
        stable = log.last_stable_offset
        expected = state([entry for entry in decided if entry[0] < stable], key_of.__getitem__)
        assert state(committed(log), key_of.__getitem__) == expected
        for copy, step in copies:
            left = opened(copy, compacted=True)
            assert left.last_stable_offset == stable, step
            assert state(committed(left), key_of.__getitem__) == expected, step
            killed(left)
        killed(log)
        log = opened(directory, compacted=True)
        assert log.last_stable_offset == stable
        assert state(committed(log), key_of.__getitem__) == expected
        there = {record.value for header, data in log.batches() if not header.is_control for record in read_batch(data)}
        undecided = {value for records in open_.values() for _, value in records}
        assert undecided <= there
        if stable == log.end_offset:
            assert not there & dropped
            # The last record stays. A segment of it alone is not rewritten, so its transaction stays known.
            assert all(entry.last_offset + 1 == stable for entry in log.producers.aborted)
        log.close()


def test_a_log_of_aborted_records_alone_is_readable_up_to_its_end_when_compacted() -> None:
    """A fetch has the marker at the end: with nothing behind its offset a reader would wait for ever."""
    with scratch() as directory:
        log = opened(directory, compacted=True)
        for number in range(30):
            write(log, (1, 0, number), b"k%d" % number)
        end(log, 1, 0, commit=ABORT)
        log.roll(NOW)
        flush(log)
        old = log.sealed_segments()
        left_out = log.producers.aborted.overlapping(0, old[-1].next_offset)
        rewrite(log, 0, left_out, old)
        assert committed(log) == []
        assert [header.last_offset + 1 for header, _ in log.batches()] == [log.end_offset]
        assert log.locate(0, 150, at_least_one=True, before=log.last_stable_offset) is not None
        log.close()


def test_transactions_that_ended_take_no_memory_of_a_log_that_nobody_reads(tmp_path: Path) -> None:
    log = opened(tmp_path / "p", config=LogConfig())

    def run(count: int) -> None:
        for number in range(count):
            write(log, (count, number, 0))
            end(log, count, number, commit=COMMIT)
            point = log.begin_flush()
            assert point is not None
            log.finish_flush(point)  # as if it had been synced

    run(100)
    tracemalloc.start()
    try:
        run(1_000)
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert grown < 30_000  # the index of the segment, and not 128 bytes of each transaction
