"""How many files a reader of one batch with state has to open, and how often its thread goes from one to another.

Counted where a pipeline really runs: calls and returns on its thread, of functions that lie below `src/roster`.
"""

from __future__ import annotations

import sys
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import roster
from roster.pipeline.driver import loop
from roster.spark import KafkaSink, Pipeline, State
from tests.librdkafka import idempotent_producer

if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql import SparkSession

    from roster.spark import Progress
    from tests.spark.spark_topics import Topics

pytestmark = [pytest.mark.spark, pytest.mark.gate, pytest.mark.timeout(1200)]

MOST_FILES, MOST_CHANGES = 30, 200
SOURCE = f"{Path(roster.__file__).parent}/"
BATCHES = 8


class Walk:
    """The files of Roster's functions that one thread is in, batch by batch."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.batches: list[list[str]] = []

    def step(self, frame: FrameType, event: str, _: object) -> None:
        """Note the file of a function that is called, or returned to."""
        entered = {"call": frame, "return": frame.f_back}.get(event)
        if entered is not None and entered.f_code.co_filename.startswith(SOURCE):
            self.files.append(entered.f_code.co_filename.removeprefix(SOURCE))

    def batch(self, _: Progress) -> None:
        """Begin anew behind a batch."""
        self.batches.append([file for file, _ in groupby(self.files)])
        self.files = []

    def shortest(self) -> list[str]:
        """Return the files of a batch in which nothing was done that is done from time to time only."""
        return min(self.batches[2:], key=len)


def test_a_batch_with_state_is_read_in_few_files(
    spark: SparkSession, topics: Topics, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_RUNNER_INTERVAL", 600.0)  # in seconds: it is looked at by the clock
    source, out = topics.create(2), topics.create(2)
    producer = idempotent_producer(topics.bootstrap)
    for number in range(10 * BATCHES):
        producer.produce(source, str(number), f"k{number % 5}", number % 2)
    assert producer.flush(60) == 0
    walk = Walk()

    def count(progress: Progress) -> None:
        walk.batch(progress)
        if progress.batch == BATCHES - 1:
            pipeline.stop()

    pipeline = Pipeline(
        spark,
        topics.bootstrap,
        group,
        source,
        state=State(dir=str(tmp_path)),
        max_offsets_per_batch=10,
        on_progress=count,
    )
    pipeline.aggregate("key", {"n": "count(*)"}).write(KafkaSink(topics.bootstrap, out))
    before = sys.getprofile()
    sys.setprofile(walk.step)
    try:
        pipeline.run()
    finally:
        sys.setprofile(before)
    files = walk.shortest()
    visits = Counter(files).most_common()
    assert (len(visits) <= MOST_FILES, len(files) <= MOST_CHANGES) == (True, True), (len(visits), len(files), visits)
