"""Joins, chains of operators and code behind them in several applications, of which one is killed: each result once.

ROSTER_KILL_SEED chooses other programs, more applications, which of them is killed and amid which records.
"""

from __future__ import annotations

import json
import os
import random
import signal
import uuid
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from roster.spark.state import export
from tests.librdkafka import idempotent_producer
from tests.spark.apps.dataframes import made
from tests.spark.dataframes import shapes, test_stateful_queries
from tests.spark.programs import APPS, START_SECONDS, Application
from tests.spark.spark_topics import Topics, committed_records
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.real.realparts.cluster import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

ORDERS, SHAPES = test_stateful_queries.ORDERS, shapes.ORDERS
PROGRAMS = {
    "roster": {
        "counted firsts": ORDERS,
        "parts of hours": ORDERS,
        "full totals": ORDERS,
        "JSON in JSON, explode, sliding windows → Kafka": SHAPES,
    },
    "apache": {"full joined": ORDERS, "semi joined": ORDERS, "joined totals": ORDERS, "code of hours": ORDERS},
}
"""By the kind of broker programs, and their records."""
OTHERS = [
    *("counted once", "joined", "left joined", "right joined", "tumbling", "shifted", "sessions", "counted pairs"),
    *("windows joined", "united windows", "united totals", "busiest", "two parts", "joined by windows", "earlier"),
]
ENDS: list[dict[str, Any]] = [
    *(test_stateful_queries.END | {"order": -1 - number} for number in range(4)),
    *(shapes.END for _ in range(4)),
]


@pytest.mark.gate
def test_results_are_those_of_a_batch_though_one_of_two_applications_is_killed(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    seed = os.environ.get("ROSTER_KILL_SEED")
    with Topics(cluster.bootstrap) as topics:
        if seed is None:
            kill_one(spark, topics, PROGRAMS[cluster.kind], tmp_path)
        else:
            chance = random.Random(seed)
            named = {**PROGRAMS["roster"], **PROGRAMS["apache"], **dict.fromkeys(OTHERS, ORDERS)}
            begin = chance.randint(10, 50)
            cuts = begin, chance.randint(begin + 10, 110)
            applications = chance.choice([2, 3])
            drawn = {name: named[name] for name in chance.sample(list(named), 4)}
            kill_one(spark, topics, drawn, tmp_path, cuts, applications, chance.randrange(applications))


def kill_one(
    spark: SparkSession,
    topics: Topics,
    named: Mapping[str, Any],
    tmp_path: Path,
    cuts: tuple[int, int] = (40, 90),
    applications: int = 2,
    killed: int = 0,
) -> None:
    """Run programs in several applications, of which one is killed, and compare their results.

    cuts: the number of records before those amid which one is killed, and of these and those before.
    """
    begin, end = cuts
    group = f"kills-{uuid.uuid4().hex[:8]}"
    sources = {id(rows): topics.create(2, name="orders") for rows in (ORDERS, SHAPES)}
    outs = {name: topics.create(1, name="out") for name in named}
    programs = [f"{sources[id(rows)]}:{name}:{outs[name]}" for name, rows in named.items()]
    groups = [f"{group}-{out}" for out in outs.values()]
    producer = idempotent_producer(topics.bootstrap, {})

    def fill(part: slice, *, ends: bool = False) -> None:
        for rows in (ORDERS, SHAPES):
            more = [row for row in ENDS if ("id" in row) == (rows is SHAPES)] if ends else []
            for number, row in enumerate([*rows[part], *more]):
                producer.produce(sources[id(rows)], json.dumps(row), partition=number % 2)
        assert producer.flush(60) == 0

    def is_shared() -> bool:
        found = [topics.admin.describe_group(each).members if topics.exists(each) else () for each in groups]
        return all(
            len(members) == applications and sum(bool(member.assignment) for member in members) > 1 for members in found
        )

    def results(name: str) -> list[str]:
        values = [value.decode() for _, _, value in committed_records(topics, outs[name]) if value]
        return sorted(value for value in values if ':"end"' not in value)

    def wanted(name: str) -> list[str]:
        batch = spark.createDataFrame([(json.dumps(row),) for row in named[name]], "value string")
        return sorted(
            row.value for row in made(name, batch)[0].select(F.to_json(F.struct("*")).alias("value")).collect()
        )

    def has_read(part: int) -> bool:
        """Whether so many records of each program have been read."""
        read = [sum(end for p, end in topics.committed(each).items() if p.topic in sources.values()) for each in groups]
        return min(read) >= part

    def application(name: str) -> Application:
        arguments = [topics.bootstrap, group, str(tmp_path / name), *programs]
        return Application(APPS / "dataframes.py", *arguments, log=tmp_path / f"{name}.log")

    with ExitStack() as stack:
        started = [stack.enter_context(application(f"application-{number}")) for number in range(applications)]
        until(is_shared, START_SECONDS, "all applications have tasks of each group")
        fill(slice(0, begin))
        until(lambda: has_read(begin), START_SECONDS, "the first records are committed")
        fill(slice(begin, end))
        started[killed].hears("done")
        started[killed].signal(signal.SIGKILL)
        fill(slice(end, None), ends=True)
        expected = {name: wanted(name) for name in named}
        assert all(expected.values())
        until(
            lambda: all(len(results(name)) >= len(rows) for name, rows in expected.items()),
            START_SECONDS,
            "windows have their results",
        )
        assert {name: results(name) for name in named} == expected
        for name in {"full joined", "semi joined"} & named.keys():
            check_export(spark, topics, f"{group}-{outs[name]}", tmp_path / "exports" / name.replace(" ", "-"))


def check_export(spark: SparkSession, topics: Topics, group: str, folder: Path) -> None:
    """What the state of a join is at the end: of each side the last records, all of which have found partners."""
    exported = export(spark, topics.bootstrap, group, str(folder))
    sides = {side: exported.dataframe(spark, "joined", side).collect() for side in ("left", "right")}
    ends = sorted(row["order"] for row in ENDS if "order" in row)
    assert sorted(row["order"] for row in sides["left"]) == ends
    assert [row["waits"] for row in sides["left"]] == [False] * len(ends)
    assert len(sides["right"]) == len(ends)
    if "waits" in exported.manifest.stores["joined"].columns["right"]:
        assert [row["waits"] for row in sides["right"]] == [False] * len(ends)
