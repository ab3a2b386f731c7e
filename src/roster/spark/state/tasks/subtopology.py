"""Sub-topologies of a stateful pipeline as its tasks run them; pickled to the executors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from roster.model.topology import Subtopology
from roster.spark.state.tasks.operator_steps import sides_of
from roster.spark.state.tasks.other_stream import OtherSide
from roster.spark.state.tasks.processing import Operator
from roster.spark.state.tasks.repartition import Between
from roster.spark.state.tasks.table_join import Rows
from roster.state.definition import Definition
from roster.state.store import NoState


@dataclass(frozen=True)
class LateRows:
    """Where rows go that are late, and the columns that become the key of their records."""

    topic: str
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Link:
    """A stateful operator with the steps behind it, the columns of the rows that it gets, and its store's name.

    in_order_of: column of times by which a batch's results go on, None as they are.
    """

    operator: Operator
    columns: pa.Schema
    store: str
    late: LateRows | None = None
    other: OtherSide | None = None
    in_order_of: str | None = None

    @property
    def has_timers(self) -> bool:
        """True if its keys may have timers of processing time."""
        return getattr(self.operator, "has_timers", False)


@dataclass(frozen=True)
class Stage:
    """What the tasks of a sub-topology do with their rows.

    links: the operators in the order of a row's way; none where rows only get another key, or are joined with tables.
    arriving: how rows come to it, None from topics that the pipeline is given. leaving: how they leave, None to the
    sink. tables: what they are joined with before the first operator, one after the other.
    """

    of: Subtopology
    links: tuple[Link, ...]
    arriving: Between | None = None
    leaving: Between | None = None
    tables: tuple[Rows, ...] = ()

    @property
    def definitions(self) -> dict[str, Definition]:
        """What the entries of each store mean, by its name."""
        names = [link.store for link in self.links]
        return {
            link.store: definition_of(link.operator, link.columns).among(self.of.number, names) for link in self.links
        }

    @cached_property
    def columns(self) -> pa.Schema:
        """Columns of the rows that leave."""
        if self.leaving is not None:
            return self.leaving.columns
        if not self.links:
            return self.tables[-1].columns
        last = self.links[-1]
        return last.operator(last.columns.empty_table(), NoState()).results.schema

    @property
    def result_keys(self) -> tuple[str, ...]:
        """Columns that become the key of the records of rows that go to a topic as results."""
        if self.links:
            return self.links[-1].operator.result_keys
        return () if self.arriving is None else self.arriving.keys

    @property
    def own_sources(self) -> Sequence[str]:
        """The topics from which the stage's rows come, without those that its operators join them with."""
        others = [link.other.topic for link in self.links if link.other is not None]
        return tuple(topic for topic in self.of.sources if topic not in others)


def definition_of(operator: Operator, columns: pa.Schema) -> Definition:
    """Return what the operator's state means, for rows of these columns."""
    has_variables = getattr(operator, "has_variables", False)
    keys, layout = operator.key_columns(columns), operator.layout(columns)
    return Definition.of(operator.kept, keys, layout, has_variables=has_variables, sides=sides_of(operator, columns))
