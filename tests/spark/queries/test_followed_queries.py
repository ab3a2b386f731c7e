"""A query with Spark's own Kafka source and the group that follows it, through a kill, on Apache Kafka."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer

from benchmarks.connector import jars
from benchmarks.peers import MissingError
from roster.spark import starting_offsets
from tests.real.realparts import require_real
from tests.spark.programs import APPS, Application
from tests.spark.spark_topics import Topics
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.real.realparts.cluster import Cluster

APP = APPS / "followed.py"
pytestmark = [pytest.mark.spark, pytest.mark.gate, pytest.mark.timeout(600)]

Offsets = dict[tuple[str, int], int]


@pytest.fixture(scope="module")
def connector() -> str:
    try:
        return ",".join(map(str, jars()[1]))
    except MissingError as missing:
        require_real(f"Spark's Kafka connector: {missing}")


@pytest.fixture(scope="module")
def kafka(apache_kafka: Any) -> Iterator[Topics]:
    with Topics(apache_kafka.bootstrap) as topics:
        yield topics


def checkpointed(checkpoint: Path) -> Offsets:
    """The offsets of the newest batch that the checkpoint's commit log has."""
    done = max((int(file.name) for file in (checkpoint / "commits").glob("[0-9]*")), default=None)
    if done is None:
        return {}
    lines = (checkpoint / "offsets" / str(done)).read_text().splitlines()
    topics = json.loads(lines[-1])
    return {(topic, int(number)): at for topic, found in topics.items() for number, at in found.items()}


def test_the_group_is_the_checkpoint_after_every_batch_and_a_kill(
    kafka: Topics, apache_kafka: Cluster, connector: str, group: str, tmp_path: Path
) -> None:
    checkpoint, prefix = tmp_path / "checkpoint", f"q{group}"
    first, second = kafka.create(2, 50, name=prefix), kafka.create(1, 10, name=prefix)

    def agree(total: int) -> bool:
        """The group, as librdkafka reads it, is the checkpoint, and both have so many records."""
        saved = checkpointed(checkpoint)
        return saved == apache_kafka.committed(group) and sum(saved.values()) == total

    arguments = (kafka.bootstrap, group, f"{prefix}.*", str(checkpoint), connector)
    with Application(APP, *arguments, log=tmp_path / "one.log") as app:
        app.hears("batch")
        until(lambda: agree(60))
        kafka.admin.create_partitions(first, 3)
        kafka.fill_one(first, 2, 30)
        third = kafka.create(1, 25, name=prefix)
        until(lambda: agree(115))
        kafka.fill(second, 1, 200)
        app.hears("batch")
        app.signal(signal.SIGKILL)
    with Application(APP, *arguments, log=tmp_path / "two.log") as app:
        until(lambda: agree(315))
        kafka.fill_one(third, 0, 5)
        until(lambda: agree(320))
    assert json.loads(starting_offsets(kafka.bootstrap, group)) == {
        topic: {str(p.partition): at for p, at in kafka.ends(topic).items()} for topic in (first, second, third)
    }
    # A consumer of the group goes on where the query stopped.
    kafka.fill_one(third, 0, 1)
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group, "auto.offset.reset": "error"})
    consumer.subscribe([third])
    record = until(lambda: consumer.poll(1.0))
    assert (record.error(), record.topic(), record.offset()) == (None, third, 30)
    consumer.close()
