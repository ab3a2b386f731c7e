"""A group whose input gets more partitions goes on as one that never moved, wherever the command is cut off."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from roster.cli.root import run
from roster.client import TransactionalProducer
from roster.saved.repartition import _Repartition
from roster.spark import KafkaSink, Pipeline, PipelineError, State
from roster.spark.state import export, import_state, repartition_state
from roster.spark.stateful_batches import StatefulBatches
from roster.stateful.tasks.placement import partitions_of
from tests.librdkafka import idempotent_producer
from tests.saved.groups_with_state import check, name_of, no_spark, numbers, produce, rows, with_ids_and_totals
from tests.spark.spark_topics import Topics

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

CUTS = ("_check_empty", "_write", "_wait_until_seen")
"""Before topics are deleted, amid the transaction, and after its commit."""


@pytest.mark.gate
def test_a_group_goes_on_after_its_input_has_grown(
    spark: SparkSession, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    topic, group = topics.create(4), f"g-{uuid.uuid4().hex[:8]}"
    produce(topics, topic, range(200))
    out, place = topics.create(1), str(tmp_path / "export")

    def go_on() -> None:
        made = with_ids_and_totals(
            Pipeline(spark, topics.bootstrap, group, topic, state=State(dir=str(tmp_path / "state")))
        )
        made.write(KafkaSink(topics.bootstrap, out)).run(available_now=True)

    def move(**more: Any) -> dict[str, tuple[int, int]]:
        return repartition_state(spark, topics.bootstrap, group, place, **more)

    go_on()
    before = topics.committed(group)
    with pytest.raises(PipelineError, match="has as many partitions already"):
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


@pytest.mark.gate
def test_unread_records_of_the_earlier_number_are_read_by_it_before_the_state_moves(
    spark: SparkSession, topics: Topics, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic, group, out = topics.create(4), f"g-{uuid.uuid4().hex[:8]}", topics.create(1)

    def go_on(on_progress: Any = None, *, available_now: bool = False, group: str = group) -> None:
        made = Pipeline(
            spark,
            topics.bootstrap,
            group,
            topic,
            state=State(dir=str(tmp_path / group)),
            starting_offsets="latest",
            max_offsets_per_batch=60,
            on_progress=on_progress,
        )
        made.map_arrow(numbers, "name string, n long, at timestamp")
        made.deduplicate(["name", "n"], within="1000 days", column="at", store="ids").repartition("name", partitions=3)
        made.aggregate("name", {"n": "count(*)", "mean": "avg(n)"}, store="totals")
        made.write(KafkaSink(topics.bootstrap, out)).run(available_now=available_now)

    def gone(_: object) -> None:
        raise KeyboardInterrupt

    def move(group: str = group) -> dict[str, tuple[int, int]]:
        return repartition_state(spark, topics.bootstrap, group, str(tmp_path / uuid.uuid4().hex))

    go_on(available_now=True)
    produce(topics, topic, range(100))
    go_on(available_now=True)
    produce(topics, topic, range(80, 150))
    backup = export(no_spark, topics.bootstrap, group, str(tmp_path / "backup"))
    earlier = topics.ends(topic)
    topics.admin.create_partitions(topic, 6)
    produce(topics, topic, range(140, 250))
    before = topics.admin.group_offsets(group)
    with pytest.raises(PipelineError, match=r"was written before the topic grew.*Start an application of the group"):
        move()
    assert topics.admin.group_offsets(group) == before
    assert topics.admin.list_topics(internal=True)[f"{group}-ids-changelog"] == 4
    with pytest.raises(KeyboardInterrupt):
        go_on(gone)
    amid = topics.committed(group)
    assert any(before[at].offset < amid[at] for at in earlier)
    with pytest.raises(PipelineError, match=r"topic .* has 6 partitions.*run `roster state repartition`"):
        go_on()
    read = {at: offset for at, offset in topics.committed(group).items() if at.topic == topic}
    assert all(offset <= earlier.get(at, 0) for at, offset in read.items())
    assert any(offset == earlier[at] for at, offset in read.items())
    with pytest.raises(PipelineError, match=r"run `roster state repartition`"):
        go_on()
    assert read.items() <= topics.committed(group).items()
    assert move() == {f"{group}-ids-changelog": (4, 6), f"{group}-totals-changelog": (3, 3)} | {
        name: (3, 3) for name in topics.admin.list_topics(internal=True) if name.startswith(group) and "repart" in name
    }
    go_on(available_now=True)
    check(export(spark, topics.bootstrap, group, str(tmp_path / "last")), range(250))
    restored = f"{group}-restored"
    import_state(no_spark, topics.bootstrap, restored, backup.folder.place)
    (told,) = [line for line in caplog.messages if "as many partitions as at the export" in line]
    assert "was written before the topic grew" in told
    with pytest.raises(PipelineError, match=r"run `roster state repartition`"):
        go_on(group=restored)
    move(restored)
    go_on(available_now=True, group=restored)
    check(export(no_spark, topics.bootstrap, restored, str(tmp_path / "restored")), range(250))


def late_records(topics: Topics, topic: str, numbers: range, before: int, after: int) -> list[int]:
    """The numbers among these that a producer has sent by the earlier number of partitions, all to one partition."""
    hashes = {n: int(partitions_of(pa.array([name_of(n).encode()]), "murmur2", 1 << 31)[0]) for n in numbers}
    to = next(h % before for h in hashes.values() if h % before != h % after)
    sent = [n for n, h in hashes.items() if h % before == to]
    producer = idempotent_producer(topics.bootstrap)
    for n in sent:
        producer.produce(topic, str(n), name_of(n), partition=to)
    assert producer.flush(60) == 0
    return sent


@pytest.mark.gate
def test_the_state_is_put_back_for_a_record_that_the_earlier_number_has_placed_amid_the_command(
    spark: SparkSession, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, group, place = topics.create(4), f"g-{uuid.uuid4().hex[:8]}", tmp_path / "export"

    def go_on() -> None:
        made = with_ids_and_totals(
            Pipeline(spark, topics.bootstrap, group, topic, state=State(dir=str(tmp_path / "state")))
        )
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
    late = late_records(topics, topic, range(200, 210), 4, 6)
    with pytest.raises(PipelineError, match="is being given other partitions"):
        go_on()
    export(spark, topics.bootstrap, group, str(tmp_path / "other"))
    with pytest.raises(PipelineError, match="has begun with the export in another folder"):
        repartition_state(spark, topics.bootstrap, group, str(tmp_path / "other"))
    put_back = r"was written before.*The state is as it was\. Start an application of the group.*with an empty folder"
    with pytest.raises(PipelineError, match=put_back):
        repartition_state(spark, topics.bootstrap, group, str(place / ".." / "export"))
    assert topics.admin.list_topics(internal=True)[f"{group}-ids-changelog"] == 4
    with pytest.raises(PipelineError, match="run `roster state repartition`"):
        go_on()

    whole = _Repartition._write

    def written(self: _Repartition, *given: Any) -> int:
        """A producer still has the earlier number while the transaction is open."""
        found = whole(self, *given)
        if self.misplaced is None:
            late.extend(late_records(topics, topic, range(210, 220), 4, 6))
        return found

    with monkeypatch.context() as amid:
        amid.setattr(_Repartition, "_write", written)
        with pytest.raises(PipelineError, match=put_back):
            repartition_state(spark, topics.bootstrap, group, str(tmp_path / "amid"))
    with pytest.raises(PipelineError, match="run `roster state repartition`"):
        go_on()
    produce(topics, topic, (n for n in range(200, 220) if n not in late))
    repartition_state(spark, topics.bootstrap, group, str(tmp_path / "again"))
    go_on()
    check(export(spark, topics.bootstrap, group, str(tmp_path / "last")), range(220))


@pytest.mark.gate
def test_a_topic_to_which_both_numbers_were_written_at_once_has_a_way_out(
    spark: SparkSession, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    topic, group, place = topics.create(4), f"g-{uuid.uuid4().hex[:8]}", str(tmp_path / "export")

    def go_on() -> None:
        made = with_ids_and_totals(
            Pipeline(spark, topics.bootstrap, group, topic, state=State(dir=str(tmp_path / "state")))
        )
        made.write(KafkaSink(topics.bootstrap, topics.create(1))).run(available_now=True)

    produce(topics, topic, range(200))
    go_on()
    committed = topics.committed(group)
    topics.admin.create_partitions(topic, 6)
    produce(topics, topic, range(200, 260))
    late_records(topics, topic, range(200, 260), 4, 6)
    with pytest.raises(PipelineError, match=r"6 partitions place the key of the record at offset \d+, and only 4"):
        go_on()
    assert topics.committed(group) == committed

    export(spark, topics.bootstrap, group, place)
    behind = {str(at.partition): end for at, end in topics.ends(topic).items() if at.partition < 4}
    produce(topics, topic, range(200, 260))
    where = ["-b", topics.bootstrap]
    assert run(["state", "reset", group, "--execute", "--state-dir", str(tmp_path / "state"), *where]) == 0
    monkeypatch.setattr(spark, "stop", lambda: None)
    monkeypatch.setattr("roster.spark.session", lambda _: spark, raising=False)
    goes_on = ["--group", group, "--offsets", json.dumps({topic: behind})]
    assert run(["state", "import", place, *goes_on, *where]) == 0, capsys.readouterr().err
    go_on()
    check(export(spark, topics.bootstrap, group, str(tmp_path / "last")), range(260))


@pytest.mark.gate
def test_a_repartition_topic_gets_another_number_of_partitions_alone(
    spark: SparkSession, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    topic, group, out = topics.create(2), f"g-{uuid.uuid4().hex[:8]}", topics.create(1)
    monkeypatch.setattr(spark, "stop", lambda: None)
    monkeypatch.setattr("roster.spark.session", lambda _: spark, raising=False)

    def go_on(partitions: int, on_progress: Any = None) -> None:
        state, size = State(dir=str(tmp_path / "state")), 400 if on_progress is None else 90
        made = Pipeline(
            spark, topics.bootstrap, group, topic, state=state, on_progress=on_progress, max_offsets_per_batch=size
        )
        made.map_arrow(numbers, "name string, n long, at timestamp")
        made.deduplicate(["name", "n"], within="1000 days", column="at", store="ids")
        made.repartition("name", partitions=partitions)
        made.aggregate("name", {"n": "count(*)", "mean": "avg(n)"}, store="totals")
        made.write(KafkaSink(topics.bootstrap, out)).run(available_now=True)

    def gone(_: object) -> None:
        raise KeyboardInterrupt

    def moved(*more: str) -> int:
        return run(
            ["state", "repartition", group, "-b", topics.bootstrap, "--to", str(tmp_path / uuid.uuid4().hex), *more]
        )

    passing = f"{group}-by-name-repartition"
    produce(topics, topic, range(200))
    go_on(3)
    produce(topics, topic, range(150, 300))
    with pytest.raises(KeyboardInterrupt):
        go_on(3, gone)
    refused = rf"has 3 partitions, not 8.*roster state repartition {group} --to FOLDER --partitions {passing} 8`"
    with pytest.raises(PipelineError, match=refused):
        go_on(8)
    assert moved("--partitions", "by-name", "8") == 2
    assert f"the group has no repartition topic 'by-name'. It has {passing}" in capsys.readouterr().err
    find_stores = StatefulBatches.find_stores
    for partitions, sent in ((8, range(250, 350)), (2, range(300, 400))):
        if partitions == 2:
            assert moved("--partitions", passing, "2") == 0, capsys.readouterr().err
        else:

            def found_then_moved(self: StatefulBatches) -> None:
                find_stores(self)  # the last look before this application joins
                assert moved("--partitions", passing, "8") == 0, capsys.readouterr().err

            with monkeypatch.context() as amid:
                amid.setattr(StatefulBatches, "find_stores", found_then_moved)
                with pytest.raises(PipelineError, match=r"made anew since this application started\. Start it again"):
                    go_on(3)
        produce(topics, topic, sent)
        go_on(partitions)
        found = export(spark, topics.bootstrap, group, str(tmp_path / f"in-{partitions}"))
        check(found, range(sent.stop))
        counts = {name: store.partitions for name, store in found.manifest.stores.items()}
        assert counts == {"ids": 2, "totals": partitions}
