"""Event time behind repartition topics against a plain computation, for any chain, cuts, order, moves and deaths."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import accumulate
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from roster.model import TopicPartition
from roster.model.topology import Subtopology
from roster.pipeline.batch import Batch, Owner, Range
from roster.pipeline.tasks.arrow_function import ArrowFunction
from roster.pipeline.tasks.json_values import JsonReader
from roster.pipeline.tasks.missing_values import ColumnsSeen
from roster.state import source_times
from roster.state.deduplicate import Deduplication
from roster.state.event_time import STREAM_TIME_KEY, stream_time, stream_time_after
from roster.state.pending import WithChanges
from roster.state.processor.batch import Plan, TimeMode, take
from roster.state.processor.states import MapState
from roster.state.saved.parts import merged_marks
from roster.state.sessions import SessionAggregation
from roster.state.source_times import SourceTimes
from roster.state.source_times import labelled as with_labels
from roster.state.store import NoState
from roster.state.stream_join import IS_OTHER, OTHER, TIME_KEYS, StreamJoin, in_columns
from roster.state.windows import Window, WindowedAggregation
from roster.stateful import held_times, input_backlog
from roster.stateful.input_backlog import InputBacklog, input_backlogs
from roster.stateful.stores import Stores
from roster.stateful.tasks import subtopology
from roster.stateful.tasks.by_source import by_source
from roster.stateful.tasks.operator_steps import Around, innermost, with_function
from roster.stateful.tasks.outgoing import Outgoing, Sent, by_split
from roster.stateful.tasks.placement import partitions_of
from roster.stateful.tasks.processing import with_time
from roster.stateful.tasks.repartition import RepartitionTopic, through_labelled
from roster.stateful.tasks.subtopology import OperatorNode, OtherSide, SubtopologyPlan, columns_of, labelled
from roster.stateful.tasks.table_join import Lookup, Rows
from tests.examples_tried import examples
from tests.state.aggregate_texts import aggregate_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

EPOCH, SECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(seconds=1)
TIME = pa.timestamp("us", "UTC")
COLUMNS = pa.schema([("k", pa.string()), ("t", TIME)])
RIGHT = pa.schema([("k", pa.string()), ("s", TIME)])
COUNTS = {"n": aggregate_of("count(*)")}
SIZE, GRACE, LONG, END, PARTITIONS = 6, 3, 25, 10_000, 2
INPUTS = ("in", "also in")
ENDS = ("end", "end too")
"""Keys of last rows, one for each partition behind a repartition."""
WINDOWS = WindowedAggregation(("k",), COUNTS, Window("t", SIZE * SECOND, grace=GRACE * SECOND), final=True)
UPDATES = WindowedAggregation(("k",), COUNTS, Window("t", SIZE * SECOND, grace=LONG * SECOND), final=False)
SESSIONS = SessionAggregation(("k",), COUNTS, Window.session("t", SIZE * SECOND, grace=GRACE * SECOND), final=True)
WITHIN = 4
SELDOM = Deduplication(("k",), "w", 20 * SECOND)
FIRST = Deduplication(("k", "t"), "t", GRACE * SECOND)
EVER = Deduplication(("k", "t"), None)
HOP = 2
HOPS = WindowedAggregation(
    ("k",),
    {"m": aggregate_of("max(t)")},
    Window("t", SIZE * SECOND, every=HOP * SECOND, grace=GRACE * SECOND),
    final=True,
)
JOIN = StreamJoin(("k",), ("t", "s"), ("s",), WITHIN * SECOND, GRACE * SECOND, "inner")
OUTER = StreamJoin(("k",), ("t", "s"), ("s",), WITHIN * SECOND, GRACE * SECOND, "left")
Row = tuple[str, int]


def wider(aggregate: str, column: str = "w", keys: tuple[str, ...] = ("k",), grace: int = 0, size: int = 2) -> Any:
    """Windows of twice the size, or another multiple of it, over the results of an operator."""
    window = Window(column, size * SIZE * SECOND, grace=grace * SECOND)
    return WindowedAggregation(keys, {"total": aggregate_of(aggregate)}, window, final=True)


@dataclass(frozen=True)
class Renamed(Around):
    """An operator whose results have the window's start, or its end, as `w`, as a step behind it would.

    less: seconds by which it is earlier.
    """

    time: str = "window_start"
    less: int = 0

    def __call__(self, table: pa.Table, store: Any, /) -> Any:
        update = self.operator(table, store)
        (other,) = {"window_start", "window_end"} - {self.time}
        results = update.results.drop_columns([other]).rename_columns({self.time: "w"})
        times = pc.subtract(results["w"], self.less * SECOND).cast(results["w"].type)
        return replace(update, results=results.set_column(results.column_names.index("w"), "w", times))


class Code:
    """A user's code that counts the rows of each key by windows, with a timer at the end of each."""

    def __init__(self, column: str) -> None:
        self._column, self.results = column, list[tuple[str, datetime, int]]()

    def open(self, state: Any, table: pa.Table) -> None:
        self._state, self._table = state, table
        number = pa.schema([("n", pa.int64())])
        self._counts = state.map(MapState, "counts", number, number)

    def rows(self, _key: Any, begin: int, end: int, _now: Any, *, is_new: bool) -> None:
        for at in self._table[self._column].slice(begin, end - begin).to_pylist():
            start = window_of(seconds(at))
            (before,) = self._counts.getValue((start,)) or (0,)
            self._counts.updateValue((start,), (before + 1,))
            self._state.register_timer((start + SIZE) * 1000)

    def timer(self, key: Any, at: int, _now: Any) -> None:
        start = at // 1000 - SIZE
        self.results.append((key[0], EPOCH + start * SECOND, self._counts.getValue((start,))[0]))
        self._counts.removeKey((start,))
        self._state.delete_timer(at)

    @staticmethod
    def threshold(now: int) -> int:
        return now

    def close(self) -> pa.Table:
        return pa.table(list(zip(*self.results, strict=True)) or [[], [], []], TIMED)


TIMED = pa.schema([("k", pa.string()), ("w", TIME), ("n", pa.int64())])


@dataclass(frozen=True)
class Timers:
    """An operator with timers of event time."""

    time_column: str = "t"
    result_keys: ClassVar[tuple[str, ...]] = ("k",)
    has_variables: ClassVar[bool] = True
    kept: ClassVar[dict[str, Any]] = {"operator": "timers", "time_mode": TimeMode.EVENT.value}

    @staticmethod
    def key_columns(columns: pa.Schema) -> pa.Schema:
        return pa.schema([columns.field("k")])

    def __call__(self, table: pa.Table, store: Any) -> Any:
        plan = Plan(("k",), TimeMode.EVENT, self.time_column, (GRACE + 1) * SECOND)
        return take(table, store, plan, Code(self.time_column), clock=lambda: 0)


TIMERS = Timers()
TABLE, EARLIER_TABLE, NAMED = "a table", "a table, and times become less", b"{}"
PAIRS = Deduplication(("k", "t", "s"), "t", 20 * SECOND)
JOINED = StreamJoin(("k",), ("w", "s"), ("s",), WITHIN * SECOND, GRACE * SECOND, "inner")
WINDOWS_, UPDATES_, SESSIONS_, HOPS_ = Renamed(WINDOWS), Renamed(UPDATES), Renamed(SESSIONS), Renamed(HOPS)
SESSION_ENDS = Renamed(SESSIONS, "window_end")
EARLIER_ = Renamed(WINDOWS, less=LONG)
HALVES_ = Renamed(wider("sum(n)"))
FIRST_ = with_function(FIRST, COLUMNS, ArrowFunction(lambda batch: batch, COLUMNS), COLUMNS, "s")
PLACED, TOTALS = ("k", "window_start", "n"), ("k", "window_start", "total")
CHAINS: dict[str, tuple[list[Any], tuple[tuple[str, ...], str]]] = {
    "final": ([WINDOWS], (PLACED, "n of tasks")),
    "join, outer": ([OUTER], (("k", "t", "s"), "pairs")),
    "repartition, final": ([("k",), WINDOWS], (PLACED, "n")),
    "final, repartition, final": ([WINDOWS_, ("k",), wider("sum(n)")], (TOTALS, "sum")),
    "updates, repartition, final": ([UPDATES_, ("k",), wider("max(n)")], (TOTALS, "max")),
    "repartition, final, final": ([("k",), WINDOWS_, wider("sum(n)")], (TOTALS, "sum")),
    "repartition, updates, final": ([("k",), UPDATES_, wider("max(n)")], (TOTALS, "max")),
    "final, final": ([WINDOWS_, wider("sum(n)")], (TOTALS, "sum of tasks")),
    "deduplicate, final": ([FIRST, wider("count(*)", "t")], (TOTALS, "first rows")),
    "join, final": ([JOIN, wider("count(*)", "t")], (TOTALS, "pairs of windows of tasks")),
    "repartition, join, deduplicate": ([("k",), JOIN, PAIRS], (("k", "t", "s"), "different pairs")),
    "repartition, final, join": ([("k",), WINDOWS_, JOINED], (("k", "w", "s"), "windows with rows")),
    "repartition, final, earlier, final": ([("k",), EARLIER_, wider("sum(n)")], (TOTALS, "sum of earlier")),
    "repartition, final, final, final": (
        [("k",), WINDOWS_, HALVES_, wider("sum(total)", size=4)],
        (("k", "window_start", "total"), "sum of four"),
    ),
    "updates, final": ([UPDATES_, wider("max(n)")], (TOTALS, "max of tasks")),
    "repartition, sessions, final": ([("k",), SESSIONS_, wider("count(*)")], (TOTALS, "sessions")),
    "repartition, ends of sessions, final": ([("k",), SESSION_ENDS, wider("count(*)")], (TOTALS, "ends")),
    "repartition, sessions, repartition, final": ([("k",), SESSIONS_, ("k",), wider("count(*)")], (TOTALS, "sessions")),
    "repartition, deduplicate, final": ([("k",), FIRST, wider("count(*)", "t")], (TOTALS, "first rows")),
    "repartition, deduplicate, step, final": ([("k",), FIRST_, wider("count(*)", "t")], (TOTALS, "first rows")),
    "repartition, join": ([("k",), JOIN], (("k", "t", "s"), "pairs")),
    "repartition, join, outer": ([("k",), OUTER], (("k", "t", "s"), "pairs")),
    "repartition, join, final": ([("k",), JOIN, wider("count(*)", "t")], (TOTALS, "pairs of windows")),
    "join, repartition, final": ([JOIN, ("k",), wider("count(*)", "t")], (TOTALS, "pairs of windows")),
    "repartition, join, repartition, final": (
        [("k",), JOIN, ("t",), wider("count(*)", "t", ("t",))],
        (("t", "total"), "pairs of times"),
    ),
    "repartition, final, repartition, final": (
        [("k",), WINDOWS_, ("n",), wider("count(*)", keys=("n",))],
        (("n", "window_start", "total"), "sizes"),
    ),
    "repartition, final, deduplicate": ([("k",), WINDOWS_, SELDOM], (("k", "w"), "seldom")),
    "repartition, final, repartition, deduplicate": ([("k",), WINDOWS_, ("k",), SELDOM], (("k", "w"), "seldom")),
    "repartition, final, timers": ([("k",), WINDOWS_, Timers("w")], (("k", "w"), "windows after 0")),
    "timers, repartition, final": ([TIMERS, ("k",), wider("sum(n)")], (TOTALS, "sum")),
    "repartition, timers, final": ([("k",), TIMERS, wider("sum(n)")], (TOTALS, "sum")),
    "repartition, timers, repartition, final": (
        [("k",), TIMERS, ("n",), wider("count(*)", keys=("n",))],
        (("n", "window_start", "total"), "sizes"),
    ),
    "repartition, deduplicate, repartition, final": (
        [("k",), FIRST, ("t",), wider("count(*)", "t", ("t",), GRACE)],
        (("t", "total"), "times"),
    ),
    "repartition, ever, final": ([("k",), EVER, wider("count(*)", "t")], (TOTALS, "first rows")),
    "repartition, hops, final": ([("k",), HOPS_, wider("count(*)", "m")], (TOTALS, "largest of hops")),
    "repartition, hops, repartition, final": (
        [("k",), HOPS_, ("k",), wider("count(*)", "m")],
        (TOTALS, "largest of hops"),
    ),
    "repartition, outer, final": ([("k",), OUTER, wider("count(*)", "t")], (TOTALS, "pairs of windows")),
    "repartition, repartition, final": ([("t",), ("k",), WINDOWS], (PLACED, "n")),
    "repartition, table, final": ([("k",), TABLE, WINDOWS], (PLACED, "n")),
    "repartition, table, repartition, final": ([("t",), TABLE, ("k",), WINDOWS], (PLACED, "n")),
    "repartition, repartition, table, final": ([("t",), ("k",), TABLE, WINDOWS], (PLACED, "n")),
    "repartition, repartition, table, earlier, final": (
        [("t",), ("k",), EARLIER_TABLE, WINDOWS],
        (PLACED, "n of earlier"),
    ),
    "repartition, final, repartition, table, final": (
        [("k",), WINDOWS_, ("n",), TABLE, wider("count(*)", keys=("n",))],
        (("n", "window_start", "total"), "sizes"),
    ),
    "3 repartitions, updates, final": ([("k",), ("t",), ("k",), UPDATES_, wider("max(n)")], (TOTALS, "max")),
    "final, repartition, repartition, final": (
        [WINDOWS_, ("k",), ("n",), wider("count(*)", keys=("n",))],
        (("n", "window_start", "total"), "sizes of tasks"),
    ),
    "repartition, join, repartition, repartition, final": (
        [("k",), JOIN, ("k",), ("t",), wider("count(*)", "t", ("t",))],
        (("t", "total"), "pairs of times"),
    ),
}
"""Steps of each chain; columns of its results, and what they are."""


def earlier(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with a time that is less by some seconds."""
    times = pc.subtract(batch["t"], LONG * SECOND).cast(TIME)
    return batch.set_column(batch.schema.get_field_index("t"), "t", times)


def plans_of(chain: Sequence[Any], *, is_mapped: bool = False, topics: int = 1) -> tuple[SubtopologyPlan, ...]:
    """Plans of operators; a tuple of columns stands for a repartition by them. is_mapped: with a step behind it."""
    plans: list[SubtopologyPlan] = []
    columns, nodes, tables, arriving = COLUMNS, list[OperatorNode](), list[Rows](), None
    for step in [*chain, None]:
        sources = INPUTS[:topics] if arriving is None else (arriving.topic,)
        others = tuple(node.other.topic for node in nodes if node.other is not None)
        of = Subtopology(len(plans), (*sources, *others), tuple(node.store for node in nodes))
        if step is None:
            plans.append(SubtopologyPlan(of, tuple(nodes), arriving, tables=tuple(tables)))
        elif isinstance(step, tuple):
            then = ArrowFunction(lambda batch: batch, columns) if is_mapped else None
            topic = RepartitionTopic(of, f"to-{len(plans) + 1}", step, columns, then, PARTITIONS)
            plans.append(SubtopologyPlan(of, tuple(nodes), arriving, topic, tuple(tables)))
            nodes, tables, arriving = [], [], topic
        elif step in (TABLE, EARLIER_TABLE):
            columns = pa.schema([*columns, pa.field(f"name {len(plans)}", pa.string())])
            lookup = Lookup("k", JsonReader(pa.schema([columns.field(-1)])), columns, keeps_all=True)
            then = ArrowFunction(earlier, columns) if step == EARLIER_TABLE else None
            tables.append(Rows("table", lookup, then, columns))
        else:
            other = None
            if isinstance(step, StreamJoin):
                other = OtherSide("right", ArrowFunction(lambda batch: batch, RIGHT), columns, RIGHT)
                columns = columns_of(other)
            nodes.append(OperatorNode(step, columns, f"s{len(plans)}-{len(nodes)}", other=other))
            columns = step(columns.empty_table(), NoState()).results.schema
    return labelled(plans)


@dataclass(frozen=True)
class OfSide(Around):
    """First rows as those of one side of a join, with the columns of both."""

    columns: pa.Schema
    is_other: bool = False

    def __call__(self, table: pa.Table, store: Any, /) -> Any:
        update = self.operator(table, store)
        key, time = (update.results[name] for name in COLUMNS.names)
        is_other = pa.array([self.is_other] * len(key), pa.bool_())
        other_time = time if self.is_other else pa.nulls(len(key), TIME)
        return replace(update, results=pa.table([key, time, other_time, is_other], self.columns))


def both(time: str) -> pa.Schema:
    """Columns of both sides of a join that goes by a column."""
    more = [pa.field(name, TIME) for name in (time, f"{OTHER}s")]
    return pa.schema([COLUMNS.field("k"), *more, pa.field(IS_OTHER, pa.bool_())])


TREES: dict[str, Any] = {
    "first rows and others, final": WINDOWS,
    "first rows and others, updates": UPDATES,
    "first rows of all time and others, final": WINDOWS,
    "first rows, join": replace(JOIN, times=("t", "t")),
    "first rows, outer": replace(OUTER, times=("t", "t")),
    "first rows of all time, join": replace(JOIN, times=("t", "t")),
    "first rows of all time, join by a time that is made of theirs": replace(JOIN, times=("made", "made")),
}
"""First rows of a topic, and the other one as it is or its first rows, in front of an operator."""


def tree_of(operator: Any, front: Deduplication = FIRST) -> tuple[SubtopologyPlan, ...]:
    """The plans of a tree of `TREES`."""
    is_join, reads = isinstance(operator, StreamJoin), Subtopology(0, INPUTS)
    firsts = [Subtopology(number, (f"to-{number}",), (f"s{number}",)) for number in ((1, 2) if is_join else (1,))]
    last, columns = len(firsts) + 1, both(operator.times[0]) if is_join else COLUMNS
    before = (*firsts, *([] if is_join else [reads]))
    last_topic = RepartitionTopic(before[0], f"to-{last}", ("k",), columns, None, PARTITIONS, others=before[1:])
    topics = [RepartitionTopic(reads, of.sources[0], ("k",), COLUMNS, None, PARTITIONS) for of in firsts]
    sinks = (*topics, *([] if is_join else [last_topic]))
    plans = [SubtopologyPlan(reads, (), None, sinks[0], branches=tuple((name,) for name in INPUTS), branch_sinks=sinks)]
    for number, (of, topic) in enumerate(zip(firsts, topics, strict=True)):
        first = OfSide(front, columns, bool(number)) if is_join else front
        plans.append(SubtopologyPlan(of, (OperatorNode(first, COLUMNS, of.stores[0]),), topic, last_topic))
    sides = tuple((topic.topic,) for topic in topics) if is_join else ()
    node = OperatorNode(operator, columns, f"s{last}", sides=sides)
    plans.append(SubtopologyPlan(Subtopology(last, (last_topic.topic,), (node.store,)), (node,), last_topic))
    return labelled(plans)


class App(dict[tuple[int, str], InputBacklog]):
    """An application: its looks at inputs, and its copies of stores, each with its place in the changelog."""

    def __init__(self, backlogs: dict[tuple[int, str], InputBacklog]) -> None:
        super().__init__(backlogs)
        self.copies: dict[tuple[str, int], tuple[int, dict[bytes, bytes]]] = {}

    def take(self, partitions: Iterable[TopicPartition]) -> None:
        for backlog in self.values():
            backlog.assigned([*partitions])


class World:
    """Topics with rows, and applications that run tasks in transactions."""

    def __init__(
        self,
        rng: random.Random,
        logs: list[list[Row]],
        chain: Sequence[Any],
        *,
        is_mapped: bool = False,
        topics: int = 1,
        is_live: bool = False,
        is_quiet: bool = False,
        plans: tuple[SubtopologyPlan, ...] = (),
    ) -> None:
        """topics: how many the logs are dealt to, one after the other. is_live: rows come while others are read.

        is_quiet: all are read, and then one time more comes, in a few rows.
        """
        largest = [accumulate((time for _, time in log), max) for log in logs]
        rows = [
            (at, log, row)
            for log, times in zip(logs, largest, strict=True)
            for at, row in zip(times, [*log], strict=True)
        ]
        self.to_come = sorted(rows, key=lambda row: row[0]) if is_live else []
        """Rows of all logs in the order of time, so that none is further behind the others than in its own log."""
        for log in logs if is_live else ():
            log.clear()
        self.rng, self.logs, self.clock, self.is_mapped = rng, logs, 0.0, is_mapped
        self.is_quiet = is_quiet
        self.plans = plans or plans_of(chain, is_mapped=is_mapped, topics=topics)
        self.topics: dict[TopicPartition, list[Any]] = {
            TopicPartition(INPUTS[number % topics], number // topics): log for number, log in enumerate(logs)
        }
        names = [topic for plan in self.plans for topic in plan.subtopology.sources if topic not in INPUTS]
        self.topics |= {TopicPartition(topic, number): [] for topic in names for number in range(PARTITIONS)}
        self.committed = dict.fromkeys(self.topics, 0)
        self.changelogs: dict[tuple[str, int], list[tuple[bytes, bytes | None]]] = defaultdict(list)
        self.apps = [self.backlogs() for _ in range(2)]
        self.results: list[dict[str, Any]] = []
        self.late: Counter[str] = Counter()

    def backlogs(self) -> App:
        """A new application."""
        admin: Any = SimpleNamespace(
            describe_topic=lambda name: SimpleNamespace(
                partitions=[SimpleNamespace(partition=at.partition) for at in self.topics if at.topic == name]
            ),
            end_offsets=lambda of: {at: len(self.topics[at]) for at in of},
            group_offsets=lambda _, of, stable: {at: SimpleNamespace(offset=self.committed[at]) for at in of},
        )
        return App(input_backlogs(self.plans, admin, "g", lambda: self.clock))

    def store(self, app: App, place: tuple[str, int]) -> Any:
        """An application's copy of a store, which has caught up; now and then it is restored from the beginning."""
        at, entries = app.copies.get(place, (0, {})) if self.rng.random() < 0.8 else (0, {})
        for key, value in self.changelogs[place][at:]:
            entries.pop(key, None)
            if value is not None:
                entries[key] = value
        app.copies[place] = len(self.changelogs[place]), entries
        return WithChanges(NoState(), dict(entries))

    def task_of(self, at: TopicPartition) -> tuple[int, int]:
        number = next(number for number, plan in enumerate(self.plans) if at.topic in plan.subtopology.sources)
        return number, at.partition

    def plan(self, partitions: Sequence[TopicPartition], most: int, app: App) -> Any:
        """Plan a batch of these partitions, whose ranges begin where the group stands."""
        ranges = {}
        for at in partitions:
            begin = self.committed[at]
            ranges[at] = Range(begin, min(len(self.topics[at]), begin + self.rng.randint(1, most)))
        batch = Batch(0, Owner("g", 1, "m"), ranges)
        backlogs = {key: backlog.left_behind(batch) for key, backlog in app.items()}
        return app, batch, backlogs

    def work(self, *planned: Any) -> None:
        """Run a planned batch and commit it."""
        self.work_together([planned])

    def work_together(self, planned: Sequence[Any]) -> None:
        """Run planned batches of several applications at the same time: what their tasks send is in any order."""
        done = [self._run(*each) for each in planned]
        of_tasks = [task for tasks, *_ in done for task in tasks]
        for task in self.rng.sample(of_tasks, len(of_tasks)):
            for at, values in task.items():
                self.topics[at].extend(values)
        for (app, batch, _), (_, changes, times) in zip(planned, done, strict=True):
            for place, update in changes:
                self.log_changes(place, update)
            for at, span in batch.ranges.items():
                self.committed[at] = span.end
            for backlog in app.values():
                backlog.sent(times)
                backlog.committed(batch)

    def _run(self, app: App, batch: Batch, backlogs: dict[tuple[int, str], Any]) -> Any:
        """Return what the Spark tasks of a planned batch send, changes of stores, and times of sources."""
        by_task: dict[tuple[int, int], list[TopicPartition]] = defaultdict(list)
        for at in batch.ranges:
            by_task[self.task_of(at)].append(at)
        of_tasks: list[dict[TopicPartition, list[bytes]]] = []
        times = dict[int, int]()
        changes: list[tuple[tuple[str, int], Any]] = []
        for tasks in self._dealt(list(by_task)):
            sinks = {(number, sink.topic): sink for number, plan in enumerate(self.plans) for sink in plan.sinks}
            sent = {
                key: Sent(sinks[key], backlog)
                for key, backlog in backlogs.items()
                if backlog is not None and key in sinks and sinks[key].is_labelled
            }
            records = list[Any]()
            for number, partition in tasks:
                for branch in range(len(self.plans[number].branch_sinks) or 1):
                    plan = self.plans[number].at_branch(branch)
                    topics = plan.branches[branch] if plan.branches else plan.subtopology.sources
                    spans = {at: batch.ranges[at] for at in by_task[number, partition] if at.topic in topics}
                    key = number, "" if plan.repartition_sink is None else plan.repartition_sink.topic
                    of = app, sent.get(key), backlogs.get(key)
                    records += self._process(plan, partition, spans, of, changes, branch)
            for each in sent.values():
                records += each.notices()
                times |= {clock.source: clock.time for clock in each.clocks if clock.time is not None}
            by_partition = defaultdict(list)
            for part in records:
                for record in part.to_pylist():
                    by_partition[TopicPartition(record["topic"], record["partition"])].append(record["value"])
            of_tasks.append(by_partition)
        return of_tasks, changes, times

    def log_changes(self, place: tuple[str, int], changes: pa.Table) -> None:
        entries = zip(changes["key"].to_pylist(), changes["value"].to_pylist(), strict=True)
        self.changelogs[place].extend(entries)

    def _process(
        self,
        plan: SubtopologyPlan,
        partition: int,
        spans: dict[TopicPartition, Range],
        of: tuple[App, Sent | None, Any],
        changes: list[Any],
        branch: int = 0,
    ) -> list[Any]:
        app, sent, backlog = of
        outgoing, seen, records = Outgoing(None, None), ColumnsSeen(()), list[Any]()  # type: ignore[arg-type]
        own = {at: span for at, span in spans.items() if at.topic in plan.own_sources}
        if not plan.nodes:
            for at, span in own.items():
                clock = None if sent is None else sent.clock(plan.source_at(at, branch))
                records += outgoing.rows(iter(self._rows(plan, at, span)), plan, seen, sent, clock)
            return records
        rows = [batch for at, span in own.items() for batch in self._rows(plan, at, span)]
        if plan.is_by_split:
            by_topic = ((at.topic, iter(self._rows(plan, at, span))) for at, span in own.items())
            rows = list(by_split(plan, partition, by_topic, backlog))
        updates = list[Any]()
        for number, node in enumerate(plan.nodes):
            operator, columns = plan.at(number, updates)
            if node.other is not None:
                rows = [in_columns(batch, columns, is_other=False) for batch in rows]
                for at, span in spans.items():
                    if at.topic == "right":
                        batch = batch_of(self.topics[at][slice(*span)], RIGHT)
                        rows.append(in_columns(batch, columns, is_other=True))
            store = self.store(app, (node.store, partition))
            update = operator(pa.Table.from_batches(rows, columns), store)
            assert set(update.results.column_names).isdisjoint({"\0at", "\0of"})
            time_keys = (STREAM_TIME_KEY,) if node.other is None and not node.sides else TIME_KEYS
            times = [stream_time_after(store, update.changes, key) for key in time_keys]
            update = with_time(update, times, store, node.waiting)
            self._check_late(node, update)
            changes.append(((node.store, partition), update.changes))
            updates.append(update)
            rows = update.results.to_batches()
        assert plan.is_relay or set(update.results.column_names).isdisjoint(with_labels(pa.schema([])).names)
        if plan.repartition_sink is None:
            self.results += update.results.to_pylist()
            return []
        clock = None if sent is None else sent.of_task(plan, partition, updates)
        return [*outgoing.rows(iter(rows), plan, seen, sent, clock)]

    def _check_late(self, node: OperatorNode, update: Any) -> None:
        self.late[node.store] += update.late
        assert isinstance(node.operator, Timers) or sum(map(len, update.late_rows)) == update.late
        assert all(not name.startswith("\0") for rows in update.late_rows for name in rows.column_names)

    def _rows(self, plan: SubtopologyPlan, at: TopicPartition, span: Range) -> list[pa.RecordBatch]:
        cut = self.rng.randint(0, span.size)
        spans = [Range(span.start, span.start + cut), Range(span.start + cut, span.end)]
        parts = [(part, self.topics[at][slice(*part)]) for part in spans if part.size]
        if plan.repartition_source is None:
            return [batch_of(values, COLUMNS) for _, values in parts]
        records = [
            pa.record_batch([[*range(*part)], pa.array(values, pa.binary())], ["offset", "value"])
            for part, values in parts
        ]
        rows = (batch for part in records for batch in plan.repartition_source.to_rows(part))
        return list(plan.joining(partial(self._through_tables, plan))(rows))

    @staticmethod
    def _through_tables(plan: SubtopologyPlan, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            parts = [batch]
            for table in plan.tables:
                parts = [new for part in parts for new in table.lookup.joined(part, lambda keys: [NAMED] * len(keys))]
                parts = parts if table.then is None else [new for part in parts for new in table.then(part)]
            yield from parts

    def _dealt(self, tasks: list[Any]) -> list[list[Any]]:
        self.rng.shuffle(tasks)
        cut = self.rng.randint(0, len(tasks))
        return [each for each in (tasks[:cut], tasks[cut:]) if each]

    def run(self) -> None:
        """Take steps in any order; in the end all is read, and everything closes."""
        rng, flying = self.rng, list[Any]()
        for _ in range(0 if self.is_quiet else rng.choice([5, 30, 60])):
            self.clock += rng.choice([0, 0.4, 2])
            self._come(rng.choice([0, 0, 1, 5]))
            step = rng.random()
            busy = {self.task_of(at) for _, batch, _ in flying for at in batch.ranges}
            apps = [app for app in self.apps if all(app is not planned[0] for planned in flying)]
            free = [at for at in self.topics if self.task_of(at) not in busy]
            if step < 0.5 and free and apps:
                some = rng.sample(free, rng.randint(1, len(free)))
                flying.append(self.plan(some, rng.choice([1, 3, 100]), rng.choice(apps)))
            elif step < 0.9 and flying:
                app, batch, _ = planned = flying.pop(rng.randrange(len(flying)))
                if (luck := rng.random()) < 0.8:
                    self.work_together([planned, *(flying.pop() for _ in flying[:1] if luck < 0.3)])
                else:  # it is aborted, as by a death
                    app.take(batch.ranges)
            elif step < 0.95:
                self.apps[rng.randrange(2)] = self.backlogs()
            else:
                rng.choice(self.apps).take(self.topics)
        if self.to_come and rng.random() < 0.5:
            self._read_all()
            self._read_by_one()
        self._end()

    def _read_by_one(self) -> None:
        """All rows come within less than a second, while the application of half of the partitions is dead."""
        while self.to_come:
            self._come(1)
            own = [at for at in self.topics if at.partition % 2 == 0 and self.committed[at] < len(self.topics[at])]
            if own:
                self.work(*self.plan(own, 100, self.apps[0]))

    def _come(self, count: int) -> None:
        for _, log, row in self.to_come[:count]:
            log.append(row)
        self.to_come = self.to_come[count:]

    def _end(self) -> None:
        """Close everything by last rows of each source, and read all until nobody has anything to tell.

        They come before the others are read, or a few at a time behind them, more than a look apart; and to one
        partition of the next task or to all: an operator behind a processor goes by rows that it gets.
        """
        self._come(len(self.to_come))
        is_apart = self.is_quiet or self.rng.random() < 0.5
        count = 1 if self.is_quiet else self.rng.randint(1, 2)
        fronts = [node.operator for plan in self.plans for node in plan.nodes[:-1]]
        keys = self.rng.sample(ENDS, count) if is_apart and TIMERS not in fronts and not self.is_mapped else ENDS
        if is_apart:
            self._read_all()
        for backlog in [each for app in self.apps for each in app.values()] if self.is_quiet else ():
            backlog._looked = self.clock  # as at a batch just before
        for number in range(1, 2 if self.is_quiet else 5):
            self.clock += 0 if self.is_quiet else 2
            for at, log in self.topics.items():
                if at.topic in {*INPUTS, "right"}:
                    log.extend((key, END * number) for key in keys)
            if is_apart and number < 4 and not self.is_quiet:
                self._read_all(apart=0)
        self._read_all()

    def _read_all(self, apart: float = 2) -> None:
        """Read what there is, with deaths at first; until nobody has anything to tell that many seconds later."""
        owned = [[at for at in self.topics if at.partition % 2 == number] for number in range(2)]
        quiet = 0
        for turn in range(400):
            self.clock += self.rng.choice([0, 0, 0.4]) + (apart if quiet else 0)
            quiet += 1
            for number, of in enumerate(owned):
                app = self.apps[number]
                behind = [at for at in of if self.committed[at] < len(self.topics[at])]
                is_once = self.rng.random() < 0.2
                told = {at for backlog in app.values() for at in backlog.due(of, behind, once=is_once)}
                if not behind and not told:
                    continue
                quiet = 0
                planned = self.plan(sorted({*behind, *told}), self.rng.choice([6, 100]), app)
                if turn < 200 and self.rng.random() < (0.2 if behind else 0.5):
                    app.take(planned[1].ranges)  # the batch is aborted
                else:
                    self.work(*planned)
                if turn < 200 and not self.is_quiet and self.rng.random() < 0.1:
                    self.apps[number] = self.backlogs()  # it dies, and another one takes all that it had
            if quiet == 2:
                return
        raise AssertionError("it does not come to an end")


def batch_of(rows: Sequence[Row], columns: pa.Schema) -> pa.RecordBatch:
    keys, times = columns.names
    return pa.RecordBatch.from_pylist([{keys: k, times: EPOCH + t * SECOND} for k, t in rows], columns)


def seconds(value: Any) -> Any:
    return (value - EPOCH) // SECOND if isinstance(value, datetime) else value


def logs_of(rng: random.Random, delay: int, most: int = 3) -> list[list[Row]]:
    """Sources with rows that are in order but for so many seconds; one is hours ahead of another, some are empty."""
    logs = []
    for _ in range(rng.randint(1, most)):
        at, rows = rng.choice([0, 5, 500]), []
        for _ in range(rng.choice([0, 3, 15])):
            at += rng.choice([0, 1, 4, 20])
            rows.append((rng.choice("abc"), max(at - rng.randint(0, delay), 1)))
        logs.append(rows)
    return logs


def kept(log: list[Row], size: int, grace: int = GRACE) -> list[Row]:
    """The rows that are not late by windows of a size; 0: by their own time."""
    largest, rows = -1, []
    for key, time in log:
        largest = max(largest, time)
        if (window_of(time, size) + size + grace > largest) if size else (time + grace >= largest):
            rows.append((key, time))
    return rows


def first_rows(log: list[Row], grace: int = GRACE) -> list[tuple[Row, int]]:
    """The rows that are not late and repeat none, and the largest time of their log at each."""
    largest, rows = -1, dict[Row, int]()
    for key, time in log:
        largest = max(largest, time)
        if time + grace >= largest:
            rows.setdefault((key, time), largest)
    return [*rows.items()]


def among_themselves(rows: list[tuple[Row, int]]) -> list[tuple[Row, int]]:
    """These rows with the largest time of theirs at each."""
    return [*zip([row for row, _ in rows], accumulate((row[1] for row, _ in rows), max), strict=True)]


def by_partition(rows: Sequence[Any], key: Any) -> list[list[Any]]:
    """Rows by where a repartition sends their keys."""
    places = partitions_of(pa.array([key(row).encode() for row in rows], pa.binary()), "murmur2", PARTITIONS)
    return [[row for row, of in zip(rows, places, strict=True) if of == number] for number in range(PARTITIONS)]


def kept_by(rows: list[tuple[Row, int]], size: int) -> list[Row]:
    """The rows that are not late by windows of a size without grace, given the time at each."""
    return [row for row, largest in rows if window_of(row[1], size) + size > largest]


def sessions_of(rows: list[Row]) -> list[tuple[str, int, int, int]]:
    """Sessions in the order of their ends: key, first row, number of rows and end."""
    ended = list[tuple[int, int, str, int]]()
    for key, time in sorted(rows):
        if ended and ended[-1][2] == key and time - ended[-1][0] <= SIZE:
            _, start, _, number = ended.pop()
            ended.append((time, start, key, number + 1))
        else:
            ended.append((time, time, key, 1))
    return [(key, start, number, last + SIZE) for last, start, key, number in sorted(ended)]


def largest_of_hops(rows: Iterable[Row]) -> list[Row]:
    """Key and largest time of each window that others overlap."""
    largest: dict[tuple[str, int], int] = {}
    for key, time in rows:
        for start in range(window_of(time, HOP), time - SIZE, -HOP):
            largest[key, start] = max(time, largest.get((key, start), 0))
    return [(key, time) for (key, _), time in largest.items()]


def window_of(time: int, size: int = SIZE) -> int:
    return time // size * size


def totals(counts: Sequence[Counter[Any]], of: Any, size: int = 2) -> Counter[Any]:
    """By key and window of twice the size, what an aggregate makes of these counts by key and window."""
    groups: dict[Any, list[int]] = defaultdict(list)
    for each in counts:
        for (key, start), n in each.items():
            groups[key, window_of(start, size * SIZE)].append(n)
    return Counter((*place, of(numbers)) for place, numbers in groups.items())


def pairs(left: list[Row], right: list[Row], *, is_outer: bool) -> Counter[Any]:
    found = Counter((k, t, s) for k, t in left for key, s in right if k == key and abs(t - s) <= WITHIN)
    partnered = {(k, t) for k, t, _ in found}
    return found + Counter((k, t, None) for k, t in left if is_outer and (k, t) not in partnered)


def seldom(windows: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """The first window of each key, and each that is more than 20 seconds behind the one before."""
    last: dict[str, int] = {}
    rows = []
    for key, start in windows:
        if key not in last or last[key] + 20 < start:
            last[key] = start
            rows.append((key, start))
    return rows


def chain_problem(
    rng: random.Random,
    name: str,
    delay: int = GRACE,
    *,
    is_mapped: bool = False,
    topics: int = 1,
    is_live: bool = False,
    is_quiet: bool = False,
) -> str:
    """How a run of a chain of operators differs from the plain computation, "" if it does not."""
    chain, columns = CHAINS[name]
    if any(step in (TIMERS, SESSIONS_, SESSION_ENDS, HOPS_, EARLIER_TABLE) for step in chain):
        delay = min(delay, GRACE)  # of timers, which rows are late depends on batches, as in Spark
    logs, rights = logs_of(rng, delay, 1 if is_quiet else 3), list[list[Row]]()
    if columns[-1] == "first rows":
        logs = [[(f"{key}{number}", time) for key, time in log] for number, log in enumerate(logs)]
    size = 0 if any(step is own for step in chain for own in (JOIN, OUTER, FIRST, FIRST_, EVER)) else SIZE
    grace = END if EVER in chain else LONG if UPDATES_ in chain else GRACE
    rows = [kept(log, size, grace) for log in logs]
    late = sum(map(len, logs)) - sum(map(len, rows))
    in_time = list[Any]()
    if columns[-1] == "first rows":
        of_logs = [first_rows(log, grace) for log in logs]
        if FIRST_ in chain:
            of_logs = [among_themselves(part) for of in of_logs for part in by_partition(of, lambda each: each[0][0])]
        elif chain[0] is FIRST and topics == 1:
            of_logs = [among_themselves(of) for of in of_logs]
        in_time = [row for of in of_logs for row in kept_by(of, 2 * SIZE)]
        late += sum(map(len, of_logs)) - len(in_time)
    if columns[-1] == "sessions":
        ended = [((key, start), 0) for key, start, *_ in sessions_of([row for log in logs for row in log])]
        for part in by_partition(ended, lambda each: each[0][0]):
            in_time += kept_by(among_themselves(part), 2 * SIZE)
        late += len(ended) - len(in_time)
    of_tasks = [[row for log in rows[begin : begin + topics] for row in log] for begin in range(0, len(rows), topics)]
    by_task = [Counter((key, window_of(time)) for key, time in of) for of in of_tasks]
    together = sum(by_task, Counter())
    if columns[-1] == "windows after 0":  # the watermark of a processor begins there
        late += sum(not start for _, start in together)
    world = World(rng, logs, chain, is_mapped=is_mapped, topics=topics, is_live=is_live, is_quiet=is_quiet)
    if JOIN in chain or OUTER in chain or JOINED in chain:
        given = sorted((row for log in logs_of(rng, 0) for row in log), key=lambda row: row[1])
        rights = by_partition(given, lambda row: row[0])
        for number, log in enumerate(rights):
            world.topics[TopicPartition("right", number)] += log
    sides = [([row for of in rows for row in of], [row for log in rights for row in log])]
    if name.startswith("join"):
        sides = list(zip(of_tasks, rights, strict=False))
    by_side = [pairs(*both, is_outer=OUTER in chain) for both in sides]
    joined = sum(by_side, Counter())
    wanted = {
        "n": lambda: Counter((*place, n) for place, n in together.items()),
        "n of tasks": lambda: Counter((*place, n) for of in by_task for place, n in of.items()),
        "sum": lambda: totals(by_task if chain[0] in (WINDOWS_, TIMERS) else [together], sum),
        "sum of tasks": lambda: sum((totals([of], sum) for of in by_task), Counter()),
        "n of earlier": lambda: Counter(
            (*place, n) for place, n in Counter((k, window_of(t - LONG)) for of in rows for k, t in of).items()
        ),
        "sum of earlier": lambda: totals([Counter({(k, t - LONG): n for (k, t), n in together.items()})], sum),
        "sum of four": lambda: totals([together], sum, 4),
        "max": lambda: totals(by_task if chain[0] is UPDATES_ else [together], max),
        "max of tasks": lambda: sum((totals([of], max) for of in by_task), Counter()),
        "first rows": lambda: totals([Counter(in_time)], sum),
        "sessions": lambda: totals([Counter(in_time)], sum),
        "sizes": lambda: totals([Counter((n, start) for (_, start), n in together.items())], sum),
        "largest of hops": lambda: totals([Counter(largest_of_hops(row for of in rows for row in of))], sum),
        "sizes of tasks": lambda: totals([Counter((n, k[1]) for of in by_task for k, n in of.items())], sum),
        "times": lambda: Counter((t, n) for t, n in Counter(t for _, t in {row for of in rows for row in of}).items()),
        "pairs": lambda: joined,
        "windows after 0": lambda: Counter(place for place in together if place[1]),
        "ends": lambda: totals(
            [Counter((k, end) for k, *_, end in sessions_of([row for log in logs for row in log]))], sum
        ),
        "seldom": lambda: Counter(seldom(sorted(together))),
        "different pairs": lambda: Counter({*joined}),
        "windows with rows": lambda: pairs([*together], sides[0][1], is_outer=False),
        "pairs of windows": lambda: totals([Counter((k, t) for k, t, _ in joined.elements())], sum),
        "pairs of windows of tasks": lambda: sum(
            (totals([Counter((k, t) for k, t, _ in each.elements())], sum) for each in by_side), Counter()
        ),
        "pairs of times": lambda: Counter((t, n) for t, n in Counter(t for _, t, _ in joined.elements()).items()),
    }[columns[-1]]()
    world.run()
    found = Counter(
        row
        for row in (tuple(seconds(each[name]) for name in columns[0]) for each in world.results)
        if not any(isinstance(value, int) and value > END - 100 for value in row) and not {*ENDS} & {*row}
    )
    return (
        ""
        if (found, world.late.total()) == (wanted, late)
        else f"{found - wanted} {wanted - found} {world.late} {late}"
    )


def tree_problem(rng: random.Random, name: str, delay: int = GRACE, **options: Any) -> str:
    """How a run of a tree of operators differs from the plain computation, "" if it does not."""
    operator, front = TREES[name], EVER if "all time" in name else FIRST
    logs = logs_of(rng, delay if front is FIRST else min(delay, GRACE), 4)
    logs += [[] for _ in INPUTS[len(logs) :]]
    is_join, size, grace = isinstance(operator, StreamJoin), SIZE, LONG if operator is UPDATES else GRACE
    of_first = END if front is EVER else GRACE
    first = [kept(log, 0, of_first) for log in logs[::2]]
    others = [kept(log, 0, of_first) if is_join else kept(log, size, grace) for log in logs[1::2]]
    late = sum(map(len, logs)) - sum(map(len, [*first, *others]))
    firsts, rest = sorted({row for log in first for row in log}), [row for log in others for row in log]
    world = World(rng, logs, (), topics=2, plans=tree_of(operator, front), **options)
    if is_join:
        wanted, columns = pairs(firsts, sorted({*rest}), is_outer=operator.keeps_all), ("k", operator.times[0], "s")
    else:
        windows = Counter((key, window_of(time)) for key, time in [*firsts, *rest])
        wanted, columns = Counter((*place, n) for place, n in windows.items()), PLACED
    world.run()
    rows = [tuple(seconds(each[column]) for column in columns) for each in world.results]
    rows = [row for row in rows if row[0] not in ENDS]
    if operator is UPDATES:
        rows = [(*place, n) for place, n in {row[:2]: row[2] for row in sorted(rows)}.items()]
    return (
        "" if (Counter(rows), world.late.total()) == (wanted, late) else f"{Counter(rows)} {wanted} {world.late} {late}"
    )


@pytest.mark.parametrize("name", TREES)
@given(seed=st.integers(0, 1 << 32), delay=st.sampled_from([0, GRACE, LONG + 5]))
@settings(max_examples=examples(5, quick=1))
def test_several_sub_topologies_in_front_of_one_have_each_their_times(name: str, seed: int, delay: int) -> None:
    assert tree_problem(random.Random(seed), name, delay) == ""


@pytest.mark.parametrize(
    ("name", "amid"),
    [("first rows of all time, join", 40), ("first rows of all time, join by a time that is made of theirs", None)],
)
def test_first_rows_of_all_time_let_a_made_time_go_on_once_their_input_is_read(name: str, amid: int | None) -> None:
    logs: list[list[Row]] = [[(key, 10 * number) for number in range(10) for key in "abcdefgh"], []]
    world = World(random.Random(1), logs, (), topics=2, plans=tree_of(TREES[name], EVER))
    world.rng.randint = lambda _, most: most  # type: ignore[method-assign]
    first = next(iter(world.topics))
    for time in (amid, 90):
        world.work(*world.plan([first], 40, world.apps[0]))
        for at in [at for at in world.topics if at.topic not in INPUTS]:
            while world.committed[at] < len(world.topics[at]):
                world.work(*world.plan([at], 100, world.apps[0]))
        stores = [world.store(world.apps[0], ("s3", number)) for number in range(PARTITIONS)]
        times = {stream_time(store, TIME_KEYS[0]) for store in stores}
        assert times == {source_times.NEVER if time is None else time * 1_000_000}
    assert world.late.total() == 0


@pytest.mark.parametrize("name", ["first rows and others, final", "first rows, join"])
@given(seed=st.integers(0, 1 << 32))
@example(seed=1)  # the first rows of a topic that was read to its end are on their way
@example(seed=219587820)  # what says that all was read is planned before the rows came, and committed after them
@settings(max_examples=examples(5, quick=1))
def test_rows_of_several_sub_topologies_that_come_while_others_are_read_are_not_late(name: str, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(input_backlog, "_LITTLE", 0)
        assert tree_problem(random.Random(seed), name, is_live=True) == ""


@pytest.mark.sampled(26)
@pytest.mark.parametrize("name", CHAINS)
@given(seed=st.integers(0, 1 << 32), delay=st.sampled_from([0, GRACE, LONG + 5]), topics=st.sampled_from([1, 2]))
@settings(max_examples=examples(5, quick=1))
def test_rows_are_late_only_within_their_partition_and_results_are_those_of_a_plain_computation(
    name: str, seed: int, delay: int, topics: int
) -> None:
    assert chain_problem(random.Random(seed), name, delay, topics=topics) == ""


@pytest.mark.parametrize(
    "name",
    [
        *("repartition, final", "repartition, repartition, final"),
        *("repartition, updates, final", "final, repartition, final"),
    ],
)
@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=examples(5, quick=1))
def test_steps_behind_a_repartition_do_not_make_rows_late(name: str, seed: int) -> None:
    assert chain_problem(random.Random(seed), name, GRACE, is_mapped=True) == ""


LIVE = [
    *("final", "repartition, final", "repartition, final, final", "repartition, repartition, final"),
    *("final, repartition, final", "repartition, final, repartition, final"),
]


@pytest.mark.parametrize(("name", "is_mapped"), [*((name, False) for name in LIVE), ("repartition, final", True)])
@given(seed=st.integers(0, 1 << 32))
@example(seed=13)  # a step makes the times, so the sender does not know them
@settings(max_examples=examples(5, quick=1))
def test_rows_that_come_while_others_are_read_are_not_late(name: str, seed: int, *, is_mapped: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(input_backlog, "_LITTLE", 0)
        assert chain_problem(random.Random(seed), name, is_live=True, is_mapped=is_mapped) == ""


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=examples(6))
def test_sessions_are_those_of_a_plain_computation(seed: int) -> None:
    rng = random.Random(seed)
    logs = logs_of(rng, GRACE)
    wanted = sessions_of([row for log in logs for row in log])
    world = World(rng, logs, [("k",), SESSIONS])
    world.run()
    names = ("k", "window_start", "n", "window_end")
    found = [tuple(seconds(each[name]) for name in names) for each in world.results if each["k"] not in ENDS]
    assert sorted(found) == sorted(wanted)
    assert world.late.total() == 0


def _forgets_moved(patch: pytest.MonkeyPatch) -> None:
    look = InputBacklog._look_up
    patch.setattr(InputBacklog, "_look_up", lambda self: (look(self), self._behind.clear()))


def _ends_before_its_rows(patch: pytest.MonkeyPatch) -> None:
    hear = source_times.Known.hear

    def without_reading(known: source_times.Known, notice: source_times.Notice, *given: Any) -> None:
        hear(known, notice, *given)
        for source in notice.reading:
            known.behind.pop(source, None)

    patch.setattr(source_times.Known, "hear", without_reading)


def _forwards_nothing(patch: pytest.MonkeyPatch) -> None:
    of_task = Sent.of_task
    patch.setattr(
        Sent, "of_task", lambda self, *given: of_task(self, *given[:2], [replace(u, hold=None) for u in given[2]])
    )


def _forgets_what_waits(patch: pytest.MonkeyPatch) -> None:
    of_task = Sent.of_task
    patch.setattr(
        Sent, "of_task", lambda self, *given: of_task(self, *given[:2], [replace(u, waits=False) for u in given[2]])
    )


def _owes_nothing(patch: pytest.MonkeyPatch) -> None:
    """What was planned counts as told, and whoever takes partitions tells nothing."""
    before, took = InputBacklog.left_behind, InputBacklog.assigned

    def planned(self: InputBacklog, batch: Batch) -> Any:
        backlog = before(self, batch)
        self._is_told |= self._is_for_all and not self._behind
        return backlog

    def taken(self: InputBacklog, partitions: Any) -> None:
        is_told = self._is_told
        took(self, partitions)
        self._is_told = is_told

    patch.setattr(InputBacklog, "left_behind", planned)
    patch.setattr(InputBacklog, "assigned", taken)


def _restores_without_sources(patch: pytest.MonkeyPatch) -> None:
    log_changes = World.log_changes
    patch.setattr(
        World,
        "log_changes",
        lambda self, place, changes: log_changes(
            self, place, changes.filter(pc.not_equal(changes["key"].cast(pa.binary()), source_times.SOURCES_KEY))
        ),
    )


def _reach_without_delay(node: OperatorNode) -> Any:
    reach = getattr(innermost(node.operator), "reach", None)
    return reach and reach._replace(delay=0)


FEW = "few hear of a last batch"
FAULTS = {
    "relayed rows go by those before them": lambda patch: patch.setattr(
        subtopology, "by_source", lambda *given, **options: by_source(*given, **{**options, "is_relayed": False})
    ),
    "results come in time": lambda patch: patch.setattr(OperatorNode, "lag", 0),
    "rows that pass lose their source": lambda patch: patch.setattr(OperatorNode, "passes", False),
    "the fastest source": lambda patch: patch.setattr(
        source_times, "_least", lambda _, times: (max(times.values(), default=0), 0)
    ),
    "a source that moved is forgotten": _forgets_moved,
    "ended before its rows": _ends_before_its_rows,
    "a task in the middle forwards nothing": _forwards_nothing,
    "a task with results to come has ended": _forgets_what_waits,
    "a notice is lost with its transaction": _owes_nothing,
    FEW: lambda patch: patch.setattr(InputBacklog, "sent", lambda *_: None),
    "a store is restored without its sources": _restores_without_sources,
    "an operator behind another one goes by its rows alone": lambda patch: patch.setattr(OperatorNode, "reach", None),
    "steps leave times as they are": lambda patch: patch.setattr(source_times.Front, "stepped", lambda *_: 0),
    "steps behind a relay leave times as they are": lambda patch: patch.setattr(SubtopologyPlan, "is_stepped", False),
    "what is in front of an operator holds nothing back": lambda patch: patch.setattr(
        OperatorNode, "reach", property(_reach_without_delay)
    ),
    "joined rows lose their time": lambda patch: patch.setattr(
        subtopology, "through_labelled", lambda *given, **_: through_labelled(*given)
    ),
}
TRIED = [
    ("updates, final", "results come in time", 10),
    ("updates, repartition, final", "results come in time", 5),
    ("repartition, updates, final", "results come in time", 10),
    ("repartition, deduplicate, final", "rows that pass lose their source", 23),
    ("repartition, final, final", "an operator behind another one goes by its rows alone", 6),
    ("repartition, join, final", "an operator behind another one goes by its rows alone", 14),
    ("repartition, final, earlier, final", "steps leave times as they are", 0),
    ("repartition, repartition, table, earlier, final", "steps behind a relay leave times as they are", 2),
    ("repartition, final, final", "what is in front of an operator holds nothing back", 30),
    ("final", "the fastest source", 0),
    ("final", "ended before its rows", 0),
    ("join, outer", "the fastest source", 5),
    ("repartition, final", "the fastest source", 0),
    ("repartition, final", "a source that moved is forgotten", 0),
    ("repartition, final", "ended before its rows", 9),
    ("repartition, updates, final", "the fastest source", 0),
    ("repartition, join", "the fastest source", 5),
    ("repartition, repartition, final", "the fastest source", 0),
    ("repartition, repartition, final", "a source that moved is forgotten", 12),
    ("repartition, repartition, final", "relayed rows go by those before them", 0),
    ("repartition, final, repartition, final", "a source that moved is forgotten", 12),
    ("repartition, deduplicate, repartition, final", "a task in the middle forwards nothing", 0),
    ("final, repartition, final", "a task with results to come has ended", 5),
    ("repartition, final", "a notice is lost with its transaction", 3),
    ("repartition, final", FEW, 3),
    ("final, repartition, final", "a store is restored without its sources", 5),
    ("repartition, table, repartition, final", "joined rows lose their time", 0),
    ("repartition, repartition, table, final", "joined rows lose their time", 0),
]
"""Chain, fault, and the seed that found it first: the others are tried when it no longer does."""


@pytest.mark.gate
@pytest.mark.parametrize(("name", "fault", "found"), TRIED)
def test_planted_faults_are_found(monkeypatch: pytest.MonkeyPatch, name: str, fault: str, found: int) -> None:
    FAULTS[fault](monkeypatch)
    topics, is_quiet = 1 if "repartition" in name else 2, fault in ("a notice is lost with its transaction", FEW)
    is_late = fault in ("results come in time", "rows that pass lose their source", "joined rows lose their time")
    delay = LONG if is_late else GRACE
    seeds = (found, *range(60))
    problems = (chain_problem(random.Random(seed), name, delay, topics=topics, is_quiet=is_quiet) for seed in seeds)
    assert any(problems)


@pytest.mark.gate
@pytest.mark.parametrize(("name", "found"), [("first rows and others, final", 2), ("first rows, join", 33)])
def test_a_sender_that_knows_nothing_of_others_is_found(monkeypatch: pytest.MonkeyPatch, name: str, found: int) -> None:
    monkeypatch.setattr(input_backlog, "beside", lambda *_: ())
    assert any(tree_problem(random.Random(seed), name) for seed in (found, *range(60)))


@pytest.mark.gate
def test_a_notice_of_a_while_ago_that_holds_for_ever_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_backlog, "_LITTLE", 1 << 60)
    assert any(tree_problem(random.Random(seed), "first rows, join", is_live=True) for seed in range(9, 60))


@pytest.mark.parametrize("name", ["repartition, final", "repartition, repartition, final", "repartition, table, final"])
@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=examples(20))
def test_windows_close_when_records_stop(name: str, seed: int) -> None:
    assert chain_problem(random.Random(seed), name, is_quiet=True) == ""


@pytest.mark.parametrize(
    ("name", "count", "is_mapped", "is_held"),
    [
        pytest.param("repartition, final", 5, False, False, id="few, up to a time"),
        pytest.param("repartition, final", 200, False, True, id="many"),
        pytest.param("repartition, final", 5, True, True, id="few, whose times are known behind steps alone"),
        pytest.param("final", 5, False, True, id="few of another topic of the task"),
        pytest.param("final, repartition, final", 5, False, True, id="the same in front of a repartition"),
    ],
)
def test_rows_wait_for_those_that_came_to_another_partition_a_moment_ago(
    name: str, count: int, *, is_mapped: bool, is_held: bool
) -> None:
    topics = 1 if name.startswith("repartition") else 2
    logs, (chain, _) = [[("a", 1), ("a", 30)], [("a", 1), ("a", 30)]], CHAINS[name]
    world = World(random.Random(1), logs, chain, is_mapped=is_mapped, topics=topics)
    world.rng.randint = lambda _, most: most  # type: ignore[method-assign]
    first, second = list(world.topics)[:2]
    world.work(*world.plan([first, second], 2, world.apps[0]))
    world.clock += 0.5
    world.logs[1] += [("a", 31)] * count
    world.logs[0] += [("a", 500)] * count
    _, _, backlogs = world.plan([first], count, world.apps[0])
    (backlog,) = backlogs.values()
    assert backlog.left == ({second} if is_held else set())
    assert (backlog.until is None) == is_held


@pytest.mark.parametrize("come", [60, 500])
def test_a_batch_that_was_planned_before_rows_came_does_not_make_them_late(come: int) -> None:
    """Its application found all read; another one reads its share of them, and commits first."""
    chain, _ = CHAINS["repartition, final"]
    world = World(random.Random(1), [[], []], chain)
    world.rng.randint = lambda _, most: most  # type: ignore[method-assign]
    first, second, *behind = world.topics
    slow = world.plan([second], come, world.apps[1])
    for log in world.logs:
        log += [("a", number) for number in range(come)]
    world.clock += 5
    world.work(*world.plan([first], come, world.apps[0]))
    world.work(*slow)
    for app, at in [(0, behind), (1, [second]), (0, behind)]:
        for partition in at:
            world.work(*world.plan([partition], 2 * come, world.apps[app]))
        world.clock += 5
    assert world.late.total() == 0
    assert sum(row["n"] for row in world.results) == 2 * window_of(come - GRACE)


def test_what_waits_behind_two_repartitions_asks_each_input_once_whether_it_has_more() -> None:
    asked = list[str]()

    def input_of(topic: str, *, has_more: bool) -> Any:
        return SimpleNamespace(has_more=lambda: [asked.append(topic), has_more][-1])

    inputs = {(0, "to-1"): input_of("to-1", has_more=False), (1, "to-2"): input_of("to-2", has_more=True)}
    stores: Any = SimpleNamespace(plans=plans_of([("k",), WINDOWS_, ("k",), wider("sum(n)")]), input_backlogs=inputs)
    assert Stores._behind(stores, {1, 2}) == {2}
    assert asked == ["to-1", "to-2"]
    assert Stores._behind(stores, {1}) == set()
    assert asked == ["to-1", "to-2", "to-1"]


def test_rows_of_a_release_without_labels_go_by_their_largest_time() -> None:
    world = World(random.Random(1), [[]], [("k",), WINDOWS])
    at = TopicPartition("to-1", 0)
    world.topics[at] += unlabelled([("a", 1), ("a", 30), ("a", 2)])
    world.work(*world.plan([at], 1, App({})))
    while world.committed[at] < 3:
        world.work(*world.plan([at], 1, App({})))
    assert [each["n"] for each in world.results] == [1]
    assert world.late.total() == 1
    world.logs[0] += [("a", 3), ("a", 40), ("a", 60)]
    world.run()
    assert world.late.total() == 2, "what they have closed stays closed"


@pytest.mark.parametrize("seed", range(3))
def test_a_group_goes_over_from_a_release_without_relays(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chain, _ = CHAINS["repartition, repartition, final"]
    log = [("abc"[number % 3], 2 * number) for number in range(60)]
    world = World(random.Random(seed), [[*log]], chain)
    plans = world.plans
    with monkeypatch.context() as patch:
        patch.setattr(subtopology, "_relaying", lambda plan, _: plan)
        world.plans = plans_of(chain)
    assert not any(plan.is_relay for plan in world.plans)
    world.apps = [world.backlogs() for _ in range(2)]
    for _ in range(6):
        some = [at for at in world.topics if world.rng.random() < 0.5]
        world.work(*world.plan(some, 7, world.apps[0]))
    under_way = world.late.total() + sum(len(world.topics[at]) - world.committed[at] for at in world.topics)
    under_way -= len(log) - world.committed[TopicPartition("in", 0)]
    world.plans = plans
    world.apps = [world.backlogs() for _ in range(2)]
    world.run()
    found = [each for each in world.results if seconds(each["window_start"]) < END - 100]
    assert sum(each["n"] for each in found) + world.late.total() == len(log)
    assert world.late.total() <= under_way < len(log), "rows of the older release alone go by their largest time"


@pytest.mark.parametrize("seed", range(3))
def test_a_group_goes_over_from_a_release_without_labels_amid_two_repartitions(seed: int) -> None:
    chain, columns = CHAINS["repartition, final, repartition, final"]
    log = [("abc"[number % 3], 2 * number) for number in range(60)]
    world = World(random.Random(seed), [[*log]], chain)
    plans = world.plans
    topics = [(plan.repartition_source, plan.repartition_sink) for plan in plans]
    before = [[of and replace(of, is_labelled=False) for of in both] for both in topics]
    world.plans = tuple(
        replace(plan, repartition_source=source, repartition_sink=sink)
        for plan, (source, sink) in zip(plans, before, strict=True)
    )
    for _ in range(20):
        world.work(*world.plan([at for at in world.topics if world.rng.random() < 0.5], 7, App({})))
    assert all(key != source_times.SOURCES_KEY for log in world.changelogs.values() for key, _ in log)
    ends = [len(world.topics[at]) - world.committed[at] for at in (TopicPartition("to-1", 0), TopicPartition("in", 0))]
    assert sum(ends), "rows of both releases are read"
    world.plans = plans
    world.apps = [world.backlogs() for _ in range(2)]
    world.run()
    sizes = Counter((n, start) for (_, start), n in Counter((key, window_of(time)) for key, time in log).items())
    found = [tuple(seconds(each[name]) for name in columns[0]) for each in world.results]
    assert Counter(row for row in found if row[1] < END - 100) == totals([sizes], sum)
    assert world.late.total() == 0


def test_which_partition_holds_time_back_is_told_through_a_relay_and_an_operator(monkeypatch: Any) -> None:
    """It is read to 100 in one partition and to 10 in the other one, behind which there is more."""
    chain = [("t",), TABLE, ("k",), WINDOWS_, ("k",), wider("sum(n)")]
    world = World(random.Random(1), [[("a", 100)], [("a", 10), ("a", 120)]], chain)
    for topic in ("in", *(f"to-{number}" for number in range(1, len(world.plans)))):
        for at in [at for at in world.topics if at.topic == topic]:
            while world.committed[at] < (1 if topic == "in" else len(world.topics[at])):
                world.work(*world.plan([at], 1, world.apps[0]))

    def read(_: Any, splits: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        for split in splits:
            rows = world.changelogs[split.topic, split.partition][split.start : split.end]
            of = {"topic": split.topic, "partition": split.partition}
            columns = pa.schema(
                [("topic", pa.string()), ("partition", pa.int32()), ("key", pa.binary()), ("value", pa.binary())]
            )
            yield pa.RecordBatch.from_pylist([of | {"key": key, "value": value} for key, value in rows], columns)

    monkeypatch.setattr(held_times, "read_splits", read)
    partitions = [SimpleNamespace(partition=number) for number in range(PARTITIONS)]
    admin: Any = SimpleNamespace(
        describe_topic=lambda _: SimpleNamespace(partitions=partitions),
        beginning_offsets=lambda of: dict.fromkeys(of, 0),
        stable_offsets=lambda of: {at: len(world.changelogs[at.topic, at.partition]) for at in of},
    )
    stores = [node.store for plan in world.plans for node in plan.nodes]
    assert stores == ["times-of-1", "s2-0", "s3-0"]
    config: Any = None
    told = held_times.held_times(admin, config, stores, list(world.topics))
    assert {(held.changelog, held.held_by) for held in told} == {(store, "in-1") for store in stores}
    assert {held.held_ms for held in told if held.changelog == "times-of-1"} == {90_000}


def unlabelled(rows: list[Row]) -> list[bytes]:
    """Records as an earlier release sends them."""
    sink = plans_of([("k",), WINDOWS])[0].repartition_sink
    assert sink is not None
    values: list[bytes] = sink.to_records(pa.Table.from_batches([batch_of(rows, COLUMNS)]))["value"].to_pylist()
    return values


def notice_of(tasks: tuple[int, ...], waiting: tuple[int, ...], largest: int) -> pa.Table:
    """The first task tells its time, and which tasks wait."""
    first, _ = tasks
    waits = dict.fromkeys(waiting, 0)
    told = source_times.Notice(7, (), (first,), {first: largest * 1_000_000}, (first,), waits, {}, tasks)
    row = {source_times.SOURCE: 0, source_times.DELAY: 0, source_times.NOTICE: told.encode()}
    return pa.Table.from_pylist([row], with_labels(COLUMNS))


def test_a_source_is_behind_until_a_sender_that_has_looked_since_says_otherwise() -> None:
    known = source_times.Known({}, {}, {})
    known.hear(source_times.Notice(1, (5,), (6, 7), {6: 1}, (6,), log_end=90), 100, ())
    assert known.behind == {5: (100, 0), 7: (100, 1)}
    known = source_times.Known({5: 0, 6: 1, 7: 0}, known.ended, known.behind)
    assert source_times.Known.decode(known.encode()).behind == known.behind
    of_batch = source_times.Notice(1, (5,), (6, 7), {7: 1}, (7,), log_end=90)
    for notice, offset, behind in [
        (of_batch, 101, {5}),
        (source_times.Notice(2, (), (6,), {6: 2}, (6,), log_end=101), 102, {5}),
        (source_times.Notice(3, (), (6,), {6: 2}, (6,), log_end=102), 103, set[int]()),
        (source_times.Notice(4, (5,), (6,), {6: 2}, (6,), log_end=103), 104, {5}),
        (source_times.Notice(5, (), (6,), {6: 2}, (6,), log_end=3), 7, set[int]()),  # the log of a merged task
    ]:
        known.hear(notice, offset, ())
        assert known.behind.keys() == behind


def test_a_task_that_waits_holds_back_merged_tasks_until_it_is_there_no_longer() -> None:
    first = source_times.source_of("to-1", 0)
    waiting = source_times.Notice(5, (), (), {first + 3: 9_000_000}, (), {first + 3: 0}, {}, (first, 4)).encode()
    row = {source_times.SOURCE: 0, source_times.DELAY: 0, source_times.NOTICE: waiting}
    heard = SourceTimes.over(pa.Table.from_pylist([row], with_labels(COLUMNS)), "t", NoState())
    others = SourceTimes.over(notice_of((first, 4), (), 70), "t", NoState())
    assert heard is not None
    assert others is not None
    assert (heard.now, others.now) == (9_000_000, 70_000_000)
    key = source_times.SOURCES_KEY
    for marks in ([heard.known, others.known], [others.known, heard.known]):
        store: Any = WithChanges(NoState(), merged_marks([{key: known} for known in marks if known is not None]))
        after = SourceTimes.over(notice_of((first, 4), (), 80), "t", store)
        assert after is not None
        assert (after.now, after.hold, after.held_by) == (9_000_000, 9_000_000, first + 3)
        fewer = SourceTimes.over(notice_of((first, 2), (), 80), "t", store)
        assert fewer is not None
        assert (fewer.now, fewer.hold, fewer.held_by) == (80_000_000, None, 0)
