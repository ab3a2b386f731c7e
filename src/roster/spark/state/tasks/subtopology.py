"""Sub-topologies of a stateful pipeline as its tasks run them; pickled to the executors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa

from roster.model.topology import Subtopology
from roster.spark.state.tasks.by_source import by_source
from roster.spark.state.tasks.operator_steps import sides_of
from roster.spark.state.tasks.other_stream import OtherSide
from roster.spark.state.tasks.processing import Operator
from roster.spark.state.tasks.repartition import RepartitionTopic
from roster.spark.state.tasks.table_join import Rows
from roster.state.definition import Definition, Migrate
from roster.state.processor.batch import TimeMode
from roster.state.source_times import labelled as with_labels
from roster.state.store import NoState


@dataclass(frozen=True)
class LateRows:
    """Topic of late rows, and the columns that form the record key."""

    topic: str
    keys: tuple[str, ...]


@dataclass(frozen=True)
class OperatorNode:
    """A stateful operator with the steps after it, the columns of its input rows, and its store's name.

    in_order_of: column of times that a batch's results are sorted by, None: unsorted. migrate: of its definition.
    """

    operator: Operator
    columns: pa.Schema
    store: str
    late: LateRows | None = None
    other: OtherSide | None = None
    in_order_of: str | None = None
    migrate: Migrate = None

    @property
    def has_timers(self) -> bool:
        """True if its keys may have processing-time timers."""
        return getattr(self.operator, "has_timers", False)

    @property
    def closes(self) -> bool:
        """True if it keeps something up to a stream time: windows, sessions, first times, rows of a join, timers."""
        kept = self.operator.kept
        has_event_timers = kept.get("time_mode") == TimeMode.EVENT.value
        return self.other is not None or has_event_timers or not kept.keys().isdisjoint(("window", "session", "time"))


@dataclass(frozen=True)
class SubtopologyPlan:
    """The plan of a sub-topology's tasks.

    nodes: the operators in order; none if rows only get another key or are joined with tables. repartition_source: the
    topic it reads; None: the pipeline's. repartition_sink: the topic it writes; None: the pipeline's sink. tables:
    joined before the first operator, one after the other.
    """

    subtopology: Subtopology
    nodes: tuple[OperatorNode, ...]
    repartition_source: RepartitionTopic | None = None
    repartition_sink: RepartitionTopic | None = None
    tables: tuple[Rows, ...] = ()

    @property
    def closes(self) -> bool:
        """True if one of its operators closes what it keeps at a stream time."""
        return any(node.closes for node in self.nodes)

    def into(self, counts: Mapping[str, int]) -> SubtopologyPlan:
        """Return the plan for a repartition topic that has so many partitions."""
        to = self.repartition_sink
        return self if to is None else replace(self, repartition_sink=replace(to, partitions=counts[to.topic]))

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
        if not self.nodes:
            return self.tables[-1].columns
        last = self.nodes[-1]
        return last.operator(last.columns.empty_table(), NoState()).results.schema

    def at(self, node: OperatorNode) -> tuple[Operator, pa.Schema]:
        """Return a node's operator and the columns of its rows; with labels if its rows have them."""
        source = self.repartition_source
        if source is None or not source.is_labelled or node is not self.nodes[0]:
            return node.operator, node.columns
        return by_source(node.operator), with_labels(node.columns)

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


def labelled(plans: Sequence[SubtopologyPlan]) -> tuple[SubtopologyPlan, ...]:
    """Return the plans with labels on the rows between the input and a first operator that goes by event time."""
    before, *behind = plans
    sink = before.repartition_sink
    if sink is None or before.nodes or behind[0].tables or not behind[0].nodes:
        return tuple(plans)
    first = behind[0].nodes[0]
    column = getattr(first.operator, "time_column", None)
    if column is None or first.other is not None:
        return tuple(plans)
    is_known = sink.then is None and column in sink.columns.names
    topic = replace(sink, is_labelled=True, time=column if is_known else None)
    return replace(before, repartition_sink=topic), replace(behind[0], repartition_source=topic), *behind[1:]


def definition_of(operator: Operator, columns: pa.Schema, migrate: Migrate = None) -> Definition:
    """Return the definition of the operator's state, for rows with these columns."""
    has_variables = getattr(operator, "has_variables", False)
    keys, layout = operator.key_columns(columns), operator.layout(columns)
    sides = sides_of(operator, columns)
    found = Definition.of(operator.kept, keys, layout, has_variables=has_variables, sides=sides, migrate=migrate)
    return replace(found, registry=getattr(operator, "registry", b""))
