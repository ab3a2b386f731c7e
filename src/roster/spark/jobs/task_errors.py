"""Roster's own errors in the tracebacks of tasks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from roster.records.produce import WriteError
from roster.spark.errors import FunctionError, PipelineError, SinkFencedError
from roster.spark.tasks.reader import ReadError
from roster.state.store import StateError


def task_error(error: Exception) -> PipelineError | ReadError | StateError | WriteError | None:
    """Find the task's own error in Spark's, which wraps it in a hundred lines."""
    own = "FunctionError|MissingSchemasError|SinkFencedError"
    kinds = rf"spark\.errors\.(?:{own})|spark\.tasks\.reader\.ReadError|state\.store\.\w+"
    found = re.search(rf"roster\.({kinds}|records\.produce\.WriteError): (.*)", str(error))
    if found is None:
        return None
    kind, text = found[1], found[2].strip()
    if kind.endswith(".StoreFullError"):
        return PipelineError(text, field="State.dir", fix="Free some, or name another disk")
    if kind.startswith("state."):
        return StateError(text)
    return _TASK_ERRORS[kind.rpartition(".")[2]](text)


_TASK_ERRORS: Mapping[str, Callable[[str], PipelineError | ReadError | WriteError]] = {
    "FunctionError": FunctionError.of,
    "MissingSchemasError": FunctionError.of,
    "SinkFencedError": SinkFencedError,
    "ReadError": ReadError,
    "WriteError": WriteError,
}
