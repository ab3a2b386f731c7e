"""Chains of stateful operators against each operator alone: cut anywhere, and whatever befalls batches and stores."""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType, TimestampType

from roster.model import TopicPartition
from roster.pipeline.batch import Batch, Owner, Range, Split
from roster.pipeline.errors import FunctionError, PipelineError
from roster.pipeline.options import Options
from roster.pipeline.tasks import reader
from roster.pipeline.tasks.reader import ReaderConfig, ReadError
from roster.pipeline.tasks.result_records import as_records
from roster.spark import ParquetSink, Pipeline, State, Window, stateful_operators
from roster.spark.assembly import subtopology_plans
from roster.spark.operations import Operations
from roster.spark.stateful_batches import tokens_of, with_batch
from roster.state.store import NoState
from roster.stateful.changelogs import Changelog, Changelogs
from roster.stateful.stores import StoreTargets
from roster.stateful.tasks.processing import process_batch
from roster.stateful.tasks.store_location import Place
from roster.stateful.tasks.task import StatefulTask, StoreKind, TopologyPlan
from tests.examples_tried import examples
from tests.librdkafka import idempotent_producer
from tests.state.aggregate_texts import aggregate_of
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from roster.state.aggregate_functions import Aggregate
    from roster.stateful.tasks.subtopology import SubtopologyPlan
    from tests.spark.spark_topics import Topics

SHAPE = StructType(
    [StructField("user", StringType()), StructField("n", LongType()), StructField("at", TimestampType())]
)
COLUMNS = pa.schema([("user", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
HOUR = timedelta(hours=1)
SESSION: Any = SimpleNamespace(conf=SimpleNamespace(get=lambda _: "UTC"))
"""What declaring asks of a session: nothing is run."""
EVER = timedelta(days=1000)
"""A grace within which no row of a test is late."""
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
USERS = ("a", "b", "c")
PASSED = [BEGIN + number * (EVER + timedelta(days=1)) for number in range(1, 5)]
"""Times of rows for each user behind all others: each closes what is before it, in one operator more.

The time that an operator takes over from the one in front of it closes no more than these rows do.
"""


@pytest.fixture(autouse=True, scope="module")
def aggregates_without_spark() -> Iterator[None]:
    """Read aggregates by their texts in Spark's place, so that these tests start no JVM."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stateful_operators, "aggregates_over", by_texts)
        yield


def by_texts(named: Mapping[str, Any], columns: StructType) -> dict[str, Aggregate]:
    return {name: aggregate_of(one.given) for name, one in named.items()}


def in_shape(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Results of any operator here with the columns that rows have."""
    at = batch.column("at" if "at" in batch.schema.names else "window_start")
    return pa.RecordBatch.from_arrays([batch["user"], batch["n"], at.cast(COLUMNS.field("at").type)], schema=COLUMNS)


def windows(made: Operations, store: str, window: Any) -> Operations:
    return made.aggregate("user", {"n": "sum(n)"}, window=window, results="final", store=store)


class Passing(StatefulProcessor):
    """Gives each row back; rows of a batch come and go by key."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", StructType(SHAPE.fields[1:2]))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            (count,) = self.count.get() or (0,)
            self.count.update((count + 1,))
            yield Row(user=key[0], n=row.n, at=row.at)

    def close(self) -> None:
        pass


OPERATORS: Mapping[str, Callable[[Operations, str], Operations]] = {
    "tumbling": lambda made, store: windows(made, store, Window("at", HOUR, grace=EVER)),
    "hopping": lambda made, store: windows(made, store, Window("at", 2 * HOUR, every=HOUR, grace=EVER)),
    "sessions": lambda made, store: windows(made, store, Window.session("at", HOUR, grace=EVER)),
    "first rows": lambda made, store: made.deduplicate(["user", "n", "at"], within=9 * EVER, column="at", store=store),
    "processor": lambda made, store: made.transform_with_state(Passing(), "user", SHAPE, store=store),
}


def declared(names: Sequence[str], repartitioned: Collection[int] = ()) -> Operations:
    made = Operations(SESSION)
    for number, name in enumerate(names):
        if number in repartitioned:
            made.repartition("user", name=f"r{number}", partitions=2)
        OPERATORS[name](made, f"s{number}").map_arrow(in_shape, SHAPE)
    return made.aggregate("user", {"rows": "count(*)", "n": "sum(n)", "latest": "max(at)"}, store="totals")


def plans_of(made: Operations) -> tuple[SubtopologyPlan, ...]:
    return subtopology_plans(Options(None, "b:9092", "g", ("t",)), made._declared, SHAPE, SHAPE)


@dataclass
class Logs:
    """Partitions of all topics as a broker has them; None stands for a marker, or a record that was aborted."""

    records: dict[TopicPartition, list[Any]] = field(default_factory=dict)

    def end(self, partition: TopicPartition) -> int:
        return len(self.records.get(partition, ()))

    def read(self, partition: TopicPartition, start: int, end: int) -> list[tuple[int, Any]]:
        found = enumerate(self.records.get(partition, [])[start:end], start)
        return [(at, record) for at, record in found if record is not None]

    def fetch(self, partition: TopicPartition, start: int, end: int) -> Iterator[pa.RecordBatch]:
        if found := self.read(partition, start, end):
            columns = [[at for at, _ in found], *zip(*(record for _, record in found), strict=True)]
            kinds = (pa.int64(), pa.binary(), pa.binary())
            arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, ["offset", "key", "value"])

    def append(self, rows: Iterable[Any], *, committed: bool) -> None:
        """Write (partition, record) pairs and a marker to each partition that got one."""
        touched = set()
        for partition, record in rows:
            self.records.setdefault(partition, []).append(record if committed else None)
            touched.add(partition)
        for partition in touched:
            self.records[partition].append(None)

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {partition: self.end(partition) for partition in partitions}

    stable_offsets = end_offsets


class Reports:
    """In place of an accumulator."""

    def __init__(self) -> None:
        self.value: dict[Any, Any] = {}

    def add(self, more: Mapping[Any, Any]) -> None:
        for task, reports in more.items():
            self.value[task] = self.value.get(task, ()) + reports


class KilledError(Exception):
    """In place of the end of a process."""


class Group:
    """Two applications of a group that runs a pipeline, one after the other, without Spark and without a broker."""

    def __init__(self, plans: tuple[SubtopologyPlan, ...], disk: Path) -> None:
        self.plans, self.disk, self.logs = plans, disk, Logs()
        of = {node.store: plan.subtopology for plan in plans for node in plan.nodes}
        count = {0: 1} | {plan.subtopology.number: 2 for plan in plans if plan.repartition_source is not None}
        self.changelogs = Changelogs(Changelog(name, "id", count[each.number], each) for name, each in of.items())
        self.sources = [TopicPartition("t", 0)]
        for plan in plans:
            if plan.repartition_source is not None:
                self.sources += [TopicPartition(plan.repartition_source.topic, number) for number in (0, 1)]
        self.positions = dict.fromkeys(self.sources, 0)
        self.applications = [(StoreTargets(self.logs, self.changelogs, 1.0), name) for name in ("one", "two")]

    def send(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self.logs.records.setdefault(TopicPartition("t", 0), []).extend(rows)

    def work(self) -> TopologyPlan:
        directory = str(self.disk / self.applications[0][1])
        definitions = [each for plan in self.plans for each in plan.definitions.values()]
        kinds = {
            each.topic: StoreKind(Place(directory, each.topic, "id", definition.is_ordered), definition)
            for each, definition in zip(self.changelogs, definitions, strict=True)
        }
        return TopologyPlan(self.plans, kinds, "out")

    def batch(self, sizes: Sequence[int], befalls: str = "commit", store: int = 0) -> bool:
        """Run a batch of so many offsets of each partition at most; return False if there is nothing left."""
        wanted = {p: at + sizes[number % len(sizes)] for number, (p, at) in enumerate(self.positions.items())}
        ends = {p: min(self.logs.end(p), end) for p, end in wanted.items()}
        ranges = {p: Range(at, ends[p]) for p, at in self.positions.items() if ends[p] > at}
        if not ranges:
            return any(self.logs.end(p) > at for p, at in self.positions.items())
        batch = Batch(0, Owner("g", 1, "m"), ranges)
        if befalls == "other owner":
            self.applications.reverse()
            self.applications[0][0].forget(ranges)
        if befalls == "lost store":
            lost = [place.root for place in self.work().places]
            shutil.rmtree(lost[store % len(lost)], ignore_errors=True)
        targets, reports = self.applications[0][0], Reports()
        prepared = targets.prepare(batch)
        attempts = 2 if befalls == "second attempt" else 1
        rows = []
        for _ in range(attempts):
            task = InProcess(self, batch, prepared, reports)
            with pytest.MonkeyPatch.context() as patched:
                left = store % len(self.work().stores) if befalls == "killed" else 1 << 30
                patched.setattr("roster.stateful.tasks.task.process_batch", dying(left))
                patched.setattr("roster.stateful.tasks.task.read_together", lambda *_: contextlib.nullcontext())
                try:
                    rows = [row for each in task.read([0]) for row in each.to_pylist()]
                except KilledError:
                    return True  # nothing was sent
        self.logs.append(((self._place(row), (row["key"], row["value"])) for row in rows), committed=befalls != "abort")
        if befalls in ("abort", "lost answer"):
            targets.forget(ranges)
        else:
            targets.committed(tokens_of(reports.value), batch)
        if befalls != "abort":
            self.positions |= batch.next_offsets
        return True

    def _place(self, row: Mapping[str, Any]) -> TopicPartition:
        """Where a record goes; any partitioner does that gives a key its partition."""
        number = row["partition"]
        if number is None:
            number = sum(row["key"]) % 2 if TopicPartition(row["topic"], 0) in self.sources else 0
        return TopicPartition(row["topic"], number)

    def results(self) -> list[tuple[bytes, bytes]]:
        return [record for record in self.logs.records.get(TopicPartition("out", 0), []) if record is not None]


def dying(stores: int) -> Callable[..., Any]:
    """Batches of stores, of which one ends the process."""
    left = iter(range(stores))

    def target(*given: Any) -> Any:
        if next(left, None) is None:
            raise KilledError
        return process_batch(*given)

    return target


class InProcess(StatefulTask):
    """Reads the logs of a group."""

    def __init__(self, group: Group, batch: Batch, targets: Any, reports: Any) -> None:
        splits = [Split(*partition, *span) for partition, span in batch.ranges.items()]
        super().__init__(ReaderConfig("b:9092", "g"), [splits], group.work(), targets, reports)
        self._logs = group.logs
        self._reading: Any = self
        self._arriving: Any = Arriving(group.logs, self._splits)

    def read(self, tasks: Iterable[int]) -> Iterator[pa.RecordBatch]:
        """Rows of the pipeline's own topic; of the task all."""
        (number,) = tasks
        if not self._is_inside:
            self._is_inside = True
            yield from super().read([number])
            return
        split = self._splits[number]
        found = self._logs.read(TopicPartition(split.topic, split.partition), split.start, split.end)
        yield pa.RecordBatch.from_pylist([row for _, row in found], COLUMNS)

    _is_inside = False

    def _fetch(self, partition: TopicPartition, start: int, end: int) -> Iterable[pa.RecordBatch]:
        return self._logs.fetch(partition, start, end)


@dataclass
class Arriving:
    """Reads topics between sub-topologies."""

    logs: Logs
    splits: Sequence[Split]

    def read(self, numbers: Iterable[int]) -> Iterator[pa.RecordBatch]:
        for number in numbers:
            split = self.splits[number]
            yield from self.logs.fetch(TopicPartition(split.topic, split.partition), split.start, split.end)


def alone(plans: Sequence[SubtopologyPlan], rows: pa.Table) -> dict[bytes, bytes]:
    """The last result of each key, of operators that have all rows at once, in the order of time."""
    for plan in plans:
        for node in plan.nodes:
            update = node.operator(rows.cast(node.columns).sort_by("at"), NoState())
            rows = update.results
    keys, values = as_records(rows, plans[-1].nodes[-1].operator.result_keys)
    return dict(zip(keys.to_pylist(), (value.encode() for value in values.to_pylist()), strict=True))


rows = st.fixed_dictionaries(
    {
        "user": st.sampled_from(USERS),
        "n": st.integers(0, 3),
        "at": st.integers(0, 40).map(lambda number: BEGIN + number * HOUR / 4),
    }
)
events = st.tuples(
    st.sampled_from(["commit"] * 3 + ["abort", "lost answer", "killed", "second attempt", "other owner", "lost store"]),
    st.integers(0, 4),
    st.lists(st.integers(0, 9), min_size=1, max_size=5),
)


@given(
    st.lists(st.sampled_from(sorted(OPERATORS)), min_size=1, max_size=3),
    st.sets(st.integers(0, 2), max_size=2),
    st.lists(rows, max_size=25),
    st.lists(events, max_size=12),
)
@example(["hopping", "hopping", "hopping"], set(), [], [])
@example(["processor", "processor", "hopping"], {1}, [], [("commit", 0, [12]), ("commit", 0, [4])])
@settings(max_examples=examples(50, "ROSTER_STATE_SCRIPTS"))
def test_a_chain_equals_its_operators_alone(
    tmp_path_factory: pytest.TempPathFactory, names: Any, repartitioned: Any, sent: Any, script: Any
) -> None:
    sent = [*sent, *({"user": user, "n": 0, "at": at} for at in PASSED for user in USERS)]
    plans = plans_of(declared(names, repartitioned))
    group = Group(plans, tmp_path_factory.mktemp("state"))
    group.send(sent)
    for befalls, number, sizes in script:
        group.batch(sizes, befalls, number)
    while group.batch([7]):
        pass
    assert dict(group.results()) == alone(plans, pa.Table.from_pylist(sent, COLUMNS))


def users(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select(["user"])


@pytest.mark.parametrize("is_repartitioned", [False, True])
def test_results_that_go_on_may_leave_out_their_keys(*, is_repartitioned: bool, tmp_path: Path) -> None:
    made = Operations(SESSION).deduplicate("n", within=EVER, column="at").map_arrow(users, StructType(SHAPE.fields[:1]))
    if is_repartitioned:
        made.repartition("user")
    made.aggregate("user", {"rows": "count(*)"})
    work = Group(plans_of(made), tmp_path).work()
    assert list(StatefulTask(ReaderConfig("b:9092", "g"), [()], work, {}).read([0])) == [], "a warm-up"


def test_a_task_does_not_hold_more_rows_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(plans_of(declared(["first rows"])), tmp_path)
    sent = [{"user": user, "n": 0, "at": BEGIN} for user in USERS]
    group.send(sent)
    for name, error in (("_MOST_HELD", ReadError), ("_most_held", MemoryError)):
        with monkeypatch.context() as patched:
            patched.setattr(reader, name, 8)
            with pytest.raises(error, match=r"the rows of one task.* have more than 0 [MG]iB"):
                group.batch([7])
        assert not group.results()
    while group.batch([7]):
        pass
    assert dict(group.results()) == alone(group.plans, pa.Table.from_pylist(sent, COLUMNS))


class Later(Passing):
    """Gives rows back when their timer of processing time is due, in a turn behind that of the rows."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.rows = handle.getListState("rows", SHAPE)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.rows.appendValue((row.user, row.n, row.at))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        for user, n, at in self.rows.get():
            yield Row(user=user, n=n, at=at)
        self.rows.clear()


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.gate
def test_timers_in_front_of_repartition_wait_for_no_records_where_results_go_to_files(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic, out = topics.create(1), tmp_path / "out"
    producer = idempotent_producer(topics.bootstrap)
    for number in range(20):
        value = {"user": f"u{number % 4}", "n": number, "at": BEGIN.isoformat()}
        producer.produce(topic, json.dumps(value), value["user"])
    assert producer.flush(60) == 0
    quick: Any = {"consumer": {"heartbeat.interval.ms": 200}, "trigger_interval_ms": 0}
    made = Pipeline(spark, topics.bootstrap, f"later-{topic}", topic, state=State(dir=str(tmp_path / "state")), **quick)
    made.json_columns(SHAPE).transform_with_state(Later(), "user", SHAPE, time_mode="ProcessingTime")
    OPERATORS["first rows"](made, "first").repartition("n").aggregate("n", {"rows": "count(*)"})
    running = made.write(ParquetSink(str(out))).start()

    def numbers() -> list[int]:
        written = list(out.rglob("*.parquet"))
        return sorted(row.n for row in spark.read.parquet(str(out)).collect()) if written else []

    try:
        until(lambda: numbers() == list(range(20)), 180, "rows of timers")
    finally:
        running.stop(now=True)
        running.wait(120)


def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select(["user", "user"])


@pytest.mark.parametrize("is_last", [False, True])
def test_two_columns_of_one_name_are_refused(*, is_last: bool) -> None:
    made = Operations(SESSION).deduplicate("user", within=EVER, column="at")
    made.map_arrow(twice, StructType(SHAPE.fields[:1] * 2))
    if not is_last:
        made.repartition("user").aggregate("user", {"rows": "count(*)"})
    with pytest.raises(PipelineError, match=r"map_arrow: there are two columns 'user'. Give each a name of its own"):
        plans_of(made)


def failing(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise ValueError(f"no such luck with {batch.num_rows}")


def test_an_error_behind_an_operator_names_its_store(tmp_path: Path) -> None:
    made = OPERATORS["first rows"](OPERATORS["first rows"](Operations(SESSION), "one").map_arrow(failing, SHAPE), "two")
    group = Group(plans_of(made), tmp_path)
    group.send([{"user": "a", "n": 1, "at": BEGIN}])
    with pytest.raises(FunctionError, match="luck with 1, given results of the stateful operator with the store 'one'"):
        group.batch([9])


def test_a_task_of_another_release_ends_with_one_error_before_anything_is_written(tmp_path: Path) -> None:
    def release(text: str) -> tuple[SubtopologyPlan, ...]:
        made = OPERATORS["first rows"](Operations(SESSION), "one")
        return plans_of(made.aggregate("user", {"n": text}, store="two"))

    group = Group(release("count(*)"), tmp_path)
    group.send({"user": "a", "n": number, "at": BEGIN + number * HOUR} for number in range(9))
    assert group.batch([3])
    before = {partition: list(records) for partition, records in group.logs.records.items()}
    group.plans = release("sum(n)")
    with pytest.raises(
        FunctionError, match=r"^store: 'two' of the group 'g', partition 0: .* count\(\*\) int64"
    ) as refused:
        group.batch([3])
    assert group.logs.records == before
    told = with_batch(refused.value, Batch(0, Owner("g", 1, "m"), {}))
    assert (type(told), str(told)) == (PipelineError, str(refused.value))
    group.plans = release("count(*)")
    while group.batch([3]):
        pass
    assert [json.loads(value)["n"] for _, value in group.results()] == [3, 6, 9]


def passing(made: Operations, store: str, **time: Any) -> Operations:
    return made.transform_with_state(Passing(), "user", SHAPE, store=store, **time)


def moved(made: Operations, name: str) -> Operations:
    return made.repartition("user", name=name, partitions=2)


def latest(made: Operations, store: str) -> Operations:
    return made.aggregate("user", {"n": "sum(n)", "at": "max(at)"}, store=store).map_arrow(in_shape, SHAPE)


TIMED = partial(passing, time_mode="EventTime", event_time="at")
HOURS = partial(windows, window=Window("at", HOUR))


def results_of(chain: Sequence[Any], sent: Sequence[Mapping[str, Any]], sizes: Sequence[int], disk: Path) -> list[Any]:
    """Results of rows that pass through operators in batches of these sizes."""
    made = Operations(SESSION)
    for number, add in enumerate(chain):
        add(made, f"s{number}")
    group = Group(plans_of(made), disk)
    group.send(sent)
    while group.batch(sizes):
        pass
    return [json.loads(value) for _, value in group.results()]


@pytest.mark.parametrize(
    ("chain", "sizes"),
    [
        pytest.param([passing, HOURS], [99], id="window"),
        pytest.param([passing, moved, HOURS], [99, 4, 4], id="repartition, window"),
        pytest.param([passing, moved, passing, HOURS], [99, 4, 4], id="repartition, processor, window"),
        pytest.param([passing, moved, passing, moved, HOURS], [99, 4, 4, 3, 3], id="two of each, window"),
    ],
)
def test_rows_that_come_by_key_are_not_late_for_a_window_behind(chain: Any, sizes: Any, tmp_path: Path) -> None:
    sent = [{"user": user, "n": 1, "at": BEGIN + number * HOUR} for number in range(9) for user in USERS]
    found = results_of(chain, sent, sizes, tmp_path)
    expected = {(user, BEGIN + number * HOUR) for number in range(8) for user in USERS}
    assert {(row["user"], datetime.fromisoformat(row["window_start"])) for row in found} == expected


@pytest.mark.parametrize("front", [passing, latest])
def test_rows_that_come_by_key_are_not_late_for_a_processor_of_event_time_behind(front: Any, tmp_path: Path) -> None:
    sent = [{"user": user, "n": 1, "at": BEGIN + number * HOUR} for number, user in enumerate("abccba")]
    found = results_of([front, moved, TIMED], sent, [99, 1, 1], tmp_path)
    expected = sent if front is passing else sent[3:]
    assert {datetime.fromisoformat(row["at"]) for row in found} == {row["at"] for row in expected}


def listed(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(2, "at", pa.array([[at] for at in batch["at"].to_pylist()], pa.list_(batch["at"].type)))


def test_a_list_of_the_name_of_a_time_further_behind_is_no_order() -> None:
    lists = StructType([*SHAPE.fields[:2], StructField("at", ArrayType(TimestampType()))])
    made = passing(passing(Operations(SESSION), "lists").map_arrow(listed, lists), "times")
    (plan,) = plans_of(HOURS(made, "hours"))
    assert [node.in_order_of for node in plan.nodes] == [None, "at", None]
