"""Errors of commands: one line on standard error and an exit code.

0 done, 1 it failed, 2 the caller's mistake (the line names the field and the fix), 130 interrupted.
"""

import contextlib
from collections.abc import Iterator

import click

from roster._errors import one_line as plain_line
from roster._extras import EXTRAS, missing_error

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


@contextlib.contextmanager
def explained_imports(command: str) -> Iterator[None]:
    """Turn an import that fails for want of an extra, or on this platform, into a Failure."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = error.name or ""
        extras = [extra for extra, modules in EXTRAS.items() if module in modules]
        if not extras:
            raise
        command = "exporter" if command == "console" else command  # it needs the same
        extra = command if command in extras else extras[0]
        raise Failure(str(missing_error(f"roster {command}", extra, [module]))) from error
    except ImportError as error:
        raise Failure(one_line(error)) from error
