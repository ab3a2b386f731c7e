"""Orders per shop into Parquet, exactly once; start it in several terminals and they share the topic.

    python totals_to_parquet.py BOOTSTRAP [--follow]

The files below `totals/` hold one row for each shop and batch; the sum over them is right at any moment.
"""

import argparse
import logging

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's custom

from roster.spark import ParquetSink, Pipeline, session


def totals(df: DataFrame) -> DataFrame:
    order = F.from_json(F.col("value").cast("string"), "shop string, item string, price double")
    return (
        df.select(order.alias("order"))
        .where("order.shop is not null")
        .groupBy("order.shop")
        .agg(F.count("*").alias("orders"), F.sum("order.price").alias("revenue"))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bootstrap")
    parser.add_argument("--follow", action="store_true", help="work until Ctrl-C")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)

    spark = session("totals-to-parquet", master="local[2]")
    pipeline = Pipeline(
        spark,
        arguments.bootstrap,
        group="totals-to-parquet",
        topics=["orders"],
        on_progress=lambda progress: print(progress.to_json()),
    )
    pipeline.transform(totals).write(ParquetSink("totals"))
    pipeline.run(available_now=not arguments.follow)
    for row in (
        spark.read.parquet("totals").groupBy("shop").agg(F.sum("orders"), F.sum("revenue")).orderBy("shop").collect()
    ):
        print(*row)
    spark.stop()


if __name__ == "__main__":
    main()
