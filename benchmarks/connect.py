"""What Spark Connect costs beside a classic session: its start, Arrow rows out and back, and a small batch of them.

    python -m benchmarks connect
    python -m benchmarks.connect [--rounds 3]

Each round is a new process with `local[2]`, that of Connect with the server that PySpark's wheel has: imports and
session, the first result, then `createDataFrame` of an Arrow table, `mapInArrow` of a function that returns its rows,
and `toArrow`: of 100,000 rows (a key and 100 bytes), of 100 rows, and of 100 rows by SQL in place of the function.
Medians; what is small is done 25 times. Needs grpcio and grpcio-status.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BEGAN = time.monotonic()
ROWS, SMALL, TIMES, WARM = 100_000, 100, 25, 5
SCHEMA = "key string, value binary"
LINES = (
    "session",
    "first result",
    "rows/s through mapInArrow",
    "ms of 100 rows by mapInArrow",
    "ms of 100 rows by SQL",
)


def rows(count: int) -> pa.Table:
    keys = pa.array([f"key {number % 10_000}" for number in range(count)])
    return pa.table({"key": keys, "value": pa.repeat(pa.scalar(b"x" * 100), count)})


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A function of the user."""
    yield from batches


def child(kind: str) -> None:
    """Print the figures of one process."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the import is what is timed

    builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
    spark = (builder.remote("local[2]") if kind == "connect" else builder.master("local[2]")).getOrCreate()

    def through(table: pa.Table, work: Callable[[DataFrame], DataFrame]) -> float:
        """Seconds for these rows."""
        began = time.monotonic()
        assert work(spark.createDataFrame(table)).toArrow().num_rows == table.num_rows
        return time.monotonic() - began

    def by_function(df: DataFrame) -> DataFrame:
        return df.mapInArrow(same, SCHEMA)

    def by_sql(df: DataFrame) -> DataFrame:
        return df.selectExpr("upper(key) AS key", "value")

    figures = {LINES[0]: time.monotonic() - BEGAN}
    few, many = rows(SMALL), rows(ROWS)
    through(few, by_function)
    figures[LINES[1]] = time.monotonic() - BEGAN
    figures[LINES[2]] = ROWS / min(through(many, by_function) for _ in range(3))
    for line, work in ((LINES[3], by_function), (LINES[4], by_sql)):
        figures[line] = 1000 * statistics.median([through(few, work) for _ in range(TIMES)][WARM:])
    print(json.dumps(figures), flush=True)
    spark.stop()


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", choices=("classic", "connect"), help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.child:
        child(given.child)
        return
    try:
        import grpc  # noqa: F401, PLC0415
        import grpc_status  # noqa: F401, PLC0415
    except ModuleNotFoundError as missing:
        print(f"*** MISSING: {missing}", flush=True)
        return
    found = defaultdict[tuple[str, str], list[float]](list)
    for _ in range(given.rounds):
        for kind in ("classic", "connect"):
            words_of = [sys.executable, "-m", "benchmarks.connect", "--child", kind]
            environment = os.environ | {"PYSPARK_PYTHON": sys.executable}  # the server's Python, too
            ended = subprocess.run(words_of, capture_output=True, text=True, check=False, env=environment)
            if ended.returncode:
                raise RuntimeError(ended.stderr)
            for line, figure in json.loads(ended.stdout.splitlines()[-1]).items():
                found[line, kind].append(figure)
    print(f"load {os.getloadavg()[0]:.1f}\n{'':<30}{'classic':>12}{'connect':>12}")
    for line in LINES:
        print(f"{line:<30}" + "".join(f"{statistics.median(found[line, k]):>12,.1f}" for k in ("classic", "connect")))


def run(*, quick: bool) -> None:
    """Three rounds, or one."""
    main(["--rounds", "1" if quick else "3"])


if __name__ == "__main__":
    main()
