"""A frame with state as a pipeline: its operators in sub-topologies, and what Spark does between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from roster.pipeline.errors import PipelineError
from roster.pipeline.spark_schemas import as_struct
from roster.pipeline.tasks.reader import HEADERS, SCHEMA
from roster.spark.dataframes.arrow_path import Computes, LeftToSparkError, named, results_of, rows_of
from roster.spark.dataframes.operators import MAKERS, Kept, Makers, Results, chain_of, rows_over
from roster.spark.dataframes.plan import FIELD, Plan, applying, moves_rows, on_batch, plan_over
from roster.spark.dataframes.user_code import USER_CODE
from roster.spark.declarations import Declared, DeclaredOperator, DeclaredSubtopology
from roster.spark.framed_batches import Framed, Frames
from roster.spark.stateful_operators import Repartition, check_extra
from roster.spark.steps import BySpark, Filtered, Step

WITH_STATE: Makers = {**MAKERS, **USER_CODE}
"""What makes operators of the nodes that keep state, by the kind of node."""


@dataclass(frozen=True)
class Program:
    """What a frame becomes. steps: what runs where, a line each."""

    declared: Declared
    steps: Sequence[str]


def program_of(
    frame: Plan,
    mode: str,
    *,
    headers: bool,
    keyed_by: Sequence[str] = (),
    takes_results: bool = False,
    by_spark: bool = False,
) -> Program:
    """Return the program of a frame. Raises PipelineError for nodes without a counterpart.

    keyed_by: the columns that the records' key is made of, () if it is not known. takes_results: whether the sink takes
    results as the tasks make them. by_spark: leaves to Spark even what Roster is proved to compute.
    """
    kept = chain_of(frame, mode, WITH_STATE)
    if not kept:
        return _stateless(frame, headers=headers, by_spark=by_spark)
    check_extra(FIELD)
    spark: Any = frame.df.sparkSession
    first = DeclaredSubtopology()
    before, columns, steps = _before(kept, spark, records_of(headers=headers), first, by_spark=by_spark)
    subtopologies = [first]
    for operator in kept:
        if operator is not kept[0] or not keyed_by or not set(keyed_by) <= set(operator.keys):
            subtopologies.append(DeclaredSubtopology(Repartition.by(operator.keys, operator.name, None)))
            steps.append(f"Roster: rows to the tasks of their keys, by the topic <group>-{operator.name}-repartition")
        columns = operator.results(columns)
        after: list[Step] = [Filtered(pc.field(name)) for name in operator.conditions]
        subtopologies[-1].operators.append(DeclaredOperator(operator.stateful(), after))
        steps.append(f"Roster: {operator.text}; state {operator.name}")
    results, why = Results.of(kept[-1], columns, spark), ", as the sink takes DataFrames"
    if takes_results and not by_spark:
        try:
            subtopologies[-1].steps.append(results_of(kept[-1], results, frame.root))
        except LeftToSparkError as error:
            why = f", for {error}"
        else:
            steps.append("Roster: the rest, in the same tasks")
            frames = None if before is None else Frames(before, None, columns)
            return Program(Declared(subtopologies, frames=frames, has_own_results=True), steps)
    at_stop, typed = kept[-1].behind(results)
    behind = _in_turn(typed, applying(plan_over(frame.root, spark._jvm, kept[-1].node, at_stop), spark))
    steps.append(f"Spark: the rest, with the results of each batch{why}")
    frames = Frames(before, behind, columns)
    return Program(Declared(subtopologies, frames=frames, has_own_results=True), steps)


def _stateless(frame: Plan, *, headers: bool, by_spark: bool) -> Program:
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
    return Program(Declared(transform=on_batch(frame)), steps)


def records_of(*, headers: bool) -> StructType:
    """Return the columns of records."""
    return as_struct(SCHEMA + (HEADERS if headers else ""))


def _before(
    kept: Sequence[Kept], spark: Any, records: StructType, first: DeclaredSubtopology, *, by_spark: bool
) -> tuple[Framed | None, StructType, list[str]]:
    """Declare what makes the first operator's rows. Return what Spark does, if it does, their columns, and the text."""
    why = ""
    if not by_spark:
        try:
            step = _computed_rows(kept, records)
        except LeftToSparkError as error:
            why = f", for {error}"
        else:
            first.before.append(step)
            return None, step.results, ["Roster: the program up to the state, in the tasks that read"]
    make = _in_turn(applying(rows_over(kept, spark._jvm), spark), *(operator.rows.with_text for operator in kept))
    rows = make(_template(spark, records))
    _check_stays(rows)
    first.before.append(BySpark(rows.schema))
    return make, rows.schema, [f"Spark: the program up to the state, in the tasks that read{why}"]


def _computed_rows(kept: Sequence[Kept], records: StructType) -> Computes:
    """Return the step that makes the rows of the only operator. Raises LeftToSparkError."""
    (operator, *others) = kept
    if others:
        raise LeftToSparkError("several operators with state")
    if operator.rows.text:
        raise LeftToSparkError(f"the key {next(iter(operator.rows.text))}, which is a fraction")
    return rows_of(operator.below, operator.rows.columns, records)


def _check_stays(rows: DataFrame) -> None:
    """Raise PipelineError if Spark would take rows out of the tasks that read them."""
    if moved := moves_rows(rows):
        raise PipelineError(
            f"in front of the state Spark would take rows out of their tasks ({', '.join(moved)})",
            field=FIELD,
            fix="Leave out unions, and joins but those with a table by equal columns",
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
