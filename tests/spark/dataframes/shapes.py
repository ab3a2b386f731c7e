"""What 43 public programs over Kafka do, each written anew: the parts, names and sinks that they have, and their modes.

A program makes queries of a frame with the columns of Spark's Kafka source, which is a stream or a batch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame

BEGIN = datetime(2026, 3, 29, tzinfo=UTC)


def _order(n: int) -> dict[str, Any]:
    """An order, with what programs find in records: nested objects, lists, maps, JSON in text, times as numbers."""
    at = BEGIN + timedelta(minutes=n * 7 - n % 3 * 4)
    return {
        "id": n - n % 5 % 2,
        "shop": "abcd"[n * n % 4] if n % 11 else None,
        "city": ("Rome", "Oslo", "Lima")[n % 3],
        "price": round(n % 9 * 1.25, 2) if n % 7 else None,
        "amount": n % 5,
        "note": ("big red box", "red", "a small box", "")[n % 4],
        "at": str(at.replace(tzinfo=None)),
        "day": f"{at:%d/%m/%Y %H:%M}" if n % 2 else f"{at:%Y-%m-%dT%H:%M:%S}",
        "millis": int(at.timestamp() * 1000),
        "seconds": str(int(at.timestamp())),
        "tags": ["new", "sale"][: n % 3],
        "lines": [{"sku": f"s{k}", "count": k + 1} for k in range(n % 3)],
        "buyer": {"name": f"buyer {n % 6}", "address": {"zip": n % 4}},
        "extra": {"colour": "red", "size": str(n % 3)} if n % 4 else None,
        "inner": json.dumps({"kind": f"k{n % 3}", "rank": n % 5}),
    }


ORDERS = [_order(n) for n in range(60)]
END = _order(0) | {
    "id": -1,
    "at": "2026-04-20 00:00:00",
    "day": "20/04/2026 00:00",
    "millis": 1776643200000,
    "seconds": "1776643200",
}
"""Closes the windows of a partition's rows before."""

PLAIN = "id long, shop string, city string, price double, amount int, note string, at string"


@dataclass(frozen=True)
class Query:
    """What a program starts. sink: "memory" stands for the console. by: keys in mode `update`."""

    frame: DataFrame
    sink: str = "memory"
    mode: str = "append"
    by: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shape:
    """A program. queries: makes them. zone: of the session. closes: whether it needs records that end its windows.

    is_complete: True for one that asks for mode `complete`, and so is refused.
    """

    queries: Callable[[DataFrame], list[Query]]
    zone: str = "UTC"
    closes: bool = False
    is_complete: bool = False
    topics: int = 1


def parsed(records: DataFrame, fields: str = PLAIN, *more: str) -> DataFrame:
    """The values' fields, as nearly all programs begin."""
    return records.select(F.from_json(F.col("value").cast("string"), fields).alias("data"), *more).select(
        "data.*", *more
    )


def timed(records: DataFrame, delay: str = "10 minutes") -> DataFrame:
    return parsed(records).withColumn("at", F.to_timestamp("at")).withWatermark("at", delay)


def chosen(records: DataFrame) -> list[Query]:
    rows = parsed(records).select("id", "shop", "price").filter((F.col("price") > 2) & F.col("shop").isNotNull())
    return [Query(rows, "table")]


def stamped(records: DataFrame) -> list[Query]:
    rows = parsed(records).select(
        F.col("id").cast("string"), F.col("price").cast("decimal(10,2)"), F.to_date("at").alias("day"), "city"
    )
    return [Query(rows.withColumn("now", F.current_timestamp()), "table")]


def as_text(records: DataFrame) -> list[Query]:
    return [Query(records.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)"))]


def of_two_topics(records: DataFrame) -> list[Query]:
    return [Query(parsed(records).filter("amount >= 2"))]


def on_the_console(records: DataFrame) -> list[Query]:
    return [Query(parsed(records).select("id", "note", "price"))]


def graded(records: DataFrame) -> list[Query]:
    @F.udf("string")
    def grade(price: float | None) -> str:
        return "unknown" if price is None else "dear" if price > 5 else "cheap"

    return [Query(parsed(records).withColumn("grade", grade("price")), "function")]


def nested_lists(records: DataFrame) -> list[Query]:
    fields = "id long, tags array<string>, lines array<struct<sku:string,count:int>>"
    return [Query(parsed(records, fields).where("size(lines) > 0"), "delta")]


def two_indexes(records: DataFrame) -> list[Query]:
    rows = parsed(records)
    kind = F.when(F.col("amount") > 3, "large").when(F.col("amount") > 1, "medium").otherwise("small")
    return [Query(rows.withColumn("kind", kind), "function"), Query(rows.where("price > 5"), "function")]


def files(records: DataFrame) -> list[Query]:
    return [Query(parsed(records), "parquet")]


def maps(records: DataFrame) -> list[Query]:
    return [Query(parsed(records, "id long, extra map<string,string>").where("extra is not null"), "orc")]


def nested(records: DataFrame) -> list[Query]:
    rows = parsed(records, "id long, buyer struct<name:string,address:struct<zip:int>>", "timestamp")
    rows = rows.withWatermark("timestamp", "1 minute")
    return [Query(rows.select("id", "buyer.name", F.col("buyer.address.zip").alias("zip")), "parquet")]


def scored(records: DataFrame) -> list[Query]:
    return [Query(parsed(records).select("price", "amount").na.fill(1.0), "scores")]


def several_files(records: DataFrame) -> list[Query]:
    def of(fields: str) -> DataFrame:
        return parsed(records, fields, "timestamp").withWatermark("timestamp", "5 minutes").drop("timestamp")

    return [Query(of("id long, shop string"), "parquet"), Query(of("id long, tags array<string>"), "parquet")]


def raw(records: DataFrame) -> list[Query]:
    return [Query(records.select("key", "value", "offset", "timestamp"))]


def wide(records: DataFrame) -> list[Query]:
    return [Query(parsed(records, f"{PLAIN}, millis long, seconds string, tags array<string>"), "orc")]


def translated(records: DataFrame) -> list[Query]:
    @F.udf("string")
    def reverse(text: str | None) -> str | None:
        return None if text is None else text[::-1]

    rows = parsed(records).select(F.col("shop").alias("key"), reverse("note").alias("value"))
    return [Query(rows, "kafka")]


def overwritten(records: DataFrame) -> list[Query]:
    rows = parsed(records).withColumn("state", F.when(F.col("price").isNull(), "open").otherwise("paid"))
    return [Query(rows, "function")]


def into_a_table(records: DataFrame) -> list[Query]:
    return [Query(parsed(records).select("id", "city", "at"), "table")]


def predicted(records: DataFrame) -> list[Query]:
    return [Query(parsed(records).select("id", "amount").na.fill(0), "scores")]


def cached(records: DataFrame) -> list[Query]:
    return [Query(parsed(records).select(F.concat_ws(":", "shop", "id").alias("name"), "price"), "function")]


def grouped_inside(records: DataFrame) -> list[Query]:
    return [Query(parsed(records).select("city", "amount"), "sums", "update")]


def each_row(records: DataFrame) -> list[Query]:
    rows = parsed(records).withColumn("at", F.to_timestamp("at"))
    parts = rows.select("id", F.hour("at").alias("hour"), F.dayofweek("at").alias("weekday"), "price", "shop").na.drop()
    return [Query(parts), Query(parts.select("id"), "rows")]


def upserted(records: DataFrame) -> list[Query]:
    rows = timed(records).where(~F.isnan("price")).withColumn("now", F.current_timestamp())
    seen = rows.observe("quality", F.count("*").alias("rows"), F.count("price").alias("priced"))
    values = F.avg("price").alias("mean"), F.min("price"), F.max("price"), F.count("*").alias("n")
    by = ("window", "shop", "city")
    return [
        Query(seen.groupBy(F.window("at", "1 hour"), "shop", "city").agg(*values), "function", "update", by),
        Query(rows.groupBy(F.window("at", "2 hours", "1 hour"), "shop", "city").agg(*values), "function", "update", by),
    ]


def clicks_of_views(records: DataFrame) -> list[Query]:
    def of(name: str, condition: str) -> DataFrame:
        rows = parsed(records, "id long, shop string, city string, millis long").where(condition)
        at = F.to_timestamp(F.col("millis") / 1000).alias(f"{name}_at")
        columns = F.col("shop").alias(f"{name}_shop"), F.col("city").alias(f"{name}_city"), F.col("id").alias(name), at
        return rows.select(*columns).withWatermark(f"{name}_at", "10 minutes")

    views, clicks = of("view", "id % 3 < 2"), of("click", "id % 2 = 0")
    condition = F.expr(
        "view_shop = click_shop and view_city = click_city and click_at >= view_at "
        "and click_at <= view_at + interval 30 minutes"
    )
    return [Query(views.join(clicks, condition), "function")]


def without_watermark(records: DataFrame) -> list[Query]:
    rows = parsed(records).withColumn("at", F.to_timestamp("at"))
    hours = rows.groupBy(F.window("at", "1 hour"), "city").agg(
        F.avg("price").alias("mean"), F.sum("amount").alias("sold")
    )
    by = ("window", "city")
    value = F.to_json(F.struct("*")).alias("value")
    return [
        Query(hours, "memory", "update", by),
        Query(hours.select(value), "kafka", "update", ("value window", "value city")),
    ]


def words_of_json_in_json(records: DataFrame) -> list[Query]:
    rows = parsed(records, "id long, inner string, note string, at timestamp")
    rows = rows.withColumn("inner", F.from_json("inner", "kind string, rank int")).where("inner.kind is not null")
    words = rows.select("at", "inner.kind", F.explode(F.split("note", " ")).alias("word"))
    counts = words.withWatermark("at", "10 minutes").groupBy(F.window("at", "1 hour", "15 minutes"), "word").count()
    return [Query(counts.select(F.col("word").alias("key"), F.to_json(F.struct("*")).alias("value")), "kafka")]


def three_batches(records: DataFrame) -> list[Query]:
    rows = parsed(records)
    paid = rows.where("price is not null").select("id", "price")
    total = rows.groupBy().count()
    paid.join(rows.select("id", "city"), "id")  # which is never started
    return [Query(paid, "function"), Query(rows.select("id", "city"), "function"), Query(total, "function", "update")]


def word_counts(records: DataFrame) -> list[Query]:
    lines = records.selectExpr("cast(value as string) as value").withColumn("now", F.current_timestamp())
    words = lines.select(F.explode(F.split("value", "[^a-z]+")).alias("word"), "now")
    titles = words.select(F.initcap("word").alias("title"), "now")
    minutes = words.groupBy(F.window("now", "36500 days"), "word").count()
    return [
        Query(words.groupBy("word").count(), mode="update", by=("word",)),
        Query(titles.groupBy("title").agg(F.count("*").alias("n")), mode="update", by=("title",)),
        Query(minutes.drop("window"), mode="update", by=("word",)),
    ]


def in_seoul(records: DataFrame) -> list[Query]:
    rows = parsed(records).withColumn("at", F.to_timestamp("at", "yyyy-MM-dd HH:mm:ss"))
    rows = rows.where(F.col("city").isin("Rome", "Oslo")).withWatermark("at", "10 minutes")
    counts = rows.groupBy(F.window("at", "1 hour"), "city").agg(F.count("*").alias("n"))
    counts = counts.select("window.start", "window.end", "city", "n", F.lit("orders").alias("kind"))
    return [Query(counts, "parquet")]


def either_format(records: DataFrame) -> list[Query]:
    def time(text: str) -> Column:
        return F.expr(f"try_to_timestamp(day, {text})")

    rows = parsed(records, "day string, shop string, price double")
    at = F.coalesce(time("'dd/MM/yyyy HH:mm'"), time("\"yyyy-MM-dd'T'HH:mm:ss\""), F.current_timestamp())
    rows = rows.withColumn("at", at).withWatermark("at", "10 minutes")
    totals = rows.groupBy(F.window("at", "1 hour"), "shop").agg(F.sum("price").alias("total"), F.count("*").alias("n"))
    return [Query(totals.select("window.start", "shop", "total", "n"), "parquet")]


def first_orders(records: DataFrame) -> list[Query]:
    rows = parsed(records, "id long, shop string, extra map<string,string>, at string")
    rows = rows.withColumn("at", F.to_timestamp("at")).where(F.col("shop").isin("a", "b")).dropDuplicates(["id"])
    once = rows.select("id", F.coalesce(F.col("extra")["colour"], F.lit("red")).alias("colour"))
    return [Query(once, "parquet"), Query(parsed(records).select("id", "city"), "json")]


def by_three_keys(records: DataFrame) -> list[Query]:
    rows = parsed(records, f"{PLAIN}, seconds string").withColumn("at", F.col("seconds").cast("long").cast("timestamp"))
    rows = rows.withColumn("place", F.concat("city", F.lit("/"), F.coalesce("shop", F.lit("?"))))
    large = F.when(F.col("amount") > 2, 1).otherwise(0)
    rows = rows.withWatermark("at", "5 minutes").groupBy(
        F.window("at", "2 hours", "30 minutes"), "place", "city", "amount"
    )
    values = (
        F.avg("price"),
        F.min("price"),
        F.max("price"),
        F.sum(large).alias("large"),
        F.first("city").alias("some"),
    )
    return [Query(rows.agg(*values), "function", "update", ("window", "place", "amount"))]


def alarms(records: DataFrame) -> list[Query]:
    rows = parsed(records).withColumn("at", F.col("at").cast("timestamp")).withWatermark("at", "2 minutes")
    dear = F.sum(F.when(F.col("price") > 4, F.col("price")).otherwise(0)).alias("dear")
    sums = rows.groupBy(F.window("at", "2 hours"), "city", "amount").agg(dear, F.count("*").alias("n"))
    level = F.when(F.col("dear") > 10, "high").otherwise("low").alias("level")
    rows = sums.filter("n > 0").select("window.start", "city", "amount", F.round("dear", 1).alias("dear"), level)
    return [Query(rows.withColumn("now", F.current_timestamp()), "csv")]


def in_sql(records: DataFrame) -> list[Query]:
    timed(records).createOrReplaceTempView("shape_orders")
    text = (
        "select window.start as start, shop, count(*) as n, max(price) as most from shape_orders "
        "group by window(at, '30 minutes'), shop"
    )
    return [Query(records.sparkSession.sql(text), "orc")]


def report(records: DataFrame) -> list[Query]:
    rows = timed(records).withColumn("kind", F.expr("CASE WHEN amount > 2 THEN 'many' ELSE 'few' END"))
    values = (
        F.round(F.sum("price"), 2).alias("total"),
        F.round(F.avg("price"), 3).alias("mean"),
        F.max("amount").alias("most"),
    )

    def totals(length: str) -> Query:
        done = rows.groupBy(F.window("at", length), "city", "kind").agg(*values)
        done = done.select(
            F.to_date("window.start").alias("day"), "window.start", "city", "kind", "total", "mean", "most"
        )
        return Query(done, "delta", partition_by=("city",))

    return [
        totals("1 hour"),
        totals("1 day"),
        totals("1 minute"),
        Query(rows.select("id", "city", "kind").where("id >= 0"), "delta"),
    ]


def sliding(records: DataFrame) -> list[Query]:
    rows = timed(records).groupBy(F.window("at", "1 hour", "20 minutes"), "shop")
    return [
        Query(rows.agg(F.count("*").alias("n"), F.sum("price").alias("total")), mode="update", by=("window", "shop"))
    ]


def ordered_counts(records: DataFrame) -> list[Query]:
    rows = records.selectExpr("cast(value as string) as value").groupBy("value").count().orderBy(F.desc("count"))
    return [Query(rows, mode="complete")]


def ordered_means(records: DataFrame) -> list[Query]:
    means = parsed(records).groupBy("city").agg(F.avg("price"), F.avg("amount"), F.avg("id"), F.count("*").alias("n"))
    return [Query(means.orderBy("city"), mode="complete")]


def for_a_page(records: DataFrame) -> list[Query]:
    rows = parsed(records).withColumn("day", F.date_format("at", "yyyy-MM-dd"))
    means = rows.groupBy("day", "city").agg(F.round(F.avg("price"), 1).alias("mean"))
    return [Query(means.sort("mean"), mode="complete")]


def mean_of_windows(records: DataFrame) -> list[Query]:
    return [Query(timed(records).groupBy(F.window("at", "1 hour")).agg(F.avg("price")), mode="complete")]


def by_tag(records: DataFrame) -> list[Query]:
    rows = parsed(records, "tags array<string>, at string").withColumn("at", F.to_timestamp("at"))
    tags = rows.select("at", F.explode("tags").alias("tag")).withWatermark("at", "1 minute")
    counts = tags.groupBy(F.window("at", "1 hour"), "tag").count()
    return [Query(counts, mode="complete"), Query(counts, "csv")]


def written_as_a_batch(records: DataFrame) -> list[Query]:
    """Fails in Spark: a stream has no `write`, and no column `when`."""
    rows = parsed(records).withWatermark("when", "1 minute").dropDuplicates(["id"])
    rows.write.format("noop").save()
    return []


def by_a_time_that_is_text(records: DataFrame) -> list[Query]:
    """Fails in Spark: the column of a watermark is text."""
    rows = parsed(records).withWatermark("at", "1 minute")
    return [Query(rows.groupBy(F.window("at", "1 hour")).agg(F.approx_count_distinct("id")), "parquet", "update")]


SHAPES = {
    "select, filter → table": Shape(chosen),
    "casts, to_date, current_timestamp → table": Shape(stamped),
    "casts → console": Shape(as_text),
    "two topics, filter → console": Shape(of_two_topics, topics=2),
    "from_json → console": Shape(on_the_console),
    "Python UDF → foreachBatch": Shape(graded),
    "nested lists → Delta": Shape(nested_lists),
    "when → two foreachBatch": Shape(two_indexes),
    "from_json → Parquet": Shape(files),
    "maps → another format": Shape(maps),
    "nested objects, watermark without use → Parquet": Shape(nested),
    "foreachBatch with a model": Shape(scored),
    "several queries → Parquet": Shape(several_files),
    "records as they are → console": Shape(raw, topics=2),
    "many fields → another format": Shape(wide),
    "Python UDF → Kafka": Shape(translated),
    "when → foreachBatch that writes files": Shape(overwritten),
    "from_json → toTable": Shape(into_a_table),
    "foreachBatch with Python": Shape(predicted),
    "foreachBatch to a cache": Shape(cached),
    "groupBy inside foreachBatch": Shape(grouped_inside),
    "parts of dates, na.drop → console, foreach": Shape(each_row),
    "two windows, observe → foreachBatch upsert": Shape(upserted),
    "join of two streams → foreachBatch": Shape(clicks_of_views),
    "windows without watermark → console, Kafka": Shape(without_watermark),
    "JSON in JSON, explode, sliding windows → Kafka": Shape(words_of_json_in_json, closes=True),
    "global count, two more → foreachBatch": Shape(three_batches),
    "word counts, windows of the clock → console": Shape(word_counts),
    "windows in Seoul → Parquet": Shape(in_seoul, zone="Asia/Seoul", closes=True),
    "times in two formats → Parquet": Shape(either_format, closes=True),
    "dropDuplicates without a time → Parquet, JSON": Shape(first_orders),
    "sliding windows of three keys → foreachBatch": Shape(by_three_keys),
    "windows, filter, when, round → CSV": Shape(alarms, closes=True),
    "SQL over a view → another format": Shape(in_sql, closes=True),
    "hours, days, minutes → Delta by city": Shape(report, closes=True),
    "sliding windows → console": Shape(sliding),
    "counts in order, complete": Shape(ordered_counts, is_complete=True),
    "means in order, complete": Shape(ordered_means, is_complete=True),
    "rounded means in order, complete": Shape(for_a_page, is_complete=True),
    "means of windows, complete": Shape(mean_of_windows, is_complete=True),
    "windows by tag, complete": Shape(by_tag, is_complete=True),
}
FAILING = {
    "a stream written as a batch": written_as_a_batch,
    "a watermark on text": by_a_time_that_is_text,
}
"""Programs that fail in Spark, too."""
