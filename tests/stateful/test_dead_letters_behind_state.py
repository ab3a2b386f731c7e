"""Dead letters behind state and repartition: exactly once, through a kill, beside a plain computation."""

from __future__ import annotations

import json
import random
import signal
from collections import Counter, defaultdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from roster.spark import ParquetSink, Pipeline, State
from tests.librdkafka import idempotent_producer
from tests.pipeline.tasks.test_dead_letters import read_all
from tests.spark.apps.dead_letters import TOO_LARGE, pages, refuse
from tests.spark.programs import APPS, Application
from tests.spark.spark_topics import Topics, committed_records

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(600)]

PROGRAM = APPS / "dead_letters.py"


def expected(rows: list[dict[str, Any]]) -> tuple[dict[str, tuple[int, int]], Counter[tuple[str, str]]]:
    """Totals and rows by page, and dead letters by operator and error."""
    totals: dict[str, tuple[int, int]] = {}
    letters, seen = Counter[tuple[str, str]](), defaultdict[str, int](int)
    for row in rows:
        page, user, number = row["page"], row["user"], row["id"]
        if page == "bad":
            letters["map_arrow", f"no bad {number}"] += 1
        elif row["amount"] == seen[user] + 1:
            letters["transform_with_state(store='counts')", str(number)] += 1
        else:
            seen[user] += 2
            if page == "result":
                letters["transform_with_state(store='counts'), step at a result", f"no result {number}"] += 2
            elif page == "arrived":
                letters["map_arrow", f"no arrived {number}"] += 2
            else:
                total, count = totals.get(page, (0, 0))
                if row["amount"] == TOO_LARGE:
                    letters["aggregate(store='pages')", "beyond int64"] += 1
                    totals[page] = total, count + 1
                else:
                    totals[page] = total + row["amount"], count + 2
    return totals, letters


def named(message: str) -> str:
    return "beyond int64" if "beyond int64" in message else message


def found_letters(topics: Topics, letters: str, count: int) -> list[dict[str, str]]:
    found = []
    for message in read_all(topics.bootstrap, letters, count):
        headers = {name.removeprefix("__connect.errors."): value.decode() for name, value in message.headers()}
        found.append(headers | {"key": message.key(), "value": message.value()})
    return found


@pytest.mark.gate
def test_bad_records_at_every_place_are_set_aside_once_through_a_kill(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic, out, letters = topics.create(2), topics.create(2, name="out"), topics.create(2, name="letters")
    chance, rows = random.Random(5), []
    producer = idempotent_producer(topics.bootstrap)
    for number in range(150):
        page = chance.choice(["bad", "result", "arrived", *"pqrpqrpqr"])
        amount = TOO_LARGE if chance.random() < 0.05 else 1 + 2 * chance.randrange(6)
        rows.append({"id": number, "user": f"u{number % 5}", "page": page, "amount": amount})
        producer.produce(topic, json.dumps(rows[-1]), f"u{number % 5}")
    assert producer.flush(60) == 0
    arguments = (topics.bootstrap, "poison", topic, out, letters)
    with Application(PROGRAM, *arguments, str(tmp_path / "killed"), "3", log=tmp_path / "log") as application:
        assert application.ends() == -signal.SIGKILL, (tmp_path / "log").read_text()[-3000:]
    pages(spark, *arguments, str(tmp_path / "own")).run(available_now=True)
    totals, wanted = expected(rows)
    results = [json.loads(value or b"") for *_, value in committed_records(topics, out)]
    assert {row["page"]: (row["total"], row["rows"]) for row in results} == totals
    found = found_letters(topics, letters, wanted.total())
    assert Counter((each["class.name"], named(each["exception.message"])) for each in found) == wanted
    of_input = [each for each in found if each["topic"] == topic and "offset" in each]
    assert {each["exception.class.name"] for each in of_input} == {"ValueError", "KeyError"}
    assert all(json.loads(each["value"])["id"] == int(each["exception.message"].split()[-1]) for each in of_input)
    behind = [each for each in found if each["topic"] == "poison-by-page-repartition"]
    assert {each["class.name"] for each in behind} == {"map_arrow", "aggregate(store='pages')"}
    assert len({(each["partition"], each["offset"]) for each in behind}) == len(behind)


def matched(rows: pa.RecordBatch) -> pa.RecordBatch:
    refuse(rows, "word", "bad")
    return rows


@pytest.mark.gate
def test_a_stream_join_in_a_table_has_its_bad_rows_in_the_topic(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    one, two, letters = topics.create(1), topics.create(1), topics.create(1, name="letters")
    producer = idempotent_producer(topics.bootstrap)
    for number in range(20):
        at = f"2026-01-01T00:{number:02}:00Z"
        value = "{" if number == 4 else json.dumps({"id": number, "word": "bad" if number == 7 else "w", "at": at})
        producer.produce(one, value, str(number))
        producer.produce(two, json.dumps({"id": number, "other": f"o{number}", "at2": at}), str(number))
    assert producer.flush(60) == 0
    progress: list[Any] = []
    sink = ParquetSink(tmp_path / "out")
    (
        Pipeline(
            *(spark, topics.bootstrap, "poisoned-join", one),
            dead_letter_topic=letters,
            state=State(dir=str(tmp_path / "state")),
            on_progress=progress.append,
        )
        .json_columns("id long, word string, at timestamp", mode="FAILFAST")
        .join(
            *(two, "id", "id long, other string, at2 timestamp"),
            within=timedelta(minutes=1),
            column="at",
            other_column="at2",
        )
        .map_arrow(matched, "id long, word string, at timestamp, other string, at2 timestamp")
        .write(sink)
        .run(available_now=True)
    )
    assert sorted(row.id for row in sink.read(spark).collect()) == [n for n in range(20) if n not in (4, 7)]
    found = found_letters(topics, letters, 2)
    assert sorted(each["class.name"] for each in found) == ["join(store='join'), step at a result", "map_arrow"]
    assert sum(each.dead_letters for each in progress) == 2
