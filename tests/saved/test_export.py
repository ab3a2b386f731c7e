"""Exports of groups that run, held against a plain computation of exactly the records below their offsets."""

from __future__ import annotations

import functools
import json
import pickle
import re
import threading
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from roster.cli.root import run
from roster.client import Admin
from roster.model import TopicPartition
from roster.pipeline.batch import Split
from roster.pipeline.tasks.reader import ReaderConfig
from roster.saved.cut import Cut
from roster.saved.export import _check_silent, _Exporter, _MovedError, _stores_in_use
from roster.saved.tasks.export import ExportTask, LogSpan
from roster.spark import KafkaSink, Pipeline, PipelineError, State
from roster.spark.state import Export, export
from roster.state.definition import STATE_KEY, Definition, Noted
from roster.state.saved.folder import Folder, FolderError
from roster.state.saved.manifest import Manifest, SavedStore
from tests.saved.groups_with_state import below, no_spark, numbers, rows, sales, send, totals_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from roster.spark.state import StateProgress
    from tests.sinks.table_places import Server
    from tests.spark.spark_topics import Topics

pytestmark = [pytest.mark.timeout(400)]


@pytest.mark.spark
@pytest.mark.gate
def test_several_stores_and_rows_on_their_way_are_of_one_moment(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic, out, group = topics.create(2), topics.create(1), f"g-{uuid.uuid4().hex[:8]}"
    sent = send(topics, topic, 2, range(300))
    exports: list[Export] = []

    def look(_: object) -> None:
        if len(exports) < 3:
            exports.append(export(spark, topics.bootstrap, group, str(tmp_path / f"e{len(exports)}")))

    pipeline = Pipeline(
        spark,
        topics.bootstrap,
        group,
        topic,
        state=State(dir=str(tmp_path / "state")),
        max_offsets_per_batch=170,
        on_progress=look,
    )
    pipeline.map_arrow(numbers, "name string, n long, at timestamp")
    pipeline.deduplicate(["name", "n"], within="1000 days", column="at", store="ids").repartition("name", partitions=3)
    pipeline.aggregate("name", {"n": "count(*)", "total": "sum(n)"}, store="totals")
    pipeline.write(KafkaSink(topics.bootstrap, out)).run(available_now=True)
    exports.append(export(spark, topics.bootstrap, group, str(tmp_path / "last")))
    passing = f"{group}-by-name-repartition"
    had_some_on_their_way = False
    for found in exports:
        read = below(found, topic, sent)
        once = {(name, n) for _, _, name, n in read}
        assert {(row["name"], row["n"]) for row in rows(found, "ids")} == once
        count, files = found.manifest.on_their_way[passing]
        waiting = sum(file.rows for file in files)
        had_some_on_their_way |= waiting > 0
        assert count == 3
        assert sum(row["n"] for row in rows(found, "totals")) + waiting == len(once)
    assert had_some_on_their_way
    assert len(below(exports[-1], topic, sent)) == len(sent)
    assert {row["name"]: (row["n"], row["total"]) for row in rows(exports[-1], "totals")} == {
        name: (count // 2, total // 2) for name, (count, total) in totals_of(sent).items()
    }
    opened = Export.open(str(tmp_path / "last"))
    assert opened == exports[-1]
    assert opened.dataframe(spark, "ids", "entries").count() == 300
    store = opened.manifest.stores["ids"]
    assert store.definition is not None
    assert store.definition.document["operator"] == "deduplicate"
    assert all(b"\xffstream time" in marks for marks in store.marks.values())
    for wrong, message in (("others", r"there is no store 'others' in .*\. Use ids, totals"), ("ids", "part: 'x' is")):
        with pytest.raises(PipelineError, match=message):
            opened.dataframe(spark, wrong, "x")
    assert len(list((tmp_path / "last").rglob("*"))) > 5
    with pytest.raises(PipelineError, match=r"^to: .*last is not empty\. Name an empty folder"):
        export(spark, topics.bootstrap, group, str(tmp_path / "last"))
    with pytest.raises(PipelineError, match=r"^group: the group 'nobody' has no changelogs"):
        export(spark, topics.bootstrap, "nobody", str(tmp_path / "none"))
    with pytest.raises(PipelineError, match=r"^to: ftp://x/y: "):
        export(spark, topics.bootstrap, group, "ftp://x/y")
    assert not (tmp_path / "none").exists()


@pytest.mark.spark
@pytest.mark.gate
def test_exports_beside_batches_are_of_the_records_below_their_offsets(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic, out, group = topics.create(3), topics.create(1), f"g-{uuid.uuid4().hex[:8]}"
    sent = send(topics, topic, 3, range(500))
    exports: list[Export] = []
    problems: list[BaseException] = []
    progress: list[StateProgress] = []
    begun = threading.Event()

    def beside() -> None:
        try:
            begun.wait(60)
            while not is_over.is_set() and len(exports) < 4:
                place = str(tmp_path / f"e{len(exports)}")
                exports.append(export(spark, topics.bootstrap, group, place, on_progress=progress.append))
        except BaseException as error:
            problems.append(error)

    is_over = threading.Event()
    pipeline = Pipeline(
        spark,
        topics.bootstrap,
        group,
        topic,
        state=State(dir=str(tmp_path / "state")),
        max_offsets_per_batch=60,
        on_progress=lambda _: begun.set(),
    )
    pipeline.map_arrow(numbers, "name string, n long, at timestamp")
    pipeline.aggregate("name", {"n": "count(*)", "total": "sum(n)"}, store="totals")
    pipeline.write(KafkaSink(topics.bootstrap, out))
    thread = threading.Thread(target=beside)
    thread.start()
    try:
        pipeline.run(available_now=True)
    finally:
        is_over.set()
        begun.set()
        thread.join()
    assert not problems
    assert exports
    for found in exports:
        assert {row["name"]: (row["n"], row["total"]) for row in rows(found, "totals")} == totals_of(
            below(found, topic, sent)
        )
    assert progress[-1].done == progress[-1].partitions == 3


PAGE = Path(__file__).parents[2] / "docs" / "state" / "save.md"


@pytest.mark.spark
@pytest.mark.gate
def test_the_page_and_the_command_do_what_they_say(
    spark: SparkSession, topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    topic, out = topics.create(2), topics.create(1)
    send(topics, topic, 2, range(40))
    group = f"totals-{uuid.uuid4().hex[:8]}"
    pipeline = Pipeline(spark, topics.bootstrap, group, topic, state=State(dir=str(tmp_path / "state")))
    pipeline.map_arrow(sales, "shop string, price long")
    pipeline.aggregate("shop", {"orders": "count(*)", "revenue": "sum(price)"}, store="totals")
    pipeline.write(KafkaSink(topics.bootstrap, out)).run(available_now=True)
    exported, imported, seeded, read = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    places = {'"127.0.0.1:9092"': repr(topics.bootstrap), '"totals",': f"{group!r},", "/backup": str(tmp_path)}

    def on_this_machine(code: str) -> str:
        return functools.reduce(lambda text, place: text.replace(*place), places.items(), code)

    monkeypatch.chdir(tmp_path)
    names = {"pipeline": pipeline, "datetime": datetime, "UTC": UTC}
    namespace: dict[str, Any] = {"spark": spark, **names}
    before, _, rest = exported.partition("found.dataframe")
    exec(on_this_machine(before) + "found.dataframe" + rest.replace("/backup", str(tmp_path)), namespace)
    assert set(namespace["found"].manifest.offsets.values()) == set(topics.committed(group).values())
    exec(read.replace("duckdb.sql", "found = duckdb.sql").replace("/backup", str(tmp_path)), namespace)
    exec(
        on_this_machine(imported.replace('"totals-next"', f"'{group}-next'")).replace("/backup", str(tmp_path)),
        namespace,
    )
    assert topics.committed(f"{group}-next") == topics.committed(group)
    spark.read.parquet(str(tmp_path / "totals-1" / "stores" / "totals" / "entries")).createOrReplaceTempView("totals")
    seeding = on_this_machine(seeded.replace('"totals",\n    pipeline', f"'{group}-seeded',\n    pipeline"))
    exec(seeding.replace('"orders"', repr(topic)), namespace)
    assert set(topics.committed(f"{group}-seeded")) == set(topics.committed(group))
    best = max(sum(n for n in range(40) if n % 11 == name) * 2 for name in range(11))
    assert namespace["found"].limit(1).fetchall()[0][1] == best
    monkeypatch.setattr("roster.spark.session", no_spark, raising=False)
    arguments = ["state", "export", group, "-b", topics.bootstrap, "--to", str(tmp_path / "cli")]
    capsys.readouterr()
    assert run([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(part["store"], part["part"], part["rows"]) for part in told["parts"]] == [("totals", "entries", 11)]
    assert run(arguments) == 2
    assert "error: to: " in (error := capsys.readouterr().err)
    assert "cli is not empty" in error
    assert run(["state", "export", "nobody", *arguments[3:-1], str(tmp_path / "none")]) == 2
    assert "the group 'nobody' has no changelogs" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    alone = _Exporter._run_alone

    def beside(self: _Exporter, admin: Admin) -> Export:
        with pytest.raises(PipelineError, match=r"^to: another export works in .*both\. Wait until it has ended, or"):
            export(no_spark, topics.bootstrap, group, str(tmp_path / "both"))
        return alone(self, admin)

    # As a killed export leaves it: no process has the claim.
    for left in (".exporting", "stores/gone/0.parquet", "manifest.json.tmp"):
        (tmp_path / "both" / left).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "both" / left).write_bytes(b"half")
    (tmp_path / "both" / "other.txt").touch()
    with pytest.raises(PipelineError, match=r"both is not empty"):
        export(no_spark, topics.bootstrap, group, str(tmp_path / "both"))
    (tmp_path / "both" / "other.txt").unlink()
    assert len(Folder(str(tmp_path / "both")).names()) == 3, "nothing is deleted from a folder that has more"
    monkeypatch.setattr(_Exporter, "_run_alone", beside)
    both = export(no_spark, topics.bootstrap, group, str(tmp_path / "both"))
    assert both.folder.names() == sorted(["manifest.json", *(file.path for file in both.manifest.written)])


def noted(store: str, inputs: dict[str, int], stores: list[str]) -> Noted:
    return Noted(Definition({"operator": store}).among(0, stores), inputs)


def test_a_store_whose_operator_is_gone_is_left_out_and_one_that_is_behind_is_not() -> None:
    cut = Cut({TopicPartition("in", number): 7 for number in range(2)}, {})
    both, one = ["a", "b"], ["b"]
    notes = {
        "a": {0: noted("a", {"in": 5}, both), 1: noted("a", {"in": 7}, both)},
        "b": {0: noted("b", {"in": 7}, one), 1: noted("b", {"in": 7}, both)},
    }
    assert _stores_in_use(notes, cut) == {"b"}
    other = {0: noted("b", {"in": 7}, one), 1: noted("b", {"in": 3}, one)}
    assert _stores_in_use({**notes, "x-b": other}, cut) == {"b"}, "of a group whose name goes on with x"
    notes["b"][0] = noted("b", {"in": 7}, both)
    with pytest.raises(_MovedError, match=r"state of 'a', partition 0, is that of \{'in': 5\}, and the group has"):
        _stores_in_use(notes, cut)
    assert _stores_in_use({}, cut) == set()


def test_a_manifest_keeps_what_each_task_says_of_itself(tmp_path: Path) -> None:
    old, new = (noted("a", {"in": 7}, stores) for stores in (["a", "b"], ["a"]))
    notes = {0: old, 2: replace(new, releases=("x", "y"))}
    marks = {0: {b"\xffstream time": (10**15).to_bytes(8, "little")}, 2: {b"\xff~variables": b"{}"}}
    store = SavedStore("g-a-changelog", 3, notes, marks=marks, ends={0: 5, 1: 0, 2: 9})
    manifest = Manifest("g", None, "2026-11-24T03:00:00.125+00:00", {"a": store}, {TopicPartition("in", 0): 7})
    folder = Folder(str(tmp_path / "e"))
    folder.write("manifest.json", manifest.encode())
    found = Export.open(str(tmp_path / "e")).manifest
    assert replace(found, stores={}) == replace(manifest, stores={})
    read = found.stores["a"]
    assert (read.notes, read.ends) == (store.notes, store.ends)
    assert read.marks == {**marks, 1: {}}
    assert read.definition == new.definition
    assert json.loads(manifest.encode())["stores"]["a"]["tasks"]["0"]["times"] == {
        "stream time": "2001-09-09T01:46:40+00:00"
    }


@pytest.mark.process
@pytest.mark.gate
def test_an_object_store_takes_the_files_of_an_export(s3: Server) -> None:
    where = f"endpoint_override={s3.endpoint.removeprefix('http://')}&scheme=http&region={s3.region}"
    folder = Folder(f"s3://{s3.key}:{s3.secret}@tables/exports/one?{where}")
    assert folder.names() == []
    assert (folder.shown, folder.uri) == ("s3://tables/exports/one", "s3a://tables/exports/one")
    table = pa.table({"n": [1, 2, 3]})
    written = folder.write_table("stores/a/0.parquet", [table], table.schema)
    manifest = Manifest("g", None, "2026-11-24T03:00:00.125+00:00", {}, {TopicPartition("in", 0): 7})
    folder.write("manifest.json", manifest.encode())
    assert folder.names() == ["manifest.json", "stores/a/0.parquet"]
    assert (folder.size("stores/a/0.parquet"), folder.size("none")) == (written.bytes, None)
    assert pickle.loads(pickle.dumps(folder)).read_table(written) == table
    assert Export.open(folder.place).manifest == manifest
    exports = Folder(folder.place.replace("/one?", "?"))
    for name in ("20261124T025959Z", "20261124T020000Z"):
        exports.below(name).write_table("stores/a/0.parquet", [table], table.schema)
    exports.below("20261124T025959Z").write("manifest.json", manifest.encode())
    assert exports.folders() == ["20261124T020000Z", "20261124T025959Z", "one"]
    assert Export.open(exports.place, datetime(2026, 11, 24, 3, 0, 1))  # noqa: DTZ001 - UTC then.manifest == manifest
    with pytest.raises(FolderError, match=r"s3://tables/exports has no export before 2026-11-24T03:00:00\+00:00"):
        Export.open(exports.place, datetime(2026, 11, 24, 3, tzinfo=UTC))
    folder.remove(folder.names())
    assert folder.names() == []


def test_a_file_that_was_changed_or_is_gone_is_no_part_of_an_export(tmp_path: Path) -> None:
    folder = Folder((tmp_path / "a b" / "é").as_uri())
    table = pa.table({"n": [1, 2, 3]})
    written = folder.write_table("x/y.parquet", [table, table], table.schema)
    assert written.rows == 6
    assert folder.read_table(written) == pa.concat_tables([table, table]).combine_chunks()
    assert folder.names() == ["x/y.parquet"]
    path = tmp_path / "a b" / "é" / "x" / "y.parquet"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    with pytest.raises(FolderError, match=r"x/y.parquet is not the file that was written: its checksum differs"):
        folder.read_table(written)
    folder.remove(["x/y.parquet"])
    assert not (tmp_path / "a b" / "é" / "x").exists()
    with pytest.raises(FolderError, match=r"y\.parquet"):
        folder.read_table(written)
    with pytest.raises(FolderError, match=r"has no manifest\.json: not an export, or an unfinished one"):
        Export.open(folder.place)


def test_an_export_begins_anew_where_compaction_has_taken_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = TopicPartition("g-s-changelog", 0)
    span = LogSpan(Split(*at, 0, 5), "s", "stores/s", "0")
    config = ReaderConfig(bootstrap="127.0.0.1:1", group="g", isolation_level="read_committed")
    said = Noted(Definition.of({"operator": "deduplicate"}, pa.schema([("k", pa.string())]), None), {"in": 3})
    left = {"key": [b"k"], "value": [b"v"]}, {"key": [STATE_KEY], "value": [said.encode()]}
    for records, is_lost in (((), False), (left[:1], True), (left[1:], False)):
        batches = [pa.RecordBatch.from_pydict(each) for each in records]
        monkeypatch.setattr("roster.saved.tasks.export.read_splits", lambda *_, found=batches: iter(found))
        (exported,) = ExportTask(config, [span], Folder(str(tmp_path)))([0])
        assert exported.is_lost is is_lost
        assert exported.records == (0 if is_lost else len(records))
        moved = _Ends({at: 9})
        if not records:
            with pytest.raises(_MovedError, match=r"g-s-changelog-0 has no record up to offset 5, and goes on up to 9"):
                _check_silent(moved, [exported], Cut({}, {at: 5}))
            moved = _Ends({at: 5})
        _check_silent(moved, [exported], Cut({}, {at: 5}))


def test_an_export_holds_few_of_the_bytes_that_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of a repartition topic are written as they come, and values that later ones replace are dropped."""
    size, most = 1 << 20, list[int]()

    def read(*_: object) -> Iterator[pa.RecordBatch]:
        for number in range(40):
            batch = pa.record_batch([[b"k"], [bytes([number]) * size], [number]], _READ)
            yield batch
            del batch
            most.append(pa.total_allocated_bytes() - before)

    monkeypatch.setattr("roster.saved.tasks.export.read_splits", read)
    monkeypatch.setattr("roster.saved.tasks.export._LEAST_BYTES", 3 * size)
    config = ReaderConfig(bootstrap="127.0.0.1:1", group="g", isolation_level="read_committed")
    split = Split("g-by-k-repartition", 0, 0, 40)
    before = pa.total_allocated_bytes()
    (passing,) = ExportTask(config, [LogSpan(split, None, "repartition/t", "0")], Folder(str(tmp_path)))([0])
    assert (passing.records, passing.files["records"].rows) == (40, 40)
    assert max(most) < 8 * size
    most.clear()
    before = pa.total_allocated_bytes()
    (store,) = ExportTask(config, [LogSpan(split, "s", "stores/s", "0")], Folder(str(tmp_path)))([0])
    assert store.is_lost, "there is no definition"
    assert len(most) == 40
    assert max(most) < 12 * size


_READ = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("timestamp", pa.timestamp("us", "UTC"))])


class _Ends:
    def __init__(self, ends: dict[TopicPartition, int]) -> None:
        self.ends = ends

    def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {each: self.ends[each] for each in partitions}
