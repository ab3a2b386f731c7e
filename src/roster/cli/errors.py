"""What the shell is told when something goes wrong: one line on stderr and an exit code.

0 done, 1 it failed, 2 the caller's mistake (the line names the field and the fix), 130 interrupted.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

FAILED = 1
USAGE = 2
INTERRUPTED = 130


class UserError(click.ClickException):
    """The caller's mistake; the message names the field and how to fix it."""

    exit_code = USAGE


class Failure(click.ClickException):
    """The command was right, the world was not: an unreachable broker, a record refused."""

    exit_code = FAILED


def one_line(error: BaseException) -> str:
    """The error's own words on one line, or its class when it has none."""
    text = error.format_message() if isinstance(error, click.ClickException) else str(error)
    return " ".join(text.split()) or type(error).__name__


@contextlib.contextmanager
def reported_as_failure(*kinds: type[BaseException], while_doing: str) -> Iterator[None]:
    """Turn the named exceptions into a Failure that says what was being done."""
    try:
        yield
    except kinds as error:
        raise Failure(f"{while_doing}: {one_line(error)}") from error
