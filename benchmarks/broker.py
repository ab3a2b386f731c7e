"""`roster broker` under load: `python -m benchmarks broker`, or `python -m benchmarks.broker [--peer HOST:PORT]`.

librdkafka produces and consumes one topic of several partitions, then many small producers wait for every record
(group commit). The broker is a process of its own on a temporary directory below `--dir`; its CPU time is read from the
system. With `--peer` the same runs against another Kafka-compatible broker, and a ratio is printed. A plain loop of
write and fdatasync on the same disk says what a broker without group commit could reach at best.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from roster.testing.broker import BrokerProcess

MB = 1e6


@dataclass(frozen=True)
class Result:
    """What one broker did; `cpu` is its own CPU seconds per GB, None where it cannot be seen."""

    produce: float
    produce_cpu: float | None
    fetch: float
    fetch_cpu: float | None
    synced: dict[int, float]


def new_topic(bootstrap: str, partitions: int) -> str:
    name = f"bench-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
    return name


def cpu_seconds(pid: int | None) -> float:
    """User and system time of a process; 0 if there is none to look at."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def produce(bootstrap: str, topic: str, count: int, value: bytes) -> float:
    """Seconds to have so many records acknowledged with acks=all by an idempotent producer."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 200_000,
            "queue.buffering.max.kbytes": 1_000_000,
        }
    )
    producer.list_topics(topic, 10)
    start = time.perf_counter()
    for _ in range(count):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    if producer.flush(120):
        raise RuntimeError("not everything was acknowledged")
    return time.perf_counter() - start


def consume(bootstrap: str, topic: str, partitions: int, count: int) -> float:
    """Seconds to read so many records from the beginning."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 4_000_000,
            "fetch.max.bytes": 50_000_000,
            "queued.max.messages.kbytes": 500_000,
            "queued.min.messages": 1_000_000,
            "check.crcs": False,
        }
    )
    consumer.assign([TopicPartition(topic, n, 0) for n in range(partitions)])
    start = time.perf_counter()
    got = 0
    while got < count:
        got += len(consumer.consume(10_000, timeout=1))
    seconds = time.perf_counter() - start
    consumer.close()
    return seconds


def synced(bootstrap: str, topic: str, producers: int, seconds: float) -> float:
    """Records a second when so many producers each wait for one record before they send the next."""
    counts = [0] * producers
    deadline = time.perf_counter() + seconds

    def run(number: int) -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
        producer.list_topics(topic, 10)
        while time.perf_counter() < deadline:
            producer.produce(topic, b"x" * 100, partition=0)
            producer.flush(10)
            counts[number] += 1

    threads = [threading.Thread(target=run, args=(n,)) for n in range(producers)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - start)


def plain_syncs(directory: Path, seconds: float) -> float:
    """Writes of 200 bytes, each followed by fdatasync, a second."""
    count = 0
    with (directory / "plain").open("wb", buffering=0) as file:
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            file.write(b"x" * 200)
            os.fdatasync(file.fileno())
            count += 1
    return count / seconds


def measure(bootstrap: str, pid: int | None, arguments: argparse.Namespace) -> Result:
    topic = new_topic(bootstrap, arguments.partitions)
    value = os.urandom(arguments.size)
    volume = arguments.count * arguments.size
    produce(bootstrap, topic, arguments.count // 10, value)
    topic = new_topic(bootstrap, arguments.partitions)
    before = cpu_seconds(pid)
    producing = produce(bootstrap, topic, arguments.count, value)
    between = cpu_seconds(pid)
    consuming = consume(bootstrap, topic, arguments.partitions, arguments.count)
    after = cpu_seconds(pid)
    small = new_topic(bootstrap, 1)
    return Result(
        volume / producing / MB,
        (between - before) / volume * 1e9 if pid else None,
        volume / consuming / MB,
        (after - between) / volume * 1e9 if pid else None,
        {n: synced(bootstrap, small, n, arguments.seconds) for n in (1, 4, 16)},
    )


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=300_000, help="records")
    parser.add_argument("--size", type=int, default=1_000, help="bytes a record")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each number of small producers")
    parser.add_argument("--dir", type=Path, default=Path.cwd(), help="where the data goes: a real disk")
    parser.add_argument("--peer", help="another broker to compare with")
    arguments = parser.parse_args(words)
    with tempfile.TemporaryDirectory(dir=arguments.dir, prefix=".bench-") as name:
        floor = plain_syncs(Path(name), arguments.seconds)
        with BrokerProcess(Path(name) / "data", "--log-level", "warning") as process:
            roster = measure(process.bootstrap, process.pid, arguments)
    peer = measure(arguments.peer, None, arguments) if arguments.peer else None
    rows = [
        ("produce, acks=all, idempotent, MB/s", roster.produce, peer and peer.produce),
        ("fetch, MB/s", roster.fetch, peer and peer.fetch),
        *(
            (f"{n} producers that wait for each record, records/s", rate, peer and peer.synced[n])
            for n, rate in roster.synced.items()
        ),
    ]
    print(f"{'':58}{'roster':>10}{'peer':>10}{'ratio':>8}")
    for label, ours, theirs in rows:
        compared = f"{theirs:>10.0f}{ours / theirs:>8.2f}" if theirs else ""
        print(f"{label:58}{ours:>10.0f}{compared}")
    print(f"{'plain loop of write and fdatasync, a second':58}{floor:>10.0f}")
    print(
        f"{'CPU seconds of the broker a GB produced, fetched':58}{roster.produce_cpu:>10.2f}{roster.fetch_cpu:>10.2f}"
    )


def run(*, quick: bool) -> None:
    """With the default sizes, or a tenth of them."""
    main(["--count", "30000", "--seconds", "1"] if quick else [])


if __name__ == "__main__":
    main()
