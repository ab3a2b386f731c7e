"""What the shell is told when something goes wrong: one line on stderr and an exit code.

0 done, 1 it failed, 2 the caller's mistake (the line names the field and the fix), 130 interrupted.
"""

from __future__ import annotations

import click

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
