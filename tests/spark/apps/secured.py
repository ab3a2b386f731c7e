"""Pipelines against a secured Kafka, in a driver of their own, that print and log whatever they can.

    secured.py CONFIG SOURCE TARGET OUT

The first job writes Parquet from a function inside the reading tasks, the second one a DataFrame to the topic TARGET.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import pyarrow as pa


def main() -> None:
    from roster.security import load_properties
    from roster.spark import KafkaSink, ParquetSink, Pipeline, session

    config, source, target, out = sys.argv[1:]
    logging.basicConfig(level=logging.DEBUG)
    kafka = load_properties(config)
    spark = session("secured", "local[2]", spark_sql_shuffle_partitions=1, spark_driver_memory="512m")
    spark.sparkContext.setLogLevel("INFO")

    def numbers(rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.select(["partition", "offset", "value"])

    def shown(df: Any) -> Any:
        df.explain(True)
        return df

    first = Pipeline(spark, kafka.bootstrap, f"{source}-parquet", [source], security=kafka.security, log="debug")
    first.map_arrow(numbers, "partition int, offset long, value binary").write(ParquetSink(out))
    first.run(available_now=True)
    sink = KafkaSink(kafka.bootstrap, target, security=kafka.security)
    second = Pipeline(
        spark,
        kafka.bootstrap,
        f"{source}-kafka",
        [source],
        security=kafka.security,
        isolation_level="read_committed",
        assignors="range",
    )
    second.transform(lambda df: shown(df.selectExpr("key", "upper(cast(value AS string)) AS value"))).write(sink)
    second.run(available_now=True)
    print(kafka, first, second, second._options, vars(sink.__class__), first.last_progress)
    spark.stop()


if __name__ == "__main__":
    main()
