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
from roster.spark.dataframes.operators import MAKERS, Makers, chain_of, rows_over
from roster.spark.dataframes.plan import applying, moves_rows, plan_over
from roster.spark.dataframes.user_code import USER_CODE
from roster.spark.declarations import Declared, DeclaredOperator, DeclaredSubtopology
from roster.spark.framed_batches import Framed, Frames
from roster.spark.stateful_operators import Repartition, check_extra
from roster.spark.steps import BySpark, Filtered, Step

WITH_STATE: Makers = {**MAKERS, **USER_CODE}
"""What makes operators of the nodes that keep state, by the kind of node."""


@dataclass(frozen=True)
class Program:
    """What a frame with state becomes. steps: what runs where, a line each."""

    declared: Declared
    steps: Sequence[str]


def program_of(df: DataFrame, mode: str, *, headers: bool, keyed_by: Sequence[str]) -> Program | None:
    """Return the program of a frame, None if it keeps no state. Raises PipelineError for nodes without a counterpart.

    keyed_by: the columns that the records' key is made of, () if it is not known.
    """
    root, kept = chain_of(df, mode, WITH_STATE)
    if not kept:
        return None
    check_extra("write_stream")
    spark: Any = df.sparkSession
    jvm, last = spark._jvm, kept[-1]
    plan = rows_over(kept, jvm)
    make = _in_turn(applying(plan, spark), *(operator.rows.with_text for operator in kept))
    rows = make(_template(spark, as_struct(SCHEMA + (HEADERS if headers else ""))))
    _check_stays(rows)
    subtopologies = [DeclaredSubtopology(None, [BySpark(rows.schema)])]
    steps = ["Spark: the program up to the state, in the tasks that read"]
    columns = rows.schema
    for operator in kept:
        if operator is not kept[0] or not keyed_by or not set(keyed_by) <= set(operator.keys):
            subtopologies.append(DeclaredSubtopology(Repartition.by(operator.keys, operator.name, None)))
            steps.append(f"Roster: rows to the tasks of their keys, by the topic <group>-{operator.name}-repartition")
        columns = operator.results(columns)
        after: list[Step] = [Filtered(pc.field(name)) for name in operator.conditions]
        subtopologies[-1].operators.append(DeclaredOperator(operator.stateful(), after))
        steps.append(f"Roster: {operator.text}; state {operator.name}")
    at_stop, typed = last.behind(columns, spark)
    behind = _in_turn(typed, applying(plan_over(root, jvm, last.node, at_stop), spark))
    steps.append("Spark: the rest, with the results of each batch")
    return Program(Declared(subtopologies, frames=Frames(make, behind, columns)), steps)


def _check_stays(rows: DataFrame) -> None:
    """Raise PipelineError if Spark would take rows out of the tasks that read them."""
    if moved := moves_rows(rows):
        raise PipelineError(
            f"in front of the state Spark would take rows out of their tasks ({', '.join(moved)})",
            field="write_stream",
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
