"""Sinks of one's own: the five methods, and the sink of the reference page in a pipeline."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from roster.client import Admin
from roster.model import TopicPartition
from roster.spark import Batch, Owner, Pipeline, PipelineError, Sink, SinkFencedError
from tests.docs.test_documentation import DOCS

if TYPE_CHECKING:
    from tests.spark.spark_topics import Topics

MARKS = re.MULTILINE | re.DOTALL
NAMES = (
    sqlite3,
    Collection,
    Mapping,
    DataFrame,
    Row,
    SparkSession,
    TopicPartition,
    Batch,
    Owner,
    Sink,
    SinkFencedError,
)


def documented(path: Path) -> Any:
    """The sink of the reference page, into the database at `path`."""
    (block,) = re.findall(r"^```python\n(class Totals.*?)^```$", (DOCS / "reference" / "sinks.md").read_text(), MARKS)
    names: dict[str, Any] = {each.__name__: each for each in NAMES}
    exec(block, names)
    return names["Totals"](str(path))


def stored(path: Path) -> tuple[dict[str, int], dict[TopicPartition, int]]:
    with closing(sqlite3.connect(path)) as database:
        positions = database.execute("select topic, part, next from positions").fetchall()
        return dict(database.execute("select key, n from totals")), {TopicPartition(*p[:2]): p[2] for p in positions}


def test_a_sink_of_ones_own_has_five_methods_and_needs_one() -> None:
    assert [name for name in vars(Sink) if not name.startswith("_")] == ["open", "claim", "write", "commit", "close"]
    assert Sink.__abstractmethods__ == {"write"}


@pytest.mark.spark
@pytest.mark.timeout(400)
@pytest.mark.gate
def test_the_documented_sink_counts_each_record_once_under_any_group(
    spark: SparkSession, topics: Topics, group: str, tmp_path: Path
) -> None:
    topic, fenced = topics.create(2), list[Batch]()
    topics.fill(topic, 2, 40)
    sink = documented(tmp_path / "totals.db")
    commit = sink.commit

    def overtaken(written: Any, batch: Batch) -> None:
        if not fenced:
            fenced.append(batch)
            raise SinkFencedError("as if another writer came first")
        commit(written, batch)

    sink.commit = overtaken
    Pipeline(spark, topics.bootstrap, group, topic, log=False).write(sink).run(available_now=True)
    after = stored(tmp_path / "totals.db")
    assert sum(after[0].values()) == 40
    assert after[1] == topics.ends(topic)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        sink._db.execute("select 1")

    again = Pipeline(spark, topics.bootstrap, f"{group}-2", topic, log=False).write(documented(tmp_path / "totals.db"))
    again.run(available_now=True)
    assert again.last_progress is None, "the sink's positions are those of the log's end"
    topics.fill(topic, 2, 6)
    again.run(available_now=True)
    assert again.last_progress is not None
    assert again.last_progress.rows == 6
    assert sum(stored(tmp_path / "totals.db")[0].values()) == 46


class Refusing(Sink):
    """Cannot work; has methods that a sink of Roster's has, and that are not called."""

    commits_offsets = True

    def __init__(self) -> None:
        self.closed = 0

    def open(self, spark: SparkSession, group: str) -> None:
        raise PipelineError(f"no database for {group}", field="sink")

    def write(self, df: DataFrame, batch: Batch) -> None:
        raise AssertionError("it was not opened")

    def close(self) -> None:
        self.closed += 1


@pytest.mark.spark
def test_a_sink_that_cannot_work_ends_the_run_before_the_group_is_joined(
    spark: SparkSession, topics: Topics, group: str
) -> None:
    topic = topics.create(1, 1)
    with pytest.raises(PipelineError, match=f"no database for {group}"):
        Pipeline(spark, topics.bootstrap, group, topic, log=False).write(Refusing()).run(available_now=True)
    with Admin(topics.bootstrap) as admin:
        assert group not in {each.group_id for each in admin.list_groups()}
