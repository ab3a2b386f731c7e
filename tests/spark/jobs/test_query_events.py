"""What Spark's own pages, listeners and metrics show of a pipeline."""

from __future__ import annotations

import json
import re
import time
import uuid
from datetime import datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from roster.model import TopicPartition
from roster.pipeline.batch import Progress, Range, StoreProgress
from roster.spark.jobs.query_events import telling_spark
from tests.spark.programs import APPS, Application

if TYPE_CHECKING:
    from tests.spark.spark_topics import Topics

APP = APPS / "seen.py"


@pytest.fixture(scope="module")
def seen(topics: Topics, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    topic = topics.create(2, 100, name="seen")
    topics.admin.create_topic(f"{topic}-results", 2)
    with Application(APP, topics.bootstrap, topic, log=tmp_path_factory.mktemp("seen") / "app.log") as app:
        return app.hears("heard") | {"topic": topic}


def of(seen: dict[str, Any], kind: str, run: str) -> list[Any]:
    return [event[2] for event in seen["heard"] if event[:2] == [kind, run]]


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.gate
def test_a_listener_hears_of_a_pipeline_as_of_a_query(seen: dict[str, Any]) -> None:
    run, broken, _ = dict.fromkeys(event[1] for event in seen["heard"])
    assert of(seen, "started", run) == ["seen.good"]
    assert of(seen, "terminated", run) == [None]
    told = of(seen, "progress", run)
    assert told[-1]["batchId"] == 2
    assert sum(each["numInputRows"] for each in told) == 100
    last = told[-1]["sources"][0]
    assert last["description"] == f"Roster[{seen['topic']}]"
    assert last["endOffset"] == last["latestOffset"] == {seen["topic"]: {"0": 50, "1": 50}}
    assert last["metrics"]["maxOffsetsBehindLatest"] == "0"
    assert of(seen, "started", broken) == ["bad"]
    assert of(seen, "terminated", broken) == ["ValueError: no such column"]


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.gate
def test_the_tab_lists_a_pipeline_with_its_charts(seen: dict[str, Any]) -> None:
    tab = re.sub(r"\s+", " ", seen["tab"])
    assert "seen.good" in tab
    assert "FINISHED" in tab
    assert "FAILED" in tab
    assert "no such column" in tab
    for chart in ("Input Rate", "Process Rate", "Input Rows", "Batch Duration"):
        assert chart in seen["page"]


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.gate
def test_state_and_event_time_are_shown_as_those_of_a_query(seen: dict[str, Any]) -> None:
    *_, run = dict.fromkeys(event[1] for event in seen["heard"])
    group = f"windows-{seen['topic']}"
    told, own = of(seen, "progress", run), [each for each in seen["progress"] if each["group"] == group]
    assert [mine["batch"] for mine in own] == [0, 1, 2]
    assert [each["batchId"] for each in told] == [0, 1, 2]
    for each, mine in zip(told, own, strict=True):
        (state,), (of_store,) = each["stateOperators"], mine["stores"].values()
        assert state["operatorName"] == "counts"
        for name, field in {"numRowsTotal": "entries", "memoryUsedBytes": "bytes"}.items():
            assert state[name] == sum(store[field] for store in of_store.values())
        assert state["numRowsUpdated"] == sum(store["changed"] for store in of_store.values())
        assert set(mine) >= {"batchId", "numInputRows", "durationMs", "sources", "timestamp", "eventTime"}
    # 7 keys of 14 in each partition, the stream time and the definition.
    assert told[-1]["stateOperators"][0]["numRowsTotal"] == 2 * (7 + 2)
    assert told[-1]["stateOperators"][0]["numStateStoreInstances"] == 2
    watermark = datetime.fromisoformat(told[-1]["eventTime"]["watermark"])
    newest = [store["stream_time_ms"] for store in own[-1]["stores"]["counts"].values()]
    assert watermark.timestamp() * 1000 == min(newest)
    assert max(newest) <= time.time() * 1000
    for chart in ("Aggregated Number Of Total State Rows", "Aggregated State Memory Used", "Global Watermark Gap"):
        assert re.search(chart, seen["state page"], re.IGNORECASE)


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.gate
def test_the_totals_are_in_sparks_metrics(seen: dict[str, Any]) -> None:
    good = {name.removeprefix("roster.seen.good."): value for name, value in seen["gauges"].items() if "good" in name}
    assert good == {"batches": 3, "records": 100, "late": 0, "deadLetters": 0, "lag": 0}
    bad = {name.removeprefix("roster.bad."): value for name, value in seen["gauges"].items() if ".bad." in name}
    assert set(bad.values()) == {0}


def progress(**more: Any) -> Progress:
    ranges = {
        TopicPartition("a", 1): Range(5, 9),
        TopicPartition("a", 0): Range(0, 2),
        TopicPartition("b", 0): Range(7, 8),
    }
    lag = {TopicPartition("a", 0): 10, TopicPartition("a", 1): 1, TopicPartition("b", 0): 4, TopicPartition("c", 0): 99}
    known = {"group": "g", "member_id": "m", "generation": 3, "batch": 17, "duration_ms": 250, "rows": 7, "tasks": 2}
    return Progress(**known | {"ranges": ranges, "lag": lag, "started_at": 1_700_000_000_123} | more)  # type: ignore[arg-type]


def test_a_batch_is_described_in_sparks_words() -> None:
    phases = {"plan": 10, "work": 200, "sink": 30, "group": 5}
    found = json.loads(progress(phases=phases, since_ms=500).to_json())
    assert (found["name"], found["batchId"], found["numInputRows"]) == ("g", 17, 7)
    assert found["timestamp"] == "2023-11-14T22:13:20.123Z"
    assert found["durationMs"] == {
        "queryPlanning": 10,
        "addBatch": 230,
        "commitOffsets": 5,
        "triggerExecution": 250,
    }
    (source,) = found["sources"]
    assert json.loads(source["startOffset"]) == {"a": {"0": 0, "1": 5}, "b": {"0": 7}}
    assert json.loads(source["endOffset"]) == {"a": {"0": 2, "1": 9}, "b": {"0": 8}}
    assert json.loads(source["latestOffset"]) == {"a": {"0": 12, "1": 10}, "b": {"0": 12}}
    assert (source["inputRowsPerSecond"], source["processedRowsPerSecond"]) == (14.0, 28.0)
    behind = {"minOffsetsBehindLatest": "1", "maxOffsetsBehindLatest": "10", "avgOffsetsBehindLatest": "5.0"}
    assert source["metrics"] == behind
    assert (found["stateOperators"], found["eventTime"]) == ([], {})


def test_state_is_summed_over_tasks_and_the_watermark_is_the_least() -> None:
    tasks = {"0_0": StoreProgress(5, 4096, 2, 1, 1_700_000_000_500), "0_1": StoreProgress(7, 8192, 0, 3, None)}
    found = json.loads(progress(stores={"s": tasks, "t": {"0_0": StoreProgress(1, 4096)}}).to_json())
    first, second = found["stateOperators"]
    names = ("operatorName", "numRowsTotal", "numRowsUpdated", "memoryUsedBytes", "numRowsDroppedByWatermark")
    assert [first[name] for name in names] == ["s", 12, 2, 12_288, 4]
    assert [second[name] for name in names] == ["t", 1, 0, 4096, 0]
    assert found["eventTime"] == {"watermark": "2023-11-14T22:13:20.500Z"}
    assert found["stores"]["s"]["0_1"]["late"] == 3


@pytest.mark.parametrize("session", [SimpleNamespace(), SimpleNamespace(_jsparkSession=None)])
def test_a_session_without_such_places_is_left_alone(session: Any) -> None:
    with telling_spark(session, "g", "ParquetSink", uuid.uuid4()) as events:
        events.heard.put(progress())


def test_the_error_of_the_run_is_not_hidden() -> None:
    with pytest.raises(KeyError, match="cause"), telling_spark(SimpleNamespace(), "g", "ParquetSink", uuid.uuid4()):  # type: ignore[arg-type]
        raise KeyError("cause")
