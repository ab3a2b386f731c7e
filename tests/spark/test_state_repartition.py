"""A group whose input gets more partitions goes on as one that never moved, wherever the command is cut off."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from roster.cli.root import run
from roster.client import TransactionalProducer
from roster.model import TopicPartition
from roster.spark import KafkaSink, Pipeline, PipelineError, State
from roster.spark.state import export, repartition_state
from roster.spark.state.saved.repartition import _Repartition
from roster.spark.state.tasks.placement import murmur2
from tests.librdkafka import idempotent_producer
from tests.spark.spark_topics import Topics
from tests.spark.test_state_export import numbers, rows
from tests.spark.test_state_import_elsewhere import check, name_of, produce

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

CUTS = ("_check_empty", "_write", "_wait_until_seen")
"""Before topics are deleted, amid the transaction, and after its commit."""


def test_a_group_goes_on_after_its_input_has_grown(
    spark: SparkSession, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    topic, group = topics.create(4), f"g-{uuid.uuid4().hex[:8]}"
    produce(topics, topic, range(200))
    out, place = topics.create(1), str(tmp_path / "export")

    def go_on() -> None:
        made = Pipeline(spark, topics.bootstrap, group, topic, state=State(dir=str(tmp_path / "state")))
        made.map_arrow(numbers, "name string, n long, at timestamp")
        made.deduplicate(["name", "n"], within="1000 days", column="at", store="ids")
        made.aggregate("name", {"n": "count(*)", "mean": "avg(n)"}, store="totals")
        made.write(KafkaSink(topics.bootstrap, out)).run(available_now=True)

    def move(**more: Any) -> dict[str, tuple[int, int]]:
        return repartition_state(spark, topics.bootstrap, group, place, **more)

    go_on()
    before = topics.committed(group)
    with pytest.raises(PipelineError, match="has as many partitions as its input"):
        repartition_state(spark, topics.bootstrap, group, str(tmp_path / "early"))
    topics.admin.create_partitions(topic, 6)
    produce(topics, topic, range(150, 250))
    with pytest.raises(PipelineError, match=r"Stop the group and run `roster state repartition`"):
        go_on()
    wanted = {f"{group}-{store}-changelog": (4, 6) for store in ("ids", "totals")}
    assert move(dry_run=True) == wanted
    assert topics.committed(group) == before
    with pytest.raises(PipelineError, match="has an export of"):
        repartition_state(spark, topics.bootstrap, "another", place)
    refused = rf"is being given other partitions\. Run `roster state repartition {group} --to .*` again"
    for cut in CUTS:
        whole = getattr(_Repartition, cut)

        def killed(self: _Repartition, *given: Any, whole: Any = whole) -> None:
            whole(self, *given)
            if whole.__name__ != "_wait_until_seen":
                with pytest.raises(PipelineError, match=refused):
                    go_on()
            raise KeyboardInterrupt

        with monkeypatch.context() as gone:  # as if the process were gone
            gone.setattr(_Repartition, cut, killed)
            gone.setattr(TransactionalProducer, "abort", lambda _: None)
            gone.setattr(TransactionalProducer, "close", lambda _: None)
            with pytest.raises(KeyboardInterrupt):
                move()
    with pytest.raises(PipelineError, match="has worked since it was exported"):
        move()
    found = {at: offset for at, offset in topics.committed(group).items() if at in before}
    assert found == before
    go_on()
    grown = export(spark, topics.bootstrap, group, str(tmp_path / "grown"))
    check(grown, range(250))
    assert {name: store.partitions for name, store in grown.manifest.stores.items()} == {"ids": 6, "totals": 6}
    assert len(rows(grown, "ids")) == 250

    topics.admin.create_partitions(topic, 9)
    produce(topics, topic, range(240, 300))
    monkeypatch.setattr(spark, "stop", lambda: None)
    monkeypatch.setattr("roster.spark.session", lambda _: spark, raising=False)
    command = ["state", "repartition", group, "-b", topics.bootstrap, "--to"]
    assert run([*command, place]) == 2
    assert "has worked since it was exported" in capsys.readouterr().err
    code = run([*command, str(tmp_path / "second")])
    assert code == 0, capsys.readouterr().err
    assert f"group {group} goes on from its offsets" in capsys.readouterr().out
    go_on()
    check(export(spark, topics.bootstrap, group, str(tmp_path / "last")), range(300))


def test_unread_records_of_the_earlier_number_are_refused_before_anything_changes(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic, group = topics.create(4), f"g-{uuid.uuid4().hex[:8]}"
    produce(topics, topic, range(100))
    made = Pipeline(spark, topics.bootstrap, group, topic, state=State(dir=str(tmp_path / "state")))
    made.map_arrow(numbers, "name string, n long, at timestamp").aggregate("name", {"n": "count(*)"}, store="totals")
    made.write(KafkaSink(topics.bootstrap, topics.create(1))).run(available_now=True)
    produce(topics, topic, range(100, 150))
    topics.admin.create_partitions(topic, 6)
    before = topics.admin.group_offsets(group)
    with pytest.raises(PipelineError, match=r"it was written before the topic grew, and the group has not read it"):
        repartition_state(spark, topics.bootstrap, group, str(tmp_path / "export"))
    assert topics.admin.group_offsets(group) == before
    assert topics.admin.list_topics(internal=True)[f"{group}-totals-changelog"] == 4


def test_a_group_whose_input_got_misplaced_records_amid_the_command_has_a_way_out(
    spark: SparkSession, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    topic, group, place = topics.create(4), f"g-{uuid.uuid4().hex[:8]}", tmp_path / "export"

    def go_on() -> None:
        made = Pipeline(spark, topics.bootstrap, group, topic, state=State(dir=str(tmp_path / "state")))
        made.map_arrow(numbers, "name string, n long, at timestamp")
        made.deduplicate(["name", "n"], within="1000 days", column="at", store="ids")
        made.aggregate("name", {"n": "count(*)", "mean": "avg(n)"}, store="totals")
        made.write(KafkaSink(topics.bootstrap, topics.create(1))).run(available_now=True)

    def cut_off(*_: object) -> None:
        raise KeyboardInterrupt

    produce(topics, topic, range(200))
    go_on()
    topics.admin.create_partitions(topic, 6)
    with monkeypatch.context() as gone:
        gone.setattr(_Repartition, "_check_empty", cut_off)
        with pytest.raises(KeyboardInterrupt):
            repartition_state(spark, topics.bootstrap, group, str(place))
    committed = topics.committed(group)
    late = {n: murmur2(pa.array([name_of(n).encode()]))[0] for n in range(200, 210)}
    at = next(TopicPartition(topic, int(h % 4)) for h in late.values() if h % 4 != h % 6)
    producer = idempotent_producer(topics.bootstrap)
    mine = [n for n, h in late.items() if h % 4 == at.partition]
    for n in mine:
        producer.produce(topic, str(n), name_of(n), partition=at.partition)
    assert producer.flush(60) == 0
    with pytest.raises(PipelineError, match=r"before the topic grew.*Send its partition's unread records again"):
        repartition_state(spark, topics.bootstrap, group, str(place / ".." / "export"))
    export(spark, topics.bootstrap, group, str(tmp_path / "other"))
    with pytest.raises(PipelineError, match="has begun with the export in another folder"):
        repartition_state(spark, topics.bootstrap, group, str(tmp_path / "other"))

    behind = {str(each.partition): committed.get(each, 0) for each in topics.ends(topic)}
    behind[str(at.partition)] = topics.ends(topic)[at]
    produce(topics, topic, range(200, 210))
    where = ["-b", topics.bootstrap]
    assert run(["state", "reset", group, "--execute", "--state-dir", str(tmp_path / "state"), *where]) == 0
    monkeypatch.setattr(spark, "stop", lambda: None)
    monkeypatch.setattr("roster.spark.session", lambda _: spark, raising=False)
    goes_on = ["--group", group, "--offsets", json.dumps({topic: behind})]
    assert run(["state", "import", str(place), *goes_on, *where]) == 0, capsys.readouterr().err
    go_on()
    check(export(spark, topics.bootstrap, group, str(tmp_path / "last")), range(210))
