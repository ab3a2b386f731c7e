"""The driver gets a SIGKILL between the commit of a table and that of state and late rows.

Table and topic of late rows together are compared with a plain computation, exactly. ROSTER_TABLE_STATE_KILLS sets the
number of kills for each kind of table, ROSTER_KILL_SEED the first seed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import uuid
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.librdkafka import idempotent_producer
from tests.spark.apps.late import WINDOW, Results, windows
from tests.spark.programs import APPS, start
from tests.spark.programs import send as send_to
from tests.spark.spark_topics import Topics, committed_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KILLS = int(os.environ.get("ROSTER_TABLE_STATE_KILLS", "1"))
SEED = int(os.environ.get("ROSTER_KILL_SEED", "1"))
PROGRAM = APPS / "late.py"
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
PARTITIONS = 2

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(400 + 200 * KILLS)]

Rows = dict[int, list[tuple[str, int, datetime]]]


def send(topics: Topics, topic: str, chance: random.Random, sent: Rows, count: int) -> None:
    """Send rows whose times go on by half a second, each up to 25 seconds behind."""
    producer = idempotent_producer(topics.bootstrap)
    for _ in range(count):
        number = sum(map(len, sent.values()))
        partition = number % PARTITIONS
        seconds = max(number // 2 - chance.choice([0, 0, 0, 4, 12, 25]), 0)
        row = (f"{partition}{chance.randrange(3)}", number, BEGIN + timedelta(seconds=seconds))
        sent[partition].append(row)
        value = {"k": row[0], "n": number, "at": row[2].isoformat()}
        producer.produce(topic, json.dumps(value), partition=partition)
    assert producer.flush(120) == 0


def plainly(sent: Rows) -> tuple[Counter[Any], Counter[int]]:
    """The closed windows as (key, start, count, total), and the numbers of rows that are late."""
    closed, late = Counter[Any](), Counter[int]()
    for rows in sent.values():
        numbers: dict[tuple[str, datetime], list[int]] = defaultdict(list)
        time = BEGIN
        for key, number, at in rows:
            start = BEGIN + (at - BEGIN) // WINDOW * WINDOW
            if start + WINDOW <= time:
                late[number] += 1
            else:
                numbers[key, start].append(number)
            time = max(time, at)
        closed.update((key, start, len(of), sum(of)) for (key, start), of in numbers.items() if start + WINDOW <= time)
    return closed, late


@pytest.mark.parametrize(
    "kind",
    [
        "parquet",
        *(pytest.param(kind, marks=pytest.mark.gate) for kind in ("delta", "iceberg")),
        pytest.param("postgres", marks=[pytest.mark.gate, pytest.mark.real]),
    ],
)
@pytest.mark.gate
def test_table_and_late_rows_are_exact_though_the_driver_is_killed_in_between(
    spark: SparkSession, topics: Topics, tmp_path: Path, kind: str
) -> None:
    chance, sent = random.Random(SEED), defaultdict[int, list[tuple[str, int, datetime]]](list)
    topic, late, group = topics.create(PARTITIONS), topics.create(1), f"g-{uuid.uuid4().hex[:8]}"
    where = (topics.bootstrap, group, topic, late)
    results = Results(kind, tmp_path / "out")
    for number in range(KILLS):
        send(topics, topic, chance, sent, 300)
        # Each run has batches of another size, and some an empty disk.
        directory, most = tmp_path / f"state-{chance.randrange(2)}", chance.choice([40, 60, 90])
        command = [sys.executable, str(PROGRAM), kind, str(tmp_path / "out"), *where, str(directory), str(most)]
        log = tmp_path / f"killed-{number}.log"
        with log.open("w") as lines:
            killed = start([*command, str(chance.randint(1, 3))], stdout=lines, stderr=lines)
            assert killed.wait(300) == -signal.SIGKILL, log.read_text()[-3000:]
            send_to(killed, signal.SIGKILL)  # the JVM, too
    send(topics, topic, chance, sent, 100)
    windows(spark, results.sink(), *where, str(tmp_path / "state-0"), 70).run(available_now=True)
    closed, left_out = plainly(sent)
    rows = results.rows(spark)
    found = Counter((row["k"], row["window_start"].astimezone(UTC), row["count"], row["total"]) for row in rows)
    assert found == closed
    assert Counter(json.loads(value or b"")["n"] for _, _, value in committed_records(topics, late)) == left_out
    print(f"{kind}: {len(rows)} windows, {left_out.total()} late rows, {KILLS} kills", flush=True)
