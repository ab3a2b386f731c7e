"""Stateful pipelines in a Spark session on a Roster broker."""

from __future__ import annotations

import json
import shutil
import urllib.request
import uuid
from collections import defaultdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from roster.client import OffsetAndMetadata
from roster.spark import ConsoleSink, KafkaSink, Pipeline, PipelineError, State, Window
from tests.librdkafka import idempotent_producer
from tests.real.realparts.apache import free_ports
from tests.spark.spark_topics import Topics, committed_records

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from roster.spark import Progress

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

AGGREGATES = {
    "n": "count(*)",
    "total": "sum(n)",
    "most": "max(n)",
    "mean": "avg(n)",
    "first": "collect_list(n, 5)",
    "about": "approx_count_distinct(n, 0.01)",  # exact as long as they are few
    "middle": "approx_percentile(n, 0.5)",
}


def numbers(batch: pa.RecordBatch) -> pa.RecordBatch:
    n = batch["value"].cast(pa.string()).cast(pa.int64())
    return pa.RecordBatch.from_arrays([batch["key"].cast(pa.string()), n], ["name", "n"])


class Feed:
    def __init__(self, topics: Topics, topic: str) -> None:
        self._producer = idempotent_producer(topics.bootstrap)
        self._topic = topic
        self.sent: dict[str, list[int]] = defaultdict(list)

    def send(self, count: int) -> None:
        for number in range(count):
            name = f"k{number % 11}"
            self._producer.produce(self._topic, str(number), name)
            self.sent[name].append(number)
        assert self._producer.flush(60) == 0

    def totals(self) -> dict[str, dict[str, Any]]:
        return {
            name: {
                "name": name,
                "n": len(of),
                "total": sum(of),
                "most": max(of),
                "mean": sum(of) / len(of),
                "first": of[:5],
                "about": len(set(of)),
                "middle": sorted(of)[(len(of) - 1) // 2],
            }
            for name, of in self.sent.items()
        }


def last_results(topics: Topics, out: str) -> dict[str, dict[str, Any]]:
    return {(key or b"").decode(): json.loads(value or b"") for _, key, value in committed_records(topics, out)}


def test_totals_go_on_with_a_store_with_a_part_of_it_and_without_one(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic, out, group = topics.create(3), topics.create(2), f"g-{uuid.uuid4().hex[:8]}"
    feed = Feed(topics, topic)
    seen: list[Progress] = []
    address = f"127.0.0.1:{free_ports(1)[0]}"

    def run(place: str, store: str = "totals", starting_offsets: str = "earliest") -> int:
        seen.clear()
        asked: dict[str, dict[str, Any]] = {}

        def note(progress: Progress) -> None:
            seen.append(progress)
            asked.update({row["name"]: row for row in pipeline.store(store).prefix()})
            with urllib.request.urlopen(f"http://{address}/stores/{store}/prefix", timeout=60) as response:
                assert {row["name"]: row for row in json.load(response)["rows"]} == asked
            if len(seen) == 1:
                frame = pipeline.store(store).dataframe(spark)
                assert {row["name"]: row.asDict() for row in frame.collect()} == asked

        pipeline = Pipeline(
            spark,
            topics.bootstrap,
            group,
            topic,
            state=State(dir=str(tmp_path / place), application_server=address),
            starting_offsets=starting_offsets,
            max_offsets_per_batch=400,
            on_progress=note,
        )
        pipeline.map_arrow(numbers, "name string, n long").aggregate("name", AGGREGATES, store=store)
        pipeline.write(KafkaSink(topics.bootstrap, out)).run(available_now=True)
        assert last_results(topics, out) == feed.totals() == asked
        return sum(progress.restored for progress in seen)

    feed.send(1000)
    assert run("one") == 0
    assert len(seen) >= 3
    feed.send(100)
    assert run("one") == 0, "the stores have the last batch too, as the run before has ended well"
    shutil.copytree(tmp_path / "one", tmp_path / "old")
    feed.send(100)
    run("one")
    feed.send(100)
    tail = run("old")
    feed.send(100)
    assert 0 < tail < run("new")
    assert topics.admin.topic_configs(f"{group}-totals-changelog")["cleanup.policy"] == "compact"
    with pytest.raises(PipelineError, match=r"-others-changelog' is not there: it was deleted, or the group"):
        run("one", "others")
    topics.admin.create_partitions(topic, 4)
    with pytest.raises(PipelineError, match=r"has 4 partitions and the changelog .* has 3: .* from the first day on"):
        run("one")
    (partition, at), *_ = topics.admin.group_offsets(group).items()
    topics.admin.commit_group_offsets(group, {partition: OffsetAndMetadata(at.offset)})
    with pytest.raises(PipelineError, match=r"has state in .*, but the group's offset \d+ was set by another"):
        run("one")
    topics.admin.delete_group(group)
    feed.send(11)
    for start in ("earliest", "latest"):
        refused = "has state in '.*', but the group has no offset of it, and would not go on where the state ends"
        with pytest.raises(PipelineError, match=refused):
            run("one", starting_offsets=start)


def test_windows_are_emitted_once_they_are_closed(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topic, out, late = topics.create(1), topics.create(1), topics.create(1)
    producer = idempotent_producer(topics.bootstrap)
    begin = 1_700_000_400_000  # a multiple of ten minutes
    for minute, value in enumerate([1, 2, 3, 25, 4, 61]):
        producer.produce(topic, str(value), "k", timestamp=begin + 60_000 * (value if value > 9 else minute))
    assert producer.flush(60) == 0
    seen: list[Progress] = []

    def timed(batch: pa.RecordBatch) -> pa.RecordBatch:
        n = batch["value"].cast(pa.string()).cast(pa.int64())
        return pa.RecordBatch.from_arrays([batch["key"].cast(pa.string()), n, batch["timestamp"]], ["name", "n", "at"])

    (
        Pipeline(
            spark,
            topics.bootstrap,
            f"g-{uuid.uuid4().hex[:8]}",
            topic,
            state=State(dir=str(tmp_path)),
            on_progress=seen.append,
        )
        .map_arrow(timed, "name string, n long, at timestamp")
        .aggregate(
            "name",
            {"n": "count(*)", "total": "sum(n)"},
            window=Window("at", timedelta(minutes=10)),
            results="final",
            late_topic=late,
        )
        .write(KafkaSink(topics.bootstrap, out))
        .run(available_now=True)
    )
    found = [(key, json.loads(value or b"")) for _, key, value in committed_records(topics, out)]
    assert found == [
        (
            f'["{start}","k"]'.encode(),
            {"window_start": start, "window_end": end, "name": "k", "n": n, "total": total},
        )
        for start, end, n, total in [
            ("2023-11-14T22:20:00.000Z", "2023-11-14T22:30:00.000Z", 3, 6),
            ("2023-11-14T22:40:00.000Z", "2023-11-14T22:50:00.000Z", 1, 25),
        ]
    ]
    assert [progress.late for progress in seen] == [1]
    ((_, key, value),) = committed_records(topics, late)
    assert (key, json.loads(value or b"")) == (b"k", {"name": "k", "n": 4, "at": "2023-11-14T22:24:00.000000Z"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys": "gate"}, "keys: there is no column 'gate' among name, n"),
        ({"aggregates": {"n": "median(n)"}}, r"^aggregates: 'n': median\(n\) needs a state that Roster has not"),
        ({"sink": ConsoleSink()}, "write: a stateful pipeline writes results and state in one Kafka transaction"),
        ({"at_least_once": True}, "write: a stateful pipeline writes results and state in one Kafka transaction"),
        ({"keep_timestamps": True}, "keep_timestamps: a result of a stateful pipeline comes from many records"),
        ({"topics": "pattern:t.*"}, "topics: topics that come later have no state. Name"),
        ({"topics": ["nowhere-to-be-found"]}, "topics: there is no topic 'nowhere-to-be-found'"),
        ({"late_topic": "nowhere-to-be-found"}, "late_topic: there is no topic 'nowhere-to-be-found'"),
        ({"store": "a/b"}, "store: '.*-a/b-changelog' is not a topic name"),
        ({"transform": True}, "transform: a transform's rows leave the task"),
        ({"http": "0.0.0.0:8080"}, "http: 0.0.0.0:8080 lets anyone .* read the state"),
        ({"policy": "delete"}, "has cleanup.policy=delete, which would lose state. Set cleanup.policy=compact"),
    ],
)
def test_what_cannot_work_is_named_before_the_group_is_joined(
    spark: SparkSession, topics: Topics, change: dict[str, Any], message: str
) -> None:
    topic, out, group = topics.create(1), topics.create(1), f"g-{uuid.uuid4().hex[:8]}"
    if "policy" in change:
        topics.admin.create_topic(f"{group}-s-changelog", 1, configs={"cleanup.policy": change["policy"]})
    exactly_once = False if "at_least_once" in change else None
    keep_timestamps = "keep_timestamps" in change
    sink = KafkaSink(topics.bootstrap, out, exactly_once=exactly_once, keep_timestamps=keep_timestamps)

    def run() -> None:
        pipeline = Pipeline(spark, topics.bootstrap, group, change.get("topics", topic), http=change.get("http"))
        pipeline.map_arrow(
            numbers, "name string, n long, at timestamp" if "late_topic" in change else "name string, n long"
        )
        pipeline.aggregate(
            change.get("keys", "name"),
            change.get("aggregates", AGGREGATES),
            window=Window("at", timedelta(minutes=10)) if "late_topic" in change else None,
            late_topic=change.get("late_topic"),
            store=change.get("store", "s"),
        )
        if "transform" in change:
            pipeline.transform(lambda df: df)
        pipeline.write(change.get("sink", sink)).run(available_now=True)

    with pytest.raises(PipelineError, match=message):
        run()
    assert not topics.exists(group)
    if "http" in change:
        assert not [name for name in topics.admin.list_topics() if name.startswith(group)]


def test_a_state_dir_that_cannot_be_used_is_named_before_anything_is_made(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    topic, out, group = topics.create(1), topics.create(1), f"g-{uuid.uuid4().hex[:8]}"
    pipeline = Pipeline(spark, topics.bootstrap, group, [topic], state=State(dir=str(tmp_path / "file" / "below")))
    pipeline.map_arrow(numbers, "name string, n long").aggregate("name", {"n": "count(*)"})
    with pytest.raises(PipelineError, match=r"cannot be used on host .*: Not a directory") as raised:
        pipeline.write(KafkaSink(topics.bootstrap, out)).run(available_now=True)
    assert raised.value.field == "State.dir"
    assert str(tmp_path / "file" / "below") in str(raised.value)
    assert [name for name in topics.admin.list_topics() if name.startswith(group)] == []
