"""A definition that changes in place: `python -m benchmarks.changes [--keys 1000000] [--broker apache] [--cores 2]`.

A group aggregates a topic of as many keys, then a release with one more result goes on: its first batch writes all
entries of all tasks anew, once by columns and once by a function of `migrate`. A figure is keys a second of that batch,
from its start to the end of its transaction, with a broker on the same machine.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.memory import peaks
from benchmarks.pipeline import broker
from roster.client import Admin
from roster.model import TopicPartition, parse_addresses
from roster.records.produce import KafkaWriter
from roster.spark import KafkaSink, Pipeline, Progress, State, session

PARTITIONS = 12
WRITTEN = 50_000
BATCH = 1_000_000
FIRST = {"n": "count(*)", "total": "sum(price)"}


def prices(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Columns of a record batch of the source."""
    price = rows["value"].cast(pa.string()).cast(pa.float64())
    return pa.RecordBatch.from_arrays([rows["key"].cast(pa.string()), price], ["key", "price"])


def spread(rows: pa.Table) -> pa.Table:
    """The results of the third release."""
    return rows.append_column("least", rows["most"])


RELEASES: list[tuple[str, dict[str, str], Any]] = [
    ("by columns", FIRST | {"most": "max(price)"}, None),
    ("by a function", FIRST | {"least": "min(price)"}, spread),
]


def produce(bootstrap: str, topic: str, keys: int) -> None:
    """A record of each key."""
    output = KafkaWriter(tuple(parse_addresses(bootstrap)), topic).open()
    for begin in range(0, keys, WRITTEN):
        numbers = np.arange(begin, min(keys, begin + WRITTEN))
        names = pa.array([f"key {number:012}" for number in numbers.tolist()]).cast(pa.binary())
        values = pa.array(numbers % 1000).cast(pa.string()).cast(pa.binary())
        output.write(pa.RecordBatch.from_pydict({"key": names, "value": values}))
    output.close()


def main(words: Sequence[str] | None = None) -> None:
    """Print a line for each release."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--broker", default="apache", help="roster, apache or an address")
    parser.add_argument("--cores", type=int, default=2)
    given = parser.parse_args(words)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        spark = session("changes", f"local[{given.cores}]")
        stack.callback(spark.stop)
        spark.sparkContext.setLogLevel("OFF")
        bootstrap, _ = stack.enter_context(broker(given.broker, folder))
        admin = stack.enter_context(Admin(bootstrap))
        for topic in ("prices", "totals"):
            admin.create_topic(topic, PARTITIONS)
        produce(bootstrap, "prices", given.keys)

        def release(results: dict[str, str], migrate: Any) -> list[Progress]:
            reports: list[Progress] = []
            Pipeline(
                spark,
                bootstrap,
                "changes",
                ["prices"],
                state=State(dir=str(folder / "state")),
                max_offsets_per_batch=BATCH,
                on_progress=reports.append,
                log=False,
            ).map_arrow(prices, "key string, price double").aggregate(
                "key", results, store="totals", migrate=migrate
            ).write(KafkaSink(bootstrap, "totals")).run(available_now=True)
            return reports

        first = sum(report.duration_ms for report in release(FIRST, None))
        print(f"{'seeded':16}{given.keys:12,} keys in {first / 1000:8.1f} s{1000 * given.keys / first:12,.0f} keys/s")
        results = FIRST
        log = [TopicPartition("changes-totals-changelog", number) for number in range(PARTITIONS)]
        for name, results, migrate in RELEASES:
            produce(bootstrap, "prices", 20 * PARTITIONS)  # a task without records keeps its entries
            before = sum(admin.end_offsets(log).values())
            changed, *_ = release(results, migrate)
            entries = sum(admin.end_offsets(log).values()) - before
            took = changed.duration_ms / 1000
            rate = f"{entries / took:12,.0f} keys/s; at most {peaks()}"
            print(f"{name:16}{entries:12,} keys in {took:8.1f} s{rate}", flush=True)


def run(*, quick: bool) -> None:
    """With a million keys, or a fifth."""
    main(["--keys", "200000"] if quick else [])


if __name__ == "__main__":
    main()
