"""A frame with state as a pipeline: its operators in sub-topologies, and what Spark does between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from roster.pipeline.errors import PipelineError
from roster.pipeline.spark_schemas import as_struct
from roster.pipeline.tasks.reader import HEADERS, SCHEMA
from roster.spark.dataframes.arrow_path import Computes, LeftToSparkError, named, results_of, rows_of
from roster.spark.dataframes.joined_totals import JOINS
from roster.spark.dataframes.operators import MAKERS, Kept, Makers, Results, chain_of
from roster.spark.dataframes.plan import FIELD, Plan, Topics, applying, moves_rows, on_batch, plan_over
from roster.spark.dataframes.user_code import USER_CODE
from roster.spark.declarations import Declared, DeclaredOperator, DeclaredSubtopology
from roster.spark.framed_batches import Branch, Framed, Frames, Stage
from roster.spark.stateful_operators import Repartition, check_extra
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
) -> Program:
    """Return the program of a frame. Raises PipelineError for nodes without a counterpart.

    keyed_by: the columns that the records' key is made of, () if it is not known. takes_results: whether the sink takes
    results as the tasks make them. by_spark: leaves to Spark even what Roster is proved to compute. topics: of each
    leaf; with state never None.
    """
    kept, tables = chain_of(frame, mode, WITH_STATE)
    if not kept:
        return _stateless(frame, topics, headers=headers, by_spark=by_spark)
    check_extra(FIELD)
    front = _Front.of(kept, frame, topics, records_of(headers=headers), by_spark=by_spark)
    subtopologies, steps = [DeclaredSubtopology(None, [front.step], branches=front.several)], [front.text, *tables]
    columns, between = front.columns, dict[int, Stage]()
    for operator, following in zip_longest(kept, kept[1:]):
        if operator is not kept[0] or front.several or not keyed_by or not set(keyed_by) <= set(operator.keys):
            subtopologies.append(DeclaredSubtopology(Repartition.by(operator.keys, operator.name, None)))
            steps.append(f"Roster: rows to the tasks of their keys, by the topic <group>-{operator.name}-repartition")
        results, after = operator.results(columns), list[Step]()
        steps.append(f"Roster: {operator.text}; state {operator.name}")
        columns = results
        if following is not None:
            stage = _between(operator, following, results, frame)
            between[len(subtopologies) - 1] = stage
            columns = stage.make(_template(frame.df.sparkSession, results)).schema
            after.append(BySpark(columns, operator.delay))
            steps.append("Spark: the program up to the next operator, with the results of each batch")
        stateful = replace(operator.stateful(), sides=front.names if isinstance(operator.operator, StreamJoin) else ())
        subtopologies[-1].operators.append(DeclaredOperator(stateful, after))
    results, why = Results.of(kept[-1], columns, frame.df.sparkSession), ""
    if not takes_results:
        why = ", as the sink takes DataFrames"
    elif not by_spark and not between and not front.several:
        try:
            subtopologies[-1].steps.append(results_of(kept[-1], results, frame.root))
        except LeftToSparkError as error:
            why = f", for {error}"
        else:
            steps.append("Roster: the rest, in the same tasks")
            frames = Frames(front.branches, {}, None) if front.branches else None
            return Program(Declared(subtopologies, frames=frames, has_own_results=True), steps, tables)
    at_stop, typed = kept[-1].behind(results)
    over = plan_over(frame.root, frame.jvm, topics, kept[-1].node, at_stop)
    steps.append(f"Spark: the rest, with the results of each batch{why}")
    last = Stage(columns, _in_turn(typed, applying(over, frame.df.sparkSession)))
    frames = Frames(front.branches, between, last)
    return Program(Declared(subtopologies, frames=frames, has_own_results=True), steps, tables)


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


@dataclass(frozen=True)
class _Front:
    """What makes the first operator's rows: a step of the tasks, or of Spark by the branches of a union or a join.

    names: of a join, those of the sources of each side's rows.
    """

    step: Step
    columns: StructType
    text: str
    branches: Sequence[Branch] = ()
    names: tuple[Sequence[str], ...] = ()

    @property
    def several(self) -> tuple[Sequence[str], ...]:
        """The topics of the branches, if there are several."""
        return tuple(branch.topics for branch in self.branches) if len(self.branches) > 1 else ()

    @classmethod
    def of(cls, kept: Sequence[Kept], frame: Plan, topics: Topics, records: StructType, *, by_spark: bool) -> _Front:
        """Return it for rows of records with these columns."""
        why = ""
        if not by_spark:
            try:
                step = _computed_rows(kept, records)
                return cls(step, step.results, "Roster: the program up to the state, in the tasks that read")
            except LeftToSparkError as error:
                why = f", for {error}"
        spark, operator, sides = frame.df.sparkSession, kept[0], list[list[Branch]]()
        for side in range(max(len(operator.sides), 1)):
            ways = operator.ways(side, frame.jvm)
            made = [_in_turn(applying(way.over, spark), operator.rows.with_text) for way in ways]
            leaves = [way.leaf for way in ways if way.leaf is not None]
            sides.append([Branch(tuple(topics(leaf) or ()), make) for leaf, make in zip(leaves, made, strict=True)])
        branches = [branch for side in sides for branch in side]
        rows = [branch.make(_template(spark, records)) for branch in branches]
        for made_rows in rows:
            _check_stays(made_rows)
        text = f"Spark: the program up to the state, in the tasks that read{why}"
        return cls(BySpark(rows[0].schema), rows[0].schema, text, branches, _names_of(sides))


def _names_of(sides: Sequence[Sequence[Branch]]) -> tuple[Sequence[str], ...]:
    """Return the names of the sources of each side's rows."""
    names, before = list[list[str]](), list[Sequence[str]]()
    for side in sides:
        names.append([])
        for branch in side:
            names[-1] += [source_name(topic, before) for topic in branch.topics]
            before.append(branch.topics)
    return tuple(names)


def _between(operator: Kept, following: Kept, results: StructType, frame: Plan) -> Stage:
    """Return what makes the rows of the next operator of an operator's results."""
    spark = frame.df.sparkSession
    at_stop, typed = operator.behind(Results.of(operator, results, spark))
    (way,) = following.ways(0, frame.jvm, operator.node, at_stop)
    make = _in_turn(typed, applying(way.over, spark), following.rows.with_text)
    _check_stays(make(_template(spark, results)))
    return Stage(results, make)


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
            fix="Leave out joins but those with a table by equal columns",
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
