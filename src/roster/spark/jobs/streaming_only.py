"""Finds operators that need a stream in a function that sees batches, in the analyzed plan, above the records.

A watermark is none: Spark takes it out of a batch's plan, and what goes by it is found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

WAY_OUT = (
    "The same code by read_stream and write_stream keeps state over batches, as do the pipeline's own aggregate, "
    "deduplicate, join and transform_with_state"
)
_SOURCE = ("MapInArrow", "PythonMapInArrow")
_DEDUPLICATES = ("Deduplicate", "Distinct")
_TIME_WINDOW = re.compile(r"\b(?:session_)?window#\d+")
_NOT_ADDITIVE = re.compile(
    r"\b(avg|mean|median|mode|stddev\w*|std|variance|var_pop|var_samp|corr|covar_\w+|skewness|kurtosis|percentile\w*|"
    r"approx_\w+|first|last|any_value|max_by|min_by|count)\((distinct )?"
)


def notes(df: DataFrame) -> list[str]:
    """Return the operators in a frame's plan whose result covers one batch only; of a frame of Spark Connect none.

    Costs some calls into the JVM: meant for a run's first batch.
    """
    operators: list[str] = []
    if not isinstance(df, ClassicDataFrame):
        return operators
    _above_source(df._jdf.queryExecution().analyzed(), operators)
    return list(dict.fromkeys(operators))


def _above_source(plan: Any, found: list[str]) -> bool:
    """Return True if the records come from below this node; if so, add its operator to `found`."""
    children = plan.children()
    name = plan.nodeName()
    if name in _SOURCE:
        return True
    inside = [_above_source(children.apply(number), found) for number in range(children.size())]
    if any(inside):
        if name in _DEDUPLICATES:
            found.append("dropDuplicates and distinct compare the rows of one batch only")
        elif name == "Aggregate":
            found += _aggregate_notes(plan)
    return any(inside)


def _aggregate_notes(plan: Any) -> Iterator[str]:
    if _TIME_WINDOW.search(plan.groupingExpressions().toString()):
        yield "a time window gets one row from each batch with records in it"
    for function, distinct in _NOT_ADDITIVE.findall(plan.aggregateExpressions().toString()):
        if function != "count" or distinct:
            yield f"{function}({distinct.strip()}) is of one batch, and the values of several cannot be added up"
