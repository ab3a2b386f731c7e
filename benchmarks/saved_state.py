"""State as files: `python -m benchmarks saved_state`. Seed, export and import of one aggregate, with `local[2]`.

    python -m benchmarks.saved_state [--keys 10000000] [--broker roster|apache|HOST:PORT]

Keys have 16 bytes, values a count and a sum; 12 partitions. The last import is into a topic of 16 partitions, so that
its keys are proven and placed anew. Rates are records a second of the whole call, with its Spark jobs. Memory is what
the driver, its JVM and the largest Python worker have had at most up to then; a broker started here counts as JVM, too.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.sql.functions import count, count_distinct
from pyspark.sql.functions import sum as total

from roster.client import Admin
from roster.spark import Pipeline, session
from roster.spark.state import Export, export, import_state, seed_state

from .memory import peaks
from .pipeline import broker

PARTITIONS, GROWN = 12, 16


def measure(bootstrap: str, keys: int, folder: Path) -> None:
    spark = session("benchmark")
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, PARTITIONS)
    pipeline = Pipeline(spark, bootstrap, f"{topic}-1", topic).map_arrow(lambda batch: batch, "name string, n long")
    pipeline.aggregate("name", {"count": "count(*)", "sum": "sum(n)"}, store="totals")
    table = spark.range(keys).selectExpr(
        "lpad(hex(id * 2654435761 % 4294967311), 16, '0') as name", "id as count", "7 * id as sum"
    )
    places = [str(folder / str(number)) for number in range(2)]

    def timed(what: str, work: Callable[[], object]) -> None:
        begun = time.monotonic()
        work()
        seconds = time.monotonic() - begun
        print(f"{what:<34}{seconds:8.1f} s{keys / seconds:12,.0f} keys/s; at most {peaks()}", flush=True)

    def seed() -> object:
        return seed_state(
            spark, bootstrap, f"{topic}-1", pipeline.describe_state(), table, topics=topic, offsets="earliest"
        )

    timed("seed", seed)
    timed("export", lambda: export(spark, bootstrap, f"{topic}-1", places[0]))
    timed("import", lambda: import_state(spark, bootstrap, f"{topic}-2", places[0]))
    with Admin(bootstrap) as admin:
        admin.create_partitions(topic, GROWN)
    timed(
        f"import, {PARTITIONS} to {GROWN} partitions", lambda: import_state(spark, bootstrap, f"{topic}-3", places[0])
    )
    timed("export", lambda: export(spark, bootstrap, f"{topic}-3", places[1]))
    for place in places:
        rows = Export.open(place).dataframe(spark, "totals").agg(count("*"), total("count"), count_distinct("name"))
        assert tuple(rows.first()) == (keys, keys * (keys - 1) // 2, keys), place
    print("both exports have every key once, with its state")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--broker", default="apache")
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder, broker(given.broker, Path(folder)) as (bootstrap, _):
        measure(bootstrap, given.keys, Path(folder))


def run(*, quick: bool) -> None:
    main(["--keys", "200000", "--broker", "roster"] if quick else [])


if __name__ == "__main__":
    main()
