"""Finds what needs a stream in a function that sees batches: groupBy and dropDuplicates above the records of one."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

WAY_OUT = (
    "The same code by read_stream and write_stream keeps state over batches, as do the pipeline's own aggregate, "
    "deduplicate, join and transform_with_state"
)
_METHODS = {"Aggregate": "groupBy", "Deduplicate": "dropDuplicates", "Distinct": "distinct"}


def notes(df: DataFrame, records: DataFrame) -> list[str]:
    """Return a sentence for each operator whose results cover one batch only; for a frame of Spark Connect none.

    records: the frame of a batch's records, from which `df` is made. Costs some calls into the JVM: meant for a run's
    first batch.
    """
    methods: list[str] = []
    if isinstance(df, ClassicDataFrame) and isinstance(records, ClassicDataFrame):
        source, plan = (frame._jdf.queryExecution().analyzed() for frame in (records, df))
        _is_of_records(plan, source, methods)
    return [f"{method} takes the rows of one batch only" for method in dict.fromkeys(methods)]


def _is_of_records(plan: Any, source: Any, methods: list[str]) -> bool:
    """Return True if the source is this node or below it; add the methods that made operators above it."""
    if plan.sameResult(source):
        return True
    children, kind = plan.children(), plan.nodeName()
    below = [_is_of_records(children.apply(number), source, methods) for number in range(children.size())]
    if any(below) and kind in _METHODS:
        methods.append(_METHODS[kind])
    return any(below)
