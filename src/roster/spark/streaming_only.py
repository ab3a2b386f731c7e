"""What a function written for a streaming query would quietly do wrong on batches: refused, or named in a warning.

A watermark leaves no trace in a batch's plan (Spark takes it out), so the call itself is noted; the rest is read off
the analyzed plan, between the records and the result.
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from roster.spark.errors import PipelineError

WAY_OUT = (
    "Keep what spans batches in a table of your own with foreach_batch and Batch.after, "
    "or write partial rows and combine them when reading"
)
_SOURCE = ("MapInArrow", "PythonMapInArrow")
_DEDUPLICATES = ("Deduplicate", "Distinct")
_TIME_WINDOW = re.compile(r"\b(?:session_)?window#\d+")
_NOT_ADDITIVE = re.compile(
    r"\b(avg|mean|median|mode|stddev\w*|std|variance|var_pop|var_samp|corr|covar_\w+|skewness|kurtosis|percentile\w*|"
    r"approx_\w+|first|last|any_value|max_by|min_by|count)\((distinct )?"
)

_calls = threading.local()


def checked(transform: Callable[[DataFrame], DataFrame], df: DataFrame) -> tuple[DataFrame, list[str]]:
    """`transform(df)`, and warnings about what in it only sees one batch.

    Raises PipelineError for what needs a stream. Costs some calls into the JVM: meant for a run's first batch.
    """
    with _noting_watermarks() as watermarks:
        result = transform(df)
    if watermarks:
        raise PipelineError(
            f"withWatermark({', '.join(map(repr, watermarks))}) needs state that outlasts a batch; "
            "here a batch knows nothing of the others",
            field="transform",
            fix=f"Leave it out. {WAY_OUT}",
        )
    return result, notes(result) if isinstance(result, ClassicDataFrame) else []


def notes(df: DataFrame) -> list[str]:
    """What in a frame's plan gives one batch's result only."""
    found: list[str] = []
    _above_source(df._jdf.queryExecution().analyzed(), found)
    return list(dict.fromkeys(found))


def _above_source(plan: Any, found: list[str]) -> bool:
    """Whether the records come from below this node; if so, note what it does to them."""
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


@contextlib.contextmanager
def _noting_watermarks() -> Iterator[list[str]]:
    """Collects the columns that this thread gives to `withWatermark` meanwhile."""
    _install()
    _calls.watermarks = []
    try:
        yield _calls.watermarks
    finally:
        del _calls.watermarks


@functools.cache
def _install() -> None:
    original = ClassicDataFrame.withWatermark

    @functools.wraps(original)
    def noting(self: Any, eventTime: str, delayThreshold: str) -> Any:  # noqa: N803 - PySpark's names
        noted = getattr(_calls, "watermarks", None)
        if noted is not None:
            noted.append(eventTime)
        return original(self, eventTime, delayThreshold)

    ClassicDataFrame.withWatermark = noting  # type: ignore[method-assign]
