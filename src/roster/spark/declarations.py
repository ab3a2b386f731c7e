"""What a pipeline declares: its sub-topologies, each with its steps and stateful operators in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from roster.pipeline.errors import PipelineError
from roster.spark.framed_batches import Frames
from roster.spark.stateful_operators import Repartition, Stateful, TableJoin
from roster.spark.steps import Step
from roster.stateful.tasks.repartition import FIELD as REPARTITION


@dataclass
class DeclaredTable:
    """A join with a table, and the steps behind it."""

    join: TableJoin
    after: list[Step] = field(default_factory=list)


@dataclass
class DeclaredOperator:
    """A stateful operator, and the steps behind it."""

    stateful: Stateful
    after: list[Step] = field(default_factory=list)


@dataclass
class DeclaredSubtopology:
    """A part of a pipeline between repartitionings: its input, its steps and its operators.

    by: None for the first, which reads the pipeline's topics. tables: joined before all operators. branches: topics of
    each of the programs that Spark makes rows by, if there are several. into: numbers of the sub-topologies that get
    the rows, one for each branch; () for the next one. given: columns of the rows, if several make them.
    """

    by: Repartition | None = None
    before: list[Step] = field(default_factory=list)
    tables: list[DeclaredTable] = field(default_factory=list)
    operators: list[DeclaredOperator] = field(default_factory=list)
    branches: tuple[Sequence[str], ...] = ()
    into: tuple[int, ...] = ()
    given: StructType | None = None

    @property
    def steps(self) -> list[Step]:
        """The list that the next step is appended to."""
        if self.operators:
            return self.operators[-1].after
        return self.tables[-1].after if self.tables else self.before


@dataclass
class Declared:
    """The sub-topologies from source to sink, or a transform without stateful operators."""

    subtopologies: list[DeclaredSubtopology] = field(default_factory=lambda: [DeclaredSubtopology()])
    transform: Callable[[DataFrame], DataFrame] | None = None
    frames: Frames | None = None
    """What Spark does in front of and behind the operators."""
    has_own_results: bool = False
    """True if results need none of the keys: records have a key of their own, if any."""
    has_run: bool = False

    @property
    def first(self) -> DeclaredSubtopology:
        """The sub-topology that reads the pipeline's topics."""
        return self.subtopologies[0]

    @property
    def last(self) -> DeclaredSubtopology:
        """The sub-topology whose results go to the sink."""
        return self.subtopologies[-1]

    @property
    def operators(self) -> list[DeclaredOperator]:
        """The stateful operators of all sub-topologies."""
        return [operator for subtopology in self.subtopologies for operator in subtopology.operators]

    @property
    def others(self) -> list[str]:
        """The topics that operators read in addition to the pipeline's own."""
        others = (operator.stateful.other for operator in self.operators)
        return [other.topic for other in others if other is not None]

    def check_open(self) -> None:
        """Raise PipelineError if the pipeline has begun to run."""
        if self.has_run:
            problem = "the pipeline has begun to run, with the steps that it had"
            raise PipelineError(problem, field="pipeline", fix="Make another Pipeline with all its steps")

    def add_operator(self, method: str, stateful: Stateful) -> None:
        """Append a stateful operator. Raises PipelineError if it cannot follow the ones before it."""
        if taken := [operator for operator in self.operators if operator.stateful.store == stateful.store]:
            name = taken[0].stateful.store
            raise PipelineError(f"there is a store {name!r} already", field="store", fix="Give each store its name")
        self._check_is_final(method)
        before = self.operators[-1].stateful if self.operators else None
        if before is not None and before.has_updates and not stateful.takes_updates:
            raise PipelineError(
                "the aggregate before it sends running updates, and each would count as a row of its own",
                field=method,
                fix="Use results='final' with a window there, or take the updates with transform_with_state",
            )
        self.last.operators.append(DeclaredOperator(stateful))

    def _check_is_final(self, method: str) -> None:
        """Raise PipelineError if the last operator retracts results."""
        if self.operators and self.operators[-1].stateful.retracts:
            what = "sessions take earlier results back, which nothing behind them would hear of"
            raise PipelineError(what, field=method, fix="Use results='final' in the aggregate before it")

    def add_table(self, join: TableJoin) -> None:
        """Join a table. Raises PipelineError if a table cannot be joined there."""
        if self.last.operators:
            raise PipelineError(
                "it comes before the stateful operators of a sub-topology",
                field="join_table",
                fix="Move it in front, or behind a repartition by the table's key",
            )
        if any(table.join.topic == join.topic for subtopology in self.subtopologies for table in subtopology.tables):
            raise PipelineError(f"{join.topic!r} is joined already", field="join_table", fix="Name another table")
        self.last.tables.append(DeclaredTable(join))

    def add_subtopology(self, by: Repartition) -> None:
        """Begin a sub-topology. Raises PipelineError if nothing uses the key of the one before."""
        self._check_is_final(REPARTITION)
        if self.last.by is not None and not self.last.operators and not self.last.tables:
            problem = f"nothing between it and the one before, by {', '.join(self.last.by.keys)}, needs that key"
            raise PipelineError(problem, field=REPARTITION, fix="Leave the other one out")
        if any(subtopology.by is not None and subtopology.by.name == by.name for subtopology in self.subtopologies):
            raise PipelineError(f"there is one of the name {by.name!r} already", field="name", fix="Give it another")
        self.subtopologies.append(DeclaredSubtopology(by))
