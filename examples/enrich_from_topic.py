"""Orders with the country of their shop, looked up in a compacted topic that each task keeps as a store.

    python enrich_from_topic.py BOOTSTRAP [--follow]

Reads `orders`, whose key is the shop, and `shops`, a compacted topic with a JSON object for each shop and as many
partitions. Orders of shops that are not there get a null. Results go to files, exactly once.
"""

import argparse

from roster.spark import ParquetSink, Pipeline, session


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bootstrap")
    parser.add_argument("--follow", action="store_true", help="work until Ctrl-C")
    arguments = parser.parse_args()

    spark = session("enrich-from-topic", master="local[2]")
    (
        Pipeline(spark, arguments.bootstrap, group="enrich-from-topic", topics=["orders"])
        .json_columns("shop string, item string, price double")
        .join_table("shops", on="shop", schema="country string", how="left")
        .write(ParquetSink("orders-by-country"))
        .run(available_now=not arguments.follow)
    )
    for row in spark.read.parquet("orders-by-country").groupBy("country").count().orderBy("country").collect():
        print(row.country, row["count"])
    spark.stop()


if __name__ == "__main__":
    main()
