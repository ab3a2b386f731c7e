"""Tables with one row a key: `python -m benchmarks upserts`. A million updates of 100,000 keys, in 200 batches.

One process, one local disk; CPU time of the process, with the threads of pyarrow and deltalake. Keys have 16 bytes and
come in random order. `append` and `upsert` are the sink's modes, `merge` is deltalake's MERGE of the same batches.
Reading is DuckDB's: the number of keys and the sum of their latest values, checked against a dictionary. On disk are
also files that were replaced, which the sink deletes after an hour.

    python -m benchmarks.upserts [--updates 1000000] [--keys 100000] [--batches 200] [--kills 5]

With kills, a process that upserts is killed (SIGKILL) so many times instead, each time at a random moment of a random
batch, and the table is compared with the dictionary after each.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.sql.types import LongType, StringType, StructField, StructType

from roster.model import TopicPartition
from roster.spark import Batch, DeltaSink, IcebergSink, Owner, Range
from roster.spark.sinks.table import TableSink

COLUMNS = StructType([StructField("key", StringType()), StructField("n", LongType()), StructField("total", LongType())])
KINDS = ("delta append", "delta upsert", "delta merge", "iceberg append", "iceberg upsert")
SOURCE = TopicPartition("t", 0)
LATEST = "select count(*), sum(n) from (select key, max(n) as n from rows group by key)"
PLAIN = "select count(*), sum(n) from rows"


def batches(updates: int, keys: int, count: int) -> Iterator[pa.RecordBatch]:
    """The updates, of which `n` is the offset."""
    chosen = np.random.default_rng(1).integers(0, keys, updates)
    for start in range(0, updates, updates // count):
        part = chosen[start : start + updates // count]
        n = np.arange(start, start + len(part))
        names = [f"{number * 2654435761 % 2**64:016x}" for number in part.tolist()]
        yield pa.RecordBatch.from_pydict({"key": names, "n": n, "total": n * 7})


def through_sink(sink: TableSink, updates: Iterator[pa.RecordBatch]) -> Iterator[None]:
    """Write the batches that are not in the table."""
    owner, at = Owner("g", 1, "m"), 0
    sink.open(None, "g")  # type: ignore[arg-type]
    begin = sink.claim([SOURCE], owner, {}).get(SOURCE, 0)
    for rows in updates:
        if at < begin:
            at += rows.num_rows
            continue
        each = Batch(0, owner, {SOURCE: Range(at, at + rows.num_rows)})
        writer = sink.task_writer(each, COLUMNS)
        output = writer.open()
        output.write(rows)
        sink.commit(sink.collect(writer, [output.close()], each), each)
        at += rows.num_rows
        yield


def through_merge(path: str, updates: Iterator[pa.RecordBatch]) -> Iterator[None]:
    table: DeltaTable | None = None
    for rows in updates:
        last = pa.table(rows).group_by("key").aggregate([("n", "max"), ("total", "max")])
        last = last.rename_columns(["key", "n", "total"])
        if table is None:
            table = DeltaTable.create(path, last.schema)
        merge = table.merge(last, "old.key = new.key", source_alias="new", target_alias="old")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
        yield


def delta_rows(path: str) -> Any:
    return DeltaTable(path).to_pyarrow_dataset()


def iceberg(folder: str, mode: str) -> tuple[TableSink, Callable[[], Any]]:
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    keys = ["key"] if mode == "upsert" else []
    sink = IcebergSink("bench.rows", catalog, mode=mode, keys=keys)
    return sink, lambda: load_catalog("default", **catalog).load_table("bench.rows").scan().to_arrow()


def measured(name: str, folder: str, work: Iterator[None], rows: Callable[[], Any], query: str) -> tuple[int, int]:
    took, begin, cpu = [], time.perf_counter(), time.process_time()
    for _ in work:
        took.append(time.perf_counter() - begin)
        begin = time.perf_counter()
    cpu = time.process_time() - cpu
    sizes = [path.stat().st_size for path in Path(folder).rglob("*.parquet")]
    begin_reading = time.process_time()
    connection = duckdb.connect()
    connection.register("rows", rows())
    found = connection.execute(query).fetchone()
    reading = time.process_time() - begin_reading
    assert found is not None
    last = 1000 * statistics.median(took[-20:])
    print(
        f"{name:16} {cpu:9.1f} {1000 * statistics.median(took):9.0f} {last:9.0f} {1000 * reading:9.0f}"
        f" {len(sizes):7,} {sum(sizes) / 1e6:9.1f}",
        flush=True,
    )
    return int(found[0]), int(found[1])


def compare(updates: int, keys: int, count: int, kinds: Sequence[str] = KINDS) -> None:
    latest: dict[str, int] = {}
    for rows in batches(updates, keys, count):
        latest.update(zip(rows["key"].to_pylist(), rows["n"].to_pylist(), strict=True))
    wanted = len(latest), sum(latest.values())
    print(f"{updates:,} updates of {len(latest):,} keys in {count} batches")
    print("                   CPU s  batch ms   last 20   read ms   files   MB on disk")
    for kind in kinds:
        of, mode = kind.split()
        given = batches(updates, keys, count)
        with tempfile.TemporaryDirectory() as folder:
            if of == "iceberg":
                sink, rows = iceberg(folder, mode)
                work = through_sink(sink, given)
            else:
                sink = (
                    DeltaSink(folder, mode=mode, keys=["key"] if mode == "upsert" else []) if mode != "merge" else None
                )
                work = through_merge(folder, given) if sink is None else through_sink(sink, given)
                rows = lambda folder=folder: delta_rows(folder)  # noqa: E731
            found = measured(kind, folder, work, rows, LATEST if mode == "append" else PLAIN)
        assert found == wanted, f"{kind}: {found} is not {wanted}"


def upsert(folder: str, updates: int, keys: int, count: int, done: Any) -> None:
    for _ in through_sink(DeltaSink(folder, mode="upsert", keys=["key"]), batches(updates, keys, count)):
        done.value += 1


def killed(updates: int, keys: int, count: int, kills: int) -> None:
    chance, context = random.Random(kills), multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        for number in range(kills + 1):
            done = context.Value("q", 0, lock=False)
            process = context.Process(target=upsert, args=(folder, updates, keys, count, done))
            process.start()
            if number < kills:
                until = chance.randint(1, count // (kills + 1))
                while done.value < until and process.is_alive():
                    time.sleep(0.01)
                process.join(chance.uniform(0, 0.3))
                process.kill()
            process.join()
            sink = DeltaSink(folder, mode="upsert", keys=["key"])
            at = sink.positions("g", [SOURCE]).get(SOURCE, 0)
            latest: dict[str, int] = {}
            for rows in itertools.islice(batches(updates, keys, count), at // (updates // count)):
                latest.update(zip(rows["key"].to_pylist(), rows["n"].to_pylist(), strict=True))
            found = delta_rows(folder).to_table(columns=["key", "n"]) if at else None
            there = {} if found is None else dict(zip(found["key"].to_pylist(), found["n"].to_pylist(), strict=True))
            assert there == latest, f"after {number} kills, at {at}"
            assert found is None or len(found) == len(there)
            print(f"{min(number + 1, kills)} kills, at {at:,} updates: {len(there):,} rows, equal", flush=True)


def run(*, quick: bool = False) -> None:
    compare(*((100_000, 10_000, 20) if quick else (1_000_000, 100_000, 200)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--kills", type=int, default=0)
    options = parser.parse_args()
    if options.kills:
        killed(options.updates, options.keys, options.batches, options.kills)
    else:
        compare(options.updates, options.keys, options.batches)
