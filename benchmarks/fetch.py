"""Reading into Arrow, without Spark: `python -m benchmarks fetch`.

CPU time of this process, medians. `parse`: one response of 4 MB in memory to record batches, by the compiled loops, by
`read_batch` with Python lists, and by aiokafka's parser in C with Python lists. `read`: a topic of a Roster broker in
another process to record batches, over own connections and by librdkafka's consumer. `start`: what a fresh worker pays
for the loops: by llvmlite from an object file, by numba from its own cache.
"""

from __future__ import annotations

import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from aiokafka.record.memory_records import MemoryRecords

from benchmarks.pipeline import PARTITIONS, fill
from roster.client import Admin
from roster.model import TopicPartition
from roster.pipeline.batch import Split
from roster.pipeline.tasks.reader import ReaderConfig, read_splits
from roster.records.native import kernel
from roster.testing.broker import BrokerProcess
from roster.wire.columns.reader import Part, RecordColumns, scan
from roster.wire.compression import Compression
from roster.wire.records import Record, build_batch, read_batch, split_batches
from tests.records.librdkafka_reader import consumed

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 7
TOTAL = 36_000

LLVMLITE = "from roster.records.native import kernel; kernel()"
NUMBA = """
import numpy as np
from numba import njit, types
from roster.wire.columns import decode_kernel, decode_layout
for name, parameters in decode_layout.SIGNATURES.items():
    of = lambda kind: types.int64 if kind == '-' else types.CPointer(getattr(types, kind))
    kinds = [of(kind) for kind in parameters.split()]
    njit(types.int64(*kinds), cache=True, error_model="numpy")(getattr(decode_kernel, name).py_func)
"""


def median(function: Callable[[], object]) -> float:
    """Seconds of CPU of one call."""
    function()
    rounds = []
    for _ in range(ROUNDS):
        start = time.process_time()
        function()
        rounds.append(time.process_time() - start)
    return statistics.median(rounds)


def compiled(data: bytes) -> int:
    loops, pages = kernel(), np.frombuffer(data, np.uint8)
    table = scan(loops, pages, [Part(0, len(data), 0, TOTAL)]).table
    return sum(batch.num_rows for batch in RecordColumns(loops, [("t", 0)]).batches(pages, table))


def in_python(data: bytes) -> int:
    return columns([record for _, batch in split_batches(data) for record in read_batch(batch)])


def by_aiokafka(data: bytes) -> int:
    records, found = MemoryRecords(data), []
    while records.has_next():
        batch = records.next_batch()
        assert batch.validate_crc()
        found += list(batch)
    return columns(found)


def columns(records: list[Any]) -> int:
    names = {"key": pa.binary(), "value": pa.binary(), "offset": pa.int64(), "timestamp": pa.int64()}
    arrays = [pa.array([getattr(record, name) for record in records], kind) for name, kind in names.items()]
    return pa.RecordBatch.from_arrays(arrays, names=list(names)).num_rows


def parse(sizes: tuple[tuple[int, Compression], ...]) -> None:
    print(f"{'parse: M records/s of CPU':<34}{'roster':>9}{'read_batch':>12}{'aiokafka':>10}{'ratio':>8}")
    rng = np.random.default_rng(0)
    for per_batch, compression in sizes:
        values = [bytes(rng.integers(97, 105, 100, dtype=np.uint8)) for _ in range(per_batch)]
        records = [Record(key=b"key%05d" % n, value=v, timestamp=1_700_000_000_000 + n) for n, v in enumerate(values)]
        total = TOTAL // per_batch * per_batch
        data = b"".join(
            build_batch(records, base_offset=at, compression=compression) for at in range(0, total, per_batch)
        )
        assert compiled(data) == in_python(data) == by_aiokafka(data) == total
        functions = [functools.partial(function, data) for function in (compiled, in_python, by_aiokafka)]
        ours, python, theirs = (total / median(function) / 1e6 for function in functions)
        name = f"{per_batch} records a batch, {compression.name.lower()}"
        print(f"{name:<34}{ours:>9.2f}{python:>12.3f}{theirs:>10.2f}{ours / max(python, theirs):>8.1f}")


def read(records: int) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        BrokerProcess(Path(folder) / "data", "--log-level", "error") as broker,
    ):
        topic = fill(broker.bootstrap, records)
        with Admin(broker.bootstrap) as admin:
            ends = admin.end_offsets([TopicPartition(topic, number) for number in range(PARTITIONS)])
        splits = [Split(topic, p.partition, 0, end) for p, end in ends.items()]
        config = ReaderConfig(broker.bootstrap, "bench")
        took = {}
        theirs = functools.partial(consumed, broker.bootstrap, splits, headers=False)
        for name, function in (("roster", functools.partial(read_splits, config, splits)), ("librdkafka", theirs)):
            began = time.perf_counter()
            cpu = median(lambda function=function: sum(batch.num_rows for batch in function()))
            took[name] = cpu, (time.perf_counter() - began) / (ROUNDS + 1)
        print(f"\n{'read: M records/s':<34}{'roster':>9}{'librdkafka':>12}{'ratio':>8}")
        for index, clock in enumerate(("of CPU", "of wall clock, mean")):
            ours, theirs = (records / took[name][index] / 1e6 for name in ("roster", "librdkafka"))
            print(f"{clock:<34}{ours:>9.2f}{theirs:>12.2f}{ours / theirs:>8.1f}")


def start() -> None:
    with tempfile.TemporaryDirectory() as cache:

        def cpu(program: str) -> float:
            base = "import numpy, pyarrow, google_crc32c, roster.wire.messages; "
            environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
            took = []
            for _ in range(5):  # the first of numba's compiles
                before = os.times()
                subprocess.run([sys.executable, "-c", base + program], check=True, env=environment)
                after = os.times()
                took.append(after.children_user + after.children_system - before.children_user - before.children_system)
            return statistics.median(took)

        bare, llvmlite, numba = (cpu(program) for program in ("", LLVMLITE, NUMBA))
    print(f"\nstart: {llvmlite - bare:.2f} s of CPU by llvmlite, {numba - bare:.2f} s by numba from its cache")


def run(*, quick: bool) -> None:
    """Print the tables."""
    none, gzip = Compression.NONE, Compression.GZIP  # aiokafka needs further packages for the others
    parse(((10, none), (600, none)) if quick else ((1, none), (10, none), (100, none), (600, none), (600, gzip)))
    read(200_000 if quick else 1_000_000)
    start()


if __name__ == "__main__":
    run(quick=False)
