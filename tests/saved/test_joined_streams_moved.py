"""A join over two topics in groups that get other numbers of partitions: as in a group that always had that number."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from roster.spark import KafkaSink, Pipeline, PipelineError, State
from roster.spark.state import export, import_state, repartition_state
from tests.librdkafka import idempotent_producer
from tests.saved.groups_with_state import rows

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from roster.spark.state import Export
    from tests.spark.spark_topics import Topics

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

KEYS = 41
LEFT, RIGHT = "k string, n long, at timestamp", "k string, m long, paid timestamp"


@pytest.mark.gate
def test_a_join_over_two_topics_is_moved(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    orders, payments, out = topics.create(6), topics.create(6), topics.create(1)
    sent = 0

    def send(to: Iterable[str], numbers: Iterable[int]) -> None:
        """Each number as a row of both sides, those of a key in one order; every fifth is not paid, every seventh
        is a payment alone.
        """
        producer = idempotent_producer(topics.bootstrap, {"partitioner": "murmur2_random"})
        for n in numbers:
            at = f"2026-01-01T{n // 3600:02}:{n // 60 % 60:02}:{n % 60:02}Z"
            sides = ({"n": n, "at": at}, n % 7), ({"m": n, "paid": at}, n % 5)
            for topic, (row, is_there) in zip(to, sides, strict=True):
                if is_there:
                    producer.produce(topic, json.dumps({"k": f"k{n % KEYS}", **row}), f"k{n % KEYS}")
        assert producer.flush(60) == 0

    def more(count: int) -> None:
        nonlocal sent
        send((orders, payments), range(sent, sent + count))
        sent += count

    def read(group: str, left: str = orders, right: str = payments) -> None:
        made = Pipeline(
            spark,
            topics.bootstrap,
            group,
            left,
            state=State(dir=str(tmp_path / group)),
            max_offsets_per_batch=200,
        )
        times = {"column": "at", "other_column": "paid", "within": "30 seconds", "grace": "1000 days"}
        made.json_columns(LEFT).join(right, "k", RIGHT, how="full", **times)
        made.write(KafkaSink(topics.bootstrap, out)).run(available_now=True)

    def state(group: str) -> tuple[Export, dict[str, list[Any]]]:
        found = export(spark, topics.bootstrap, group, str(tmp_path / uuid.uuid4().hex))
        [store] = found.manifest.stores
        sides = {part: sorted(map(str, rows(found, store, part))) for part in ("left", "right")}
        return found, sides

    def always(partitions: int) -> dict[str, list[Any]]:
        """The state of a group whose topics have had so many partitions from the first record on."""
        others = topics.create(partitions), topics.create(partitions)
        send(others, range(sent))
        read(group := f"always-{uuid.uuid4().hex[:8]}", *others)
        return state(group)[1]

    old, new, small = (f"g-{uuid.uuid4().hex[:8]}" for _ in range(3))
    more(150)
    read(old)
    more(60)
    for topic in (orders, payments):
        topics.admin.create_partitions(topic, 12)
    more(60)
    with pytest.raises(PipelineError, match="run `roster state repartition`"):
        read(old)
    before, _ = state(old)
    import_state(spark, topics.bootstrap, new, before.folder.place)
    repartition_state(spark, topics.bootstrap, old, str(tmp_path / "grown"))
    more(60)
    twelve = always(12)
    assert [len(side) for side in twelve.values()] == [sent - len(range(0, sent, every)) for every in (7, 5)]
    assert all(0 < sum("'waits': True" in row for row in side) < len(side) for side in twelve.values())
    for group in (new, old):
        read(group)
        found, sides = state(group)
        assert sides == twelve
        assert [store.partitions for store in found.manifest.stores.values()] == [12]

    for topic in (orders, payments):
        topics.admin.delete_topic(topic)
        topics.admin.create_topic(topic, 5)
    import_state(spark, topics.bootstrap, small, found.folder.place, offsets="earliest")
    more(60)
    read(small)
    found, sides = state(small)
    assert sides == always(5)
    assert [store.partitions for store in found.manifest.stores.values()] == [5]
