"""Errors of commands: one line on standard error and an exit code.

0 done, 1 it failed, 2 the caller's mistake (the line names the field and the fix), 130 interrupted.
"""

from __future__ import annotations

import click

from roster._errors import one_line as plain_line

FAILED = 1
USAGE = 2
INTERRUPTED = 130


class UserError(click.ClickException):
    """A mistake in the command line or the input; the message names the field and the fix."""

    exit_code = USAGE


class Failure(click.ClickException):
    """A failure that is not in the command line: an unreachable broker, a record refused."""

    exit_code = FAILED


def one_line(error: BaseException) -> str:
    """Return the error's message on one line, or the name of its class if it has none."""
    return " ".join(error.format_message().split()) if isinstance(error, click.ClickException) else plain_line(error)
