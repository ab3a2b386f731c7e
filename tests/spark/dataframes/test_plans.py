"""What the reader of plans makes of frames, on each release of Spark the same: `plans.json`, written by the newest.

    python -m tests.spark.dataframes.test_plans

writes it anew. `make test-spark-oldest` runs this on the oldest release.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from roster.spark import read_stream, session
from roster.spark.dataframes.plan import Plan
from roster.spark.dataframes.program import program_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PLANS = Path(__file__).with_name("plans.json")
FIELDS = "shop string, price double, amount int, tags string, at string, day date, m decimal(9,2)"


def parsed(df: DataFrame) -> DataFrame:
    rows = df.select(F.from_json(F.col("value").cast("string"), FIELDS).alias("o"), "timestamp").select("o.*")
    return rows.withColumn("at", F.to_timestamp("at"))


def timed(df: DataFrame) -> DataFrame:
    return parsed(df).withWatermark("at", "10 minutes")


def in_sql(df: DataFrame) -> DataFrame:
    timed(df).createOrReplaceTempView("orders")
    return df.sparkSession.sql(
        "select window.start, shop, sum(price * amount) as revenue, count(*) filter (where amount > 1) as large"
        " from orders where price is not null group by window(at, '1 hour'), shop having count(*) > 1"
    )


def with_table(df: DataFrame, table: DataFrame | None = None) -> DataFrame:
    cities = df.sparkSession.createDataFrame([("a", "Rome")], "shop string, city string") if table is None else table
    return parsed(df).join(cities, "shop", "left").groupBy("city").agg(F.count("*").alias("n"), F.last("price", True))


def paid(
    df: DataFrame, how: str, bounds: str = "between at - interval 5 minutes and at + interval 1 hour"
) -> DataFrame:
    """A join of two streams of one topic, each with its own steps."""
    payments = timed(df).where("amount > 1").select(F.col("shop").alias("paying"), F.col("at").alias("paid"), "day")
    orders = timed(df).drop("day").withColumn("lower", F.lower("tags"))
    return orders.join(payments, F.expr(f"shop = paying and paid {bounds}"), how)


def hours_of_hours(df: DataFrame) -> DataFrame:
    hours = timed(df).groupBy(F.window("at", "1 hour"), "shop").agg(F.sum("amount").alias("n")).alias("hours")
    words = hours.where("n > 1").withColumn("word", F.explode(F.array("shop", F.lit("all"))))
    return (
        words.groupBy(F.window("window", "1 day"), "word").agg(F.max("n")).select(F.to_json(F.struct("*")).alias("j"))
    )


FRAMES: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "records": (lambda df: df, "append"),
    "fields": (parsed, "append"),
    "filters": (lambda df: parsed(df).where("price > 1 and shop in ('a', 'b') and not (amount <=> 3)"), "append"),
    "arithmetic": (
        lambda df: parsed(df).selectExpr("price * amount", "-price + 1", "amount % 2", "price / 2", "m * 2 > m"),
        "append",
    ),
    "casts": (
        lambda df: df.selectExpr("cast(key as string)", "cast(offset as double)", "cast(partition as string)"),
        "append",
    ),
    "choices": (lambda df: parsed(df).selectExpr("coalesce(shop, '?')", "case when amount > 1 then 1 end"), "append"),
    "json": (lambda df: parsed(df).select(F.to_json(F.struct("shop", "price", "at")).alias("value")), "append"),
    "words": (lambda df: parsed(df).select(F.explode(F.split("tags", " "))), "append"),
    "a function": (lambda df: parsed(df).select(F.udf(lambda text: text, "string")("shop")), "append"),
    "upper": (lambda df: parsed(df).select(F.upper("shop")), "append"),
    "totals": (lambda df: parsed(df).groupBy("shop").agg(F.sum("price").alias("total"), F.avg("amount")), "update"),
    "all rows": (lambda df: parsed(df).agg(F.count("*"), F.min("at"), F.max("day")), "update"),
    "fractions": (lambda df: parsed(df).groupBy("price", "m").count(), "update"),
    "expressions": (
        lambda df: parsed(df).groupBy(F.lower("shop").alias("s")).agg((F.sum("m") / F.count("m")).alias("mean")),
        "update",
    ),
    "functions": (
        lambda df: (
            parsed(df)
            .groupBy("shop")
            .agg(
                *(
                    f("price")
                    for f in (F.stddev, F.variance, F.var_pop, F.first, F.last, F.collect_set, F.collect_list)
                ),
                F.max_by("price", "at"),
                F.approx_count_distinct("tags"),
                F.percentile_approx("price", 0.5),
                F.expr("any_value(tags)"),
                F.expr("count_if(amount > 1)"),
            )
        ),
        "update",
    ),
    "hours": (lambda df: timed(df).groupBy(F.window("at", "1 hour"), "shop").count(), "append"),
    "half hours": (lambda df: timed(df).groupBy(F.window("at", "1 hour", "30 minutes")).count(), "update"),
    "visits": (lambda df: timed(df).groupBy(F.session_window("at", "5 minutes"), "shop").count(), "append"),
    "open hours": (lambda df: parsed(df).groupBy(F.window("at", "1 hour"), "shop").count(), "update"),
    "in SQL": (in_sql, "append"),
    "a table": (with_table, "update"),
    "firsts": (lambda df: parsed(df).dropDuplicates(["shop", "amount"]).select("shop", "at"), "append"),
    "firsts in time": (lambda df: timed(df).dropDuplicates(["shop", "at"]).select("shop"), "append"),
    "within": (lambda df: timed(df).dropDuplicatesWithinWatermark(["shop"]).select("shop", "amount"), "append"),
    "firsts and hours": (
        lambda df: timed(df).dropDuplicates(["shop", "at"]).groupBy(F.window("at", "1 hour")).agg(F.sum("amount")),
        "append",
    ),
    "inner join": (lambda df: paid(df, "inner").select("shop", "paid", "lower"), "append"),
    "left join": (
        lambda df: paid(df, "left", "> at - interval 5 minutes and paid < at + interval 1 hour").select("shop", "paid"),
        "append",
    ),
    "right join": (lambda df: paid(df, "right", "> at and paid <= at + interval 2 hours"), "append"),
    "pairs and hours": (
        lambda df: paid(df, "inner").groupBy(F.window("paid", "1 hour"), "shop").agg(F.count("*"), F.max("lower")),
        "append",
    ),
    "hours of hours": (hours_of_hours, "append"),
    "two parts": (
        lambda df: (
            timed(df).where("amount > 1").union(timed(df).where("price > 1")).groupBy(F.window("at", "1 hour")).count()
        ),
        "append",
    ),
    "joined hours": (
        lambda df: (
            timed(df)
            .groupBy(F.window("at", "1 hour"), "shop")
            .count()
            .alias("n")
            .join(
                timed(df).groupBy("shop", F.window("at", "1 hour")).agg(F.max("price")).alias("most"),
                ["window", "shop"],
                "left",
            )
        ),
        "append",
    ),
    "a table by its hint": (
        lambda df: with_table(df, F.broadcast(df.sparkSession.range(9).selectExpr("'a' as shop", "'x' as city"))),
        "update",
    ),
    "named": (lambda df: parsed(df).groupBy("shop").count().alias("orders").where("count > 1"), "update"),
}


def read(spark: SparkSession, name: str) -> dict[str, Any]:
    """What becomes of a frame: columns, what runs where, and the operators with their rows."""
    make, mode = FRAMES[name]
    options = {"kafka.bootstrap.servers": "b:9092", "subscribe": "orders"}
    frame = Plan.of(make(read_stream(spark).options(**options).load()))
    made = program_of(frame, mode, headers=False, takes_results=True)
    operators = [repr(each.stateful.operator) for each in made.declared.operators]
    return {"columns": frame.df.schema.simpleString(), "steps": list(made.steps), "operators": operators}


def of_all(spark: SparkSession) -> dict[str, Any]:
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        return {name: read(spark, name) for name in FRAMES}
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))


def test_options_of_a_source_are_those_that_were_given(spark: SparkSession) -> None:
    odd = {'a"b': "c\\", "line\n": "{'x': \u00fc=\u20ac, \U0001f600}", " ": "", "rowsPerSecond": "1"}
    reader = spark.readStream.format("rate")
    for name, value in odd.items():
        reader = reader.option(name, value)
    assert Plan.of(reader.load()).root.options == {name.lower(): value for name, value in odd.items()}


def test_plans_are_read_the_same_on_each_release(spark: SparkSession) -> None:
    assert of_all(spark) == json.loads(PLANS.read_text())


if __name__ == "__main__":
    PLANS.write_text(json.dumps(of_all(session("plans", "local[1]")), indent=1) + "\n")
