"""The connection of a command to a cluster: `roster.client.Admin` with its errors as exit codes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from roster.cli.errors import Failure, UserError, one_line
from roster.client import Admin, ClientError, UnreachableError, errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from roster.cli.options import Target

REQUEST_TIMEOUT_MS = 10_000
_CALLERS_MISTAKES = (
    errors.GroupNotEmptyError,
    errors.GroupTypeError,
    errors.InvalidRequestError,
    errors.InvalidTopicError,
    errors.OptionError,
    errors.TopicExistsError,
    errors.UnknownGroupError,
    errors.UnknownTopicError,
)


@contextlib.contextmanager
def admin(target: Target) -> Iterator[Admin]:
    """Open an Admin for the length of a command.

    Raises UserError if the command is impossible (no such topic or group, it exists already, it has members), and
    Failure if the cluster did not answer or refused.
    """
    try:
        with Admin(
            target.bootstrap,
            client_id=target.client_id,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            security=target.security,
        ) as connection:
            yield connection
    except _CALLERS_MISTAKES as error:
        raise UserError(one_line(error)) from error
    except UnreachableError as error:
        raise Failure(f"--bootstrap: {one_line(error)} (`roster broker` starts one)") from error
    except ClientError as error:
        raise Failure(one_line(error)) from error
