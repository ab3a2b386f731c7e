"""Running totals of each shop, exactly once: state, results and offsets are one Kafka transaction.

    python totals_by_shop.py BOOTSTRAP [--follow]

Reads `orders`, whose key is the shop, and writes each batch's changed totals to `totals-by-shop`, which must exist. A
second run goes on where the first one ended; so does another application of the group after a crash.
"""

import argparse
import json

import pyarrow as pa

from roster.spark import KafkaSink, Pipeline, session

COLUMNS = pa.schema([("shop", pa.string()), ("price", pa.float64())])


def parse(batch: pa.RecordBatch) -> pa.RecordBatch:
    orders = []
    for value in batch["value"].to_pylist():
        try:
            order = json.loads(value)
            orders.append({"shop": str(order["shop"]), "price": order["price"]})
        except (ValueError, KeyError, TypeError):
            continue  # no order
    return pa.RecordBatch.from_pylist(orders, schema=COLUMNS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bootstrap")
    parser.add_argument("--follow", action="store_true", help="work until Ctrl-C")
    arguments = parser.parse_args()

    spark = session("totals-by-shop", master="local[2]")
    (
        Pipeline(spark, arguments.bootstrap, group="totals-by-shop", topics=["orders"])
        .map_arrow(parse, "shop string, price double")
        .aggregate("shop", {"orders": "count(*)", "revenue": "sum(price)"}, store="totals")
        .write(KafkaSink(arguments.bootstrap, "totals-by-shop"))
        .run(available_now=not arguments.follow)
    )
    spark.stop()


if __name__ == "__main__":
    main()
