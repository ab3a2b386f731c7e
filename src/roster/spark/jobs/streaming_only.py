"""Finds operators that need a stream in a function that sees batches: errors for some, warnings for others.

Spark removes a watermark from a batch's plan, so the call itself is recorded; the others are found in the analyzed
plan, above the records.
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

from roster.pipeline.errors import PipelineError

WAY_OUT = (
    "The pipeline's own aggregate (with a Window for time), deduplicate, join and transform_with_state keep state over "
    "batches, in place of transform"
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
    """Return `transform(df)`, and warnings about operators that see one batch only.

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
    """Return the operators in a frame's plan whose result covers one batch only."""
    operators: list[str] = []
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


@contextlib.contextmanager
def _noting_watermarks() -> Iterator[list[str]]:
    """Replace `withWatermark` to collect the columns that this thread passes to it."""
    _replacement.enter()
    _calls.watermarks = []
    try:
        yield _calls.watermarks
    finally:
        del _calls.watermarks
        _replacement.leave()


class _Replacement:
    """Stands in for `withWatermark` while a thread checks a transform, and records the calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._original = self.noting = ClassicDataFrame.withWatermark

    def enter(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._original = ClassicDataFrame.withWatermark
                self.noting = _noting(self._original)
                ClassicDataFrame.withWatermark = self.noting  # type: ignore[method-assign]

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            # Another library has wrapped ours since: leave it in place.
            if not self._users and ClassicDataFrame.withWatermark is self.noting:
                ClassicDataFrame.withWatermark = self._original  # type: ignore[method-assign]


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def noting(self: Any, eventTime: str, delayThreshold: str) -> Any:  # noqa: N803 - PySpark's names
        columns = getattr(_calls, "watermarks", None)
        # Another library may have put back the replacement of an earlier check; the newest one notes the call.
        if columns is not None and _replacement.noting is noting:
            columns.append(eventTime)
        return original(self, eventTime, delayThreshold)

    return noting


_replacement = _Replacement()
