"""Parquet files written inside the tasks, held against pandas-free recomputation and, where there is a JVM, Spark."""

from __future__ import annotations

import datetime
import pickle
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.pipeline.tasks.writer import ReadWriteTask, WriteTask, results_of
from roster.sinks.tasks.parquet import ParquetWriter
from roster.sinks.tasks.partitions import NULL, folder, split
from tests.examples_tried import examples

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string()), ("day", pa.date32()), ("flag", pa.bool_())])
ROWS = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.sampled_from([None, "", "a", "a/b", "ü=%"]),
        st.sampled_from([None, datetime.date(2024, 2, 29), datetime.date(1969, 1, 1)]),
        st.sampled_from([None, True, False]),
    ),
    max_size=40,
)


def batches(rows: list[tuple[Any, ...]], size: int) -> list[pa.RecordBatch]:
    return [
        pa.RecordBatch.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows[at : at + size]], SCHEMA)
        for at in range(0, len(rows), size)
    ]


@given(rows=ROWS, names=st.lists(st.sampled_from(["text", "day", "flag"]), unique=True, min_size=1))
def test_a_split_has_every_row_once_under_its_values_in_order(rows: list[tuple[Any, ...]], names: list[str]) -> None:
    numbered = [(at, *row[1:]) for at, row in enumerate(rows)]
    table = pa.Table.from_batches(batches(numbered, 1000), SCHEMA)
    wanted: dict[tuple[Any, ...], list[int]] = {}
    for row in numbered:
        wanted.setdefault(tuple(row[SCHEMA.names.index(name)] for name in names), []).append(row[0])
    found = [(values, part.column("n").to_pylist()) for values, part in split(table, names)]
    assert len(found) == len(dict(found))
    assert dict(found) == wanted
    assert all(set(part.column_names) == set(SCHEMA.names) - set(names) for _, part in split(table, names))


@settings(deadline=None, max_examples=examples(40))
@given(rows=ROWS, size=st.integers(1, 50), target=st.sampled_from([1, 1 << 30]), group=st.sampled_from([1, 1 << 30]))
def test_files_hold_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[Any, ...]], size: int, target: int, group: int
) -> None:
    root = tmp_path_factory.mktemp("out")
    writer = ParquetWriter(
        str(root), SCHEMA, ("text",), row_group_bytes=group, target_file_bytes=target, metadata={"a": "b"}
    )
    output = pickle.loads(pickle.dumps(writer)).open()
    for batch in batches(rows, size):
        output.write(batch)
    files = output.close()
    assert sorted(p.relative_to(root).as_posix() for p in root.rglob("*.parquet")) == sorted(f.name for f in files)
    found = []
    for file in files:
        table = pq.ParquetFile(root / file.name).read()
        assert (table.num_rows, (root / file.name).stat().st_size) == (file.rows, file.size)
        assert pq.read_metadata(root / file.name).metadata == {b"a": b"b"}
        value = unquote(file.name.split("/")[0].partition("=")[2])
        found += [(row["n"], None if value == NULL else value, row["day"], row["flag"]) for row in table.to_pylist()]
    assert sorted(found, key=repr) == sorted([(n, text or None, d, f) for n, text, d, f in rows], key=repr)


def test_more_partitions_than_files_may_be_open_lose_no_row(tmp_path: Path) -> None:
    rows = [(number, f"p{number % 150}", None, None) for number in range(600)]
    output = ParquetWriter(str(tmp_path), SCHEMA, ("text",), row_group_bytes=1).open()
    for batch in batches(rows, 200):
        output.write(batch)
    files = output.close()
    assert sum(file.rows for file in files) == 600
    assert sorted(n for f in files for n in pq.ParquetFile(tmp_path / f.name).read()["n"].to_pylist()) == [*range(600)]


def test_an_attempt_that_fails_leaves_no_file(tmp_path: Path) -> None:
    def failing(_: Iterable[int]) -> Iterator[pa.RecordBatch]:
        yield from batches([(1, "a", None, None), (2, "b", None, None)], 1)
        raise OSError("the broker is gone")

    task = ReadWriteTask(ParquetWriter(str(tmp_path), SCHEMA, ("text",), row_group_bytes=1), failing)
    with pytest.raises(OSError, match="the broker is gone"):
        list(task([0]))
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_task_returns_its_files_in_one_row(tmp_path: Path) -> None:
    rows = batches([(1, "a", None, None), (2, "b", None, None)], 1)
    (result,) = WriteTask(ParquetWriter(str(tmp_path), SCHEMA))(iter(rows))

    row = SimpleNamespace(result=result.column("result")[0].as_py())
    ((file,),) = results_of([row])
    assert pq.ParquetFile(tmp_path / file.name).read() == pa.Table.from_batches(rows)


def test_a_task_that_reads_too_returns_its_files(tmp_path: Path) -> None:
    rows = batches([(1, "a", None, None), (2, "b", None, None)], 1)
    asked: list[int] = []

    def read(numbers: Iterable[int]) -> Iterator[pa.RecordBatch]:
        asked.extend(numbers)
        yield from rows

    (files,) = ReadWriteTask(ParquetWriter(str(tmp_path), SCHEMA), read)([3])
    assert asked == [3]
    assert pq.ParquetFile(tmp_path / files[0].name).read() == pa.Table.from_batches(rows)


def test_columns_of_nulls_and_large_types_become_the_declared_ones(tmp_path: Path) -> None:
    output = ParquetWriter(str(tmp_path), SCHEMA).open()
    output.write(
        pa.record_batch(
            [pa.array([1], pa.int64()), pa.array(["a"], pa.large_string()), pa.nulls(1), pa.array([True])],
            names=SCHEMA.names,
        )
    )
    (file,) = output.close()
    table = pq.ParquetFile(tmp_path / file.name).read()
    assert table.schema.types == SCHEMA.types
    assert table.to_pylist() == [{"n": 1, "text": "a", "day": None, "flag": True}]


@pytest.mark.spark
def test_folders_are_named_as_sparks(spark: Any) -> None:
    escape = spark._jvm.org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils.escapePathName
    for text in [*map(chr, range(1, 300)), "€", "a b", "%41"]:
        assert folder(["c"], [text]) == f"c={escape(text)}"
    assert folder(["a", "b", "c"], [None, "", datetime.date(2024, 1, 2)]) == f"a={NULL}/b={NULL}/c=2024-01-02"
