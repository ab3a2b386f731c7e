"""A switch between two pipelines whose results go to one table, after an export and an import."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from roster.cli.root import run
from roster.client import ClientError
from roster.model.switch import Results as Standings
from roster.model.switch import Seen
from roster.spark import KafkaSink, Pipeline, PipelineError, State
from roster.spark.state import export, import_state
from tests.librdkafka import idempotent_producer
from tests.sinks.test_transactional_kills import caught_up
from tests.spark.apps.late import Results
from tests.spark.spark_topics import committed_records
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.spark_topics import Topics

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.mark.gate
def test_one_table_has_each_result_once_after_a_switch_there_and_back_and_there_again(
    spark: SparkSession, topics: Topics, tmp_path: Path, capsys: Any
) -> None:
    topic, late, old, new = (
        topics.create(2),
        topics.create(1),
        f"old-{uuid.uuid4().hex[:8]}",
        f"new-{uuid.uuid4().hex[:8]}",
    )
    results, producer, sent = Results("delta", tmp_path / "out"), idempotent_producer(topics.bootstrap), 0

    def send(count: int) -> None:
        """Each number twice, and for each a row that is late."""
        nonlocal sent
        for number in range(sent, sent + count):
            for at in ("2026-01-02T00:00:00Z", "2026-01-02T00:00:00Z", "2020-01-01T00:00:00Z"):
                producer.produce(topic, json.dumps({"n": number, "at": at}), partition=number % 2)
        sent += count
        assert producer.flush(60) == 0

    def pipeline(group: str, *, paused: bool) -> Pipeline:
        made = Pipeline(
            spark,
            topics.bootstrap,
            group,
            topic,
            state=State(dir=str(tmp_path / group)),
            trigger_interval_ms=100,
            paused=paused,
        ).json_columns("n long, at timestamp")
        made.deduplicate("n", within=timedelta(days=1), column="at", store="numbers", late_topic=late)
        return made.write(results.sink())

    def all_read() -> bool:
        return all(caught_up(topics, group, topics.ends(topic)) for group in (old, new))

    def switch(source: str, target: str) -> None:
        send(20)
        assert run(["groups", "switch", source, target, "-b", topics.bootstrap]) == 0, capsys.readouterr()
        assert f"{target} writes, {source} is paused" in capsys.readouterr().out
        send(20)
        until(all_read, 60, "all is read")

    send(20)
    first = pipeline(old, paused=False).start()
    until(lambda: caught_up(topics, old, topics.ends(topic)), 60, "the old group has read")
    export(spark, topics.bootstrap, old, str(tmp_path / "saved"))
    import_state(spark, topics.bootstrap, new, str(tmp_path / "saved"))
    second = pipeline(new, paused=True).start()
    until(lambda: stands(topics, new) == {Standings.PAUSED}, 60, "the new group is paused")
    try:
        switch(old, new)
        switch(new, old)
        second.stop()
        second.wait()
        second = pipeline(new, paused=False).start()  # its offsets say that it is paused
        until(lambda: second.status == "paused" and topics.admin.describe_group(new).members, 60, "it is back")
        switch(old, new)
        check_refusals(topics, old, new, topic, capsys)
    finally:
        for each in (first, second):
            each.stop()
            each.wait()
    assert sorted(row["n"] for row in results.rows(spark)) == list(range(sent))
    assert sorted(json.loads(value or b"")["n"] for *_, value in committed_records(topics, late)) == list(range(sent))


def texts(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([batch["value"].cast(pa.string())], ["value"])


@pytest.mark.parametrize("kind", ["kafka", "delta", "parquet"])
@pytest.mark.gate
def test_each_record_has_one_result_where_there_is_no_state(
    spark: SparkSession, topics: Topics, tmp_path: Path, capsys: Any, kind: str
) -> None:
    """The paused group reads nothing: a record that its function would fail at is passed over."""
    names = {which: f"{which}-{uuid.uuid4().hex[:8]}" for which in ("old", "new")}
    topic, out, producer, sent = topics.create(2), topics.create(1), idempotent_producer(topics.bootstrap), 0
    folder = {"kafka": "delta"}.get(kind, kind)
    tables = {which: Results(folder, tmp_path / (which if kind == "parquet" else "out")) for which in names}

    def send(count: int, partitions: int = 2) -> None:
        nonlocal sent
        for number in range(sent, sent + count):
            producer.produce(topic, str(number), partition=number % partitions)
        sent += count
        assert producer.flush(60) == 0

    def fails_at_seven(batch: pa.RecordBatch) -> pa.RecordBatch:
        assert b"7" not in batch["value"].to_pylist()
        return texts(batch)

    def start(which: str) -> Pipeline:
        options: dict[str, Any] = {"trigger_interval_ms": 100, "consumer": {"metadata.max.age.ms": 1_000}}
        made = Pipeline(spark, topics.bootstrap, names[which], topic, paused=which == "new", **options)
        made.map_arrow(texts if which == "old" else fails_at_seven, "value string")
        return made.write(KafkaSink(topics.bootstrap, out) if kind == "kafka" else tables[which].sink()).start()

    def until_all_read() -> None:
        ends = topics.ends(topic)
        until(lambda: all(caught_up(topics, group, ends) for group in names.values()), 60, "all is read")

    send(20)
    runs = {which: start(which) for which in names}
    try:
        until_all_read()
        for source, target in (("old", "new"), ("new", "old"), ("old", "new")):
            send(20)
            command = ["groups", "switch", names[source], names[target], "-b", topics.bootstrap]
            assert run(command) == 0, capsys.readouterr()
            send(20)
            until_all_read()
            assert stands(topics, names[target]) == {Standings.WRITES}
            runs["new"].stop()
            runs["new"].wait()
            runs["new"] = start("new")
            until(lambda: topics.admin.describe_group(names["new"]).members, 60, "it is back")
        topics.admin.create_partitions(topic, 3)
        producer = idempotent_producer(topics.bootstrap)  # one that knows the new partition
        send(20, 3)
        until_all_read()
    finally:
        for each in runs.values():
            each.stop()
            each.wait()
    if kind == "kafka":
        found = [int(value or b"") for *_, value in committed_records(topics, out)]
    else:
        read = tables.values() if kind == "parquet" else [tables["old"]]
        found = [int(row["value"]) for table in read for row in table.rows(spark)]
    assert sorted(found) == list(range(sent))


def stands(topics: Topics, group: str) -> set[Standings]:
    try:
        found = topics.admin.group_offsets(group, stable=False).values()
    except ClientError:
        return set()
    return {Seen.of(at).standing.results for at in found}


def check_refusals(topics: Topics, old: str, new: str, topic: str, capsys: Any) -> None:
    def told(*arguments: str) -> tuple[int, str]:
        code = run(["groups", "switch", *arguments, "-b", topics.bootstrap])
        found = capsys.readouterr()
        return code, (found.err or found.out).strip()

    assert told(old, new)[0] == 0, "it writes already"
    code, out = told(new, old, "--dry-run")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == [topic] * 2
    assert {"written", "paused"} <= set(out.split())
    assert told(old, old) == (2, f"roster: error: NEW: {old} is OLD, too; name two groups")
    assert told(old, "nobody") == (2, "roster: error: NEW: nobody is not running; start its application first")


@pytest.mark.parametrize(
    ("declare", "problem"),
    [
        (
            lambda made: made.json_columns("n long, m long").repartition("m").aggregate("m", {"count": "count(*)"}),
            "rows on their way between two sub-topologies",
        ),
    ],
)
def test_what_cannot_be_paused_is_refused(spark: SparkSession, topics: Topics, declare: Any, problem: str) -> None:
    topic, out = topics.create(1), topics.create(1)
    made = declare(Pipeline(spark, topics.bootstrap, f"g-{uuid.uuid4().hex[:8]}", topic, paused=True))
    made.write(KafkaSink(topics.bootstrap, out))
    with pytest.raises(PipelineError, match=rf"^paused: such a pipeline cannot be paused: {problem}"):
        made.run(available_now=True)
