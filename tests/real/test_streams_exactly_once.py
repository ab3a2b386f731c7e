"""A Kafka Streams application with exactly_once_v2, killed and started again: each word is counted once."""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from tests.librdkafka import idempotent_producer
from tests.real.realparts import jvm
from tests.real.realparts.cluster import Cluster, unique
from tests.waiting import until

SOURCE = Path(__file__).parent / "streams" / "WordCount.java"
WORDS = ("alpha", "beta", "gamma", "delta")
PATIENCE = 90

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def word_count() -> str:
    """The class path of the compiled application."""
    path = f"{jvm.streams_jars()}/*:{jvm.jars()}/*"
    return f"{jvm.compiled([SOURCE], path)}:{path}"


class Application:
    """One process after the other, each with a store of its own, which it restores from the changelog."""

    def __init__(self, class_path: str, directory: Path, *arguments: str) -> None:
        self._class_path, self._directory, self._arguments = class_path, directory, arguments
        self._starts = 0
        self.start()

    def start(self) -> None:
        self._starts += 1
        self._archive = jvm.Archive("WordCount", self._class_path)
        command = [
            jvm.tool("java"),
            *jvm.QUICK_START,
            self._archive.option,
            "-Xmx200m",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
        ]
        where = str(self._directory / f"store-{self._starts}")
        with (self._directory / f"log-{self._starts}").open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "-cp", self._class_path, "WordCount", *self._arguments, where], stdout=log, stderr=log
            )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE)
        self._archive.keep()


class Reader:
    """The counts that were committed, as they come."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        settings = {"bootstrap.servers": cluster.bootstrap, "group.id": unique("reader"), "log_level": 0}
        self._consumer = Consumer({**settings, "auto.offset.reset": "earliest", "isolation.level": "read_committed"})
        self._consumer.subscribe([topic])
        self.rows: list[tuple[str, int]] = []

    def counts(self) -> Counter[str]:
        """The last count of each word."""
        for message in self._consumer.consume(1_000, 0.2):
            if message.error() is None:
                self.rows.append((message.key().decode(), int(message.value())))
        return Counter(dict(self.rows))

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def reader(cluster: Cluster) -> Iterator[tuple[str, Reader]]:
    topic = cluster.create_topic("words-out", partitions=2)
    made = Reader(cluster, topic)
    yield topic, made
    made.close()


@pytest.mark.gate
def test_every_word_is_counted_once(cluster, word_count, reader, tmp_path):
    source = cluster.create_topic("words-in", partitions=3)
    target, seen = reader
    chance, expected = random.Random(7), Counter()
    producer = idempotent_producer(cluster.bootstrap)

    def write(lines: int) -> None:
        for _ in range(lines):
            words = chance.choices(WORDS, k=3)
            expected.update(words)
            producer.produce(source, " ".join(words))
        assert producer.flush(60) == 0

    application = Application(word_count, tmp_path, cluster.bootstrap, unique("word-count"), source, target)
    try:
        for _ in range(2):
            before = seen.counts()
            write(200)
            until(lambda before=before: seen.counts() != before, PATIENCE, "nothing is counted")
            write(200)
            application.kill()
            application.start()
        write(200)
        until(lambda: seen.counts() == expected, PATIENCE, lambda: f"{seen.counts()} and not {expected}")
    finally:
        application.stop()
    assert len(seen.rows) == expected.total()
    for word, total in expected.items():
        assert sorted(count for each, count in seen.rows if each == word) == list(range(1, total + 1))
