"""Rows at which an operator fails: which errors may be a row's, and how such rows are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa

from roster._errors import RosterError
from roster.state.store import StateError


class Failure(NamedTuple):
    """A failure that no row is to blame for: of a timer, or of a step at a result. `row`: one row that names it."""

    row: pa.Table
    error: Exception
    what: str


def is_of_a_row(error: BaseException) -> bool:
    """Return True for an error that a row may cause, False for one of the machine, a store or a setting."""
    while isinstance(error, RosterError) and error.__cause__ is not None:
        error = error.__cause__
    return type(error) is StateError or not isinstance(error, (RosterError, OSError, MemoryError))


def bad_rows(count: int, attempt: Callable[[int, int], Exception | None]) -> dict[int, Exception]:
    """Return the errors of single rows, by their number.

    attempt: takes the rows from a number up to before another one, or drops them all and returns why. It is called in
    the order of rows until each row is taken or was alone when it failed; fewer rows at a time as more of them fail.
    """
    bad: dict[int, Exception] = {}
    start, size = 0, count
    while start < count:
        begin, end = start, min(start + size, count)
        error = attempt(begin, end)
        if error is None:
            start, size = end, 2 * size
            continue
        is_alone = end - start == 1
        while end - start > 1:  # the first row that fails is in between
            middle = (start + end) // 2
            failure = attempt(start, middle)
            if failure is None:
                start = middle
            else:
                end, error, is_alone = middle, failure, middle - start == 1
        if not is_alone:
            error = attempt(start, start + 1)
        if error is not None:
            bad[start] = error
        start, size = start + 1, max(start - begin, 1)  # guess that the next one is as far away
    return bad
