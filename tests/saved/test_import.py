"""Imports as a new group: it goes on as the one that never moved; an import is whole, or has not happened."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from roster.cli.root import run
from roster.client import OffsetAndMetadata, TransactionalProducer
from roster.model import TopicPartition
from roster.saved.importing import Importer
from roster.spark import KafkaSink, Pipeline, PipelineError, State
from roster.spark.state import Export, export, import_state
from tests.saved.groups_with_state import no_spark, rows, sales, send, unordered, with_ids_and_totals
from tests.spark.spark_topics import Topics, committed_records

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.mark.gate
def test_a_group_goes_on_from_an_import_with_rows_on_their_way_as_the_one_that_never_moved(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    check_that_it_goes_on(spark, topics, tmp_path)


@pytest.mark.gate
def test_the_same_on_apache_kafka(spark: SparkSession, apache_kafka: Any, tmp_path: Path) -> None:
    with Topics(apache_kafka.bootstrap) as kafka:
        check_that_it_goes_on(spark, kafka, tmp_path)


def check_that_it_goes_on(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topic = topics.create(2)
    old, new = (f"g-{uuid.uuid4().hex[:8]}" for _ in range(2))
    send(topics, topic, 2, range(200))
    exports: list[Export] = []

    def pipeline(group: str, **more: Any) -> Pipeline:
        made = with_ids_and_totals(
            Pipeline(spark, topics.bootstrap, group, topic, state=State(dir=str(tmp_path / group)), **more),
            partitions=3,
        )
        return made.write(KafkaSink(topics.bootstrap, topics.create(1)))

    def look(_: object) -> None:
        if len(exports) < 2:
            exports.append(export(spark, topics.bootstrap, old, str(tmp_path / f"e{len(exports)}")))

    pipeline(old, max_offsets_per_batch=150, on_progress=look).run(available_now=True)
    last = export(no_spark, topics.bootstrap, old, str(tmp_path / "old"))
    moved = next(each for each in exports if any(files for _, files in each.manifest.on_their_way.values()))
    assert sum(file.rows for _, files in moved.manifest.on_their_way.values() for file in files)
    assert moved.manifest.offsets != last.manifest.offsets
    import_state(spark, topics.bootstrap, new, moved.folder.place)
    found = {at: offset for at, offset in topics.committed(new).items() if at.topic == topic}
    assert found == {at: offset for at, offset in moved.manifest.offsets.items() if at.topic == topic}
    pipeline(new).run(available_now=True)
    again = export(spark, topics.bootstrap, new, str(tmp_path / "new"))
    for store in ("ids", "totals"):
        assert unordered(again, store) == unordered(last, store) != unordered(moved, store)
    read = {at: offset for at, offset in again.manifest.offsets.items() if at.topic == topic}
    assert read == {at: offset for at, offset in last.manifest.offsets.items() if at.topic == topic}
    assert topics.admin.topic_configs(f"{new}-totals-changelog")["cleanup.policy"] == "compact"


@pytest.mark.gate
def test_an_import_is_whole_or_has_not_happened(
    spark: SparkSession, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    topic, out = topics.create(2), topics.create(1)
    old, new = (f"g-{uuid.uuid4().hex[:8]}" for _ in range(2))
    send(topics, topic, 2, range(40))

    def go_on(group: str, target: str = out) -> None:
        made = Pipeline(spark, topics.bootstrap, group, topic, state=State(dir=str(tmp_path / group)))
        made.map_arrow(sales, "shop string, price long")
        made.aggregate("shop", {"orders": "count(*)", "revenue": "sum(price)"}, store="totals")
        made.write(KafkaSink(topics.bootstrap, target)).run(available_now=True)

    go_on(old)
    place = str(tmp_path / "e")
    saved = export(spark, topics.bootstrap, old, place)
    write = Importer._write
    refused = r"has state in '.*-totals-changelog', but the group has no offset of it.*did not end is run again"

    def started_in_between(self: Importer, *given: Any) -> int:
        write(self, *given)
        with pytest.raises(PipelineError, match=refused):
            go_on(new)
        raise KeyboardInterrupt

    monkeypatch.setattr(Importer, "_write", started_in_between)
    with monkeypatch.context() as killed:  # as if the process were gone
        killed.setattr(TransactionalProducer, "abort", lambda _: None)
        killed.setattr(TransactionalProducer, "close", lambda _: None)
        killed.setattr(Importer, "_remove_topics", lambda *_: None)
        with pytest.raises(KeyboardInterrupt):
            import_state(spark, topics.bootstrap, new, place)
    with pytest.raises(PipelineError, match=refused):
        go_on(new)

    def failed(self: Importer, *given: Any) -> int:
        write(self, *given)
        raise PipelineError("no")

    monkeypatch.setattr(Importer, "_write", failed)
    with pytest.raises(PipelineError, match="no"):
        import_state(spark, topics.bootstrap, new, place)
    assert f"{new}-totals-changelog" not in topics.admin.list_topics(internal=True)
    assert topics.committed(new) == {}

    def raced(self: Importer, *given: Any) -> int:
        written = write(self, *given)
        topics.admin.commit_group_offsets(new, {TopicPartition(topic, 0): OffsetAndMetadata(0)})
        return written

    monkeypatch.setattr(Importer, "_write", raced)
    with pytest.raises(PipelineError, match=r"has an offset of .*, and an import makes a new group\. Name another"):
        import_state(spark, topics.bootstrap, new, place)
    topics.admin.delete_group(new)
    monkeypatch.setattr(Importer, "_write", write)
    monkeypatch.setattr("roster.spark.session", no_spark, raising=False)
    command = ["state", "import", place, "--group", new, "-b", topics.bootstrap]
    assert run(command) == 0
    assert f"13 records; group {new} goes on" in capsys.readouterr().out, "11 keys, and a definition for each task"
    assert run(command) == 2
    assert "has an offset of" in capsys.readouterr().err
    topics.admin.delete_group(new)
    with pytest.raises(PipelineError, match=r"-totals-changelog' has records already, and an import makes a new group"):
        import_state(spark, topics.bootstrap, new, place)
    third = f"g-{uuid.uuid4().hex[:8]}"

    def overtaken(self: Importer, *given: Any) -> int:
        written = write(self, *given)
        monkeypatch.setattr(Importer, "_write", write)
        assert import_state(no_spark, topics.bootstrap, third, place) == 13
        return written

    monkeypatch.setattr(Importer, "_write", overtaken)
    with pytest.raises(PipelineError, match=r"another import of .* has begun, and has ended this one\. Wait for"):
        import_state(no_spark, topics.bootstrap, third, place)
    more, target = send(topics, topic, 2, range(40, 60)), topics.create(1)
    go_on(third, target)
    totals = {row["shop"]: row["orders"] for row in rows(saved, "totals")}
    for _, _, name, _ in more:
        totals[name] += 1
    results = {key: json.loads(value or b"") for _, key, value in committed_records(topics, target)}
    assert {row["shop"]: row["orders"] for row in results.values()} == {
        name: totals[name] for name in {name for _, _, name, _ in more}
    }


@pytest.mark.gate
def test_an_import_where_the_input_is_not_is_refused(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topic, out, group = topics.create(1), topics.create(1), f"g-{uuid.uuid4().hex[:8]}"
    other = f"{group}-other"
    send(topics, topic, 1, range(5))
    made = Pipeline(spark, topics.bootstrap, group, topic, state=State(dir=str(tmp_path / "state")))
    made.map_arrow(sales, "shop string, price long").aggregate("shop", {"n": "count(*)"})
    made.write(KafkaSink(topics.bootstrap, out)).run(available_now=True)
    place = tmp_path / "e"
    export(spark, topics.bootstrap, group, str(place))
    text = (place / "manifest.json").read_text()
    offset = next(iter(topics.committed(group).values()))
    for before, after, message in (
        (f'"{topic}"', '"nowhere"', r"belongs to offsets of nowhere-0, which this cluster does not have"),
        (f'"0": {offset}', '"0": 99', r"goes on at offset 99 of .*, which has 0 to 10"),
        ('"partitions": 1', '"partitions": 2', r"'aggregates' cannot have 1 partitions instead of 2: its keys are not"),
        ('"format": 1', '"format": 2', r"folder: .*has format 2, this release reads format 1"),
    ):
        assert before in text
        (place / "manifest.json").write_text(text.replace(before, after))
        with pytest.raises(PipelineError, match=message):
            import_state(spark, topics.bootstrap, other, str(place))
    (place / "manifest.json").write_text(text)
    (path,) = place.rglob("*.parquet")
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(PipelineError, match=r"failed, nothing is imported: .*checksum differs"):
        import_state(spark, topics.bootstrap, other, str(place))
    assert not [name for name in topics.admin.list_topics(internal=True) if name.startswith(other)]
