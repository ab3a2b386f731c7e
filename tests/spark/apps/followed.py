"""A Structured Streaming query with Spark's Kafka source, followed by `commit_progress`.

    followed.py BOOTSTRAP GROUP PATTERN CHECKPOINT JAR,...

Prints a JSON object for each batch, {"batch": number}, until it is killed.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def main() -> None:
    from roster.spark import commit_progress, session

    bootstrap, group, pattern, checkpoint, jars = sys.argv[1:]
    spark = session("followed", "local[1]", spark_sql_shuffle_partitions=1, **{"spark.jars": jars})
    spark.sparkContext.setLogLevel("ERROR")

    def say(df: Any, number: int) -> None:
        print(json.dumps({"batch": number}), flush=True)

    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    source = source.option("subscribePattern", pattern).option("startingOffsets", "earliest")
    rows = source.option("maxOffsetsPerTrigger", 20).option("kafka.metadata.max.age.ms", 500).load()
    commit_progress(spark, bootstrap, group)
    rows.writeStream.foreachBatch(say).option("checkpointLocation", checkpoint).start()
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()
