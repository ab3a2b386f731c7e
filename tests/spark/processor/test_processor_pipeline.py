"""PySpark's stateful code in pipelines on a Roster broker: state over runs and stores, errors, what is refused."""

from __future__ import annotations

import json
import urllib.request
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from roster.pipeline.tasks.result_records import as_records
from roster.spark import FunctionError, KafkaSink, Pipeline, PipelineError, State, StateView
from roster.state.definition import json_text
from roster.state.lmdb_store import LmdbStore
from roster.state.store import NoState
from tests.librdkafka import idempotent_producer
from tests.real.realparts.apache import free_ports
from tests.spark.spark_topics import Topics, committed_records
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from roster.spark import Progress

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
OUTPUT = "name string, n long, tags array<string>"


def named(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [batch["key"].cast(pa.string()), batch["value"].cast(pa.string()).cast(pa.int64()), batch["timestamp"]]
    return pa.RecordBatch.from_arrays(columns, ["name", "n", "at"])


class Numbers(StatefulProcessor):
    """How many numbers a key had, and tags that name it."""

    def init(self, handle):
        self.count = handle.getValueState("count", "n long")
        self.tags = handle.getMapState("tags", "tag string", "n long")

    def handleInputRows(self, key, rows, timerValues):
        (n,) = self.count.get() or (0,)
        for row in rows:
            if row.n == 13:
                raise ValueError("no luck")
            n += 1
            self.tags.updateValue((f"{row.name}{row.n % 2}",), (row.n,))
        self.count.update((n,))
        yield Row(name=key[0], n=n, tags=sorted(tag for (tag,) in iter(self.tags.keys())))

    def handleInitialState(self, key, initialState, timerValues):
        self.count.update((initialState.before,))

    def close(self):
        pass


def longest(key, frames, state):
    n = (state.getOption or (0,))[0] + sum(len(frame) for frame in frames)
    state.update((n,))
    yield pd.DataFrame({"total": [n]})


class Visits(StatefulProcessor):
    """How often a name came, when it came last, and how much of each kind it had."""

    def init(self, handle):
        self.count = handle.getValueState("count", "n long")
        self.last = handle.getListState("last", "at timestamp, n long")
        self.kinds = handle.getMapState("kinds", "kind string", "total long")

    def handleInputRows(self, key, rows, timerValues):
        (n,) = self.count.get() or (0,)
        for row in rows:
            n += 1
            self.last.put([*list(self.last.get())[-1:], (row.at, row.n)])
            kind = (f"kind {row.n % 3}",)
            (total,) = self.kinds.getValue(kind) or (0,)
            self.kinds.updateValue(kind, (total + row.n,))
            if row.n % 7 == 0:
                self.kinds.removeKey(kind)
        self.count.update((n,))
        yield Row(name=key[0])

    def close(self):
        pass


def visits(sent: dict[str, list[int]]) -> list[dict[str, Any]]:
    """The rows that are to be found of these numbers."""
    found: list[dict[str, Any]] = []
    for name, numbers in sorted(sent.items()):
        kinds: dict[str, int] = {}
        for n in numbers:
            kinds[f"kind {n % 3}"] = kinds.get(f"kind {n % 3}", 0) + n
            if n % 7 == 0:
                del kinds[f"kind {n % 3}"]
        last = [{"at": (NOON + timedelta(seconds=n)).isoformat(), "n": n} for n in numbers[-2:]]
        parts: list[dict[str, Any]] = [
            {"variable": "count", "value": {"n": len(numbers)}},
            *({"variable": "last", "list_element": each} for each in last),
            *(
                {"variable": "kinds", "user_map_key": {"kind": kind}, "user_map_value": {"total": total}}
                for kind, total in sorted(kinds.items())
            ),
        ]
        found += [{"key": {"name": name}, **part} for part in parts]
    return found


@pytest.mark.gate
def test_the_state_of_one_application_is_asked_of_the_other_one(
    spark: SparkSession, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A loaded machine may lose a member for a while.
    monkeypatch.setattr("roster.spark.queries.view.PATIENCE", 120.0)
    topic, out, group = topics.create(4), topics.create(1), f"g-{uuid.uuid4().hex[:8]}"
    hosts = [f"127.0.0.1:{port}" for port in free_ports(2)]
    pipelines = [
        Pipeline(
            spark,
            topics.bootstrap,
            group,
            topic,
            state=State(dir=str(tmp_path / host.partition(":")[2]), application_server=host),
            log=False,
        )
        .json_columns("name string, n long, at timestamp")
        .transform_with_state(Visits(), "name", "name string", store="visits")
        .write(KafkaSink(topics.bootstrap, out))
        for host in hosts
    ]
    try:
        for pipeline in pipelines:
            pipeline.start()
        shared = dict.fromkeys(hosts, 2)
        until(lambda: all(map(is_running, pipelines)), 120)
        until(lambda: all({h: len(t) for h, t in p.store("visits").hosts.items()} == shared for p in pipelines), 120)
        sent: dict[str, list[int]] = {}
        producer = idempotent_producer(topics.bootstrap)
        for n in range(120):
            name = f"n{n % 10}"
            value = {"name": name, "n": n, "at": (NOON + timedelta(seconds=n)).isoformat()}
            producer.produce(topic, json.dumps(value), name, partition=n % 10 % 4)
            sent.setdefault(name, []).append(n)
        assert producer.flush(60) == 0
        views = [pipeline.store("visits") for pipeline in pipelines]
        until(lambda: sum(row["value"]["n"] for row in views[0].prefix(variable="count")) == 120, 120)
        for view in views:
            own = until(lambda view=view: view.prefix(variable="count", local=True), 120)
            assert len(own) < len(sent), "the other application has some of the keys"
        rows = visits(sent)
        for host, view in zip(hosts, views, strict=True):
            with urllib.request.urlopen(f"http://{host}/stores/visits/prefix", timeout=180) as response:
                assert json.load(response) == {"rows": rows, "behind": {}}
            for name in sent:
                assert view.get(name, variable="count") == next(
                    row for row in rows if row["key"]["name"] == name and row["variable"] == "count"
                )
            frame = view.dataframe(spark, variable="last").collect()
            times = [row.list_element["at"].astimezone(UTC).isoformat() for row in frame]
            assert times == [row["list_element"]["at"] for row in rows if row["variable"] == "last"]
            totals = {(row.key.name, row.user_map_key.kind): row.user_map_value.total for row in kinds_of(view, spark)}
            assert totals == {
                (row["key"]["name"], row["user_map_key"]["kind"]): row["user_map_value"]["total"]
                for row in rows
                if row["variable"] == "kinds"
            }
        pipelines[0].stop()
        assert pipelines[0].wait(120)
        assert json.loads(json_text(views[1].prefix())) == rows, "with what was restored from the changelog"
        until(lambda: len(views[1].prefix(variable="count", local=True)) == len(sent), 120)
    finally:
        for pipeline in pipelines:
            pipeline.stop()
        assert all(pipeline.wait(120) for pipeline in pipelines)


def kinds_of(view: StateView, spark: SparkSession) -> list[Row]:
    return view.dataframe(spark, variable="kinds").collect()


def is_running(pipeline: Pipeline) -> bool:
    try:
        return bool(pipeline.store("visits").tasks)
    except PipelineError:
        return False


def send(topics: Topics, topic: str, numbers: Any) -> None:
    producer = idempotent_producer(topics.bootstrap)
    for number in numbers:
        producer.produce(topic, str(number), f"k{number % 3}", partition=0)
    assert producer.flush(60) == 0


@pytest.mark.gate
def test_state_goes_on_in_the_next_run_and_in_another_place(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic, out, group = topics.create(1), topics.create(1), f"g-{uuid.uuid4().hex[:8]}"
    initial = spark.createDataFrame([("k1", 100), ("k9", 5)], "name string, before long")

    def run(place: str) -> list[tuple[bytes | None, dict[str, Any]]]:
        (
            Pipeline(spark, topics.bootstrap, group, topic, state=State(dir=str(tmp_path / place)), log=False)
            .map_arrow(named, "name string, n long, at timestamp")
            .transform_with_state(Numbers(), "name", OUTPUT, initial_state=initial)
            .write(KafkaSink(topics.bootstrap, out))
            .run(available_now=True)
        )
        return [(key, json.loads(value or b"")) for _, key, value in committed_records(topics, out)]

    send(topics, topic, range(6))
    assert sorted(run("one"), key=str) == [
        (b"k0", {"name": "k0", "n": 2, "tags": ["k00", "k01"]}),
        (b"k1", {"name": "k1", "n": 102, "tags": ["k10", "k11"]}),
        (b"k2", {"name": "k2", "n": 2, "tags": ["k20", "k21"]}),
    ]
    send(topics, topic, [7, 6])
    assert {str(row) for row in run("two")[3:]} == {
        str((b"k1", {"name": "k1", "n": 103, "tags": ["k10", "k11"]})),
        str((b"k0", {"name": "k0", "n": 3, "tags": ["k00", "k01"]})),
    }
    send(topics, topic, [13])
    message = r"transform_with_state: handleInputRows: ValueError: no luck .*test_processor_pipeline.py, line \d+"
    with pytest.raises(FunctionError, match=message + rf".*, key \('k1',\), batch 0 \({topic}-0 offsets"):
        run("two")


@pytest.mark.gate
def test_a_function_with_group_state_sends_results_without_keys(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic, out = topics.create(1), topics.create(1)
    send(topics, topic, [0, 1, 3])
    asked: list[Any] = []

    def note(_: Progress) -> None:
        groups = pipeline.store("groups")
        frame = [(row.key.name, row.value.n) for row in groups.dataframe(spark).collect()]
        asked.append(([groups.get(name) for name in ("k0", "k1", "k2")], frame))

    group = f"g-{uuid.uuid4().hex[:8]}"
    pipeline = Pipeline(
        spark, topics.bootstrap, group, topic, state=State(dir=str(tmp_path)), log=False, on_progress=note
    )
    (
        pipeline.map_arrow(named, "name string, n long, at timestamp")
        .apply_in_pandas_with_state(longest, ["name"], "total long", "n long")
        .write(KafkaSink(topics.bootstrap, out))
        .run(available_now=True)
    )
    assert sorted(committed_records(topics, out), key=str) == [(0, None, b'{"total":1}'), (0, None, b'{"total":2}')]
    rows = [{"variable": "state", "key": {"name": f"k{n}"}, "value": {"n": 2 - n}} for n in (0, 1)]
    assert asked[-1] == ([*rows, None], [("k0", 2), ("k1", 1)]), "without the name of the only variable"


class Ticking(Numbers):
    """Sets a timer for as soon as possible, and from each timer the next, three times in all."""

    def init(self, handle):
        super().init(handle)
        self.handle = handle

    def handleInputRows(self, key, rows, timerValues):
        self.count.update((sum(1 for _ in rows),))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
        return iter(())

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        (n,) = self.count.get()
        self.count.update((n + 1,))
        if n < 3:
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
        yield Row(name=key[0], n=n, tags=None)


def test_timers_are_due_without_records_and_after_a_restart(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic, out, group = topics.create(2), topics.create(1), f"g-{uuid.uuid4().hex[:8]}"
    producer = idempotent_producer(topics.bootstrap)
    for partition in range(2):
        producer.produce(topic, "1", f"k{partition}", partition=partition)
    assert producer.flush(60) == 0

    def made() -> Pipeline:
        return (
            Pipeline(spark, topics.bootstrap, group, topic, state=State(dir=str(tmp_path)), log=False)
            .map_arrow(named, "name string, n long, at timestamp")
            .transform_with_state(Ticking(), "name", OUTPUT, time_mode="ProcessingTime")
            .write(KafkaSink(topics.bootstrap, out))
        )

    def ticks() -> list[tuple[str, int]]:
        each = [json.loads(value or b"") for _, _, value in committed_records(topics, out)]
        return sorted((row["name"], row["n"]) for row in each)

    made().run(available_now=True)
    assert ticks() == []
    made().run(available_now=True)
    assert ticks() == [("k0", 1), ("k1", 1)], "one turn finds timers that an earlier owner has left"
    running = made().start()
    until(lambda: len(ticks()) >= 6 or not running.is_active, what=ticks)
    last = running.last_progress
    running.stop()
    running.wait()
    assert ticks() == [(f"k{number}", n) for number in range(2) for n in (1, 2, 3)]
    assert last is not None
    assert last.rows == 0
    assert {(span.start, span.end) for span in last.ranges.values()} == {(1, 1)}


def pipeline(spark: SparkSession) -> Pipeline:
    return Pipeline(spark, "127.0.0.1:1", "g", "t")


class Broken(Numbers):
    def init(self, handle):
        handle.getValueState("odd", "n interval year")


@pytest.mark.parametrize(
    ("processor", "options", "problem"),
    [
        (3, {}, "processor: 3 has no method init. Pass an instance of a StatefulProcessor"),
        (Numbers(), {"time_mode": "Event"}, "time_mode: 'Event' is not possible. Use 'None', 'ProcessingTime' or"),
        (Numbers(), {"time_mode": "EventTime"}, "transform_with_state: event_time: time mode EventTime needs the"),
        (Numbers(), {"output_schema": "nonsense"}, "^output_schema: 'nonsense' is not a schema"),
        (Broken(), {}, "transform_with_state: init: "),
        (Numbers(), {"initial_state": 3}, "initial_state: 3 is neither a DataFrame nor a pyarrow.Table"),
        (Numbers(), {"initial_state": pa.table({"n": [1]})}, "initial_state: .*no column 'name' among n"),
        (
            Numbers(),
            {"initial_state": pa.table({"name": ["a"], "n": pa.array([1], pa.uint8())}), "in_pandas": True},
            "initial_state: .*uint8",
        ),
        (Numbers(), {"delay": timedelta(-1)}, "transform_with_state: delay: "),
    ],
)
def test_wrong_arguments_are_named(spark: SparkSession, processor: Any, options: dict[str, Any], problem: str) -> None:
    arguments: dict[str, Any] = {"key": "name", "output_schema": OUTPUT} | options
    with pytest.raises(PipelineError, match=problem):
        pipeline(spark).transform_with_state(processor, **arguments)


def test_wrong_arguments_of_functions_are_named(spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match=r"timeout: 'never' is not possible\. Use one of NoTimeout"):
        pipeline(spark).apply_in_pandas_with_state(longest, "name", "total long", "n long", timeout="never")
    with pytest.raises(PipelineError, match="function: 3 is not a function"):
        pipeline(spark).apply_in_pandas_with_state(3, "name", "total long", "n long")  # type: ignore[arg-type]


def returned(value: Any) -> Any:
    class Returning(Numbers):
        def handleInputRows(self, key, rows, timerValues):
            return value

    return Returning()


@pytest.mark.parametrize(
    ("value", "in_pandas", "problem"),
    [
        (None, False, "it returned None, not an iterator of rows"),
        ([{"name": "a"}], False, "not a row of (name, n, tags)"),
        ([("a", 1)], False, "not a row of (name, n, tags)"),
        ([Row(name="a", m=1)], False, "a row with a field 'm', the output schema has (name, n, tags)"),
        ([Row(name="a", n="x")], False, "column 'n' of the output schema is int64"),
        (pd.DataFrame(), True, "it returned a DataFrame, not an iterator of pandas DataFrames"),
        ([Row(name="a")], True, "it returned a Row, not a pandas DataFrame"),
        ([pd.DataFrame({"name": ["a"]})], True, "it returned a DataFrame of (name), the output schema has (name, n,"),
        ([pd.DataFrame({"name": ["a"], "n": ["x"], "tags": [None]})], True, "column 'n' of the output schema is int64"),
    ],
)
def test_results_are_checked(spark: SparkSession, value: Any, in_pandas: bool, problem: str) -> None:
    declared = pipeline(spark).transform_with_state(returned(value), "name", OUTPUT, in_pandas=in_pandas)._declared
    (declared_operator,) = declared.operators
    with pytest.raises(FunctionError) as caught:
        declared_operator.stateful.operator(pa.table({"name": ["a"], "n": [1]}), NoState())
    assert problem in str(caught.value)


def test_nested_results_are_json() -> None:
    kinds = {
        "l": pa.list_(pa.timestamp("us", "UTC")),
        "m": pa.map_(pa.int32(), pa.float64()),
        "s": pa.struct([("b", pa.binary()), ("d", pa.decimal128(4, 1))]),
    }
    rows: list[dict[str, Any]] = [
        {"l": [NOON, None], "m": [(1, 1.5), (2, float("nan"))], "s": {"b": b"\xff", "d": Decimal("1.5")}},
        {"l": None, "m": None, "s": None},
    ]
    keys, values = as_records(pa.Table.from_pylist(rows, pa.schema(kinds.items())), [])
    assert keys.to_pylist() == [None, None]
    assert [json.loads(value) for value in values.to_pylist()] == [
        {"l": ["2026-01-01T12:00:00.000000Z", None], "m": {"1": 1.5, "2": None}, "s": {"b": "/w==", "d": "1.5"}},
        {"l": None, "m": None, "s": None},
    ]


def test_results_of_other_types_are_cast_as_spark_casts_them(spark: SparkSession, tmp_path: Path) -> None:
    output = "name string, n int, at timestamp, f float"
    frames = [
        pd.DataFrame({"n": [1.0], "name": ["a"], "at": [pd.Timestamp("2026-01-01 12:00")], "f": [2]}),
        pd.DataFrame({0: ["b"], 1: [None], 2: [pd.NaT], 3: [None]}),
    ]
    declared = pipeline(spark).transform_with_state(returned(frames), "name", output, in_pandas=True)._declared
    (declared_operator,) = declared.operators
    with LmdbStore(tmp_path) as store:
        rows = declared_operator.stateful.operator(pa.table({"name": ["a"], "n": [1]}), store).results.to_pylist()
    zone = spark.conf.get("spark.sql.session.timeZone")
    noon = pd.Timestamp("2026-01-01 12:00").tz_localize(zone).to_pydatetime()
    assert rows == [
        {"name": "a", "n": 1, "at": noon, "f": 2.0},
        {"name": "b", "n": None, "at": None, "f": None},
    ]
