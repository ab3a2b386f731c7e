"""Roster's own errors in the tracebacks of tasks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from roster.pipeline.errors import FunctionError, MissingSchemasError, PipelineError, SinkFencedError
from roster.pipeline.tasks.reader import ReadError
from roster.records.produce import WriteError
from roster.state.store import StateError, StoreFullError

_MAKERS: Mapping[type[Exception], Callable[[str], PipelineError | ReadError | WriteError]] = {
    FunctionError: FunctionError.of,
    MissingSchemasError: FunctionError.of,
    SinkFencedError: SinkFencedError,
    ReadError: ReadError,
    WriteError: WriteError,
}
"""What makes an error of the text behind its class's name."""
_STORE_ERRORS = f"{StateError.__module__}."


def full_name(kind: type[Exception]) -> str:
    """Return the name by which a traceback calls an error."""
    return f"{kind.__module__}.{kind.__qualname__}"


_BY_NAME = {full_name(kind): make for kind, make in _MAKERS.items()}
_ANY = re.compile(rf"\b({'|'.join(map(re.escape, _BY_NAME))}|{re.escape(_STORE_ERRORS)}\w+): (.*)")


def task_error(error: Exception) -> PipelineError | ReadError | StateError | WriteError | None:
    """Find the task's own error in Spark's, which wraps it in a hundred lines."""
    match = _ANY.search(str(error))
    if match is None:
        return None
    name, text = match[1], match[2].strip()
    if name == full_name(StoreFullError):
        return PipelineError(text, field="State.dir", fix="Free some, or name another disk")
    return StateError(text) if name.startswith(_STORE_ERRORS) else _BY_NAME[name](text)
