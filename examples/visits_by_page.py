"""Visits that may be reported twice, counted by page: two stateful operators, each with a key of its own.

    python visits_by_page.py BOOTSTRAP [--follow]

Reads JSON objects from `visits`, whose key is the visit, and writes totals to `visits-by-page`. Each visit counts once,
though it may be reported again within an hour: the task of its partition remembers it, and sends its first report on
to the task that has its page. One transaction holds what a batch changes in both.
"""

import argparse
from datetime import timedelta

from roster.spark import KafkaSink, Pipeline, session


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bootstrap")
    parser.add_argument("--follow", action="store_true", help="work until Ctrl-C")
    arguments = parser.parse_args()

    spark = session("visits-by-page", master="local[2]")
    (
        Pipeline(spark, arguments.bootstrap, group="visits-by-page", topics=["visits"])
        .json_columns("visit string, page string, at timestamp")
        .deduplicate("visit", within=timedelta(hours=1), column="at", store="visits")
        .repartition("page")
        .aggregate("page", {"visits": "count(*)", "last": "max(at)"}, store="pages")
        .write(KafkaSink(arguments.bootstrap, "visits-by-page"))
        .run(available_now=not arguments.follow)
    )
    spark.stop()


if __name__ == "__main__":
    main()
