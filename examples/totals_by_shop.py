"""Running totals of each shop, exactly once: state, results and offsets are one Kafka transaction.

    python totals_by_shop.py BOOTSTRAP [--follow]

Reads `orders`, whose key is the shop, and writes each batch's changed totals to `totals-by-shop`, which must exist. A
second run goes on where the first one ended; so does another application of the group after a crash.
"""

import argparse

import pyarrow.compute as pc

from roster.spark import KafkaSink, Pipeline, session


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bootstrap")
    parser.add_argument("--follow", action="store_true", help="work until Ctrl-C")
    arguments = parser.parse_args()

    spark = session("totals-by-shop", master="local[2]")
    (
        Pipeline(spark, arguments.bootstrap, group="totals-by-shop", topics=["orders"])
        .json_columns("shop string, price double")
        .filter(pc.field("shop").is_valid())  # a value that is no order has nulls only
        .aggregate("shop", {"orders": "count(*)", "revenue": "sum(price)"}, store="totals")
        .write(KafkaSink(arguments.bootstrap, "totals-by-shop"))
        .run(available_now=not arguments.follow)
    )
    spark.stop()


if __name__ == "__main__":
    main()
