"""Totals of each shop, as a pod of a StatefulSet: one member of the group, with the pod's name as its identity."""

import os
import sys

from roster.client import FencedInstanceError
from roster.security import load_properties
from roster.spark import KafkaSink, Pipeline, State, session

REPLACED = 3
"""The exit code of a driver whose identity another one has taken: whoever started it need not start it again."""


def main() -> None:
    kafka = load_properties(os.environ["KAFKA_CLIENT"])
    spark = session("totals", master=os.environ["SPARK_MASTER"])
    pipeline = (
        Pipeline(
            spark,
            kafka.bootstrap,
            security=kafka.security,
            group="totals",
            topics=["orders"],
            # A pod that comes back under its name takes its partitions back; a frozen one of the same name is fenced.
            consumer={"group.instance.id": os.environ["POD_NAME"]},
            state=State(dir=os.environ["STATE_DIR"], standbys=1),
            http=os.environ["HTTP"],
            max_batch_ms=30_000,
        )
        .json_columns("shop string, price double")
        .aggregate("shop", {"orders": "count(*)", "revenue": "sum(price)"}, store="totals")
        .write(KafkaSink(kafka.bootstrap, "totals-by-shop", security=kafka.security))
    )
    replaced = ""
    try:
        pipeline.run()
    except FencedInstanceError as error:
        replaced = f"this pod has been replaced: {error}"
        spark.sparkContext.setLogLevel("OFF")  # tasks of a JVM that stood still complain even when Spark has stopped
    finally:
        spark.stop()
    if replaced:
        print(replaced, file=sys.stderr)  # behind all that the JVM has to say: Kubernetes shows the last lines
        sys.exit(REPLACED)


if __name__ == "__main__":
    main()
