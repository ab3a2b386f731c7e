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
    the order of rows until each row is taken or was alone when it failed; the more rows fail, the fewer at a time.
    """
    bad: dict[int, Exception] = {}
    at, size = 0, count
    while at < count:
        size = min(size, count - at)
        error = attempt(at, at + size)
        if error is None:
            at, size = at + size, 2 * size
        elif size == 1:
            bad[at] = error
            at += 1
        else:
            size //= 2
    return bad
