"""Delta and Iceberg tables that others have made: what they ask of a writer is done, or refused before the first batch.

The tables are made by deltalake, pyiceberg and logs written by hand; their own libraries and polars read them.
"""

from __future__ import annotations

import datetime
import json
import random
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from deltalake.transaction import AddAction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import ListType, LongType, NestedField, StringType, StructType
from pyspark.sql import types as T

from roster.pipeline.batch_sink import Source
from roster.pipeline.errors import RefusedRowsError
from roster.pipeline.spark_schemas import arrow_schema
from roster.sinks.positions import PositionedSink
from roster.spark import PipelineError, SinkFencedError
from tests.examples_tried import examples
from tests.sinks.table_places import T0, DeltaPlace, IcebergPlace, batch, opened
from tests.sinks.table_worker import GROUP

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)

ROWS = T.StructType([T.StructField("id", T.LongType()), T.StructField("name", T.StringType())])
Row = dict[str, Any]


def field(name: str, kind: Any, *, nullable: bool = True, **metadata: Any) -> Row:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": metadata}


ID, NAME = field("id", "long"), field("name", "string")


def protocol(reader: int, writer: int, *features: str, read: tuple[str, ...] = ()) -> Row:
    """A table's protocol; `features` for writers, `read` for readers too."""
    made: Row = {"minReaderVersion": reader, "minWriterVersion": writer}
    made |= {"writerFeatures": [*features, *read]} if writer == 7 else {}
    return made | ({"readerFeatures": [*read]} if reader == 3 else {})


def logged(
    folder: Path, fields: list[Row], of: Row, configuration: dict[str, str] | None = None, parts: tuple[str, ...] = ()
) -> DeltaPlace:
    """A Delta table whose log is written by hand."""
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "partitionColumns": [*parts],
        "createdTime": 1_700_000_000_000,
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "configuration": configuration or {},
    }
    log = folder / "table" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text(f"{json.dumps({'protocol': of})}\n{json.dumps({'metaData': metadata})}\n")
    return DeltaPlace(str(folder))


def written(sink: PositionedSink, columns: T.StructType, rows: list[Row], at: int = 0) -> None:
    """Write and commit a batch of one task, in two pieces."""
    of = batch({T0: (at, at + 1)})
    writer: Any = sink.task_writer(of, columns)
    output = writer.open()
    table = pa.Table.from_pylist(rows, arrow_schema(columns))
    for part in table.to_batches(max_chunksize=max(len(rows) // 2, 1)):
        output.write(part)
    sink.commit(sink.collect(writer, [output.close()], of), of)


def set_aside(sink: PositionedSink, columns: T.StructType, rows: list[Row], at: int = 0) -> dict[int, str]:
    """Write a batch with a topic for dead letters; return why which rows are refused, the others being there."""
    sink.bind(Source("b:1", GROUP, dead_letters=""))
    try:
        written(sink, columns, rows, at)
    except RefusedRowsError as error:
        refused = dict(error.rows[0])
        written(sink, columns, [row for number, row in enumerate(rows) if number not in refused], at)
        return refused
    return {}


@pytest.mark.parametrize(
    ("of", "configuration", "fields", "mode", "problem"),
    [
        (protocol(2, 5), {"delta.columnMapping.mode": "name"}, None, "append", "column mapping"),
        (protocol(2, 5), {"delta.columnMapping.mode": "id"}, None, "upsert", "column mapping"),
        (protocol(3, 7, read=("columnMapping",)), {"delta.columnMapping.mode": "name"}, None, "append", "column map"),
        *[
            (protocol(1, 7, feature), {}, None, "append", f"deltalake cannot write to the table: Unsupported.*{told}")
            for feature, told in {
                "clustering": "ClusteredTable",
                "rowTracking": "RowTracking",
                "inCommitTimestamp": "InCommitTimestamp",
                "identityColumns": "IdentityColumns",
                "icebergCompatV2": "IcebergCompatV2",
                "allowColumnDefaults": "AllowColumnDefaults",
                "featureOfTomorrow": "featureOfTomorrow",
            }.items()
        ],
        (protocol(3, 7, read=("typeWidening",)), {}, None, "append", "Unsupported.*TypeWidening"),
        (protocol(1, 6), {}, None, "append", "Unsupported.*IdentityColumns"),
        (protocol(1, 8), {}, None, "append", "deltalake cannot write to the table"),
        (protocol(1, 4), {"delta.enableChangeDataFeed": "true"}, None, "upsert", "has a feed"),
        (protocol(1, 2), {"delta.appendOnly": "TRUE"}, None, "upsert", "is appended to only"),
        (protocol(3, 7, read=("deletionVectors",)), {}, None, "upsert", "deletionVectors"),
        (protocol(1, 3), {"delta.constraints.c": "nosuch(name)"}, None, "append", "cannot be checked: .*nosuch"),
        (protocol(1, 3), {"delta.constraints.c": "id / 2 > 0"}, None, "append", "divides whole numbers otherwise"),
        (
            protocol(1, 4),
            {},
            [ID, NAME, field("up", "string", **{"delta.generationExpression": "upper(name)"})],
            "append",
            "`up` is computed by its writers",
        ),
        (
            protocol(1, 2),
            {},
            [ID, NAME, field("s", "string", __CHAR_VARCHAR_TYPE_STRING="array<char(3)>")],
            "append",
            r"array<char\(3\)>",
        ),
        (protocol(1, 2), {}, [ID, NAME, field("more", "long", nullable=False)], "append", "differ in more"),
        (protocol(1, 2), {}, [ID, field("nmae", "string")], "append", "differ in name, nmae"),
    ],
)
def test_what_a_delta_table_asks_and_is_not_done_is_refused_before_the_first_batch(
    tmp_path: Path, of: Row, configuration: dict[str, str], fields: list[Row] | None, mode: str, problem: str
) -> None:
    keys = {"roster.keys": '["id"]'} if mode == "upsert" else {}
    if "delta.columnMapping.mode" in configuration:
        mapped = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"}
        fields = [field("id", "long", **mapped), field("name", "string", **mapped)]
        fields[1]["metadata"] = {"delta.columnMapping.id": 2, "delta.columnMapping.physicalName": "col-2"}
        configuration = configuration | {"delta.columnMapping.maxColumnId": "2"}
    place = logged(tmp_path, fields or [ID, NAME], of, configuration | keys)
    sink = opened(place.sink(mode=mode, keys=["id"] if keys else []), T0)
    with pytest.raises(PipelineError, match=problem) as refused:
        sink.task_writer(None, ROWS)
    assert "\n" not in str(refused.value)
    assert not list((tmp_path / "table").glob("*.parquet"))


@pytest.mark.parametrize(
    "of",
    [
        protocol(1, 7),
        protocol(2, 5),
        protocol(3, 7, "appendOnly", "changeDataFeed", read=("deletionVectors", "columnMapping", "v2Checkpoint")),
    ],
)
def test_what_a_delta_table_may_have_and_does_not_use_is_no_reason(tmp_path: Path, of: Row) -> None:
    place = logged(tmp_path, [ID, NAME], of, {"delta.appendOnly": "true"})
    written(opened(place.sink(), T0), ROWS, [{"id": 1, "name": "a"}])
    found = QueryBuilder().register("t", place.table()).execute("select id, name from t").read_all()
    assert pa.table(found).to_pylist() == [{"id": 1, "name": "a"}]


INVARIANT = {"delta.invariants": json.dumps({"expression": {"expression": "id > 0"}})}
GENERATED = {"delta.generationExpression": "CAST(id AS STRING)"}
BAD = [{"id": 1, "name": "1"}, {"id": -5, "name": "b"}, {"id": None, "name": None}, {"id": 7, "name": "7"}]


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize(
    ("fields", "of", "configuration", "bad"),
    [
        ([field("id", "long", nullable=False), NAME], protocol(1, 2), {}, [2]),
        ([ID, NAME], protocol(1, 3), {"delta.constraints.positive": "id > 0"}, [1, 2]),
        ([ID, NAME], protocol(1, 7), {"delta.constraints.positive": "id > 0"}, [1, 2]),
        ([field("id", "long", **INVARIANT), NAME], protocol(1, 2), {}, [1, 2]),
        ([ID, field("name", "string", **GENERATED)], protocol(1, 4), {}, [1]),
        ([ID, field("name", "string", __CHAR_VARCHAR_TYPE_STRING="varchar(0)")], protocol(1, 2), {}, [0, 1, 3]),
        ([ID, field("name", "string", __CHAR_VARCHAR_TYPE_STRING="char(1)")], protocol(1, 2), {}, []),
    ],
)
def test_rows_that_break_a_rule_of_a_delta_table_are_refused_one_by_one(
    tmp_path: Path, mode: str, fields: list[Row], of: Row, configuration: dict[str, str], bad: list[int]
) -> None:
    keys = ["id"] if mode == "upsert" else []
    configuration = configuration | ({"roster.keys": '["id"]'} if keys else {})
    place = logged(tmp_path, fields, of, configuration)
    if bad:
        with pytest.raises(PipelineError, match=r"refuses a row of t-0 0-0: .*dead_letter_topic takes") as refused:
            written(opened(place.sink(mode=mode, keys=keys), T0), ROWS, BAD)
        assert not isinstance(refused.value, RefusedRowsError)
        assert place.arrow().num_rows == 0
        assert not list((tmp_path / "table").rglob("*.parquet"))
    assert [*set_aside(opened(place.sink(mode=mode, keys=keys), T0), ROWS, BAD)] == bad
    left = [row for number, row in enumerate(BAD) if number not in bad]
    assert sorted(place.arrow().to_pylist(), key=repr) == sorted(left, key=repr)


NESTED = T.StructType(
    [
        T.StructField("s", T.StructType([T.StructField("a", T.LongType()), T.StructField("b", T.LongType())])),
        T.StructField("l", T.ArrayType(T.LongType())),
        T.StructField("m", T.MapType(T.StringType(), T.LongType())),
    ]
)


def test_nulls_within_values_are_refused_where_the_table_has_none(tmp_path: Path) -> None:
    inner = {"type": "struct", "fields": [field("a", "long", nullable=False), field("b", "long")]}
    several = {"type": "array", "elementType": "long", "containsNull": False}
    pairs = {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": False}
    place = logged(tmp_path, [field("s", inner), field("l", several), field("m", pairs)], protocol(1, 2))
    rows: list[Row] = [
        {"s": {"a": 1, "b": None}, "l": [1, 2], "m": [("x", 1)]},
        {"s": None, "l": None, "m": None},
        {"s": {"a": None, "b": 1}, "l": [], "m": []},
        {"s": {"a": 2, "b": 1}, "l": [1, None], "m": []},
        {"s": {"a": 2, "b": 1}, "l": [3], "m": [("y", 2), ("x", None)]},
        {"s": {"a": 2, "b": 1}, "l": [3], "m": [("y", 2)]},
    ]
    assert [*set_aside(opened(place.sink(), T0), NESTED, rows)] == [2, 3, 4]
    found = pa.table(QueryBuilder().register("t", place.table()).execute("select s, l, m from t").read_all())
    assert sorted(found.to_pylist(), key=repr) == sorted([rows[0], rows[1], rows[5]], key=repr)


TEXTS = [
    *("eu", "a b", "a/b", "a%b", "a%20b", "a=b", "ü😀", "x:y", "..", "a+b", "a#b?c", "'q\"", "a\\b", "[x]{y}", "a\tb"),
    *("null", "007", "1.0", "a&b", "~x", " lead", "trail ", "%", "*", "a,b;c", "<>|", "^", "\x7f", "@$", "x" * 200),
]
PLACED = T.StructType([T.StructField("id", T.LongType()), T.StructField("p", T.StringType())])


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_polars_duckdb_and_deltalake_read_the_values_of_partitions(tmp_path: Path, mode: str) -> None:
    import duckdb
    import polars

    keys = ["p", "id"] if mode == "upsert" else []
    sink = opened(DeltaPlace(str(tmp_path)).sink(mode=mode, keys=keys, partition_by="p"), T0)
    rows: list[Row] = [{"id": number, "p": text} for number, text in enumerate([*TEXTS, None, ""])]
    odd = [{"id": 90, "p": "__HIVE_DEFAULT_PARTITION__"}, {"id": 91, "p": "ü" * 130}]
    assert [*set_aside(sink, PLACED, [odd[0], *rows, odd[1]])] == [0, len(rows) + 1]
    if keys:
        written(sink, PLACED, rows, 1)  # each file is replaced
    wanted = sorted((row["id"], row["p"] or None) for row in rows)
    place = DeltaPlace(str(tmp_path))
    assert sorted((row["id"], row["p"]) for row in place.arrow().to_pylist()) == wanted
    assert sorted(place.polars().select("id", "p").rows()) == wanted
    # DuckDB without its extension for Delta: the files of the snapshot, values from their folders.
    files = place.table().file_uris()
    read = "select id, p from read_parquet($files, hive_partitioning = true, hive_types = {'p': varchar}) order by id"
    assert duckdb.execute(read, {"files": files}).fetchall() == wanted
    scan = polars.scan_delta(f"{tmp_path}/table")
    for number in range(0, len(TEXTS), 7):
        assert scan.filter(polars.col("p") == TEXTS[number]).collect()["id"].to_list() == [number]


def test_files_whose_names_deltalake_writes_otherwise_are_not_replaced(tmp_path: Path) -> None:
    """Else the removal names another file, and rows are there twice."""
    place = logged(tmp_path, [ID, NAME], protocol(1, 2), {"roster.keys": '["id"]'})
    names = [f"a{chr(number)}b/x" for number in range(1, 127)] + ["ü", "a%2Ab"]
    table = place.table()
    table.create_write_transaction(
        [AddAction(name, 1, {}, 1, True, '{"numRecords":1}') for name in names], "append", table.schema(), []
    )
    sink: Any = opened(place.sink(mode="upsert", keys=["id"]), T0)
    paths = pa.table(place.table().get_add_actions())["path"].to_pylist()
    assert sorted(map(sink._file_name, paths)) == sorted(names)
    for path in ("a*b", "p=a%3Db/x", "%c3%bc", "file:///elsewhere/x"):
        with pytest.raises(PipelineError, match="cannot be replaced by deltalake"):
            sink._file_name(path)


def test_a_new_column_of_another_writer_is_null_in_appended_rows_and_kept_by_upserts(tmp_path: Path) -> None:
    place = DeltaPlace(str(tmp_path))
    sink = opened(place.sink(mode="upsert", keys=["id"]), T0)
    written(sink, ROWS, [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 3, "name": "c"}])
    theirs = pa.table({"id": pa.array([4], pa.int64()), "name": ["d"], "extra": pa.array([40], pa.int64())})
    write_deltalake(place.table(), theirs, mode="append", schema_mode="merge")
    place.table().update({"extra": "id * 10"})
    written(sink, ROWS, [{"id": 2, "name": "B"}, {"id": 4, "name": "D"}, {"id": 5, "name": "e"}], 1)
    found = sorted((row["id"], row["name"], row["extra"]) for row in place.arrow().to_pylist())
    assert found == [(1, "a", 10), (2, "B", 20), (3, "c", 30), (4, "D", 40), (5, "e", None)]


def test_rows_of_before_a_change_of_the_table_are_not_committed(tmp_path: Path) -> None:
    place = DeltaPlace(str(tmp_path))
    sink = opened(place.sink(), T0)
    of = batch({T0: (0, 1)})
    writer: Any = sink.task_writer(of, ROWS)
    output = writer.open()
    output.write(pa.RecordBatch.from_pylist([{"id": -1, "name": "a"}], arrow_schema(ROWS)))
    late = sink.collect(writer, [output.close()], of)
    place.table().alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(SinkFencedError, match="has changed; the batch is read again"):
        sink.commit(late, of)
    assert place.arrow().num_rows == 0
    assert [*set_aside(sink, ROWS, [{"id": -1, "name": "a"}])] == [0]


def of_pyiceberg(folder: Path, schema: Schema, **more: Any) -> IcebergPlace:
    from pyiceberg.catalog import load_catalog

    place = IcebergPlace(str(folder))
    catalog = load_catalog("default", **place.catalog)
    catalog.create_namespace("shop")
    catalog.create_table("shop.orders", schema, **more)
    return place


def test_nulls_for_required_fields_of_an_iceberg_table_are_refused(tmp_path: Path) -> None:
    inner = StructType(NestedField(5, "a", LongType(), required=True), NestedField(6, "b", LongType()))
    several = NestedField(3, "l", ListType(7, LongType(), element_required=True))
    fields = [NestedField(1, "id", LongType(), required=True), NestedField(2, "s", inner), several]
    place = of_pyiceberg(tmp_path, Schema(*fields))
    columns = T.StructType([ROWS[0], *NESTED.fields[:2]])
    rows: list[Row] = [
        {"id": 1, "s": {"a": 1, "b": None}, "l": [1]},
        {"id": None, "s": None, "l": None},
        {"id": 3, "s": {"a": None, "b": 1}, "l": []},
        {"id": 4, "s": None, "l": [None]},
        {"id": 5, "s": None, "l": None},
    ]
    with pytest.raises(PipelineError, match=r"shop\.orders refuses a row of t-0 0-0: `id` is null"):
        written(opened(place.sink(), T0), columns, rows)
    assert [*set_aside(opened(place.sink(), T0), columns, rows)] == [1, 2, 3]
    assert sorted(place.arrow().to_pylist(), key=repr) == sorted([rows[0], rows[4]], key=repr)


def test_fields_renamed_within_others_and_files_without_ids_keep_their_values(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    inner = StructType(NestedField(4, "old", LongType()), NestedField(5, "b", LongType()))
    place = of_pyiceberg(
        tmp_path,
        Schema(NestedField(1, "id", LongType()), NestedField(2, "s", inner), NestedField(3, "text", StringType())),
        properties={"roster.keys": '["id"]'},
    )
    before = pa.table({"id": [1, 2], "s": [{"old": 1, "b": 2}, {"old": 3, "b": 4}], "text": ["x", "y"]})
    pq.write_table(before, tmp_path / "strange.parquet")
    place.table().add_files([f"file://{tmp_path}/strange.parquet"])
    with place.table().update_schema() as update:
        update.rename_column("s.old", "a").rename_column("text", "name").add_column("more", LongType())
    sink = opened(place.sink(mode="upsert", keys=["id"]), T0)
    columns = T.StructType([ROWS[0], NESTED[0], ROWS[1]])
    written(sink, columns, [{"id": 2, "s": {"a": 9, "b": 9}, "name": "z"}])
    assert sorted(place.arrow().to_pylist(), key=repr) == [
        {"id": 1, "s": {"a": 1, "b": 2}, "name": "x", "more": None},
        {"id": 2, "s": {"a": 9, "b": 9}, "name": "z", "more": None},
    ]


def test_what_an_iceberg_table_asks_and_is_not_done_is_refused_before_the_first_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = StructType(NestedField(3, "a", LongType()), NestedField(4, "b", LongType()))
    spec = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "inner"))
    place = of_pyiceberg(
        tmp_path, Schema(NestedField(1, "a", LongType()), NestedField(2, "s", inner)), partition_spec=spec
    )
    columns = T.StructType([T.StructField("a", T.LongType()), NESTED[0]])
    with pytest.raises(PipelineError, match=r"partitioned by s\.a, which is not a column of its own"):
        opened(place.sink(), T0).task_writer(None, columns)
    own = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "a"))
    (tmp_path / "required").mkdir()
    by_required = of_pyiceberg(
        tmp_path / "required",
        Schema(NestedField(1, "a", LongType(), required=True), NestedField(2, "s", inner)),
        partition_spec=own,
    )
    with pytest.raises(PipelineError, match="partitioned by a, which is required"):
        opened(by_required.sink(), T0).task_writer(None, columns)
    metadata = place.table().metadata.model_copy(update={"format_version": 3})
    monkeypatch.setattr("pyiceberg.table.Table.metadata", metadata, raising=False)
    monkeypatch.setattr("pyiceberg.table.Table.format_version", 3)
    with pytest.raises(PipelineError, match="pyiceberg does not write tables of version 3"):
        opened(place.sink(), T0).task_writer(None, columns)


def test_a_partitioning_that_changes_before_the_commit_is_not_that_of_the_files(tmp_path: Path) -> None:
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id"))
    place = of_pyiceberg(
        tmp_path, Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType())), partition_spec=spec
    )
    sink = opened(place.sink(), T0)
    of = batch({T0: (0, 1)})
    writer: Any = sink.task_writer(of, ROWS)
    output = writer.open()
    output.write(pa.RecordBatch.from_pylist([{"id": 1, "name": "a"}], arrow_schema(ROWS)))
    late = sink.collect(writer, [output.close()], of)
    with place.table().update_spec() as update:
        update.remove_field("id")
        update.add_identity("name")
    place.table().append(pa.table({"id": [2], "name": ["b"]}))
    with pytest.raises(SinkFencedError, match="has changed"):
        sink.commit(late, of)
    written(sink, ROWS, [{"id": 1, "name": "a"}])
    assert place.table().scan(row_filter="name = 'a'").to_arrow().to_pylist() == [{"id": 1, "name": "a"}]


KINDS: dict[str, tuple[Any, Any, Any]] = {
    "long": (
        T.LongType(),
        LongType(),
        lambda chance: chance.choice([0, 1, -1, 2**53 + 1, -(2**63), chance.getrandbits(40)]),
    ),
    "string": (T.StringType(), StringType(), lambda chance: chance.choice([*TEXTS[:-1], "", "a", "b"])),
    "date": (
        T.DateType(),
        None,
        lambda chance: datetime.date(1, 1, 1) + datetime.timedelta(chance.randrange(3_652_059)),
    ),
    "boolean": (T.BooleanType(), None, lambda chance: chance.random() < 0.5),
}


def random_table(kind: str, folder: Path, chance: random.Random) -> tuple[Any, T.StructType, list[Row], list[int], str]:
    """A table by another program with random rules; rows for it, which of these break a rule, the partition column."""
    from pyiceberg.types import BooleanType, DateType

    icebergs = {"date": DateType(), "boolean": BooleanType(), "long": LongType(), "string": StringType()}
    names = [f"c{number}" for number in range(chance.randint(2, 5))]
    kinds = {name: chance.choice([*KINDS]) for name in names}
    kinds["c0"] = "long"
    required = {name for name in names if chance.random() < 0.3}
    part = chance.choice(names[1:]) if chance.random() < 0.5 else ""
    columns = T.StructType([T.StructField(name, KINDS[kinds[name]][0]) for name in names])
    rows = [{n: None if chance.random() < 0.1 else KINDS[kinds[n]][2](chance) for n in names} for _ in range(50)]
    limit = chance.choice([None, -5, 1])
    if kind == "iceberg":
        required -= {part}  # refused at the start
        fields = [NestedField(n + 1, c, icebergs[kinds[c]], required=c in required) for n, c in enumerate(names)]
        spec = [PartitionField(names.index(part) + 1, 1000, IdentityTransform(), part)] if part else []
        order = SortOrder(SortField(1, IdentityTransform())) if chance.random() < 0.3 else SortOrder()
        limit = None
        place: Any = of_pyiceberg(folder, Schema(*fields), partition_spec=PartitionSpec(*spec), sort_order=order)
    else:
        checks = {} if limit is None else {"delta.constraints.least": f"c0 >= {limit}"}
        fields_of_log = [field(c, kinds[c], nullable=c not in required) for c in names]
        if kind == "log":
            of = chance.choice([protocol(1, 3), protocol(2, 5), protocol(1, 7, "checkConstraints", "invariants")])
            place = logged(folder, fields_of_log, of, checks, (part,) if part else ())
        else:
            place = DeltaPlace(str(folder))
            schema = pa.schema([f.with_nullable(f.name not in required) for f in arrow_schema(columns)])
            table = DeltaTable.create(f"{place.root}/table", schema, partition_by=[part] if part else None)
            if checks:
                table.alter.add_constraint({"least": checks["delta.constraints.least"]})
    empty_is_null = {part} if kind != "iceberg" else set()
    for row in rows:
        row |= {n: None for n in empty_is_null if row.get(n) == "" and kinds[n] == "string" and chance.random() < 0.5}
    bad = [
        number
        for number, row in enumerate(rows)
        if any(row[n] is None or (n in empty_is_null and row[n] == "") for n in required)
        or (limit is not None and (row["c0"] is None or row["c0"] < limit))
    ]
    return place, columns, rows, bad, part if empty_is_null else ""


@settings(max_examples=examples(25, quick=4), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1))
@pytest.mark.parametrize("kind", ["log", "deltalake", "iceberg"])
@pytest.mark.gate
def test_no_row_of_a_random_table_is_read_otherwise_than_it_was_said(kind: str, tmp_path: Path, seed: int) -> None:
    """In tables made by others, by their own library and by polars: all rows but those that are said to be refused."""
    folder = tmp_path / uuid.uuid4().hex
    folder.mkdir()
    place, columns, rows, bad, part = random_table(kind, folder, random.Random(seed))
    assert [*set_aside(opened(place.sink(), T0), columns, rows)] == bad
    left = [row for number, row in enumerate(rows) if number not in bad]
    wanted = sorted((tuple(None if n == part and v == "" else v for n, v in row.items()) for row in left), key=repr)
    is_polars = kind != "log" or place.table().protocol().min_reader_version == 1  # it takes 2 for column mapping
    for found in (place.arrow(), *([place.polars().to_arrow()] if is_polars else [])):
        read = [tuple(row[name] for name in columns.names) for row in found.to_pylist()]
        assert sorted(read, key=repr) == wanted
    print(f"{kind}: {len(left)} rows read, {len(bad)} refused")
