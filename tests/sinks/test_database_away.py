"""State with results in PostgreSQL, which is away for longer than the transaction of state and offsets may be open."""

from __future__ import annotations

import json
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from roster.sinks import kafka
from roster.spark import Pipeline, PostgresSink, State
from tests.librdkafka import idempotent_producer
from tests.listed_transactions import states_of_transactions
from tests.real.realparts.databases import Postgres, asking
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from roster.pipeline.batch import Batch
    from tests.spark.spark_topics import Topics

pytestmark = [pytest.mark.spark, pytest.mark.real, pytest.mark.process, pytest.mark.gate, pytest.mark.timeout(600)]

TIMEOUT_MS = 2_000
KEYS = 7


def test_results_equal_a_plain_computation_when_the_database_outlives_the_transaction(
    spark: SparkSession, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Postgres()
    url, topic = server.create(), topics.create(2)
    monkeypatch.setattr(kafka, "TRANSACTION_TIMEOUT_MS", TIMEOUT_MS)
    commit, commits, aborted = PostgresSink.commit, [0], list[str]()

    def states() -> list[str]:
        return states_of_transactions(topics.admin, "away-")

    def back() -> None:
        until(lambda: "Ongoing" not in states(), 120, "the broker aborts the transaction")
        aborted.extend(states())
        server.start()

    def committing(sink: PostgresSink, written: Any, batch: Batch) -> None:
        """The records of state are written and the rows are in staging: now the database goes, twice in two ways."""
        commits[0] += 1
        if commits[0] not in (2, 4):
            commit(sink, written, batch)
            return
        assert "Ongoing" in states()
        if commits[0] == 2:
            server.shut_down()  # keeps staging
        else:
            server.kill()  # empties staging
        starting = threading.Thread(target=back)
        starting.start()
        try:
            commit(sink, written, batch)
        finally:
            starting.join()

    monkeypatch.setattr(PostgresSink, "commit", committing)
    sent = Counter[str]()
    producer = idempotent_producer(topics.bootstrap)
    for number in range(600):
        sent[f"k{number % KEYS}"] += number
        producer.produce(topic, json.dumps({"k": f"k{number % KEYS}", "n": number}), f"k{number % KEYS}")
    assert producer.flush(60) == 0
    (
        Pipeline(
            *(spark, topics.bootstrap, "away", topic),
            max_offsets_per_batch=100,
            state=State(dir=str(tmp_path)),
        )
        .json_columns("k string, n long")
        .aggregate("k", {"total": "sum(n)"})
        .write(PostgresSink(url, "totals", mode="upsert"))
        .run(available_now=True)
    )
    assert commits[0] >= 6
    assert len(aborted) == 2
    with asking(url).connect() as connection:
        assert dict(connection.exec_driver_sql("select k, total from totals").all()) == sent
    server.stop()
