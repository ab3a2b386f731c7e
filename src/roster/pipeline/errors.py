"""Exceptions of a pipeline."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from roster._errors import RosterError


class PipelineError(RosterError):
    """A pipeline cannot start or continue; the text names the option or part at fault and the fix."""

    def __init__(self, problem: str, *, field: str | None = None, fix: str | None = None) -> None:
        """`field` is the option's name as the caller wrote it; `fix` is one imperative sentence."""
        self.problem, self.field, self.fix = problem, field, fix
        text = f"{field}: {problem}" if field else problem
        super().__init__(f"{text.removesuffix('.')}. {fix}" if fix else text)


class FunctionError(PipelineError):
    """A user's function or processor raised, or did not return the declared columns; nothing is committed.

    The text names the records, or the key and the batch, of the call. `details` is the traceback if known; the logger
    `roster.spark.jobs.runner` writes it at debug level.
    """

    def __init__(
        self, problem: str, *, field: str = "map_arrow", passing: bool = False, unfit: bool = False, details: str = ""
    ) -> None:
        """`passing` is True for errors that a retry may cure (OSError, MemoryError), `unfit` for wrong columns."""
        super().__init__(problem, field=field)
        self.passing, self.unfit, self.details = passing, unfit, details

    @classmethod
    def of(cls, text: str, details: str = "") -> FunctionError:
        """Rebuild the error from its text, as returned by `str`."""
        field, _, problem = text.partition(": ")
        if field == _MISSING:
            source, *keys = problem.split()
            return MissingSchemasError(source, [key if "-" in key[1:] else int(key) for key in keys])
        return cls(problem, field=field, details=details)


class MissingSchemasError(FunctionError):
    """Records were written by schemas that the tasks do not know yet; the driver fetches them and does the batch again.

    source: where the driver asks. keys: ids or GUIDs of the schemas.
    """

    def __init__(self, source: str, keys: Sequence[int | str]) -> None:
        super().__init__(f"{source} {' '.join(map(str, keys))}", field=_MISSING)
        self.source, self.keys = source, list(keys)


_MISSING = "unknown schemas"


class SinkFencedError(PipelineError):
    """Another writer has moved a partition's position; this writer's results were dropped, nothing was written."""


class RefusedRowsError(PipelineError):
    """A sink refuses rows of a batch, which is then done again without their records.

    rows: why, by the number of the task and that of the row among the task's. first: why the first one is.
    """

    def __init__(self, rows: Mapping[int, Mapping[int, str]], field: str) -> None:
        self.first = next(text for reasons in rows.values() for text in reasons.values())
        super().__init__(f"{sum(map(len, rows.values()))} rows are refused, the first one: {self.first}", field=field)
        self.rows = rows


_TELLING = (
    re.compile(r"\[[A-Z][A-Z_.]+\] [^\n]*"),  # a Spark error class and its sentence
    re.compile(r'Cannot run program "[^\n]*'),
    re.compile(r"^\s*(?:\w+\.)*\w*(?:Error|Exception): [^\n]*", re.MULTILINE),
)


def reason_of(error: BaseException) -> str:
    """Return the line of a Spark error that names its cause."""
    text = str(error)
    for pattern in _TELLING:
        lines = [line.strip() for line in pattern.findall(text)]
        telling = [line for line in lines if not line.startswith(("org.apache.spark.SparkException: Job", "An error"))]
        if telling:
            return str(telling[-1])
    return text.strip().split("\n")[0] or type(error).__name__


def java_problem(error: BaseException) -> str:
    """Format a Java exception as one line: its innermost cause, or py4j's text."""
    cause: Any = getattr(error, "java_exception", None)
    if cause is None:
        return " ".join(str(error).split())
    while cause.getCause() is not None:
        cause = cause.getCause()
    name, text = cause.getClass().getSimpleName(), cause.getMessage()
    return f"{name}: {text.strip().splitlines()[0].rstrip('.')}" if text and text.strip() else name
