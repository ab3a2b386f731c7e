"""The largest order of each shop, by a class written for Spark's `transformWithState`, as a member of a group.

    python largest_orders.py BOOTSTRAP [--follow]

Reads `orders`, whose key is the shop, and writes an order to `largest-orders`, which must exist, when it is larger than
all before it. State, results and offsets are one Kafka transaction.
"""

import argparse
import json

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from roster.spark import KafkaSink, Pipeline, session

COLUMNS = pa.schema([("shop", pa.string()), ("item", pa.string()), ("price", pa.float64())])


class Largest(StatefulProcessor):
    def init(self, handle):  # noqa: D102
        self.largest = handle.getValueState("largest", "price double")

    def handleInputRows(self, key, rows, timerValues):  # noqa: D102, N802, N803 - Spark's names
        (most,) = self.largest.get() or (0.0,)
        for row in rows:
            if row.price is not None and row.price > most:
                most = row.price
                yield Row(shop=key[0], item=row.item, price=row.price)
        self.largest.update((most,))

    def close(self):  # noqa: D102
        pass


def parse(batch: pa.RecordBatch) -> pa.RecordBatch:
    orders = []
    for value in batch["value"].to_pylist():
        try:
            order = json.loads(value)
            orders.append({name: order[name] for name in COLUMNS.names})
        except (ValueError, KeyError, TypeError):
            continue  # no order
    return pa.RecordBatch.from_pylist(orders, schema=COLUMNS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bootstrap")
    parser.add_argument("--follow", action="store_true", help="work until Ctrl-C")
    arguments = parser.parse_args()

    spark = session("largest-orders", master="local[2]")
    (
        Pipeline(spark, arguments.bootstrap, group="largest-orders", topics=["orders"])
        .map_arrow(parse, "shop string, item string, price double")
        .transform_with_state(Largest(), "shop", "shop string, item string, price double")
        .write(KafkaSink(arguments.bootstrap, "largest-orders"))
        .run(available_now=not arguments.follow)
    )
    spark.stop()


if __name__ == "__main__":
    main()
