"""Kafka to Kafka: each order with its shop's country, as JSON, exactly once for readers of committed records.

    python enrich_to_kafka.py BOOTSTRAP [--follow]

Reads `orders`, joins it with a small table and writes to `orders-with-country`, which must exist.
"""

import argparse

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's custom

from roster.spark import KafkaSink, Pipeline, session

COUNTRIES = [("Rome", "Italy"), ("Oslo", "Norway")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bootstrap")
    parser.add_argument("--follow", action="store_true", help="work until Ctrl-C")
    arguments = parser.parse_args()

    spark = session("enrich-to-kafka", master="local[2]")
    countries = F.broadcast(spark.createDataFrame(COUNTRIES, "shop string, country string"))

    def enrich(df: DataFrame) -> DataFrame:
        order = F.from_json(F.col("value").cast("string"), "shop string, item string, price double")
        orders = df.select("key", order.alias("order")).select("key", "order.*")
        columns = F.struct("shop", "item", "price", "country")
        return orders.join(countries, "shop", "left").select("key", F.to_json(columns).alias("value"))

    (
        Pipeline(spark, arguments.bootstrap, group="enrich-to-kafka", topics=["orders"])
        .transform(enrich)
        .write(KafkaSink(arguments.bootstrap, "orders-with-country", options={"compression.type": "zstd"}))
        .run(available_now=not arguments.follow)
    )
    spark.stop()


if __name__ == "__main__":
    main()
