"""Batches whose records cannot be read, and small ones that expand to much: readers name them, and stay small."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from roster.cli.root import run
from roster.model.address import parse_addresses
from roster.pipeline.batch import Split
from roster.pipeline.tasks.dead_letters import DEAD_LETTER_SECONDS
from roster.pipeline.tasks.reader import ReaderConfig, ReadError, ReadTask
from roster.records.fetch import read_ranges
from roster.records.fetch_decisions import FetchError, Settings
from roster.records.native import WRITE, compiled
from roster.records.produce import KafkaWriter
from roster.testing.embedded import EmbeddedBroker
from roster.wire.columns import reader
from roster.wire.columns.reader import MAX_BYTES
from roster.wire.compression import Compression
from roster.wire.messages import ProduceRequest, ProduceResponse
from roster.wire.records import HEADER_SIZE, Record, build_batch, crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as started:
        yield started


def send(broker: EmbeddedBroker, topic: str, batch: bytes) -> None:
    """Write a batch as it is."""
    partition = ProduceRequest.Topic.Partition(index=0, records=batch)
    data = [ProduceRequest.Topic(name=topic, partition_data=[partition])]
    answer = broker._ask(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=data), ProduceResponse, 9)
    assert answer.responses[0].partition_responses[0].error_code == 0


def garbage(records: int) -> bytes:
    """A batch with a CRC that fits and no records in it."""
    batch = bytearray(build_batch([Record(value=b"v")] * records))
    batch[HEADER_SIZE:] = b"\xff" * (len(batch) - HEADER_SIZE)
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return bytes(batch)


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    """Records at 0, 1 and 5, and a batch of 2 to 4 that cannot be read."""
    name = broker.create_topic("bad")
    broker.produce(name, ["a", "b"])
    send(broker, name, garbage(3))
    broker.produce(name, ["c"])
    return name


def values(broker: EmbeddedBroker, topic: str, **options: Any) -> list[bytes]:
    batches = read_ranges(parse_addresses(broker.bootstrap), "test", [(topic, 0, 0, 6)], Settings(), **options)
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def test_a_batch_that_cannot_be_read_is_named_or_left_out(broker: EmbeddedBroker, topic: str) -> None:
    with pytest.raises(FetchError, match=r"bad-0: the batch with offsets 2 to 4 .* cannot be read") as caught:
        values(broker, topic)
    assert caught.value.unreadable is not None
    told: list[Any] = []
    assert values(broker, topic, on_unreadable=told.append) == [b"a", b"b", b"c"]
    assert told == [caught.value.unreadable]


def test_too_little_memory_is_one_error(broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Any:
        raise MemoryError

    monkeypatch.setattr(reader, "_Outputs", full)
    with pytest.raises(FetchError, match="not enough memory"):
        values(broker, topic)


def test_the_shell_says_where_to_go_on(broker: EmbeddedBroker, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["topics", "read", topic, "-b", broker.bootstrap]
    assert run(command) == 1
    error = capsys.readouterr().err
    assert "bad-0: the batch with offsets 2 to 4" in error
    way = error.strip().partition("to go on behind it: ")[2].split()
    assert run([*command, *way]) == 0
    assert capsys.readouterr().out.split()[-1] == "c"


def task(broker: EmbeddedBroker, topic: str, letters: str | None) -> ReadTask:
    writer = None
    if letters is not None:
        options: dict[str, Any] = {"keep_timestamps": True, "timeout": DEAD_LETTER_SECONDS, "compiled": compiled(WRITE)}
        writer = KafkaWriter(tuple(parse_addresses(broker.bootstrap)), letters, **options)
    return ReadTask(ReaderConfig(broker.bootstrap, "group", dead_letters=writer), [[Split(topic, 0, 0, 6)]])


def test_a_pipeline_sends_it_to_the_dead_letter_topic_and_goes_on(broker: EmbeddedBroker, topic: str) -> None:
    letters = broker.create_topic("letters")
    rows = list(task(broker, topic, letters).read([0]))
    assert [value for batch in rows for value in batch.column("value").to_pylist()] == [b"a", b"b", b"c"]
    (letter,) = broker.records(letters)
    assert letter.value is not None
    assert (letter.key, letter.value[HEADER_SIZE:]) == (None, garbage(3)[HEADER_SIZE:])
    headers = {name.removeprefix("__connect.errors."): value for name, value in letter.headers}
    assert (headers["topic"], headers["partition"], headers["offset"]) == (b"bad", b"0", b"2")
    assert b"offsets 2 to 4" in headers["exception.message"]


def test_without_such_a_topic_the_error_names_it(broker: EmbeddedBroker, topic: str) -> None:
    with pytest.raises(ReadError, match=r"bad-0: the batch with offsets 2 to 4 .*with dead_letter_topic"):
        list(task(broker, topic, None).read([0]))


def test_a_batch_too_large_for_a_letter_is_named_without_its_bytes(broker: EmbeddedBroker) -> None:
    name, letters = broker.create_topic(), broker.create_topic()
    send(broker, name, garbage(100_000))
    send(broker, name, build_batch([Record(value=b"v")]))
    reading = ReadTask(task(broker, name, letters)._config, [[Split(name, 0, 0, 100_001)]])
    assert sum(batch.num_rows for batch in reading.read([0])) == 1
    (letter,) = broker.records(letters)
    assert letter.value is None
    assert dict(letter.headers)["__connect.errors.offset"] == b"0"


def test_large_record_batches_are_not_put_together(broker: EmbeddedBroker) -> None:
    name = broker.create_topic()
    for _ in range(6):
        send(broker, name, build_batch([Record(value=bytes(7 << 20))], compression=Compression.GZIP))
    batches = list(read_ranges(parse_addresses(broker.bootstrap), "test", [(name, 0, 0, 6)], Settings(max_wait_ms=1)))
    assert [batch.column("offset").to_pylist() for batch in batches] == [[0, 1], [2, 3], [4, 5]]
    assert all(batch.nbytes <= MAX_BYTES for batch in batches)


MEASURED = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
"""Runs a program from a small one: the peak of a process counts that of the one which started it."""


@pytest.mark.process
@pytest.mark.gate
def test_records_that_compress_well_do_not_fill_the_shell(broker: EmbeddedBroker) -> None:
    name = broker.create_topic()
    batch = build_batch([Record(value=bytes(20 << 20))], compression=Compression.ZSTD)
    for _ in range(60):
        send(broker, name, batch)
    command = [sys.executable, "-c", MEASURED, sys.executable, "-m", "roster", "topics", "read", name]
    done = subprocess.run([*command, "-b", broker.bootstrap], capture_output=True, text=True, check=True)
    code, peak = map(int, done.stdout.split())
    assert code == 0
    assert peak >> (20 if sys.platform == "darwin" else 10) < 600, "MiB; all of them expanded are 1,200"
