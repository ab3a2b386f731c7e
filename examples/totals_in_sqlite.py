"""Totals in a database, exactly once: results and offsets are stored in one transaction.

    python totals_in_sqlite.py BOOTSTRAP [--follow]

`foreach_batch` alone is at least once: after a crash between the function and the commit to the group, records come
again. Here the table `positions` says where each partition stands, records before that are left out, and both change
together. SQLite stands for any database with transactions.
"""

import argparse
import sqlite3
from contextlib import closing

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's custom

from roster.model import TopicPartition
from roster.spark import Batch, Pipeline, session

TABLES = """
create table if not exists totals (shop text primary key, orders integer not null, revenue real not null);
create table if not exists positions (
    topic text, partition integer, next integer not null, primary key (topic, partition)
);
"""
POSITIONS = "select topic, partition, next from positions"
ADD = """
insert into totals values (?, ?, ?)
on conflict (shop) do update set orders = orders + excluded.orders, revenue = revenue + excluded.revenue
"""
MOVE = "insert into positions values (?, ?, ?) on conflict (topic, partition) do update set next = excluded.next"


def store(df: DataFrame, batch: Batch, path: str) -> None:
    with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as database:
        database.execute("begin immediate")  # from here on no other application changes the positions
        known = {TopicPartition(topic, number): after for topic, number, after in database.execute(POSITIONS)}
        fresh, positions = batch.after(df, known)
        order = F.from_json(F.col("value").cast("string"), "shop string, item string, price double")
        rows = (
            fresh.select(order.alias("order"))
            .where("order.shop is not null")
            .groupBy("order.shop")
            .agg(F.count("*"), F.coalesce(F.sum("order.price"), F.lit(0.0)))
            .collect()
        )
        database.executemany(ADD, [tuple(row) for row in rows])
        database.executemany(MOVE, [(*partition, after) for partition, after in positions.items()])
        database.execute("commit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bootstrap")
    parser.add_argument("--follow", action="store_true", help="work until Ctrl-C")
    arguments = parser.parse_args()

    with closing(sqlite3.connect("totals.db")) as database:
        database.executescript(TABLES)
    spark = session("totals-in-sqlite", master="local[2]")
    (
        Pipeline(spark, arguments.bootstrap, group="totals-in-sqlite", topics=["orders"])
        .foreach_batch(lambda df, batch: store(df, batch, "totals.db"))
        .run(available_now=not arguments.follow)
    )
    with closing(sqlite3.connect("totals.db")) as database:
        for row in database.execute("select shop, orders, revenue from totals order by shop"):
            print(*row)
    spark.stop()


if __name__ == "__main__":
    main()
