"""The same lag by three ways at the same moment: `roster exporter`, Kafka's own tool, and the pipeline's metrics."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer

from roster._clock import wall_ms
from roster.client import Admin, GroupMember, OffsetAndMetadata
from roster.model import TopicPartition
from roster.spark import Pipeline
from tests.librdkafka import idempotent_producer
from tests.metrics.test_exporter import LAG, Series, exporter_of, series, text_of
from tests.real.realparts.cluster import unique
from tests.real.realparts.jvm import consumer_groups
from tests.spark.programs import Application
from tests.spark.test_applications import PROGRAM
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.real.realparts.apache import ApacheKafka

SESSION_MS = 3_000
COMPACTING = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.001", "segment.ms": "100"}


class Held:
    """A batch function that waits for its turn: until then nothing is committed."""

    def __init__(self) -> None:
        self._turn = threading.Semaphore(0)
        self._begun = self._let_on = 0

    def __call__(self, df: Any, batch: Any) -> None:
        self._begun += 1
        self._turn.acquire()

    def one_batch(self) -> None:
        """Let the batch that waits go on; return when the next one waits."""
        until(lambda: self._begun > self._let_on, 120)
        self._let_on += 1
        self._turn.release()
        until(lambda: self._begun > self._let_on, 120)

    def batches(self, are_enough: Callable[[], object]) -> None:
        """Let batches go on, with pauses, until there were enough."""

        def answer() -> object:
            found = are_enough()
            if not found:
                self.one_batch()
            return found

        until(answer)

    def all(self) -> None:
        self._turn.release(1_000)


class Ways:
    def __init__(self, kafka: ApacheKafka, admin: Admin, group: str, http: str) -> None:
        self._bootstrap, self._group, self._http = kafka.bootstrap, group, http
        self._exporter = exporter_of(admin, kafka.bootstrap, group)

    def tool(self) -> Series:
        """What kafka-consumer-groups shows: "-" where nothing is committed."""
        rows = consumer_groups(self._bootstrap, self._group)
        return {(self._group, r["PARTITION"], r["TOPIC"]): float(r["LAG"]) for r in rows if r["LAG"] != "-"}

    def exporter(self) -> Series:
        self._exporter.refresh()
        return series(text_of(self._exporter), LAG)

    def pipeline(self) -> Series:
        with urllib.request.urlopen(f"http://{self._http}/metrics", timeout=60) as response:
            return series(response.read().decode(), LAG)

    def agree(self) -> Series:
        """Check that tool and exporter show the same, before and after; return it."""
        first, told = self.exporter(), self.tool()
        assert first == told == self.exporter()
        return told


@pytest.mark.gate
def test_three_ways_show_the_same_lag_through_rebalances_kills_and_truncation(
    spark: SparkSession, apache_kafka: ApacheKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roster.spark.metrics._LOOK_INTERVAL", 0.0)
    group, plain, compacted = unique("equal"), apache_kafka.create_topic(partitions=4, records=300), unique("compacted")
    held, options = Held(), {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 300}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        http = f"127.0.0.1:{free.getsockname()[1]}"
    with Admin(apache_kafka.bootstrap) as admin:
        admin.create_topic(compacted, 1, configs=COMPACTING)
        producer = idempotent_producer(apache_kafka.bootstrap)
        began = wall_ms()
        for number in range(60):  # each in a segment of its own, as only those behind the last one are compacted
            producer.produce(compacted, b"%d" % number, b"k%d" % (number % 3), timestamp=began + 200 * number)
            producer.flush(60)
        pipeline = Pipeline(
            spark,
            apache_kafka.bootstrap,
            group,
            [plain, compacted],
            max_offsets_per_batch=50,
            http=http,
            fail_on_data_loss=False,
            consumer=options,
        ).foreach_batch(held)
        ways = Ways(apache_kafka, admin, group, http)
        pipeline.start()
        try:
            held.one_batch()
            assert ways.pipeline() == ways.agree(), "one member has all"
            assert sum(ways.pipeline().values()) == 4 * 300 + 60 - 50

            other = GroupMember(
                *(apache_kafka.bootstrap, group, [plain, compacted]),
                session_timeout_ms=SESSION_MS,
                heartbeat_interval_ms=300,
            )
            joining = threading.Thread(target=other.start)
            joining.start()
            while not (owned := other.wait(other.ownership().epoch, 1.0).partitions):
                held.one_batch()  # partitions are handed over between batches
            joining.join()
            other.commit({tp: OffsetAndMetadata(45) for tp in owned}, other.ownership())
            held.batches(lambda: len(ways.pipeline()) == 5 - len(owned))
            ends = admin.end_offsets(owned)
            others = {(group, str(tp.partition), tp.topic): ends[tp] - 45.0 for tp in owned}
            assert others | ways.pipeline() == ways.agree(), "two members have some each"

            other.close(leave=False)
            held.batches(lambda: len(ways.pipeline()) == 5)  # its session expires, as after kill -9
            assert ways.pipeline() == ways.agree(), "one has what the dead one had"

            hold, arguments = tmp_path / "hold", (apache_kafka.bootstrap, group, plain, str(tmp_path / "out"))
            hold.touch()
            settings = ("--hold", str(hold), "--session-timeout-ms", str(SESSION_MS))
            with Application(PROGRAM, *arguments, *settings, log=tmp_path / "app.log") as application:

                def is_amid_a_batch() -> bool:
                    apache_kafka.produce({(plain, number): 20 for number in range(4)})
                    return hold.with_name("hold.held").exists()

                held.batches(is_amid_a_batch)
                assert 0 < len(mine := ways.pipeline()) < 5
                assert mine.items() <= ways.agree().items(), "two pipelines have some each"
                application.signal(signal.SIGKILL)

            def has_all() -> bool:
                apache_kafka.produce({(plain, 0): 20})
                return len(ways.pipeline()) == 5

            held.batches(has_all)
            assert ways.pipeline() == ways.agree(), "one has what the killed pipeline had"

            place = TopicPartition(plain, 0)
            deleted = admin.end_offsets([place])[place] - 5
            admin.delete_records({place: deleted})
            truncated = ways.agree()
            assert ways.pipeline() == truncated, "what was deleted unread is lag"
            assert admin.beginning_offsets([place])[place] == deleted
        finally:
            pipeline.stop(now=True)
            held.all()
            pipeline.wait()
        assert ways.agree() == truncated, "the group is empty"
        apache_kafka.produce({(plain, 1): 3})
        assert ways.agree() == {**truncated, (group, "1", plain): truncated[group, "1", plain] + 3}
        until(lambda: records_in(apache_kafka, compacted) < 60, 120, "nothing was compacted")
        assert ways.agree()[group, "0", compacted] == truncated[group, "0", compacted], "offsets count, not records"


def records_in(kafka: ApacheKafka, topic: str) -> int:
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": unique("reader"), "auto.offset.reset": "earliest"}
    with contextlib.closing(Consumer({**settings, "enable.partition.eof": True})) as reader:
        reader.subscribe([topic])
        found = iter(lambda: reader.poll(30), None)
        count = 0
        for message in found:
            if message.error() is not None:
                break
            count += 1
        return count
