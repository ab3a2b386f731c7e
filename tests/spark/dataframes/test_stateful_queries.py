"""Structured Streaming programs with state, by read_stream and write_stream, beside the same program over a batch."""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from roster.spark import IcebergSink, PipelineError, read_stream, write_stream
from roster.spark.dataframes.plan import Plan
from roster.spark.dataframes.program import program_of
from roster.spark.state import export, import_state
from tests.librdkafka import idempotent_producer
from tests.spark.spark_topics import Topics, committed_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from roster.spark.dataframes.query import StreamQuery


pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

BEGIN = datetime(2026, 3, 29, tzinfo=UTC)
ORDERS = [
    {
        "order": n - n % 7 % 2,
        "shop": "abcd"[n * n % 4] if n % 11 else None,
        "price": round(n % 9 * 1.25, 2) if n % 13 else None,
        "amount": n % 5,
        "tags": "x y z"[: n % 6],
        "at": str((BEGIN + timedelta(minutes=n * 7 - n % 3 * 4)).replace(tzinfo=None)),
    }
    for n in range(120)
]
"""In event time of at most 20 minutes' disorder; some with nulls, some twice."""
END = {"order": -1, "shop": "end", "price": 0.0, "amount": 0, "tags": "", "at": "2026-04-20 00:00:00"}
"""Closes the windows of a partition's rows before."""
FIELDS = "order long, shop string, price double, amount int, tags string, at string"


def parsed(records: DataFrame) -> DataFrame:
    """What stands in front of the state in most programs, with a time that only Spark parses."""
    rows = records.select(F.from_json(F.col("value").cast("string"), FIELDS).alias("order")).select("order.*")
    return rows.withColumn("at", F.to_timestamp("at"))


def timed(records: DataFrame) -> DataFrame:
    return parsed(records).withWatermark("at", "30 minutes")


def tumbling(records: DataFrame) -> DataFrame:
    totals = timed(records).groupBy(F.window("at", "1 hour"), "shop")
    return totals.agg(
        F.count("*").alias("orders"),
        F.sum(F.col("price") * F.col("amount")).alias("revenue"),
        F.avg("price"),
        F.max("amount"),
    )


def hours(records: DataFrame) -> DataFrame:
    """HAVING, expressions over aggregates, a window's bounds, JSON: all behind the state."""
    totals = timed(records).groupBy(F.window("at", "2 hours", "30 minutes"), F.lower("shop").alias("place"))
    rows = totals.agg(
        (F.sum("price") / F.count("price")).alias("mean"),
        F.count(
            "order",
        ).alias("n"),
    )
    rows = rows.where("n > 1").select("place", F.round("mean", 2).alias("mean"), "n", "window.start", "window.end")
    return rows.select(F.to_json(F.struct("*")).alias("value"), F.date_format("start", "HH:mm").alias("hour"))


def sessions(records: DataFrame) -> DataFrame:
    rows = timed(records).groupBy("shop", F.session_window("at", "9 minutes").alias("visit"))
    return rows.agg(
        F.count("*").alias("orders"), F.min("price").alias("least"), F.sort_array(F.collect_set("amount")).alias("set")
    )


def totals(records: DataFrame) -> DataFrame:
    rows = parsed(records).where("shop <> 'end' or shop is null")
    return rows.groupBy("shop").agg(
        F.count("price"),
        F.sum(F.when(F.col("amount") > 2, F.col("price")).otherwise(0)).alias("large"),
        F.min("at").alias("since"),
        F.expr("count(*) filter (where amount = 3)").alias("threes"),
        F.max_by("order", "at").alias("last"),
        F.stddev("price").alias("spread"),
        F.every(F.col("price") > 2).alias("all_dear"),
        F.bool_or(F.col("amount") > 3).alias("some_many"),
    )


def by_price(records: DataFrame) -> DataFrame:
    """Keys that are no keys of Roster's: doubles, with nulls."""
    return parsed(records).where("order >= 0").groupBy("price", (F.col("amount") * 1.5).alias("size")).count()


def everything(records: DataFrame) -> DataFrame:
    rows = parsed(records).where("order >= 0").withColumn("named", F.struct("price", F.struct("shop", "order")))
    dearest, cheapest = F.max("named").alias("dearest"), F.min_by("tags", "named")
    listed = F.size(F.collect_list("named")).alias("listed")
    return rows.agg(F.count("*").alias("orders"), F.sum("price").alias("revenue"), dearest, cheapest, listed)


def open_windows(records: DataFrame) -> DataFrame:
    """Windows without a watermark, of any slide: they never close."""
    rows = parsed(records).where("order >= 0").withColumn("word", F.explode(F.split("tags", " ")))
    return rows.groupBy(F.window("at", "50 minutes", "20 minutes"), "word").count()


def firsts(records: DataFrame) -> DataFrame:
    rows = parsed(records).where("order >= 0").dropDuplicates(["shop", "amount"])
    return rows.select("shop", "amount", F.lit(1).alias("one"))


def distinct(records: DataFrame) -> DataFrame:
    return parsed(records).select("shop", "price").where("shop <> 'end'").distinct()


def deduplicated(records: DataFrame) -> DataFrame:
    """Some rows without a time: they are no late ones."""
    words = F.struct(F.split("tags", " ").alias("words"), F.create_map(F.lit("price"), "price").alias("by_name"))
    rows = parsed(records).withColumn("at", F.expr("if(order % 10 = 3, null, at)")).withWatermark("at", "30 minutes")
    rows = rows.withColumn("nested", words).dropDuplicates(["order", "at"]).where("order >= 0")
    # Of several rows of an order without a time any one is the first.
    return rows.select(
        "order", *(F.when(F.col("at").isNotNull(), F.col(name)).alias(name) for name in ("shop", "nested"))
    )


def within(records: DataFrame) -> DataFrame:
    rows = timed(records).dropDuplicatesWithinWatermark(["order"])
    return rows.where("order >= 0").select("order")


def counted_once(records: DataFrame) -> DataFrame:
    """Two operators in a row, and what is between them."""
    rows = (
        timed(records)
        .dropDuplicates(["order", "at"])
        .where("amount < 4 or order < 0")
        .withColumn("twice", F.expr("price * 2"))
    )
    return rows.groupBy(F.window("at", "1 hour"), "shop").agg(F.count("*").alias("orders"), F.sum("twice"))


def enriched(records: DataFrame) -> DataFrame:
    """A table and a function of Python in front of the state, and the table again behind it."""
    spark = records.sparkSession
    cities = spark.createDataFrame([("a", "Rome"), ("b", "Oslo")], "shop string, city string")
    loud = F.udf(lambda text: None if text is None else text.upper(), "string")
    rows = parsed(records).where("order >= 0").join(cities, "shop", "left").withColumn("loud", loud("city"))
    rows.repartition(7).createOrReplaceTempView("enriched")
    totals = spark.sql(
        "with known as (select * from enriched where order >= 0), named as (select * from known where amount >= 0) "
        "select shop, loud, count(*) as orders, max(tags) as tags from named group by all"
    )
    return totals.join(cities, "shop", "left").select("shop", "loud", "orders", "tags", "city")


def with_table(records: DataFrame, table: DataFrame) -> DataFrame:
    """Totals of rows that a table has something about."""
    rows = parsed(records).join(table, F.col("amount") == table["n"])
    return rows.groupBy("shop").agg(F.max("id").alias("most"))


class Counter(StatefulProcessor):  # type: ignore[misc] # PySpark has no hints for it
    """Counts the orders of a shop, as written for Spark."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Any, timer_values: Any) -> Any:
        before = self.count.get()[0] if self.count.exists() else 0
        count = before + sum(1 for _ in rows)
        self.count.update((count,))
        yield Row(shop=key[0], orders=count)

    def close(self) -> None:
        pass


class Numbered(Counter):
    """Numbers the rows of a key, from what it begins with on."""

    def handleInputRows(self, key: Any, rows: Any, timer_values: Any) -> Any:
        for _ in rows:
            self.count.update(((self.count.get()[0] if self.count.exists() else 0) + 1,))
            yield Row(shop=key[0], number=self.count.get()[0])

    def handleInitialState(self, key: Any, row: Any, timer_values: Any) -> None:
        self.count.update((row.known + len(row.shop),))


def counted(records: DataFrame) -> DataFrame:
    rows = parsed(records).where("order >= 0").select("shop", "amount")
    if not records.isStreaming:
        return rows.groupBy("shop").agg(F.count("*").alias("orders"))
    return rows.groupBy("shop").transformWithState(Counter(), "shop string, orders long", "update", "None")


def count_frames(key: Any, frames: Any, state: Any) -> Any:
    count = (state.get[0] if state.exists else 0) + sum(map(len, frames))
    state.update((count,))
    yield pd.DataFrame({"place": [key[0]], "orders": [count]})


def counted_in_pandas(records: DataFrame) -> DataFrame:
    rows = parsed(records).where("order >= 0").select(F.coalesce("shop", F.lit("?")).alias("place"), "amount")
    if not records.isStreaming:
        return rows.groupBy("place").agg(F.count("*").alias("orders"))
    done = rows.groupBy("place").applyInPandasWithState(
        count_frames, "place string, orders long", "n long", "update", "NoTimeout"
    )
    return done.where("orders > 0")


def number_frames(key: Any, frames: Any, state: Any) -> Any:
    before = state.get[0] if state.exists else 0
    count = before + sum(map(len, frames))
    state.update((count,))
    yield pd.DataFrame({"place": [key[0]] * (count - before), "orders": range(before + 1, count + 1)})


def begun(records: DataFrame) -> DataFrame:
    """Code for each key, with an initial state."""
    rows = parsed(records).where("order >= 0 and shop is not null").select("shop", "amount")
    known = records.sparkSession.createDataFrame([(10, "a"), (20, "b"), (30, "z")], "known long, shop string")
    if records.isStreaming:
        state = known.where("known < 30").groupBy("shop")
        return rows.groupBy("shop").transformWithState(Numbered(), "shop string, number long", "append", "None", state)
    first = F.coalesce(F.col("known") + 1, F.lit(0)) + 1  # what a shop begins with, and one
    counts = rows.groupBy("shop").count().join(known, "shop", "left")
    return counts.select("shop", F.explode(F.sequence(first, first + F.col("count") - 1)).alias("number"))


def shifted(records: DataFrame) -> DataFrame:
    """Windows with a start time, and a slide that does not divide their length; what fails in rows without a time."""
    rows = parsed(records).withColumn("at", F.expr("if(order % 10 = 3, null, at)")).withWatermark("at", "30 minutes")
    rows = rows.withColumn("one", F.expr("1 / int(at is not null)"))
    return rows.groupBy(F.window("at", "50 minutes", "20 minutes", "7 minutes"), "shop").agg(F.sum("one"))


def sides(records: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Two streams of one topic, each with its own steps."""
    paid = parsed(records).where("amount > 2 or order < 0").withWatermark("at", "10 minutes")
    columns = F.col("order").alias("paying"), F.col("shop").alias("at_shop"), F.col("at").alias("paid"), "tags"
    return timed(records).drop("tags").where("amount < 4"), paid.select(*columns)


IN_TIME = "shop = at_shop and paid >= at - interval 5 minutes and paid < at + interval 40 minutes"


def joined(records: DataFrame) -> DataFrame:
    """An inner join, with a condition that is neither a key nor a time."""
    left, right = sides(records)
    return left.join(right, F.expr(f"{IN_TIME} and order <> paying")).select("shop", "order", "paying", "paid", "tags")


def left_joined(records: DataFrame) -> DataFrame:
    left, right = sides(records)
    return left.alias("l").join(right, F.expr(IN_TIME), "left").select("shop", "order", "price", "paying", "paid")


def right_joined(records: DataFrame) -> DataFrame:
    left, right = sides(records)
    return left.join(right, F.expr(IN_TIME), "right").select(F.col("at_shop").alias("shop"), "order", "paying", "paid")


def full_joined(records: DataFrame) -> DataFrame:
    """Columns that are never null in front of the join are null behind it."""
    left, right = sides(records)
    orders = left.withColumn("half_hour", F.window("at", "30 minutes")).withColumn("kind", F.lit(7))
    return orders.join(right, F.expr(IN_TIME), "full").select(
        F.coalesce("shop", "at_shop").alias("shop"), "order", "paying", "at", "paid", "price", "half_hour", "kind"
    )


def semi_joined(records: DataFrame) -> DataFrame:
    left, right = sides(records)
    return left.join(right, F.expr(IN_TIME), "left_semi").select("shop", "order", "price")


def joined_by_windows(records: DataFrame) -> DataFrame:
    """Rows whose times have the same window, and windows that overlap behind them."""
    left, right = sides(records)
    half_hours = left.select("shop", "price", F.window("at", "30 minutes"))
    paid = right.select(F.col("at_shop").alias("shop"), F.window("paid", "30 minutes"), "paying")
    pairs = half_hours.join(paid, ["shop", "window"], "left")
    return pairs.groupBy(F.window("window", "1 hour", "30 minutes"), "shop").agg(F.sum("price"), F.max("paying"))


def joined_totals(records: DataFrame) -> DataFrame:
    """Windowed totals of two streams, joined: nulls are not equal."""
    left, right = sides(records)
    dear = left.groupBy(F.window("at", "3 hours", "1 hour"), "shop").agg(F.count("*").alias("rows"), F.max("price"))
    paid = right.groupBy(F.col("at_shop").alias("shop"), F.window("paid", "3 hours", "1 hour")).agg(
        F.count("*").alias("n"), F.collect_set("tags").alias("tags")
    )
    paid = paid.withColumn("kinds", F.size("tags") + 1).alias("paid")
    rows = dear.alias("dear").where("rows > 2").join(paid.where("n < 9"), ["window", "shop"])
    return rows.where("kinds > rows - 3").select("shop", "window.start", "rows", "max(price)", "n", "kinds")


def full_totals(records: DataFrame) -> DataFrame:
    left, right = sides(records)
    dear = left.groupBy(F.window("at", "1 hour"), "shop").agg(F.count("*").alias("rows"), F.sum("price").alias("sum"))
    paid = right.groupBy(F.window("paid", "1 hour").alias("hour"), "at_shop").count().withColumnRenamed("at_shop", "of")
    pairs = dear.alias("d").join(paid.alias("p"), F.expr("d.window = p.hour and d.shop = p.of"), "full")
    return pairs.select(F.coalesce("shop", "of").alias("shop"), "window", "hour.start", "rows", "sum", "count")


def united_totals(records: DataFrame) -> DataFrame:
    """Windowed totals of two streams by other keys, in one table."""
    left, right = sides(records)
    dear = left.groupBy(F.window("at", "1 hour"), "shop", "price").agg(
        F.count("*").alias("n"), F.sum("order").alias("o")
    )
    paid = right.groupBy(F.window("paid", "1 hour"), "tags").count().where("count < 5")
    rows = dear.where("n > 1 or o > 60").select("shop", "window.start", "n", "o", "price", F.lit("dear").alias("kind"))
    return rows.alias("dear").union(
        paid.alias("paid").selectExpr("tags", "window.start", "count + 1", "null", "null", "'paid'")
    )


def firsts_of(records: DataFrame, most: int, *names: str) -> DataFrame:
    """Each shop and half an hour once, of orders of some amounts."""
    half_hour = F.expr("timestamp_seconds(floor(unix_timestamp(at) / 1800) * 1800)").alias("at")
    rows = parsed(records).where(f"amount < {most} or order < 0").select("shop", half_hour)
    return rows.withWatermark("at", "40 minutes").dropDuplicates().toDF(*(names or ("shop", "at")))


HALF_HOURS = "shop = at_shop and paid >= at - interval 30 minutes and paid <= at + interval 1 hour"


def firsts_joined(records: DataFrame) -> DataFrame:
    """First rows on both sides of an outer join, and steps between them and the join."""
    left = firsts_of(records, 4).alias("visits").where("shop <> 'b'").withColumn("hour", F.date_format("at", "HH"))
    right = firsts_of(records, 3, "at_shop", "paid").alias("payments")
    return left.join(right, F.expr(HALF_HOURS), "left").select("shop", "at", "hour", "paid")


def counted_firsts(records: DataFrame) -> DataFrame:
    """A join of first rows with a stream as it is, and windows behind it."""
    paid = parsed(records).where("amount > 2 or order < 0").withWatermark("at", "10 minutes")
    right = paid.select(F.col("shop").alias("at_shop"), F.col("at").alias("paid"), "tags")
    pairs = firsts_of(records, 4).join(right, F.expr(HALF_HOURS))
    return pairs.groupBy(F.window("at", "2 hours"), "shop").agg(F.count("*").alias("n"), F.max("tags").alias("tags"))


def united_firsts(records: DataFrame) -> DataFrame:
    """First rows of two streams, and a stream as it is, in one table."""
    firsts = firsts_of(records, 4).alias("few").union(firsts_of(records, 2).alias("fewer").where("shop <> 'a'"))
    rows = firsts.withColumn("of", F.lit(7)).unionAll(timed(records).select("shop", "at", F.nullif("amount", F.lit(2))))
    return rows.select("shop", F.date_format("at", "dd HH:mm").alias("time"), "of")


def firsts_and_all(records: DataFrame) -> DataFrame:
    """Windows over first rows and a stream as it is."""
    firsts = firsts_of(records, 4).withColumn("kind", F.lit("first"))
    rows = firsts.union(timed(records).select("shop", "at", F.lit("any")))
    return rows.groupBy(F.window("at", "1 hour", "30 minutes"), "shop", "kind").count()


def windows_joined(records: DataFrame) -> DataFrame:
    """Windows that overlap, joined with a stream by their last moment."""
    left, right = sides(records)
    hours = left.groupBy(F.window("at", "1 hour", "30 minutes"), "shop").agg(F.count("*").alias("n"))
    closed = hours.select("shop", "n", F.window_time("window").alias("last")).where("n > 1 or shop = 'end'")
    by = "shop = at_shop and paid >= last - interval 1 hour and paid < last + interval 20 minutes"
    return closed.join(right, F.expr(by)).select("shop", "n", "last", "paying", "tags")


def united_windows(records: DataFrame) -> DataFrame:
    """Sessions, windows and a stream as it is, in one table."""
    visits = timed(records).groupBy("shop", F.session_window("at", "9 minutes").alias("visit")).count()
    hours = timed(records).groupBy(F.window("at", "1 hour"), "shop").agg(F.sum("amount").alias("n"))
    rows = visits.alias("visits").select("shop", "visit.end", "count")
    rows = rows.union(hours.alias("hours").select("shop", "window.end", "n"))
    return rows.union(timed(records).where("price > 5").select("shop", "at", F.col("amount").cast("long")))


def code_and_all(records: DataFrame) -> DataFrame:
    """Code for each key in front of a union with a stream as it is."""
    rows = parsed(records).where("order >= 0 and shop is not null").select("shop", "amount")
    if records.isStreaming:
        numbers = rows.groupBy("shop").transformWithState(Numbered(), "shop string, number long", "append", "None")
    else:
        counts = rows.groupBy("shop").agg(F.count("*").alias("last"))
        numbers = counts.select("shop", F.explode(F.sequence(F.lit(1).cast("long"), "last")).alias("number"))
    return numbers.where("number > 3").union(rows.select(F.upper("shop"), F.col("amount").cast("long")))


def counted_pairs(records: DataFrame) -> DataFrame:
    """An aggregate behind a join."""
    pairs = joined(records).withColumn("longer", F.length("tags") * 2)
    return pairs.groupBy(F.window("paid", "2 hours"), "shop").agg(F.count("*").alias("n"), F.sum("longer"))


def busiest(records: DataFrame) -> DataFrame:
    """An aggregate behind an aggregate, with HAVING and a function of Python in between."""
    double = F.udf(lambda number: number * 2, "long")
    hours = timed(records).groupBy(F.window("at", "1 hour"), F.lower("shop").alias("shop")).agg(F.count("*").alias("n"))
    many = hours.alias("hours").where("n > 1").withColumn("n2", double("n"))
    return many.groupBy(F.window("window", "6 hours"), "shop").agg(F.max("n2").alias("most"), F.count("*").alias("of"))


def parts_of_hours(records: DataFrame) -> DataFrame:
    """An aggregate behind an aggregate: HAVING, JSON there and back and explode() in between, and the same behind."""
    hours = (
        timed(records)
        .groupBy(F.window("at", "1 hour"), "shop")
        .agg(F.count("*").alias("n"), F.max("tags").alias("tags"))
    )
    json = (
        hours.alias("hours")
        .where("n > 1")
        .withColumn("json", F.to_json(F.struct("n", F.split("tags", " ").alias("words"))))
    )
    read = json.select("window", "shop", F.from_json("json", "n int, words array<string>").alias("read"))
    words = read.select("window", "shop", "read.n", F.explode("read.words").alias("word"))
    done = words.groupBy(F.window("window", "6 hours"), "word").agg(F.sum("n").alias("n"), F.max("shop").alias("shop"))
    rows = done.where("n > 2").withColumn("parts", F.array("word", F.col("n").cast("string")))
    return rows.select(
        "shop", "window.start", F.explode("parts").alias("part"), F.to_json(F.struct("n", "word")).alias("value")
    )


def code_of_hours(records: DataFrame) -> DataFrame:
    """Code for each key behind an aggregate: it numbers the hours of a shop."""
    hours = timed(records).groupBy(F.window("at", "1 hour"), "shop").agg(F.count("*").alias("n"))
    many = hours.alias("hours").where("n > 1 and shop <> 'end'").select("shop", F.col("n").alias("orders"))
    if not records.isStreaming:
        hours_of = many.groupBy("shop").agg(F.count("*").alias("last"))
        return hours_of.select("shop", F.explode(F.sequence(F.lit(1).cast("long"), "last")).alias("number"))
    return many.groupBy("shop").transformWithState(Numbered(), "shop string, number long", "append", "None")


def pandas_of_firsts(records: DataFrame) -> DataFrame:
    """A function of pandas behind dropDuplicates(), and a table and a filter behind it."""
    firsts = timed(records).dropDuplicates(["order", "at"]).where("order >= 0")
    rows = firsts.select(F.coalesce("shop", F.lit("?")).alias("place"))
    cities = records.sparkSession.createDataFrame([("a", "Rome"), ("b", "Oslo")], "place string, city string")
    if records.isStreaming:
        columns = "place string, orders long", "n long", "append", "NoTimeout"
        done = rows.groupBy("place").applyInPandasWithState(number_frames, *columns)
    else:
        done = rows.groupBy("place").agg(F.count("*").alias("last"))
        done = done.select("place", F.explode(F.sequence(F.lit(1).cast("long"), "last")).alias("orders"))
    return done.join(cities, "place", "left").where("orders > 2")


def largest(records: DataFrame) -> DataFrame:
    """An aggregate of the windows of an aggregate."""
    hours = timed(records).groupBy(F.window("at", "1 hour", "15 minutes").alias("hour"), "shop").count()
    return hours.alias("hours").groupBy("hour").agg(F.max("count").alias("most"), F.max("shop").alias("shop"))


def earlier(records: DataFrame) -> DataFrame:
    """A window that is made in front of groupBy()."""
    rows = timed(records).select(F.window("at", "1 hour").alias("hour"), "shop", "amount").where("amount < 4")
    return rows.groupBy("hour", "shop").agg(F.sum("amount"))


def two_parts(records: DataFrame) -> DataFrame:
    """A union of two programs over one topic."""
    dear = timed(records).where("price > 5 or order < 0").select("shop", "at", F.lit("dear").alias("kind"))
    many = timed(records).where("amount > 1 or order < 0").select("shop", "at", F.lit("many").alias("kind"))
    return (
        dear.unionByName(many).groupBy(F.window("at", "50 minutes", "20 minutes", "7 minutes"), "shop", "kind").count()
    )


PROGRAMS: dict[str, tuple[Callable[[DataFrame], DataFrame], str, list[str]]] = {
    "totals": (totals, "update", ["shop"]),
    "counted once": (counted_once, "append", []),
    "joined": (joined, "append", []),
    "left joined": (left_joined, "append", []),
    "busiest": (busiest, "append", []),
    "largest": (largest, "append", []),
    "parts of hours": (parts_of_hours, "append", []),
    "code of hours": (code_of_hours, "append", []),
    "pandas of firsts": (pandas_of_firsts, "append", []),
    "begun": (begun, "append", []),
    "earlier": (earlier, "append", []),
    "two parts": (two_parts, "append", []),
    "right joined": (right_joined, "append", []),
    "full joined": (full_joined, "append", []),
    "semi joined": (semi_joined, "append", []),
    "joined by windows": (joined_by_windows, "append", []),
    "joined totals": (joined_totals, "append", []),
    "full totals": (full_totals, "append", []),
    "united totals": (united_totals, "append", []),
    "counted pairs": (counted_pairs, "append", []),
    "firsts joined": (firsts_joined, "append", []),
    "counted firsts": (counted_firsts, "append", []),
    "united firsts": (united_firsts, "append", []),
    "firsts and all": (firsts_and_all, "append", []),
    "windows joined": (windows_joined, "append", []),
    "united windows": (united_windows, "append", []),
    "code and all": (code_and_all, "append", []),
    "code": (counted, "update", ["shop"]),
    "enriched": (enriched, "update", ["shop", "loud"]),
    "tumbling": (tumbling, "append", []),
    "shifted": (shifted, "append", []),
    "open windows": (open_windows, "update", ["window", "word"]),
    "code in pandas": (counted_in_pandas, "update", ["place"]),
    "hours": (hours, "append", []),
    "sessions": (sessions, "append", []),
    "by price": (by_price, "update", ["price", "size"]),
    "everything": (everything, "update", []),
    "firsts": (firsts, "append", []),
    "distinct": (distinct, "append", []),
    "deduplicated": (deduplicated, "append", []),
    "within": (within, "append", []),
}
"""Programs, their output mode, and the columns that tell apart what they update; [] for all in one row."""


@pytest.fixture(scope="module")
def orders(topics: Topics) -> str:
    topic = topics.create(3, name="orders")
    producer = idempotent_producer(topics.bootstrap, {})
    for number, order in enumerate(ORDERS):
        producer.produce(topic, json.dumps(order), order["shop"], partition=number % 3)
    for number in range(30):
        producer.produce(topic, json.dumps(END | {"order": -1 - number}), "end", partition=number % 3)
    assert producer.flush(60) == 0
    return topic


def stream(spark: SparkSession, topics: Topics, topic: str, **options: object) -> DataFrame:
    given = {"kafka.bootstrap.servers": topics.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    return read_stream(spark).options(**given, **options).load()


def wanted(spark: SparkSession, program: Callable[[DataFrame], DataFrame]) -> list[Any]:
    """The same program over the records as a batch."""
    batch = spark.createDataFrame([(json.dumps(order),) for order in ORDERS], "value string")
    if program is within:  # a batch has no watermark
        return sorted(map(plain, parsed(batch).select("order").distinct().collect()), key=repr)
    return sorted(map(plain, program(batch).collect()), key=repr)


def types_of(frame: DataFrame) -> list[tuple[str, str, bool]]:
    """The columns' types, and which of them may be null."""
    return [(field.name, field.dataType.simpleString(), field.nullable) for field in frame.schema]


def plain(row: Any) -> Any:
    """A row whose floats do not depend on the order of a sum."""
    if isinstance(row, dict):
        return {name: plain(value) for name, value in row.items()}
    if isinstance(row, float):
        return round(row, 6) + 0.0  # the first of rows passes as it is, and a batch gives 0.0 for -0.0
    if hasattr(row, "asDict"):
        return plain(row.asDict(recursive=True))
    return row


def last_of(rows: list[Any], keys: list[str]) -> list[Any]:
    """The last row of each key."""
    return list({repr([row[key] for key in keys]): row for row in rows}.values())


@pytest.fixture
def zone(spark: SparkSession, kind: str) -> Iterator[None]:
    """Times of some programs are those of another zone."""
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set(
        "spark.sql.session.timeZone", {"hours": "America/New_York", "totals": "Asia/Kolkata"}.get(kind, before)
    )
    yield
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.sampled(4)
@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_program_gives_the_rows_and_types_of_a_batch(
    spark: SparkSession, topics: Topics, orders: str, group: str, kind: str, tmp_path: Path
) -> None:
    program, mode, keys = PROGRAMS[kind]
    frame = program(stream(spark, topics, orders, **{"roster.state.dir": str(tmp_path)}))
    name = group.replace("-", "_")
    query = write_stream(frame).queryName(name).outputMode(mode).format("memory").trigger(availableNow=True).start()
    query.awaitTermination()
    table = spark.table(name)
    assert types_of(table) == types_of(frame)
    rows = [plain(row) for row in table.collect()]
    rows = [row for row in (last_of(rows, keys) if mode == "update" else rows) if "end" not in repr(row.get("shop"))]
    assert sorted(rows, key=repr) == wanted(spark, program)


def test_a_time_of_its_own_behind_an_operator_is_known_by_its_rows_alone(spark: SparkSession) -> None:
    """Spark's steps may make any time, such as a window's begin, of the time that an operator has reached."""
    records = read_stream(spark).options(**{"kafka.bootstrap.servers": "b:9092", "subscribe": "t"}).load()
    hours = timed(records).groupBy(F.window("at", "2 hours"), "shop").count().alias("hours")
    begun = hours.select("window", F.col("window.start").alias("begin"), F.soundex("shop").alias("sound"))
    for rows, time, delay in (
        (begun, "window", timedelta(minutes=30)),
        (begun.withWatermark("begin", "0 seconds"), "begin", None),
    ):
        program = program_of(Plan.of(rows.groupBy(F.window(time, "6 hours"), "sound").count()), "append", headers=False)
        first = program.declared.subtopologies[1].operators[0]
        assert [step.delay for step in first.after] == [delay]


NESTING: dict[str, Callable[[DataFrame, DataFrame], DataFrame]] = {
    **{
        how: lambda rows, others, how=how: rows.join(others, F.expr(IN_TIME), how) for how in ("inner", "right", "full")
    },
    "keys": lambda rows, _: rows.dropDuplicatesWithinWatermark(["shop"]),
    "united": lambda rows, others: rows.dropDuplicates(["shop", "at"]).select("nested").union(others.select("pair")),
    "aggregates": lambda rows, _: rows.groupBy(F.window("at", "1 hour")).agg(
        F.last("nested"), F.collect_list("nested")
    ),
}


@pytest.mark.parametrize("kind", NESTING)
def test_columns_have_sparks_order_and_types_and_what_of_a_value_may_be_null(
    spark: SparkSession, topics: Topics, kind: str
) -> None:
    left, right = sides(stream(spark, topics, "unread"))
    pairs = F.struct(F.lit(1).alias("one"), F.create_map(F.lit("a"), F.array("shop", F.lit("b"))).alias("map"))
    pair = F.struct(F.lit(2).alias("one"), F.create_map(F.lit("a"), F.array(F.lit("b"))).alias("map"))
    rows = NESTING[kind](left.withColumn("nested", pairs), right.withColumn("pair", pair))
    last = program_of(Plan.of(rows), "append", headers=False, topics=lambda _: ["unread"]).declared.frames.last
    made = last.make(spark.createDataFrame([], last.results))
    assert made.columns == rows.columns
    ours, theirs = (re.sub(r'"metadata":{[^}]*},', "", frame.schema.json()) for frame in (made, rows))
    assert ours == theirs


@pytest.mark.gate
def test_state_of_a_tree_of_operators_goes_on_in_another_group(
    spark: SparkSession, topics: Topics, group: str, tmp_path: Path
) -> None:
    topic, half, rows = topics.create(3), len(ORDERS) // 2, list[Any]()
    producer = idempotent_producer(topics.bootstrap, {})
    ends = [END | {"order": -1 - number} for number in range(30)]
    groups = [f"{group.replace('-', '_')}_{part}" for part in ("old", "new")]
    for name, orders in zip(groups, (ORDERS[:half], [*ORDERS[half:], *ends]), strict=True):
        for number, order in enumerate(orders):
            producer.produce(topic, json.dumps(order), partition=number % 3)
        assert producer.flush(60) == 0
        if name == groups[1]:
            exported = export(spark, topics.bootstrap, groups[0], str(tmp_path / "export"))
            assert exported.manifest.stores.keys() == {"keys", "joined", "aggregates"}
            import_state(spark, topics.bootstrap, name, exported.folder.place)
        frame = counted_firsts(stream(spark, topics, topic, **{"roster.state.dir": str(tmp_path / name)}))
        started(frame, name, "append").format("memory").start().awaitTermination()
        rows += [plain(row) for row in spark.table(name).collect() if row["shop"] != "end"]
    assert sorted(rows, key=repr) == wanted(spark, counted_firsts)


def started(frame: DataFrame, group: str, mode: str) -> Any:
    return write_stream(frame).queryName(group).outputMode(mode).trigger(availableNow=True)


def test_kafka_gets_results_once_with_their_own_key_and_headers(
    spark: SparkSession, topics: Topics, orders: str, group: str, tmp_path: Path
) -> None:
    out = topics.create(2, name="hours")
    frame = hours(stream(spark, topics, orders, **{"roster.state.dir": str(tmp_path), "includeHeaders": "true"}))
    rows = frame.select(F.col("hour").alias("key"), "value")
    for _ in range(2):  # the second run finds nothing to do
        started(rows, group, "append").format("kafka").option("topic", out).start().awaitTermination()
    found = [(key.decode(), value.decode()) for _, key, value in committed_records(topics, out) if key and value]
    assert sorted(found) == sorted((row["hour"], row["value"]) for row in wanted(spark, hours))


def test_state_goes_on_where_a_part_moves_between_roster_and_spark(
    spark: SparkSession, topics: Topics, group: str, tmp_path: Path
) -> None:
    """Each release has another step in front of the state or behind it."""
    source, out = topics.create(2), topics.create(1, name="totals")
    producer = idempotent_producer(topics.bootstrap, {})
    only_spark = "soundex(shop) <> ''"
    releases: list[tuple[Callable[[DataFrame], DataFrame], str, str]] = [
        (lambda rows: rows, "true", "RR"),
        (lambda rows: rows.where(only_spark), "true", "SR"),
        (lambda rows: rows.where(only_spark), only_spark, "SS"),
        (lambda rows: rows, only_spark, "RS"),
        (lambda rows: rows.where("price > 0"), "orders > 0", "RR"),
    ]
    for number, (step, condition, where) in enumerate(releases):
        for shop, price in (("a", 1.5), ("b", 0.25 + number)):
            producer.produce(source, json.dumps({"shop": shop, "price": price}), shop)
        assert producer.flush(60) == 0
        records = stream(spark, topics, source, **{"roster.state.dir": str(tmp_path)})
        rows = step(records.select(F.from_json(F.col("value").cast("string"), FIELDS).alias("o")).select("o.*"))
        totals = rows.groupBy("shop").agg(F.count("*").alias("orders"), F.sum("price").alias("revenue"))
        results = totals.where(condition).select(F.col("shop").alias("key"), F.to_json(F.struct("*")).alias("value"))
        steps = program_of(Plan.of(results), "update", headers=False, takes_results=True).steps
        assert steps[0][0] + steps[-1][0] == where
        started(results, group, "update").format("kafka").option("topic", out).start().awaitTermination()
    values = [json.loads(value) for _, _, value in committed_records(topics, out) if value]
    assert [row["orders"] for row in values if row["shop"] == "a"] == [1, 2, 3, 4, 5]
    assert [row["revenue"] for row in values if row["shop"] == "b"] == [0.25, 1.5, 3.75, 7.0, 11.25]


def test_files_get_results_once_and_functions_and_other_formats_too(
    spark: SparkSession, topics: Topics, orders: str, group: str, tmp_path: Path
) -> None:
    def frame(number: int) -> DataFrame:
        return tumbling(stream(spark, topics, orders, **{"roster.state.dir": str(tmp_path / str(number))}))

    expected = wanted(spark, tumbling)
    seen: list[tuple[int, Any]] = []
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    writers = {
        "parquet": lambda w: w.partitionBy("shop").start(str(tmp_path / "parquet")),
        "delta": lambda w: w.format("delta").start(str(tmp_path / "delta")),
        "iceberg": lambda w: w.sink(IcebergSink("shop.hours", catalog)).start(),
        "json": lambda w: w.format("json").start(str(tmp_path / "json")),
        "function": lambda w: w.foreachBatch(
            lambda df, number: seen.extend((number, plain(row)) for row in df.collect())
        ).start(),
    }
    for number, (kind, start) in enumerate(writers.items()):
        start(started(frame(number), f"{group}-{kind}", "append")).awaitTermination()
    read = spark.read.parquet(str(tmp_path / "parquet")).select(frame(0).columns).collect()
    assert sorted(map(plain, read), key=repr) == expected
    assert spark.read.json(str(tmp_path / "json")).count() == len(expected)
    assert sorted((row for _, row in seen), key=repr) == expected
    assert len({number for number, _ in seen}) == 1
    from deltalake import DeltaTable

    assert DeltaTable(str(tmp_path / "delta")).to_pyarrow_table().num_rows == len(expected)
    from pyiceberg.catalog import load_catalog

    assert load_catalog("default", **catalog).load_table("shop.hours").scan().to_arrow().num_rows == len(expected)


def test_a_session_in_a_notebook(spark: SparkSession, topics: Topics, group: str, tmp_path: Path) -> None:
    """Start, look, stop, change, change back, rename: what was counted before is there; a change of keys is refused."""
    topic = topics.create(2, name="clicks")
    name = group.replace("-", "_")

    def clicks(values: list[str]) -> None:
        producer = idempotent_producer(topics.bootstrap, {})
        for value in values:
            producer.produce(topic, value)
        assert producer.flush(60) == 0

    def begun(*aggregates: Any, key: str = "page", **options: str) -> StreamQuery:
        records = stream(spark, topics, topic, **{"roster.state.dir": str(tmp_path)})
        pages = records.select(F.col("value").cast("string").alias(key), "timestamp")
        rows = pages.groupBy(key).agg(*aggregates)
        writer = write_stream(rows).queryName(name).outputMode("update").format("memory")
        return writer.options(**options).start()

    def looked(query: StreamQuery) -> dict[str, int]:
        query.processAllAvailable()
        return {row["page"]: row["clicks"] for row in spark.table(name).collect()}

    clicks(["a", "b", "a"])
    query = begun(F.count("*").alias("clicks"))
    assert looked(query) == {"a": 2, "b": 1}
    progress = [json.loads(each.json) for each in query.recentProgress]
    read = {number: end for each in progress for number, end in each["sources"][0]["endOffset"].get(topic, {}).items()}
    assert (sum(read.values()), progress[-1]["stateOperators"][0]["operatorName"]) == (3, "aggregates")
    assert query.isActive
    query.stop()
    query.processAllAvailable()
    assert (query.isActive, query.exception()) == (False, None)
    spark.catalog.dropTempView(name)
    clicks(["a"])
    again = begun(F.count("*").alias("clicks"), F.max("timestamp").alias("latest"))
    assert looked(again) == {"a": 3}
    again.stop()
    back = begun(F.count("*").alias("clicks"))
    said = (
        r"""a newer release has changed its state: latest .*with \.option\("roster\.migrate", '{"aggregates": {}}'\)"""
    )
    with pytest.raises(StreamingQueryException, match=said):
        back.awaitTermination()
    spark.catalog.dropTempView(name)
    clicks(["b"])
    renamed = begun(
        F.count("*").alias("clicks"), F.max("page"), **{"roster.migrate": '{"aggregates": {"clicks": "clicks"}}'}
    )
    assert looked(renamed) == {"b": 2}
    renamed.stop()
    other = begun(F.count("*").alias("clicks"), key="address")
    with pytest.raises(StreamingQueryException, match=r"written with keys .page string., and .* has keys .address"):
        other.awaitTermination()


def test_names_of_state_follow_aliases_and_kinds_and_not_steps(spark: SparkSession, topics: Topics) -> None:
    def stores(program: Callable[[DataFrame], DataFrame], mode: str = "append") -> list[str]:
        made = program_of(Plan.of(program(stream(spark, topics, "unread"))), mode, headers=False)
        assert made is not None
        return [operator.stateful.store for operator in made.declared.operators]

    assert (
        stores(tumbling)
        == stores(lambda df: tumbling(df.where("offset > 3").withColumn("x", F.lit(1))))
        == ["aggregates"]
    )
    assert stores(lambda df: tumbling(df).where("orders > 1").select("orders")) == ["aggregates"]
    assert stores(lambda df: tumbling(df).alias("hours").where("orders > 1").alias("large")) == ["hours"]
    assert stores(counted_once) == ["keys", "aggregates"]
    tumbling(stream(spark, topics, "unread")).createOrReplaceTempView("a_view")
    assert stores(lambda _: spark.sql("select orders from a_view")) == ["aggregates"]
    with pytest.raises(PipelineError, match="two operators keep state by the name 'keys'"):
        stores(lambda df: timed(df).dropDuplicates(["order", "at"]).dropDuplicates(["shop", "at"]))


def test_how_large_a_joined_table_is_decides_and_is_told(
    spark: SparkSession, topics: Topics, group: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By Spark's statistics, where there are some, else by counting; the user's own hint goes in front of both."""
    records = stream(spark, topics, topics.create(1), **{"roster.state.dir": str(tmp_path)})
    large = spark.range(3_000_000).selectExpr("id % 1000 as n", "id", "cast(id as string) as s")
    tables = {
        "1,500 bytes of it": spark.range(125).selectExpr("id as n", "id"),
        "60 bytes of it": spark.createDataFrame([(1, 10, "x"), (2, 20, "y"), (3, 30, "z")], "n long, id int, s string"),
        "by its own hint": F.broadcast(large),
        "24,000 bytes of it": spark.range(2000).selectExpr("id as n", "id", "'long text' as s").filter("id >= 0"),
    }
    for said, table in tables.items():
        made = program_of(Plan.of(with_table(records, table)), "update", headers=False)
        assert [step for step in made.steps if "the table" in step] == list(made.tables)
        assert [said in step for step in made.tables] == [True], made.tables
    with caplog.at_level(logging.INFO, "roster.pipeline"):
        started(with_table(records, tables["by its own hint"]), group, "update").format(
            "noop"
        ).start().awaitTermination()
    assert f"{group}: Spark: the table (n, id, s) goes to each task whole, by its own hint" in caplog.messages
    unhinted = with_table(records, tables["60 bytes of it"])
    for limit, said in (
        ("30", "has 40 bytes or more, and .*Threshold is 30"),
        ("-1", "has 20 bytes or more, and .*is -1"),
    ):
        spark.conf.set("spark.sql.autoBroadcastJoinThreshold", limit)
        try:
            with pytest.raises(PipelineError, match=said):
                program_of(Plan.of(unhinted), "update", headers=False)
        finally:
            spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")
    behind = with_table(records, spark.range(10).selectExpr("id as n", "id")).join(
        large.groupBy("n").count(), F.expr("most = n")
    )
    assert (
        len(program_of(Plan.of(behind), "update", headers=False).tables) == 1
    )  # behind the state Spark does as it likes


@pytest.mark.gate
def test_records_keyed_by_the_key_need_no_topic_of_their_own(
    spark: SparkSession, topics: Topics, orders: str, group: str, tmp_path: Path
) -> None:
    topic = topics.create(2, name="keyed")
    producer = idempotent_producer(topics.bootstrap, {})
    for order in ORDERS:
        producer.produce(topic, json.dumps(order), order["shop"])
    assert producer.flush(60) == 0
    options = {"roster.state.dir": str(tmp_path), "roster.keyed_by": "shop"}
    frame = totals(stream(spark, topics, topic, **options))
    name = group.replace("-", "_")
    query = started(frame, name, "update").format("memory").start()
    query.awaitTermination()
    rows = last_of([plain(row) for row in spark.table(name).collect()], ["shop"])
    assert sorted(row["count(price)"] for row in rows if row["shop"]) == sorted(
        row["count(price)"] for row in wanted(spark, totals) if row["shop"]
    )
    assert not [each for each in topics.admin.list_topics() if each.startswith(f"{name}-") and "repartition" in each]


@pytest.mark.gate
def test_several_topics_are_one_frame(spark: SparkSession, topics: Topics, group: str, tmp_path: Path) -> None:
    names = [topics.create(2, name=name) for name in ("north", "south")]
    producer = idempotent_producer(topics.bootstrap, {})
    for number, order in enumerate(ORDERS):
        producer.produce(names[number % 2], json.dumps(order))
    assert producer.flush(60) == 0
    name = group.replace("-", "_")
    frame = totals(stream(spark, topics, ",".join(names), **{"roster.state.dir": str(tmp_path)}))
    started(frame, name, "update").format("memory").start().awaitTermination()
    rows = last_of([plain(row) for row in spark.table(name).collect()], ["shop"])
    assert sorted(rows, key=repr) == wanted(spark, totals)
    keyed = totals(stream(spark, topics, ",".join(names), **{"roster.keyed_by": "shop"}))
    with pytest.raises(PipelineError, match=r"roster\.keyed_by: records of several topics"):
        started(keyed, name, "update").format("memory").start()


def test_what_runs_where_is_told(
    spark: SparkSession, topics: Topics, orders: str, group: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = tumbling(stream(spark, topics, orders, **{"roster.state.dir": str(tmp_path)}))
    query: StreamQuery = started(frame, group, "append").foreachBatch(lambda df, _: None).start()
    query.awaitTermination()
    query.explain()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1. Roster: the program up to the state, in the tasks that read"
    assert lines[1].endswith("by the topic <group>-aggregates-repartition")
    assert lines[2].startswith("3. Roster: aggregate orders, revenue, avg(price), max(amount): windows of at, 1:00:00")
    assert lines[2].endswith("final 0:30:00 later, by shop; state aggregates")
    assert lines[3] == "4. Spark: the rest, with the results of each batch, as the sink takes DataFrames"
    # Of the same program for a topic, with text, and with a step that only Spark has.
    records = stream(spark, topics, orders)
    steps = [
        program_of(Plan.of(program), "append", headers=False, takes_results=True).steps
        for program in (
            tumbling(records),
            hours(records),
            tumbling(records.withColumn("z", F.lit(1)).where("uuid() <> ''")),
        )
    ]
    assert steps[0][-1] == "Roster: the rest, in the same tasks"
    assert steps[1][0] == "Spark: the program up to the state, in the tasks that read, for lower(shop)"
    assert steps[1][-1].startswith("Spark: the rest, with the results of each batch, for ")
    assert steps[2][0].startswith("Spark: the program up to the state, in the tasks that read, for uuid(")


def in_sql(text: str) -> Callable[[DataFrame], DataFrame]:
    """A program in SQL over the view `parsed`."""

    def program(records: DataFrame) -> DataFrame:
        parsed(records).createOrReplaceTempView("parsed")
        return records.sparkSession.sql(text)

    return program


REFUSED: dict[str, tuple[Callable[[DataFrame], DataFrame], str, str]] = {
    "complete": (totals, "complete", "outputMode: each application of the group would show its part only"),
    "append without a watermark": (
        totals,
        "append",
        (
            r"^write_stream: groupBy\(shop\).*: its results are never final\. "
            r'Put withWatermark\(.*\) in front of it and window\(.*\) into groupBy\(\), or use outputMode\("update"\)$'
        ),
    ),
    "distinct values": (
        lambda df: parsed(df).groupBy("shop").agg(F.countDistinct("price")),
        "update",
        "Spark: Distinct",
    ),
    "collations": (
        lambda df: (
            parsed(df)
            .groupBy("amount")
            .agg(
                *(F.expr(f"{name}(shop collate UTF8_LCASE)") for name in ("min", "approx_count_distinct", "first")),
                F.expr("max_by(order, struct(shop collate UNICODE))"),
            )
        ),
        "update",
        r"min\(.* compares texts by a collation.* \(Give it .* UTF8_BINARY\); approx_count.*; max_by\(",
    ),
    "a function": (
        lambda df: parsed(df).groupBy("shop").agg(F.skewness("price")),
        "update",
        "skewness.* needs a state",
    ),
    "several functions": (
        lambda df: parsed(df).groupBy("shop").agg(F.skewness("price"), F.sum("price"), F.median("amount")),
        "update",
        r"skewness\(.* \(Use another function, .*; median\(",
    ),
    "a key": (lambda df: parsed(df).groupBy(F.split("tags", " ")).count(), "update", "is a key of the type array"),
    "the time itself": (lambda df: timed(df).groupBy("at").count(), "append", "by the time of the watermark itself"),
    "sessions that change": (
        lambda df: timed(df).groupBy(F.session_window("at", "1 minute"), "shop").count(),
        "update",
        "sessions that are not final|[Ss]ession window",
    ),
    "sessions whose gap rows decide": (
        lambda df: timed(df).groupBy(F.session_window("at", F.expr("if(amount > 2, '1 minute', '5 minutes')"))).count(),
        "append",
        r"^write_stream: groupBy\(session_window\): a session's gap that rows decide\. Use one of fixed length$",
    ),
    "a struct": (
        lambda df: parsed(df).groupBy(F.struct(F.col("at").alias("start"), F.col("at").alias("end"))).count(),
        "update",
        "is a key of the type struct",
    ),
    "totals joined without their windows": (
        lambda df: (
            timed(df)
            .groupBy(F.window("at", "1 hour"), "shop")
            .count()
            .join(
                sides(df)[1].groupBy(F.window("paid", "1 hour").alias("w"), "at_shop", "tags").count(),
                F.expr("shop = at_shop"),
            )
        ),
        "append",
        r"a join of two streams has not both bounds of the time between their rows",
    ),
    "a join without a time": (
        lambda df: sides(df)[0].join(sides(df)[1], F.expr("shop = at_shop and paid >= at")),
        "append",
        r"has not both bounds of the time between their rows\. For example a\.key = b\.key and",
    ),
    "a join without a key": (
        lambda df: sides(df)[0].join(sides(df)[1], F.expr(IN_TIME.replace("=", "<>", 1))),
        "append",
        "has no columns that are equal",
    ),
    "rows without a partner": (
        lambda df: sides(df)[0].join(sides(df)[1], F.expr(IN_TIME), "left_anti"),
        "append",
        r"of the kind LeftAnti\. Use an inner, an outer or a left semi join",
    ),
    "several operators at once": (
        lambda df: (
            sides(df)[0]
            .join(sides(df)[1], F.expr(IN_TIME), "left_anti")
            .groupBy(F.window("at", "1 hour"), "shop")
            .agg(F.skewness("price"), F.sum("order"))
            .orderBy(F.col("shop") > "b")
        ),
        "append",
        (
            r"orderBy\(\(shop > 'b'\) ASC.*\) at test_stateful.*py:\d+: a stream has no .*; groupBy\(window, shop\)"
            r": skewness\(price\) needs a state .*; join\(.*LeftAnti"
        ),
    ),
    "an order in SQL": (
        in_sql("select shop, count(*) as n\nfrom parsed group by shop\norder by n"),
        "update",
        r"orderBy\(n ASC NULLS FIRST\) at line \d of the SQL text: a stream has no order",
    ),
    "an aggregate of each row's function": (
        in_sql("from parsed, lateral (select max(col) from explode(array(amount, 2)))"),
        "append",
        r"LateralJoin\(\): it has no counterpart",
    ),
    "a large table": (
        lambda df: with_table(
            df, df.sparkSession.range(3_000_000).selectExpr("id % 1000 as n", "id", "cast(id as string) as s")
        ),
        "update",
        (
            r"join\(.*\) at .*: the table \(n, id, s\) has 36,000,000 bytes or more, and .*Threshold is 10,485,760, .*"
            r"\. Give it by F\.broadcast\(table\) if each executor can hold it, raise the setting,"
        ),
    ),
    "an outer join with a condition": (
        lambda df: sides(df)[0].join(sides(df)[1], F.expr(f"{IN_TIME} and order <> paying"), "left"),
        "append",
        r"a join of two streams that is left outer with the condition .*order.*paying",
    ),
    "a join of other times": (
        lambda df: (
            sides(df.withColumn("x", F.lit(1)))[0]
            .withColumn("then", F.col("at") + F.expr("interval 1 hour"))
            .join(sides(df)[1], F.expr(IN_TIME.replace("at ", "then ").replace("then -", "then -")))
        ),
        "append",
        "without the time of a watermark|has not both bounds",
    ),
    "files of updates": (totals, "update parquet", "files take no updates of earlier rows"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_has_no_counterpart_is_refused_at_the_start(spark: SparkSession, topics: Topics, kind: str) -> None:
    program, mode, said = REFUSED[kind]
    mode, _, form = mode.partition(" ")
    writer = write_stream(program(stream(spark, topics, "unread"))).queryName("never").format(form or "console")
    with pytest.raises(PipelineError, match=said):
        writer.start("nowhere" if form else None, outputMode=mode)
