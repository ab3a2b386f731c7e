"""A pipeline with the smallest and largest text, date and time of each key; as a program, one that is to be killed.

extremes.py BOOTSTRAP GROUP TOPIC OUT STATE_DIR
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roster.spark import Pipeline

COLUMNS = ("word", "day", "at")
SCHEMA = "k string, word string, day date, at timestamp"


def extremes(spark: Any, bootstrap: str, group: str, topic: str, out: str, directory: str, **options: Any) -> Pipeline:
    from roster.pipeline.options import Tuning
    from roster.spark import KafkaSink, Pipeline, State

    class Near(Pipeline):
        _tuning = Tuning(acceptable_lag=20)

    aggregates = {f"{what}_{name}": f"{what}({name})" for what in ("min", "max") for name in COLUMNS}
    return (
        Near(
            spark,
            bootstrap,
            group,
            topic,
            state=State(dir=directory, standbys=1),
            consumer={"session.timeout.ms": 10_000},
            **options,
        )
        .json_columns(SCHEMA)
        .aggregate("k", {"n": "count(*)", **aggregates}, store="extremes")
        .write(KafkaSink(bootstrap, out))
    )


if __name__ == "__main__":
    from roster.spark import session

    extremes(session("extremes", "local[1]", spark_driver_memory="512m"), *sys.argv[1:]).run()
