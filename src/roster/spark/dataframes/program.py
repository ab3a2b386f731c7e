"""A frame with state as a pipeline: its operators in sub-topologies, and what Spark does between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from roster.pipeline.errors import PipelineError
from roster.pipeline.spark_schemas import as_struct
from roster.pipeline.tasks.reader import HEADERS, SCHEMA
from roster.spark.arrow_expressions import LeftToSparkError
from roster.spark.dataframes.arrow_path import Computes, named, results_of, rows_of
from roster.spark.dataframes.joins import JOINS
from roster.spark.dataframes.operators import MAKERS, Kept, Makers, Results, operators_of
from roster.spark.dataframes.plan import (
    FIELD,
    WATERMARK,
    Node,
    Plan,
    PlanOver,
    Topics,
    applying,
    moves_rows,
    on_batch,
    plan_over,
)
from roster.spark.dataframes.source_options import MIGRATE
from roster.spark.dataframes.user_code import USER_CODE
from roster.spark.declarations import Declared, DeclaredOperator, DeclaredSubtopology
from roster.spark.framed_batches import Branch, Framed, Frames, Stage
from roster.spark.stateful_operators import Repartition, check_extra, check_migrate
from roster.spark.steps import BySpark, Step
from roster.state.stream_join import StreamJoin
from roster.stateful.tasks.subtopology import source_name

WITH_STATE: Makers = {**MAKERS, **JOINS, **USER_CODE}
"""What makes operators of the nodes that keep state, by the kind of node."""


@dataclass(frozen=True)
class Program:
    """What a frame becomes. steps: what runs where, a line each. tables: those of them on tables that rows are joined
    with in front of state.
    """

    declared: Declared
    steps: Sequence[str]
    tables: Sequence[str] = ()


def program_of(
    frame: Plan,
    mode: str,
    *,
    headers: bool,
    keyed_by: Sequence[str] = (),
    takes_results: bool = False,
    by_spark: bool = False,
    topics: Topics = lambda _: None,
    migrate: Mapping[str, Any] = MappingProxyType({}),
) -> Program:
    """Return the program of a frame. Raises PipelineError for nodes without a counterpart.

    keyed_by: the columns that the records' key is made of, () if it is not known. takes_results: whether the sink takes
    results as the tasks make them. by_spark: leaves to Spark even what Roster is proved to compute. topics: of each
    leaf; with state never None. migrate: of each state what its results were before.
    """
    kept, tables = operators_of(frame, mode, WITH_STATE)
    _check_migrations(migrate, kept)
    if not kept:
        return _stateless(frame, topics, headers=headers, by_spark=by_spark)
    check_extra(FIELD)
    rows = _Rows.of(kept, frame, topics, records_of(headers=headers), by_spark=by_spark)
    is_keyed = not rows.several and bool(keyed_by) and set(keyed_by) <= set(kept[0].keys)
    numbers, is_tree = range(0 if is_keyed else 1, len(kept) + 1), len({*rows.into}) > 1
    into = tuple(numbers[place] for place in rows.into) if is_tree else ()
    subtopologies = [DeclaredSubtopology(None, [rows.first], branches=rows.several, into=into)]
    steps = [rows.text, *tables]
    for place, operator in enumerate(kept):
        behind = rows.behind.get(place)
        if numbers[place]:
            given, into = rows.columns[place] if is_tree else None, () if behind is None else (numbers[behind],)
            is_placed = bool(operator.keys)
            repartition = Repartition.by if is_placed else Repartition
            by = repartition(operator.keys, operator.name, None)
            subtopologies.append(DeclaredSubtopology(by, into=into if is_tree else (), given=given))
            where = "to the tasks of their keys" if is_placed else "of all parts"
            steps.append(f"Roster: rows {where}, by the topic <group>-{operator.name}-repartition")
        after = list[Step]()
        if operator.operator is not None:
            sides = tuple(
                tuple(source if isinstance(source, str) else numbers[source] for source in side)
                for side in rows.sides[place]
            )
            sides = sides if isinstance(operator.operator, StreamJoin) else ()
            stateful = replace(operator.stateful(), sides=sides, migrate=migrate.get(operator.name))
            subtopologies[-1].operators.append(DeclaredOperator(stateful, after))
            steps.append(f"Roster: {operator.text}; state {operator.name}")
        if behind is not None:
            delay = None if _has_new_time(operator, kept[behind]) else operator.delay
            after.append(BySpark(rows.columns[behind], delay))
            to = kept[behind].name if is_tree else "the next operator"
            steps.append(f"Spark: the program up to {to}, with the results of each batch")
    results, why = rows.results[-1], ""
    between = {numbers[place]: stage for place, stage in rows.stages.items()}
    if not takes_results:
        why = ", as the sink takes DataFrames"
    elif not by_spark and not between and not rows.several:
        try:
            subtopologies[-1].steps.append(results_of(kept[-1], results, frame.root))
        except LeftToSparkError as error:
            why = f", for {error}"
        else:
            steps.append("Roster: the rest, in the same tasks")
            frames = Frames(rows.branches, {}, None) if rows.branches else None
            return Program(Declared(subtopologies, frames=frames, has_own_results=True), steps, tables)
    at_stop, typed = kept[-1].behind(results)
    over = plan_over(frame.root, frame.jvm, topics, kept[-1].node, at_stop)
    steps.append(f"Spark: the rest, with the results of each batch{why}")
    last = Stage(results.columns, _in_turn(typed, applying(over, frame.df.sparkSession)))
    frames = Frames(rows.branches, between, last)
    return Program(Declared(subtopologies, frames=frames, has_own_results=True), steps, tables)


def _check_migrations(migrate: Mapping[str, Any], kept: Sequence[Kept]) -> None:
    """Raise PipelineError for states that are not there, and for results that they do not have."""
    results = {operator.name: getattr(operator.operator, "aggregates", None) for operator in kept}
    for name, said in migrate.items():
        if (aggregates := results.get(name)) is None:
            known = ", ".join(name for name, aggregates in results.items() if aggregates) or "none"
            raise PipelineError(f"no aggregate keeps a state {name!r}", field=MIGRATE, fix=f"There are {known}")
        check_migrate(said, aggregates)


def _has_new_time(operator: Kept, behind: Kept) -> bool:
    """Return whether rows between two operators get another event time, by `withWatermark`."""
    return any(node.kind == WATERMARK and operator.node in node.all() for node in behind.node.all())


def _stateless(frame: Plan, topics: Topics, *, headers: bool, by_spark: bool) -> Program:
    """Return the program of a frame without state."""
    why = ""
    if not by_spark:
        try:
            step = rows_of(frame.root, named(frame.root), records_of(headers=headers))
        except LeftToSparkError as error:
            why = f", for {error}"
        else:
            return Program(
                Declared([DeclaredSubtopology(None, [step])]), ["Roster: the program, in the tasks that read"]
            )
    steps = [f"Spark: each batch's records go through the whole frame{why}"]
    return Program(Declared(transform=on_batch(frame, topics)), steps)


def records_of(*, headers: bool) -> StructType:
    """Return the columns of records."""
    return as_struct(SCHEMA + (HEADERS if headers else ""))


@dataclass
class _Rows:
    """How rows come to the operators, each by its place.

    first: makes rows of records, in the tasks or, by branches, in Spark. into: which operator gets the rows of each
    branch. stages: what Spark makes of an operator's results for the one behind it. columns, results: of each operator.
    sides: of each operator, the names of the sources of each side's rows, or the places of operators in front.
    """

    text: str
    first: Step
    branches: list[Branch] = field(default_factory=list)
    into: list[int] = field(default_factory=list)
    stages: dict[int, Stage] = field(default_factory=dict)
    behind: dict[int, int] = field(default_factory=dict)
    columns: list[StructType] = field(default_factory=list)
    results: list[Results] = field(default_factory=list)
    sides: list[list[list[str | int]]] = field(default_factory=list)

    @property
    def several(self) -> tuple[Sequence[str], ...]:
        """The topics of the branches, if there are several."""
        return tuple(branch.topics for branch in self.branches) if len(self.branches) > 1 else ()

    @classmethod
    def of(cls, kept: Sequence[Kept], frame: Plan, topics: Topics, records: StructType, *, by_spark: bool) -> _Rows:
        """Return it for rows of records with these columns."""
        spark, why = frame.df.sparkSession, ""
        if not by_spark:
            try:
                step = _computed_rows(kept, records)
            except LeftToSparkError as error:
                why = f", for {error}"
            else:
                rows = cls("Roster: the program up to the state, in the tasks that read", step)
                rows.columns, rows.sides = [step.results], [[]]
                rows.results = [Results.of(kept[0], kept[0].results(step.results), spark)]
                return rows
        rows = cls(f"Spark: the program up to the state, in the tasks that read{why}", BySpark(records))
        stops, places = dict[Node, PlanOver](), {operator.node: place for place, operator in enumerate(kept)}
        for place, operator in enumerate(kept):
            rows.sides.append([])
            frames = list[DataFrame]()
            for side in range(max(len(operator.sides), 1)):
                rows.sides[-1].append([])
                for way in operator.ways(side, frame.jvm, stops):
                    over = _in_turn(applying(way.over, spark), operator.rows.with_text)
                    if (front := places.get(way.start)) is None:
                        rows._add_branch(Branch(tuple(topics(way.start) or ()), over), place)
                        frames.append(over(_template(spark, records)))
                    else:
                        results = rows.results[front].columns
                        stage = Stage(results, _in_turn(kept[front].rows.without_text, over))
                        rows.stages[front], rows.behind[front] = stage, place
                        rows.sides[-1][-1].append(front)
                        frames.append(stage.make(_template(spark, results)))
            for rows_of_way in frames:
                _check_stays(rows_of_way)
            columns = frames[0].schema.toNullable()  # rows of another side or branch lack some
            rows.columns.append(columns)
            rows.results.append(Results.of(operator, operator.results(columns), spark))
            stops[operator.node], _ = operator.behind(rows.results[-1])
        rows.first = BySpark(rows.columns[rows.into[0]])
        return rows

    def _add_branch(self, branch: Branch, place: int) -> None:
        """Add a branch whose rows an operator gets, and the names of its sources."""
        before = [other.topics for other in self.branches]
        self.sides[-1][-1] += [source_name(topic, before) for topic in branch.topics]
        self.branches.append(branch)
        self.into.append(place)


def _computed_rows(kept: Sequence[Kept], records: StructType) -> Computes:
    """Return the step that makes the rows of the only operator. Raises LeftToSparkError."""
    (operator, *others) = kept
    if others:
        raise LeftToSparkError("several operators with state")
    if operator.sides:
        raise LeftToSparkError("rows of several streams")
    if operator.rows.text:
        raise LeftToSparkError(f"the key {next(iter(operator.rows.text))}, which is a fraction")
    return rows_of(operator.below, operator.rows.columns, records)


def _check_stays(rows: DataFrame) -> None:
    """Raise PipelineError if Spark would take rows out of the tasks that read them."""
    if moved := moves_rows(rows):
        raise PipelineError(
            f"in front of the state Spark would take rows out of their tasks ({', '.join(moved)})",
            field=FIELD,
            fix="Leave out joins but those with a table by equal columns, which IN (SELECT ...) can be written as",
        )


def _template(spark: Any, columns: StructType) -> DataFrame:
    """Return a frame of two partitions that is never run."""
    nothing: Any = _nothing
    frame: DataFrame = spark.range(0, 2, 1, 2).mapInArrow(nothing, columns)
    return frame


def _nothing(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return iter(())


def _in_turn(*functions: Framed) -> Framed:
    def applied(df: DataFrame) -> DataFrame:
        for function in functions:
            df = function(df)
        return df

    return applied
