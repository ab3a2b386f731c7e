"""Smallest and largest texts, dates and times of a group whose one application is killed: its standby goes on."""

from __future__ import annotations

import json
import random
import signal
import sys
import uuid
from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.librdkafka import idempotent_producer
from tests.sinks.test_transactional_kills import caught_up, shared
from tests.spark.apps.extremes import COLUMNS, extremes
from tests.spark.programs import APPS, send, start
from tests.spark.spark_topics import Topics, committed_records
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PROGRAM = APPS / "extremes.py"
WORDS = ["", "a", "Z", "ä", "ab", "a\x00", "\uffee", "\U0001f600", "z" * 40]
PARTITIONS = 4

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(900)]


class Sender:
    """Sends rows at random, and knows them by key in their order."""

    def __init__(self, topics: Topics, topic: str) -> None:
        self._producer, self._topic, self._chance = idempotent_producer(topics.bootstrap), topic, random.Random(9)
        self.sent: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def send(self, count: int) -> None:
        chance = self._chance
        for _ in range(count):
            number = chance.randrange(20)
            at = datetime(1969, 12, 1, tzinfo=UTC) + timedelta(microseconds=chance.randrange(10**15))
            row = {
                "word": chance.choice([None, *WORDS]),
                "day": date(1900, 1, 1) + timedelta(days=chance.randrange(60_000)),
                "at": at,
            }
            row |= {name: None for name in COLUMNS if chance.random() < 0.3}
            self.sent[f"k{number}"].append(row)
            plain = {name: None if row[name] is None else str(row[name]) for name in COLUMNS}
            plain["at"] = None if row["at"] is None else f"{row['at']:%Y-%m-%dT%H:%M:%S.%fZ}"
            value = json.dumps({"k": f"k{number}", **plain})
            self._producer.produce(self._topic, value, partition=number % PARTITIONS)
        assert self._producer.flush(120) == 0


def plainly(rows: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"n": len(rows)}
    for name in COLUMNS:
        values = [row[name] for row in rows if row[name] is not None]
        found |= {f"min_{name}": min(values, default=None), f"max_{name}": max(values, default=None)}
    return found


def parsed(result: dict[str, Any]) -> dict[str, Any]:
    read = {"day": date.fromisoformat, "at": datetime.fromisoformat}
    return {
        name: read[name[4:]](value) if value is not None and name[4:] in read else value
        for name, value in result.items()
        if name != "k"
    }


@pytest.mark.gate
def test_extremes_of_text_dates_and_times_go_on_at_a_standby(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic, out, group = topics.create(PARTITIONS), topics.create(2), f"g-{uuid.uuid4().hex[:8]}"
    where = (topics.bootstrap, group, topic, out)
    sender, seen = Sender(topics, topic), list[Any]()
    sender.send(100)
    log = tmp_path / "victim.log"
    with log.open("w") as lines:
        command = [sys.executable, str(PROGRAM), *where, str(tmp_path / "victim")]
        victim = start(command, stdout=lines, stderr=lines)
    heir = extremes(spark, *where, str(tmp_path / "heir"), on_progress=seen.append, log=False).start()

    def both(goal: bool) -> bool:
        assert victim.poll() is None, log.read_text()[-3000:]
        return goal

    def copies_more() -> bool:
        sender.send(20)
        return sum(progress.standby_records for progress in seen) > 0

    try:
        until(lambda: both(topics.exists(group) and shared(topics, group)), 300, "two owners")
        until(lambda: both(copies_more()), 300, "standby copies at the heir")
        send(victim, signal.SIGKILL)
        sender.send(200)
        until(lambda: caught_up(topics, group, topics.ends(topic)), 300, "the heir's work")
    finally:
        heir.stop()
        heir.wait()
    updates: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for _, key, value in committed_records(topics, out):
        updates[(key or b"").decode()].append(parsed(json.loads(value or b"")))
    assert updates.keys() == sender.sent.keys()
    for key, rows in sender.sent.items():
        assert updates[key] == [plainly(rows[: update["n"]]) for update in updates[key]]
        counts = [update["n"] for update in updates[key]]
        assert counts == sorted(set(counts))
        assert counts[-1] == len(rows)
