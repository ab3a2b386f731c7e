"""Card payments that come in bursts: session windows of event time, exactly once.

    python suspicious_sessions.py BOOTSTRAP [--follow]

Reads JSON objects from `payments`, whose key is the card. Payments of a card within ten minutes of each other are one
session; once a session is over, it goes to `suspicious` if there were five payments or more, or more than 1000 in all.
"""

import argparse
from datetime import timedelta

import pyarrow.compute as pc

from roster.spark import KafkaSink, Pipeline, Window, session


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bootstrap")
    parser.add_argument("--follow", action="store_true", help="work until Ctrl-C")
    arguments = parser.parse_args()

    spark = session("suspicious-sessions", master="local[2]")
    burst = Window.session("paid", timedelta(minutes=10), grace=timedelta(minutes=1))
    (
        Pipeline(spark, arguments.bootstrap, group="suspicious-sessions", topics=["payments"])
        .json_columns("card string, amount double, paid timestamp")
        .filter(pc.field("amount") > 0)
        .aggregate(
            "card", {"payments": "count(*)", "total": "sum(amount)"}, window=burst, results="final", store="bursts"
        )
        .filter((pc.field("payments") >= 5) | (pc.field("total") > 1000))
        .write(KafkaSink(arguments.bootstrap, "suspicious"))
        .run(available_now=not arguments.follow)
    )
    spark.stop()


if __name__ == "__main__":
    main()
