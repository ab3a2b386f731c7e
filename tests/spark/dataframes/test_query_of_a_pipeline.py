"""A query over a pipeline that is made up: what ends it, what is waited for, and its progress, without Spark."""

from __future__ import annotations

import json
import threading
import uuid
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import StreamingQueryException

from roster.model import OffsetAndMetadata, TopicPartition
from roster.pipeline.batch import Progress, Range
from roster.spark import PipelineError
from roster.spark.dataframes import query as query_module
from roster.spark.dataframes.observed import ObservedMetrics
from roster.spark.dataframes.query import StreamQuery
from roster.spark.declarations import Declared

ORDERS = TopicPartition("orders", 0)


class MadeUp:
    """What a query asks of its pipeline; `wait` blocks until it has ended, or calls `looked` if it is to return."""

    def __init__(self) -> None:
        self.exception: BaseException | None = None
        self.ended = threading.Event()
        self.run_id = uuid.UUID(int=7)
        self.status = "running"
        self.last_progress = None
        self._spark = None
        self._passes = 0
        self._options = SimpleNamespace(
            bootstrap="b:9092",
            group="g",
            topics=("orders",),
            isolation_level="read_uncommitted",
            security=None,
            settings=SimpleNamespace(request_timeout_ms=1000),
        )
        self._declared = Declared()
        self.looked: list[Any] = []

    @property
    def is_active(self) -> bool:
        return not self.ended.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        if timeout and self.looked:
            self.looked.pop(0)()
        if timeout is None:
            assert self.ended.wait(60)
        if not self.ended.is_set():
            return False
        if self.exception is not None:
            raise self.exception
        return True

    def stop(self) -> None:
        self.ended.set()

    def _stop(self, reason: str, now: bool) -> None: ...

    def end(self, error: BaseException) -> None:
        self.exception = error
        self.ended.set()


def made(pipeline: MadeUp, *recent: Progress) -> StreamQuery:
    observed = cast("ObservedMetrics", SimpleNamespace(values=lambda _: {}))
    return StreamQuery(cast("Any", pipeline), deque(recent), observed, "g", "hours", "KafkaSink", lambda _: "")


@pytest.fixture
def committed(monkeypatch: pytest.MonkeyPatch) -> dict[TopicPartition, int]:
    """What the group has committed; the topic has five records."""
    offsets: dict[TopicPartition, int] = {}

    class Cluster:
        def __init__(self, *_: object, **__: object) -> None: ...
        def __enter__(self) -> Cluster:
            return self

        def __exit__(self, *_: object) -> None: ...
        def list_topics(self) -> dict[str, int]:
            return {"orders": 1}

        def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
            return dict.fromkeys(partitions, 5)

        def group_offsets(self, *_: object, **__: object) -> dict[TopicPartition, OffsetAndMetadata]:
            return {partition: OffsetAndMetadata(offset) for partition, offset in offsets.items()}

    monkeypatch.setattr(query_module, "Admin", Cluster)
    return offsets


def test_an_error_ends_the_query_as_sparks_exception_with_the_error_as_its_cause(
    committed: dict[TopicPartition, int],
) -> None:
    pipeline = MadeUp()
    query = made(pipeline)
    assert (query.exception(), query.awaitTermination(0.001)) == (None, False)
    pipeline.looked = [lambda: pipeline.end(ValueError("the database is away"))]
    for wait in (query.processAllAvailable, query.awaitTermination):
        with pytest.raises(StreamingQueryException, match="ValueError: the database is away") as caught:
            wait()
        assert isinstance(caught.value.__cause__, ValueError)
    ended = query.exception()
    assert isinstance(ended, StreamingQueryException)
    assert (ended.getCondition(), ended.__cause__) == ("STREAM_FAILED", pipeline.exception)


def test_what_a_pipeline_says_is_said_in_words_of_options() -> None:
    pipeline = MadeUp()
    lost = PipelineError("orders-0: records are gone", field="fail_on_data_loss", fix="Set it to False to go on")
    pipeline.end(lost)
    with pytest.raises(StreamingQueryException, match="PipelineError: failOnDataLoss: orders-0: records are gone"):
        made(pipeline).awaitTermination()


def test_all_that_is_available_is_committed_and_in_the_progress(committed: dict[TopicPartition, int]) -> None:
    pipeline = MadeUp()
    query = made(pipeline)
    done: list[str] = []

    def commit() -> None:
        committed[ORDERS] = 5
        done.append("committed")

    def report() -> None:
        pipeline._passes += 1
        done.append("reported")

    pipeline.looked = [lambda: None, commit, lambda: None, report]
    query.processAllAvailable()
    assert done == ["committed", "reported"]
    committed.clear()
    pipeline.looked = [query.stop]
    query.processAllAvailable()
    assert (query.awaitTermination(), query.awaitTermination(1), query.exception(), query.isActive) == (
        None,
        True,
        None,
        False,
    )


def test_progress_has_sparks_names_and_types() -> None:
    ids = {"group": "g", "member_id": "m", "generation": 3, "batch": 17, "duration_ms": 250, "rows": 5, "tasks": 2}
    progress = Progress(**ids, started_at=0, ranges={ORDERS: Range(0, 5)}, lag={ORDERS: 2})  # type: ignore[arg-type]
    query = made(MadeUp(), progress)
    assert query.lastProgress is not None
    assert (uuid.UUID(query.id), query.runId, query.name) == (query.lastProgress.id, str(uuid.UUID(int=7)), "hours")
    assert query.status == {"message": "running", "isDataAvailable": False, "isTriggerActive": True}
    (found,) = query.recentProgress
    assert set(found) == {
        *("id", "runId", "name", "timestamp", "batchId", "batchDuration", "durationMs", "eventTime", "stateOperators"),
        *("sources", "sink", "numInputRows", "inputRowsPerSecond", "processedRowsPerSecond", "observedMetrics"),
    }
    phases = ("addBatch", "commitOffsets", "getBatch", "latestOffset", "queryPlanning", "triggerExecution", "walCommit")
    assert sorted(found["durationMs"]) == list(phases)
    (source,), (as_json,) = found.sources, json.loads(found.json)["sources"]
    for name, end in (("startOffset", 0), ("endOffset", 5), ("latestOffset", 7)):
        assert json.loads(source[name]) == as_json[name] == {"orders": {"0": end}}
    query.stop()
    assert not query.isActive
