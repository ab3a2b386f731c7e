"""Bits that flip and bytes that go missing: found, named, set aside; never served as somebody's records."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import resource
import shutil
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import confluent_kafka
import pytest

from roster.broker import BrokerStartError, LogConfig
from roster.broker.checked_json import read_checked
from roster.broker.log.batch_check import CorruptSegmentError
from roster.broker.log.files import names_in
from roster.broker.log.open_files import OPEN_FILES
from roster.broker.log.partition_log import PartitionLog
from roster.broker.meta import MetaFile
from roster.broker.topics import TopicCatalogue
from roster.testing.broker import BrokerProcess, running_broker
from roster.wire import ErrorCode
from roster.wire.messages import ApiVersionsRequest, InitProducerIdRequest
from roster.wire.records import read_header
from tests.broker.batches import base_offsets, batch, placed
from tests.broker.rawclient import RawClient
from tests.broker.test_compaction import rewrite
from tests.broker.test_partition_log import NOW, append, flush, scratch
from tests.broker.test_protocol import fetch, produce
from tests.broker.test_restart import QUICK, address, commit, create, refusal
from tests.examples_tried import some
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIG = LogConfig(segment_bytes=1_500, index_interval_bytes=300)
ONE_SEGMENT = LogConfig(segment_bytes=1 << 20, index_interval_bytes=300)


def opened(directory: Path, config: LogConfig = CONFIG) -> PartitionLog:
    log = PartitionLog(directory, config)
    log.open(NOW)
    return log


def fill(directory: Path, count: int, config: LogConfig = CONFIG, *, clean: bool = False) -> list[bytes]:
    """Write so many batches of one or two records; return them as they are in the log."""
    log = opened(directory, config)
    raws = []
    for n in range(count):
        data = batch([b"%d" % n * 20] * (1 + n % 2))
        raws.append(placed(data, append(log, data)))
        if n % 7 == 6:
            flush(log)
    flush(log)
    if clean:
        log.close()
    return raws


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


def flip(path: Path, position: int, bit: int = 0) -> None:
    raw = bytearray(path.read_bytes())
    raw[position] ^= 1 << bit
    path.write_bytes(raw)


@contextmanager
def said() -> Iterator[list[str]]:
    """What the broker logs as a warning or an error meanwhile."""
    lines: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Collect(logging.WARNING)
    logger = logging.getLogger("roster.broker")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def served(log: PartitionLog, offset: int) -> list[bytes]:
    """The batches that a reader of an offset gets."""
    data, found = bytes(log.read(offset, 1 << 20)), []
    while data:
        size = 12 + int.from_bytes(data[8:12], "big")
        found.append(data[:size])
        data = data[size:]
    return found


def check_reads(log: PartitionLog, raws: list[bytes]) -> tuple[set[int], set[int]]:
    """Read at every offset: what comes must be what was written there. Return the offsets served and refused."""
    holder = {n: raw for raw in raws for n in range(read_header(raw).base_offset, read_header(raw).last_offset + 1)}
    right, refused = set(), set()
    for offset in range(log.high_watermark):
        try:
            got = served(log, offset)
        except CorruptSegmentError:
            refused.add(offset)
            continue
        assert got, f"nothing and no error at offset {offset}"
        first = raws.index(holder[offset])
        assert got == raws[first : first + len(got)]
        right.add(offset)
    return right, refused


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("place", ["head", "middle", "tail"])
@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_no_damage_is_served_or_goes_unseen(clean: bool, place: str, damage: str) -> None:
    """Flip a bit or cut bytes off, anywhere in a sealed or unsealed segment: every read is right or an error."""
    chance = random.Random(f"{clean}{place}{damage}")
    with scratch() as directory:
        original = directory.with_name("original")
        raws = fill(original, 40, clean=clean)
        for _ in range(12):
            shutil.rmtree(directory, ignore_errors=True)
            shutil.copytree(original, directory)
            path = chance.choice(segments(directory))
            size = path.stat().st_size
            if not size:
                continue
            third = {"head": 0, "middle": 1, "tail": 2}[place]
            position = chance.randrange(size * third // 3, size * (third + 1) // 3)
            is_last = path == segments(directory)[-1]
            if damage == "flip":
                flip(path, position, chance.randrange(8))
            else:
                path.write_bytes(path.read_bytes()[:position])
            with said() as lines:
                try:
                    log = opened(directory)
                except CorruptSegmentError as error:
                    assert str(directory) in str(error)  # noqa: PT017 (one of several right outcomes)
                    continue
                right, _ = check_reads(log, raws)
            at = next(n for n in range(len(raws)) if sum(map(len, raws[: n + 1])) > _position(original, path, position))
            before = read_header(raws[at]).base_offset
            assert right >= set(range(before))
            lost = len(right) < read_header(raws[-1]).last_offset + 1
            assert not lost or any(str(path) in line for line in lines) or (is_last and damage == "cut")
            log.close()


def _position(original: Path, path: Path, position: int) -> int:
    """A position in a segment as one in the whole log."""
    return (
        sum((original / other.name).stat().st_size for other in segments(original) if other.name < path.name) + position
    )


@pytest.mark.parametrize("byte", range(17))
def test_a_flip_outside_the_crc_of_an_unsealed_batch_is_damage(tmp_path: Path, byte: int) -> None:
    """Base offset, length, leader epoch and magic: ten records are ten records or fewer, never records elsewhere."""
    for bit in range(8):
        directory = tmp_path / str(bit)
        raws = fill(directory, 10, ONE_SEGMENT)
        flip(segments(directory)[0], sum(map(len, raws[:5])) + byte, bit)
        with said() as lines:
            log = opened(directory, ONE_SEGMENT)
        assert log.end_offset == read_header(raws[5]).base_offset
        check_reads(log, raws)
        (line,) = lines
        assert "4 whole batches behind" in line
        assert str(directory / "cut-1") in line


def test_what_recovery_cuts_is_set_aside_to_the_last_byte(tmp_path: Path) -> None:
    """Whole batches become a segment of their own, which a data directory of its own serves again."""
    directory = tmp_path / "log"
    raws = fill(directory, 20, ONE_SEGMENT)
    whole = b"".join(raws)
    flip(segments(directory)[0], sum(map(len, raws[:5])) + 70)
    flip(segments(directory)[0], sum(map(len, raws[:12])) + 70)
    hit = segments(directory)[0].read_bytes()
    log = opened(directory, ONE_SEGMENT)
    cut = directory / "cut-1"
    assert segments(directory)[0].read_bytes() + b"".join(p.read_bytes() for p in sorted(cut.iterdir())) == hit
    assert [p.suffix for p in sorted(cut.iterdir())] == [".damaged", ".log", ".damaged", ".log"]
    last = max(cut.glob("*.log"))
    assert whole.endswith(last.read_bytes())
    again = tmp_path / "again"
    again.mkdir()
    shutil.copy(last, again)
    copy = opened(again, ONE_SEGMENT)
    assert copy.log_start_offset == read_header(raws[13]).base_offset
    assert [bytes(raw) for _, raw in copy.batches()] == raws[13:]
    assert append(log, batch([b"new"])) == read_header(raws[5]).base_offset


def test_a_torn_write_and_damage_to_the_last_batch_are_told_apart(tmp_path: Path) -> None:
    for name, harm in {
        "torn": lambda raw: raw[:-5],
        "length": lambda raw: raw[:9] + bytes([raw[9] ^ 1]) + raw[10:],
        "value": lambda raw: raw[:-5] + bytes([raw[-5] ^ 1]) + raw[-4:],
    }.items():
        directory = tmp_path / name
        raws = fill(directory, 3, ONE_SEGMENT)
        (path,) = segments(directory)
        path.write_bytes(b"".join(raws[:2]) + harm(raws[2]))
        with said() as (lines):
            opened(directory, ONE_SEGMENT)
        assert len(lines) == 1
        assert ("acknowledged" in lines[0]) == (name == "torn")
        assert ("is damaged" in lines[0]) == (name != "torn")
        assert (directory / "cut-1" / f"{read_header(raws[2]).base_offset:020d}.damaged").read_bytes() == harm(raws[2])


def test_damage_in_front_of_sealed_segments_is_a_hole_that_readers_are_told_of(tmp_path: Path) -> None:
    """The index of one segment is gone, and a bit of it too: only what is hit is lost."""
    directory = tmp_path / "log"
    raws = fill(directory, 60, clean=True)
    hit = segments(directory)[1]
    hit.with_suffix(".index").unlink()
    flip(hit, hit.stat().st_size // 2 + 40)
    for _ in range(2):
        with said() as lines:
            log = opened(directory)
            right, refused = check_reads(log, raws)
        assert log.end_offset == read_header(raws[-1]).last_offset + 1
        assert 1 <= len(refused) <= 2, refused
        assert right | refused == set(range(log.end_offset))
        (line,) = lines
        assert line.startswith(f"{hit} is damaged at position ")
        assert f"go on at offset {max(refused) + 1}" in line
        log.close()


def test_without_any_index_later_segments_are_set_aside_by_name(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    raws = fill(directory, 60, clean=True)
    for index in directory.glob("*.index"):
        index.unlink()
    later = segments(directory)[2:]
    flip(segments(directory)[1], 100)
    with said() as lines:
        log = opened(directory)
    assert check_reads(log, raws) == (set(range(log.end_offset)), set())
    (line,) = lines
    assert all(path.name in line for path in later)
    assert all((directory / "cut-1" / path.name).exists() for path in later)
    aside = b"".join(path.read_bytes() for path in sorted((directory / "cut-1").iterdir()))
    assert len(aside) + sum(path.stat().st_size for path in segments(directory)) == len(b"".join(raws))


def test_garbage_behind_a_sealed_segment_takes_nothing_along(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    raws = fill(directory, 60, clean=True)
    with segments(directory)[1].open("ab") as file:
        file.write(b"garbage" * 20)
    log = opened(directory)
    assert [bytes(raw) for _, raw in log.batches()] == raws
    assert len(list((directory / "cut-1").iterdir())) == 1


@pytest.mark.parametrize("byte", [0, 7, 9, 11, 12, 16, 18, 26, 70])
def test_only_the_batch_that_is_hit_is_lost(tmp_path: Path, byte: int) -> None:
    """Also in the middle of an index block: readers that go on behind it get the rest."""
    directory = tmp_path / "log"
    raws = fill(directory, 30, LogConfig(segment_bytes=1 << 20, index_interval_bytes=1 << 16), clean=True)
    flip(segments(directory)[0], sum(map(len, raws[:11])) + byte, 2)
    log = opened(directory, ONE_SEGMENT)
    hit = read_header(raws[11])
    assert check_reads(log, raws)[1] == set(range(hit.base_offset, hit.last_offset + 1))
    for limit in range(0, 600, 40):
        got = bytes(log.read(hit.last_offset + 3, limit))
        assert b"".join(raws).count(got) == 1
        assert base_offsets(got)[0] <= hit.last_offset + 3


def test_a_damaged_log_is_not_compacted(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    fill(directory, 60, clean=True)
    flip(segments(directory)[1], 100)
    log = PartitionLog(directory, CONFIG, compacted=True)
    log.open(NOW)
    before = {path: path.read_bytes() for path in segments(directory)}
    with pytest.raises(CorruptSegmentError):
        rewrite(log, NOW)
    assert {path: path.read_bytes() for path in segments(directory)} == before


def test_a_full_disk_keeps_damaged_data_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    directory = tmp_path / "log"
    raws = fill(directory, 10, ONE_SEGMENT)
    (path,) = segments(directory)
    flip(path, sum(map(len, raws[:5])))
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("roster.broker.log.recovery.sync_file", full)
        with pytest.raises(CorruptSegmentError, match=r"cannot set aside what follows: .*No space"):
            opened(directory, ONE_SEGMENT)
        assert path.read_bytes() == before
        assert not list(directory.glob("cut-*"))
        path.write_bytes(b"".join(raws)[:-3])
        with said() as lines:
            assert opened(directory, ONE_SEGMENT).end_offset == read_header(raws[-1]).base_offset
    assert "no space to set them aside" in lines[0]


# Files that are not the broker's, and too many of them


def test_stray_files_are_named_and_left_alone(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker, RawClient(broker.address) as client:
        create(client, "t")
        produce(client, "t", batch([b"x"]))
    stray = [tmp_path / "topics/t/0/x.log", tmp_path / "topics/t/0/00000000000000000000 (copy).log"]
    stray += [tmp_path / "topics/.DS_Store", tmp_path / "topics/lost+found/x"]
    for path in stray:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"?")
    with said() as lines, running_broker(tmp_path) as broker, RawClient(broker.address) as client:
        assert base_offsets(fetch(client, "t", 0).records) == [0]
    assert len(lines) == 4
    assert all("is ignored" in line for line in lines)
    assert all(path.exists() for path in stray)


def test_a_log_has_more_segments_than_the_process_may_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is cached is bounded, and closed where the system has no descriptor left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    OPEN_FILES.release(0)
    highest = max(int(name) for name in names_in(Path("/proc/self/fd")))
    unused = set(range(highest)) - {int(name) for name in names_in(Path("/proc/self/fd"))}
    fillers = [os.open(os.devnull, os.O_RDONLY) for _ in unused]  # so that the limit counts the same everywhere
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 12, hard))
    try:
        raws = fill(tmp_path / "log", 150, LogConfig(segment_bytes=200, index_interval_bytes=100))
        assert len(segments(tmp_path / "log")) > 70
        for clean in (False, True):
            log = opened(tmp_path / "log", CONFIG)
            assert check_reads(log, raws)[1] == set()
            if clean:
                log.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for filler in fillers:
            os.close(filler)
    monkeypatch.setattr(OPEN_FILES, "limit", 5)
    log = opened(tmp_path / "log", CONFIG)
    assert check_reads(log, raws)[1] == set()
    assert len(OPEN_FILES) <= 5


def test_logs_keep_the_files_open_that_connections_leave_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    OPEN_FILES.release(0)
    monkeypatch.setattr(OPEN_FILES, "limit", OPEN_FILES.limit)
    monkeypatch.setattr("roster.broker.server._raise_file_limit", lambda: 400)
    with running_broker(tmp_path) as broker, RawClient(broker.address) as client:
        create(client, "t", 250)
        for partition in range(250):
            produce(client, "t", batch([b"v"]), partition=partition)
        assert len(OPEN_FILES) >= 250
        with ExitStack() as others:
            for _ in range(100):
                others.enter_context(RawClient(broker.address)).ask(ApiVersionsRequest(), 0)
            assert len(OPEN_FILES) <= OPEN_FILES.limit == 3 * 100 - 101
            assert base_offsets(fetch(client, "t", 0).records) == [0]
        until(lambda: OPEN_FILES.limit == 3 * 100 - 1)


# The small files


def test_every_flipped_bit_of_the_small_files_is_refused_with_the_files_name(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker, RawClient(broker.address) as client:
        create(client, "t", 2)
    files: list[tuple[Path, set[str]]] = [
        (tmp_path / "broker.json", {"format", "cluster_id", "next_producer_id"}),
        (tmp_path / "topics/t/topic.json", {"id", "partitions", "settings"}),
    ]
    for path, fields in files:
        good = path.read_bytes()
        assert b"crc32c" in good
        what = read_checked(path, fields)
        unseen = 0
        for position in range(len(good)):
            for bit in some(range(8), quick=2):
                flip(path, position, bit)
                try:
                    assert read_checked(path, fields) == what  # a blank that became another one
                    unseen += 1
                except BrokerStartError as error:
                    assert str(path) in str(error)  # noqa: PT017 (the other right outcome)
                path.write_bytes(good)
        assert unseen < len(good)


def test_files_without_a_checksum_are_read_as_somebody_may_have_corrected_them(tmp_path: Path) -> None:
    (tmp_path / "topics/t").mkdir(parents=True)
    (tmp_path / "broker.json").write_text('{"format": 1, "cluster_id": "abc", "next_producer_id": 7}')
    (tmp_path / "topics/t/topic.json").write_text(
        '{"id": "2f0a3c52-5d3b-4c7c-9e87-0d4f5ba1c0de", "partitions": 1, "settings": {}}'
    )
    with running_broker(tmp_path) as broker, RawClient(broker.address) as client:
        assert client.ask(InitProducerIdRequest(), 1).producer_id == 7
        assert broker._services.topics.get("t") is not None  # type: ignore[union-attr]


@pytest.mark.process
def test_topics_without_the_brokers_file_are_refused_with_the_fix(tmp_path: Path) -> None:
    """The fix as it is printed works, and no producer id that the logs know is given out."""
    with running_broker(tmp_path) as broker, RawClient(broker.address) as client:
        create(client, "t")
        producer = client.ask(InitProducerIdRequest(), 1).producer_id
        produce(client, "t", batch([b"old"], producer=(producer, 0, 0)))
        produce(client, "t", batch([b"made up"], producer=((1 << 63) - 1, 0, 0)))
    (tmp_path / "broker.json").unlink()
    line = refusal(tmp_path, "--listen", "127.0.0.1:0", "--data", str(tmp_path))
    assert f"{tmp_path / 'broker.json'} is missing" in line
    assert not (tmp_path / "broker.json").exists()
    (tmp_path / "broker.json").write_text(line[line.index("{") : line.index("}") + 1])
    with running_broker(tmp_path) as broker, RawClient(broker.address) as client:
        fresh = client.ask(InitProducerIdRequest(), 1).producer_id
        assert fresh == producer + 1
        assert produce(client, "t", batch([b"new"], producer=(fresh, 0, 0))).base_offset == 2


async def test_producer_ids_that_were_skipped_are_skipped_for_good(tmp_path: Path) -> None:
    first = MetaFile(tmp_path)
    first.load(has_topics=False)
    first.skip_producer_ids(4_321)
    assert [await first.new_producer_id() for _ in range(3)] == [4_322, 4_323, 4_324]
    second = MetaFile(tmp_path)
    second.load(has_topics=True)
    assert await second.new_producer_id() > 4_324


def test_partitions_that_topic_json_does_not_know_are_refused(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker, RawClient(broker.address) as client:
        create(client, "t", 2)
        produce(client, "t", batch([b"x"]), partition=1)
    path = tmp_path / "topics/t/topic.json"
    path.write_text('{"id": "2f0a3c52-5d3b-4c7c-9e87-0d4f5ba1c0de", "partitions": 1, "settings": {}}')
    with pytest.raises(BrokerStartError, match=r"says 1 partitions, but there is .*topics/t/1"):
        TopicCatalogue(tmp_path, LogConfig()).load(NOW)
    path.unlink()
    with pytest.raises(BrokerStartError, match=r"topics/t holds partitions but no topic\.json"):
        TopicCatalogue(tmp_path, LogConfig()).load(NOW)


def test_a_log_that_cannot_be_sealed_is_named_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_broker(tmp_path) as broker, RawClient(broker.address) as client:
        create(client, "t")
        produce(client, "t", batch([b"x"]))
        monkeypatch.setattr(
            "roster.broker.log.files.os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device"))
        )
        lines = said()
        kept = lines.__enter__()
    lines.__exit__(None, None, None)
    assert any("No space left on device" in line and ".index" in line for line in kept)
    monkeypatch.undo()
    with running_broker(tmp_path) as broker, RawClient(broker.address) as client:
        assert base_offsets(fetch(client, "t", 0).records) == [0]


# Through the broker


def damaged_broker(tmp_path: Path, process: BrokerProcess) -> Path:
    """Records 0 to 19 in `t`, sealed, with a flipped bit in the batch of record 10; return the file."""
    with process, RawClient(address(process)) as client:
        create(client, "t")
        size = 0
        for n in range(20):
            raw = batch([b"%d" % n * 30])
            produce(client, "t", raw)
            size += len(raw) if n < 10 else 0
    path = tmp_path / "topics/t/0/00000000000000000000.log"
    flip(path, size + 75)
    return path


@pytest.mark.process
def test_a_reader_gets_what_is_before_damage_and_then_an_error(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path, *QUICK)
    path = damaged_broker(tmp_path, process)
    with process:
        with RawClient(address(process)) as client:
            assert base_offsets(fetch(client, "t", 0).records) == list(range(10))
            for _ in range(2):
                answer = fetch(client, "t", 10)
                assert (answer.error_code, bytes(answer.records or b"")) == (ErrorCode.CORRUPT_MESSAGE, b"")
            assert base_offsets(fetch(client, "t", 11).records) == list(range(11, 20))
        consumer = confluent_kafka.Consumer({"bootstrap.servers": process.bootstrap, "group.id": "g"})
        consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
        got, problem = [], None
        while problem is None:
            message = consumer.poll(30)
            assert message is not None
            if message.error() is None:
                got.append(message.offset())
            else:
                problem = message.error()
        consumer.close()
        assert got == list(range(10))
        assert problem.code() == ErrorCode.CORRUPT_MESSAGE
    lines = [line for line in process.log.read_text().splitlines() if str(path) in line]
    assert len(lines) == 1
    assert "(offset 10): the batch at offset 10 fails its CRC" in lines[0]


@pytest.mark.process
def test_damaged_offsets_of_groups_are_found_before_the_broker_serves(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path, *QUICK)
    with process, RawClient(address(process)) as client:
        create(client, "t")
        commit(client, "g", "t", 1)
    (path,) = (p for p in tmp_path.glob("topics/__consumer_offsets/*/*.log") if p.stat().st_size)
    flip(path, path.stat().st_size - 3)
    line = refusal(tmp_path, "--listen", "127.0.0.1:0", "--data", str(tmp_path))
    assert f"the offsets of groups cannot be read: {path} is damaged at position " in line
    shutil.move(path.parent, tmp_path.with_name("away"))
    with process:
        assert process.bootstrap


@pytest.mark.process
def test_that_the_broker_serves_is_said_once(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as process:
        host, port = address(process)
    assert str(port) not in process.log.read_text(), host


async def test_a_deleted_topics_files_are_not_opened_again(tmp_path: Path) -> None:
    """Not even where a new topic of the same name has put its own there."""
    catalogue = TopicCatalogue(tmp_path, LogConfig())
    catalogue.load(NOW)
    old = await catalogue.create("t", 1, {})
    append(old.logs[0], batch([b"old"]))
    flush(old.logs[0])
    OPEN_FILES.release(0)
    await catalogue.delete(old)
    new = await catalogue.create("t", 1, {})
    append(new.logs[0], batch([b"new"]))
    flush(new.logs[0])
    with pytest.raises(FileNotFoundError):
        await asyncio.to_thread(old.logs[0].read, 0, 1_000)
