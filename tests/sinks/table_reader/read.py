"""Spark as a reader of a table, in an environment of its own: answers each line on stdin with the table's rows as JSON.

    python read.py delta FOLDER
    python read.py iceberg FOLDER

Knows nothing of Roster: the jars are those of `jars` beside this Python's environment.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

JARS = ",".join(map(str, sorted((Path(sys.prefix) / "jars").glob("*.jar"))))
ONE_PROCESS = {
    "spark.jars": JARS,
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
DELTA = {
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
}


def iceberg(folder: str) -> dict[str, str]:
    """The catalog that pyiceberg keeps in SQLite, read by Iceberg's own for JDBC."""
    return {
        "spark.sql.catalog.default": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.default.cache-enabled": "false",
        "spark.sql.catalog.default.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "spark.sql.catalog.default.uri": f"jdbc:sqlite:{folder}/catalog.db",
        "spark.sql.catalog.default.warehouse": f"file://{folder}/warehouse",
    }


def main() -> None:
    kind, folder = sys.argv[1:]
    builder = SparkSession.builder.master("local[1]")
    for name, value in (ONE_PROCESS | (DELTA if kind == "delta" else iceberg(folder))).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    def table() -> DataFrame:
        if kind == "delta":
            return spark.read.format("delta").load(f"{folder}/table")
        return spark.table("default.shop.orders")

    for line in sys.stdin:
        rows = table().where(line.strip() or "true").select("partition", "offset", "shop").collect()
        sys.stdout.write(json.dumps([list(row) for row in rows]) + "\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main()
