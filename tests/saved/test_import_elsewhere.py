"""Imports where the input has another number of partitions: the group goes on as one that never moved."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from roster.cli.root import run
from roster.model import TopicPartition
from roster.spark import KafkaSink, Pipeline, PipelineError, State
from roster.spark.state import Export, export, import_state, repartition_state
from tests.saved.groups_with_state import check, no_spark, produce, with_ids_and_totals
from tests.spark.spark_topics import Topics

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def check_that_it_goes_on(spark: SparkSession, topics: Topics, tmp_path: Path, command: Any = None) -> None:
    topic, more, fewer = topics.create(6), 12, 5
    old, kept, grown, small = (f"g-{uuid.uuid4().hex[:8]}" for _ in range(4))
    produce(topics, topic, range(200))
    early: list[Export] = []

    def pipeline(group: str, **settings: Any) -> Pipeline:
        made = with_ids_and_totals(
            Pipeline(spark, topics.bootstrap, group, topic, state=State(dir=str(tmp_path / group)), **settings),
            partitions=3,
        )
        return made.write(KafkaSink(topics.bootstrap, topics.create(1)))

    def look(_: object) -> None:
        if not early:
            early.append(export(spark, topics.bootstrap, old, str(tmp_path / "early")))

    pipeline(old, max_offsets_per_batch=100, on_progress=look).run(available_now=True)
    export(spark, topics.bootstrap, old, str(tmp_path / "old"))
    topics.admin.create_partitions(topic, more)
    produce(topics, topic, range(150, 300))
    import_state(no_spark, topics.bootstrap, kept, early[0].folder.place)
    begun = {at: offset for at, offset in early[0].manifest.offsets.items() if at.topic == topic}
    assert {at: offset for at, offset in topics.committed(kept).items() if at.topic == topic} == begun
    with pytest.raises(PipelineError, match=r"run `roster state repartition`"):
        pipeline(kept).run(available_now=True)
    moved = repartition_state(no_spark, topics.bootstrap, kept, str(tmp_path / "kept"))
    assert moved[f"{kept}-ids-changelog"] == (6, more)
    pipeline(kept).run(available_now=True)
    check(export(no_spark, topics.bootstrap, kept, str(tmp_path / "kept-last")), range(300))
    import_state(spark, topics.bootstrap, grown, str(tmp_path / "old"))
    pipeline(grown).run(available_now=True)
    found = export(spark, topics.bootstrap, grown, str(tmp_path / "grown"))
    check(found, range(300))
    assert found.manifest.stores["ids"].partitions == more
    assert found.manifest.stores["totals"].partitions == 3
    begun = {at: offset for at, offset in found.manifest.offsets.items() if at.topic == topic}
    assert begun == topics.ends(topic)

    topics.admin.delete_topic(topic)
    topics.admin.create_topic(topic, fewer)
    produce(topics, topic, range(250, 350))
    with pytest.raises(PipelineError, match=rf"of {topic}-5, which this cluster does not have\. Say where the group"):
        import_state(spark, topics.bootstrap, small, found.folder.place)
    assert small not in str(topics.admin.list_topics(internal=True))
    for wrong, message in (("soon", "offsets: 'soon' is not understood"), ({topic: {"7": 1}}, f"offsets of {topic}-7")):
        with pytest.raises(PipelineError, match=message):
            import_state(spark, topics.bootstrap, small, found.folder.place, offsets=wrong)
    with pytest.raises(PipelineError, match="keyed_by: there is no key column 'x' among name, n"):
        import_state(spark, topics.bootstrap, small, found.folder.place, offsets="earliest", keyed_by="x")
    with pytest.raises(
        PipelineError, match=r"'ids' cannot have 5 partitions instead of 12: its keys are not where name"
    ):
        import_state(spark, topics.bootstrap, small, found.folder.place, offsets="earliest", partitioner="crc32")
    if command is None:
        import_state(spark, topics.bootstrap, small, found.folder.place, offsets="earliest")
    else:
        command(["state", "import", found.folder.place, "--group", small, "-b", topics.bootstrap])
    assert topics.committed(small)[TopicPartition(topic, 0)] == 0
    pipeline(small).run(available_now=True)
    check(export(spark, topics.bootstrap, small, str(tmp_path / "small")), range(350))


@pytest.mark.gate
def test_a_group_goes_on_where_its_input_has_more_or_fewer_partitions(
    spark: SparkSession, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("roster.spark.session", no_spark, raising=False)

    def command(line: list[str]) -> None:
        assert run([*line, "--offsets", "tomorrow"]) == 2
        assert "--offsets: 'tomorrow' is not earliest, latest, offsets as JSON or a time" in capsys.readouterr().err
        assert run([*line, "--offsets", "earliest", "--keyed-by", "name"]) == 0
        assert "goes on from earliest" in capsys.readouterr().out

    check_that_it_goes_on(spark, topics, tmp_path, command)


@pytest.mark.gate
def test_the_same_on_apache_kafka(spark: SparkSession, apache_kafka: Any, tmp_path: Path) -> None:
    with Topics(apache_kafka.bootstrap) as kafka:
        check_that_it_goes_on(spark, kafka, tmp_path)
