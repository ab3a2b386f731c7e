"""Sub-topologies of a stateful pipeline as its tasks run them; pickled to the executors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from roster.model import TopicPartition
from roster.model.topology import Subtopology
from roster.pipeline.errors import PipelineError
from roster.pipeline.tasks.arrow_function import ArrowFunction
from roster.pipeline.tasks.steps import Chain
from roster.state.deduplicate import Deduplication
from roster.state.definition import Definition, Migrate
from roster.state.event_time import NEVER, STREAM_TIME_KEY, Reach
from roster.state.processor.batch import TimeMode
from roster.state.processor.overlay import end_of
from roster.state.processor.timers import BY_TIME
from roster.state.source_times import NOTICE, Front, source_of
from roster.state.source_times import labelled as with_labels
from roster.state.store import NoState
from roster.state.stream_join import WAITING_KEYS, joined_columns
from roster.state.windows import END, START
from roster.stateful.tasks.by_source import behind, by_source, noting
from roster.stateful.tasks.operator_steps import innermost, sides_of
from roster.stateful.tasks.processing import Operator
from roster.stateful.tasks.relay import Relay
from roster.stateful.tasks.repartition import RepartitionTopic, through_labelled
from roster.stateful.tasks.table_join import Rows

if TYPE_CHECKING:
    from roster.state.aggregate import Update
    from roster.stateful.tasks.catch_up import StoreTarget

SourcesAt: TypeAlias = Callable[[TopicPartition], set[int]]
"""Returns the sources that the rows of a partition have, or come to have."""
RowsOf: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Makes rows of rows."""


@dataclass(frozen=True)
class LateRows:
    """Topic of late rows, and the columns that form the record key."""

    topic: str
    keys: tuple[str, ...]


@dataclass(frozen=True)
class OtherSide:
    """How tasks read the other topic; `own` and `other` are the columns of the two sides."""

    topic: str
    function: ArrowFunction
    own: pa.Schema
    other: pa.Schema


def columns_of(side: OtherSide) -> pa.Schema:
    """Return the columns of a table with rows of both sides."""
    return joined_columns(side.own, side.other)


@dataclass(frozen=True)
class OperatorNode:
    """A stateful operator with the steps after it, the columns of its input rows, and its store's name.

    in_order_of: column of times that a batch's results are sorted by, None: unsorted. migrate: of its definition.
    sides: of a join whose rows of both sides come together, the names of the sources of each.
    """

    operator: Operator
    columns: pa.Schema
    store: str
    late: LateRows | None = None
    other: OtherSide | None = None
    in_order_of: str | None = None
    migrate: Migrate = None
    sides: tuple[Sequence[str], ...] = ()

    @property
    def has_timers(self) -> bool:
        """True if its keys may have processing-time timers."""
        return getattr(self.operator, "has_timers", False)

    @property
    def waiting(self) -> tuple[bytes, bytes] | None:
        """The span of entries in its store for results that it holds back until their time has come, None without."""
        operator = innermost(self.operator)
        if self.is_final:
            return b"", STREAM_TIME_KEY[:1]
        if getattr(operator, "keeps_all", False):
            return WAITING_KEYS[0], end_of(WAITING_KEYS[-1])
        has_timers = operator.kept.get("time_mode", TimeMode.NONE.value) != TimeMode.NONE.value
        return (BY_TIME, end_of(BY_TIME)) if has_timers else None

    @property
    def time_column(self) -> str | None:
        """The column of times, if it goes by event time."""
        return getattr(self.operator, "time_column", None)

    @property
    def is_final(self) -> bool:
        """True if a result comes once it is final: results are in the order of their ends, however batches are cut."""
        return bool(getattr(innermost(self.operator), "final", False))

    @property
    def passes(self) -> bool:
        """True if its results are rows of its input, in their order."""
        return isinstance(innermost(self.operator), (Deduplication, Relay))

    @property
    def lag(self) -> int:
        """Microseconds that a result may be behind the largest one so far, if no row is late."""
        return getattr(innermost(self.operator), "lag", 0)

    @property
    def reach(self) -> Reach | None:
        """How far results to come may be behind the stream time, None if by any time."""
        return getattr(innermost(self.operator), "reach", None)

    @property
    def is_session(self) -> bool:
        """True if results are of sessions."""
        return "session" in self.operator.kept

    def is_exact(self, column: str | None) -> bool:
        """Return whether times in a column of its results are those that `reach` is of: no step makes them."""
        return innermost(self.operator) is self.operator and (self.reach is None or column in self.reach.columns)

    @property
    def closes(self) -> bool:
        """True if it keeps something up to a stream time: windows, sessions, first times, rows of a join, timers."""
        kept = self.operator.kept
        has_event_timers = kept.get("time_mode") == TimeMode.EVENT.value
        return has_event_timers or not kept.keys().isdisjoint(("window", "session", "time", "times"))

    def target(self, target: StoreTarget) -> StoreTarget:
        """Return the target of its store in a batch: nothing waits for the time of one that closes nothing."""
        return target if self.closes else target._replace(idle_until=())


@dataclass(frozen=True)
class SubtopologyPlan:
    """The plan of a sub-topology's tasks.

    nodes: the operators in order; none if rows only get another key or are joined with tables. repartition_source: the
    topic it reads; None: the pipeline's. repartition_sink: the topic it writes; None: the pipeline's sink. tables:
    joined before the first operator, one after the other. is_by_split: each input partition of a task is a source.
    branches: topics of each of the programs that Spark makes rows by, if there are several. branch_sinks: the topic
    that each of them writes, if these are several.
    """

    subtopology: Subtopology
    nodes: tuple[OperatorNode, ...]
    repartition_source: RepartitionTopic | None = None
    repartition_sink: RepartitionTopic | None = None
    tables: tuple[Rows, ...] = ()
    is_by_split: bool = False
    branches: tuple[Sequence[str], ...] = ()
    branch_sinks: tuple[RepartitionTopic, ...] = ()

    @property
    def sinks(self) -> tuple[RepartitionTopic, ...]:
        """The repartition topics that it writes, each once."""
        sinks = self.branch_sinks or ((self.repartition_sink,) if self.repartition_sink is not None else ())
        return tuple({sink.topic: sink for sink in sinks}.values())

    def at_branch(self, number: int) -> SubtopologyPlan:
        """Return the plan for rows of a branch."""
        return replace(self, repartition_sink=self.branch_sinks[number]) if self.branch_sinks else self

    def topics_to(self, sink: str) -> Sequence[str]:
        """Return the topics whose rows go to a repartition topic."""
        of_branches = [self.branches[number] for number in self._branches_to(sink)]
        return tuple(dict.fromkeys(topic for topics in of_branches for topic in topics)) or self.subtopology.sources

    def _branches_to(self, sink: str) -> list[int]:
        is_all = not self.branch_sinks
        return [number for number in range(len(self.branches)) if is_all or self.branch_sinks[number].topic == sink]

    @property
    def closes(self) -> bool:
        """True if one of its operators closes what it keeps at a stream time."""
        return any(node.closes for node in self.nodes)

    def into(self, counts: Mapping[str, int]) -> SubtopologyPlan:
        """Return the plan for repartition topics that have so many partitions."""
        source, sink, *sinks = (
            topic and replace(topic, partitions=counts[topic.topic])
            for topic in (self.repartition_source, self.repartition_sink, *self.branch_sinks)
        )
        return replace(self, repartition_source=source, repartition_sink=sink, branch_sinks=tuple(filter(None, sinks)))

    @property
    def is_relay(self) -> bool:
        """True if it has no operator of its own, and passes on the times of its sources."""
        return any(isinstance(node.operator, Relay) for node in self.nodes)

    @property
    def definitions(self) -> dict[str, Definition]:
        """Definition of each store's entries, by the store's name."""
        names = [node.store for node in self.nodes]
        return {
            node.store: definition_of(node.operator, node.columns, node.migrate).among(self.subtopology.number, names)
            for node in self.nodes
        }

    @cached_property
    def columns(self) -> pa.Schema:
        """Columns of the output rows."""
        if self.repartition_sink is not None:
            return self.repartition_sink.columns
        if not self.nodes and not self.tables and self.repartition_source is not None:
            return self.repartition_source.columns
        if not self.nodes:
            return self.tables[-1].columns
        last = self.nodes[-1]
        return last.operator(last.columns.empty_table(), NoState()).results.schema

    def joining(self, joined: RowsOf) -> RowsOf:
        """Return what joins rows with the tables, labels and notices included if the rows have them."""
        if not self.tables or self.repartition_source is None or not self.repartition_source.is_labelled:
            return joined
        keeps_rows = all(table.then is None for table in self.tables)
        time = self.nodes[0].time_column if self.is_stepped else None
        return partial(through_labelled, joined, with_labels(self.tables[-1].columns), keeps_rows=keeps_rows, time=time)

    @property
    def is_stepped(self) -> bool:
        """True if its rows come through a relay, and then through steps behind a table that may change times."""
        source = self.repartition_source
        return source is not None and source.is_relayed and any(table.then is not None for table in self.tables)

    @property
    def has_sources(self) -> bool:
        """True if its rows come with labels of their sources."""
        return self.is_by_split or (self.repartition_source is not None and self.repartition_source.is_labelled)

    def at(self, number: int, updates: Sequence[Update] = ()) -> tuple[Operator, pa.Schema]:
        """Return the operator of a node and the columns of its rows; with labels if its rows have them.

        updates: in the batch, of the operators in front of it.
        """
        node, following = self.nodes[number], self.nodes[number + 1 : number + 2]
        own, times = node.time_column, [follower.time_column for follower in following]
        columns = [name for name in times if name and (name == own or (own is None and _has_times(node.columns, name)))]
        passed = own if self.is_relay else next(iter(columns), None) if node.passes else None
        operator, reach = node.operator, node.reach
        if reach is not None and any(not node.is_exact(later) for later in times if later is not None):
            operator = noting(operator, reach.columns)
        if not number and self.has_sources:
            is_relayed = self.repartition_source is not None and self.repartition_source.is_relayed
            options: dict[str, Any] = {"passed": passed, "is_relayed": is_relayed, "is_stepped": self.is_stepped}
            names = () if self.repartition_source is None else self.repartition_source.names
            operator = by_source(operator, self.lag(number), **options, sides=node.sides, names=names)
            return operator, with_labels(node.columns)
        if number and node.time_column is not None:
            front, before = self._front(number, updates), self.nodes[number - 1]
            has_sources = updates[0].has_sources or front.lag > 0
            is_sorted = has_sources and not (before.is_final and before.is_session)
            if has_sources or front.reached is not None:
                operator = behind(operator, front, is_sorted=is_sorted, passed=passed)
            is_labelled = NOTICE in updates[-1].results.column_names
            return operator, with_labels(node.columns) if is_labelled else node.columns
        return operator, node.columns

    def asks_what_waits(self, number: int) -> bool:
        """Return whether the operator behind a node has to know if results are held back."""
        return self.nodes[number].is_session and number + 1 < len(self.nodes)

    def _front(self, number: int, updates: Sequence[Update]) -> Front:
        """Return what a node knows of the one in front of it."""
        front, update, column = self.nodes[number - 1], updates[-1], self.nodes[number].time_column
        hold, lag, reached = updates[0].hold, self.lag(number), None
        is_exact = front.is_exact(column)
        if is_exact and NOTICE in update.results.column_names:  # its rows are late by the time of their source
            reached = update.time_of_sources
        elif front.reach is not None and update.now != NEVER:
            reached = update.now - front.reach.delay - 1  # a processor leaves out what is not behind it, too
        times = update.times if update.times is None or front.in_order_of is None else np.sort(update.times)
        return Front(hold, lag, reached, times, is_exact, is_open=front.is_session and update.waits)

    def lag(self, number: int | None = None, column: str | None = None) -> int:
        """Return the microseconds that rows of a node, or else of the output, may be behind the largest one so far.

        column: of times, that the operator behind the output goes by.
        """
        lag = 0 if self.repartition_source is None else self.repartition_source.lag
        columns = [*(node.time_column for node in self.nodes[1:]), column]
        for node, following in zip(self.nodes[:number], columns, strict=False):
            is_in_order = node.is_final and following in (START, END)
            lag = 0 if is_in_order else node.lag if node.is_final else lag + node.lag
        return lag

    def source_at(self, partition: TopicPartition, branch: int = 0) -> int:
        """Return the source that rows of an input partition have behind it: this partition, or its task.

        branch: the number of the program that makes the rows.
        """
        if self.nodes:
            return source_of(min(self.own_sources), partition.partition)
        return source_of(source_name(partition.topic, self.branches[:branch]), partition.partition)

    def sources_at(self, partition: TopicPartition, sink: str = "") -> set[int]:
        """Return the sources that rows of an input partition have, in all branches to a repartition topic."""
        own = [number for number in self._branches_to(sink) if partition.topic in self.branches[number]]
        return {self.source_at(partition, branch) for branch in own or [0]}

    def names_to(self, sink: str) -> list[str]:
        """Return the names of the sources of rows that go to a repartition topic."""
        if self.nodes or not self.branches:
            return [min(self.own_sources)] if self.nodes else [*self.own_sources]
        branches = [(self.branches[:number], self.branches[number]) for number in self._branches_to(sink)]
        return [source_name(topic, before) for before, topics in branches for topic in topics]

    @property
    def time_of_splits(self) -> str | None:
        """The column of times of a task's input partitions, None if its first operator goes by it or rows have none."""
        first, *others = self.nodes
        sent = None if self.repartition_sink is None else self.repartition_sink.time
        later = [*(node.time_column for node in others), sent] if first.time_column is None else []
        return next((name for name in later if name is not None and _has_times(first.columns, name)), None)

    @property
    def result_keys(self) -> tuple[str, ...]:
        """Columns that form the record key of results."""
        if self.nodes:
            return self.nodes[-1].operator.result_keys
        return () if self.repartition_source is None else self.repartition_source.keys

    @property
    def own_sources(self) -> Sequence[str]:
        """The topics of its input rows, without the other sides of joins."""
        others = [node.other.topic for node in self.nodes if node.other is not None]
        return tuple(topic for topic in self.subtopology.sources if topic not in others)


def source_name(topic: str, before: Sequence[Sequence[str]]) -> str:
    """Return the name of a topic's sources in a branch; each branch has a time of its own. before: earlier branches."""
    number = sum(topic in topics for topics in before)
    return f"{topic} {number}" if number else topic


def labelled(plans: Sequence[SubtopologyPlan]) -> tuple[SubtopologyPlan, ...]:
    """Return the plans with labels on the rows in front of operators that go by event time.

    These are rows of repartition topics, and of tasks that read several topics. The time of a source is that of the
    first such operator's column, if rows have it as they are sent.
    """
    done = list(plans)
    for number in range(len(plans) - 2, 0, -1):
        if any(node.time_column is not None for plan in done[number + 1 :] for node in plan.nodes):
            done[number - 1 : number + 2] = _with_steps_in_front(*done[number - 1 : number + 2])
            done[number] = _relaying(done[number], done[number + 1 :])
    is_timed = any(node.time_column is not None for plan in done for node in plan.nodes)
    done[0] = replace(done[0], is_by_split=is_timed and bool(done[0].nodes) and len(done[0].own_sources) > 1)
    for number in range(len(plans)):
        plan = done[number]
        if plan.repartition_source is not None:
            plan = replace(plan, repartition_source=_arriving(plan.repartition_source, done))
        sinks = {sink.topic: _with_labels(sink, plan, done) for sink in plan.sinks}
        sink = plan.repartition_sink and sinks[plan.repartition_sink.topic]
        of_branches = tuple(sinks[sink.topic] for sink in plan.branch_sinks)
        done[number] = replace(plan, repartition_sink=sink, branch_sinks=of_branches)
    return tuple(done)


def _arriving(source: RepartitionTopic, plans: Sequence[SubtopologyPlan]) -> RepartitionTopic:
    """Return a repartition topic as its reader knows it; the sinks of those that write it have their labels."""
    senders = senders_of(source.topic, plans)
    first, *others = [next(sink for sink in plan.sinks if sink.topic == source.topic) for plan in senders]
    names = [name for plan in senders for name in plan.names_to(source.topic)] if others else []
    return replace(first, lag=max(sink.lag for sink in (first, *others)), others=source.others, names=tuple(names))


def senders_of(topic: str, plans: Sequence[SubtopologyPlan]) -> list[SubtopologyPlan]:
    """Return the plans that write a repartition topic."""
    return [plan for plan in plans if any(sink.topic == topic for sink in plan.sinks)]


def _with_labels(sink: RepartitionTopic, plan: SubtopologyPlan, plans: Sequence[SubtopologyPlan]) -> RepartitionTopic:
    """Return a plan's sink with labels on its rows, if operators behind it go by event time."""
    following, *others = behind_topic(sink.topic, plans)
    own, later = (
        [node.time_column for each in behind for node in each.nodes if node.time_column is not None]
        for behind in ([following], others)
    )
    if not following.nodes or not (own or later):
        return sink
    is_same = sink.then is None and all(table.then is None for table in following.tables)
    column = (own or later)[0]
    time = column if is_same and _has_times(sink.columns, column) else None
    return replace(sink, is_labelled=True, is_relayed=plan.is_relay, time=time, lag=plan.lag(column=column))


def behind_topic(topic: str, plans: Sequence[SubtopologyPlan]) -> list[SubtopologyPlan]:
    """Return the plans that a repartition topic's rows come through."""
    reading = [plan for plan in plans if plan.repartition_source and plan.repartition_source.topic == topic]
    return [
        plan for own in reading for plan in (own, *(of for to in own.sinks for of in behind_topic(to.topic, plans)))
    ]


def beside(plan: SubtopologyPlan, sink: str, plans: Sequence[SubtopologyPlan]) -> list[dict[str, SourcesAt]]:
    """Return the topics in front of all that write a plan's sink, and which sources' rows theirs are or become.

    Rows go from the topics of one dict to the topics of the next dicts; the first has the pipeline's input. Topics of
    the plan's own input are left out; there are no dicts if no other plan writes the sink.
    """
    levels, senders = [dict[str, SourcesAt]() for _ in plans], senders_of(sink, plans)
    for sender in senders if len(senders) > 1 else ():
        sources_at: SourcesAt = partial(sender.sources_at, sink=sink)
        if sender is not plan:
            _add(levels[sender.subtopology.number], sender.topics_to(sink), sources_at)
        _add_in_front(levels, sender, sources_at, plans)
    return [level for level in levels if level]


def _add_in_front(
    levels: Sequence[dict[str, SourcesAt]],
    plan: SubtopologyPlan,
    sources_at: SourcesAt,
    plans: Sequence[SubtopologyPlan],
) -> None:
    """Add the topics in front of a plan's input. sources_at: of rows of its input, or of those that these become."""
    if (source := plan.repartition_source) is None:
        return
    tasks = [TopicPartition(source.topic, number) for number in range(source.partitions or 0)]
    of_all = {number for task in tasks for number in sources_at(task)}
    for sender in senders_of(source.topic, plans):
        _add(levels[sender.subtopology.number], sender.topics_to(source.topic), lambda _: of_all)
        _add_in_front(levels, sender, lambda _: of_all, plans)


def _add(level: dict[str, SourcesAt], topics: Sequence[str], sources_at: SourcesAt) -> None:
    for topic in topics:
        earlier = level.get(topic)
        level[topic] = sources_at if earlier is None else partial(_either, earlier, sources_at)


def _either(one: SourcesAt, other: SourcesAt, partition: TopicPartition) -> set[int]:
    return one(partition) | other(partition)


def _with_steps_in_front(*plans: SubtopologyPlan) -> tuple[SubtopologyPlan, ...]:
    """Return three plans with the steps behind the second repartition in front of it, if no operator is between.

    So the times that they make are known where rows are sent on. They may stay where they are, if the topic cannot
    have their columns.
    """
    first, second, third = plans
    source, sink = second.repartition_source, second.repartition_sink
    if second.nodes or source is None or sink is None or sink.then is None:
        return plans
    before = second.tables[-1].then if second.tables else source.then
    then = sink.then if before is None else ArrowFunction(Chain([before, sink.then]), sink.then.columns)
    try:
        sink = replace(sink, columns=then.columns, then=None)
    except PipelineError:
        return plans
    tables = second.tables
    if tables:
        tables = (*tables[:-1], tables[-1]._replace(then=then, columns=then.columns))
    else:
        source = replace(source, then=then)
    return (
        replace(first, repartition_sink=source),
        replace(second, repartition_source=source, repartition_sink=sink, tables=tables),
        replace(third, repartition_source=sink),
    )


def _relaying(plan: SubtopologyPlan, following: Sequence[SubtopologyPlan]) -> SubtopologyPlan:
    """Return a plan between two repartitions with a relay, if it has no operator and its rows have the times."""
    source, sink = plan.repartition_source, plan.repartition_sink
    columns = [node.time_column for each in following for node in each.nodes if node.time_column is not None]
    if plan.nodes or source is None or sink is None or not following[0].nodes:
        return plan
    is_stepped = any(table.then is not None for table in following[0].tables)
    if sink.then is not None or not _has_times(sink.columns, columns[0]):
        return plan
    if is_stepped and following[0].nodes[0].time_column != columns[0]:
        return plan
    relay = Relay(pa.schema([source.columns.field(name) for name in source.keys]), columns[0])
    node = OperatorNode(relay, sink.columns, f"times-of-{plan.subtopology.number}")
    return replace(plan, nodes=(node,), subtopology=replace(plan.subtopology, stores=(node.store,)))


def _has_times(columns: pa.Schema, name: str) -> bool:
    return name in columns.names and pa.types.is_timestamp(columns.field(name).type)


def definition_of(operator: Operator, columns: pa.Schema, migrate: Migrate = None) -> Definition:
    """Return the definition of the operator's state, for rows with these columns."""
    has_variables = getattr(operator, "has_variables", False)
    keys, layout = operator.key_columns(columns), operator.layout(columns)
    sides = sides_of(operator, columns)
    definition = Definition.of(operator.kept, keys, layout, has_variables=has_variables, sides=sides, migrate=migrate)
    return replace(definition, registry=getattr(operator, "registry", b""))
