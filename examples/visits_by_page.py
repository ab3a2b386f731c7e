"""Visits that may be reported twice, counted by page: two stateful steps, each with a key of its own.

    python visits_by_page.py BOOTSTRAP [--follow]

Reads JSON objects from `visits`, whose key is the visit. The first pipeline passes each visit on once, to
`first-visits`, though it may be reported again within an hour; the second counts these by page, to `visits-by-page`.
Between two stateful steps is a topic, and each pipeline is a group: a visit counts exactly once through both.
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
    columns = "visit string, page string, at timestamp"
    once = (
        Pipeline(spark, arguments.bootstrap, group="first-visits", topics=["visits"])
        .json_columns(columns)
        .deduplicate("visit", within=timedelta(hours=1), column="at")
        .write(KafkaSink(arguments.bootstrap, "first-visits"))
    )
    counts = (
        Pipeline(
            spark,
            arguments.bootstrap,
            group="visits-by-page",
            topics=["first-visits"],
            isolation_level="read_committed",  # no visit of a batch that is not committed
        )
        .json_columns(columns)
        .repartition("page")
        .aggregate("page", {"visits": "count(*)", "last": "max(at)"}, store="pages")
        .write(KafkaSink(arguments.bootstrap, "visits-by-page"))
    )
    if arguments.follow:
        counts.start()
        try:
            once.run()
        finally:
            counts.stop()
            counts.wait()
    else:
        once.run(available_now=True)
        counts.run(available_now=True)
    spark.stop()


if __name__ == "__main__":
    main()
