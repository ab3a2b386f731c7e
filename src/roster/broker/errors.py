"""Errors of the broker: for its operator, and for its clients."""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from roster._errors import RosterError
from roster.wire import ErrorCode

logger = logging.getLogger(__name__)


class BrokerStartError(RosterError):
    """The broker cannot start; the message is for its operator."""


class BrokerFailedError(RosterError):
    """A running broker cannot go on; the message is for its operator."""


class RefusedError(RosterError):
    """A request, or one item of it, is refused: the client gets `code` and the message."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class CloseConnection(Exception):  # an instruction, not a failure
    """Raised for a request that can only be answered by closing its connection; the text is the reason."""


def explain(error: RefusedError | OSError, what: str) -> tuple[ErrorCode, str]:
    """Return the error code and message for a client. `what` could not be changed, which goes to the log."""
    if isinstance(error, RefusedError):
        return error.code, str(error)
    logger.error("cannot change %s on disk: %s", what, error)
    return ErrorCode.KAFKA_STORAGE_ERROR, f"cannot write to disk: {error.strerror}"


@contextlib.contextmanager
def refusing(answer: Any, what: str = "a topic") -> Iterator[None]:
    """Give the answer to an item of a request the reason why the block could not be carried out."""
    try:
        yield
    except (RefusedError, OSError) as error:
        answer.error_code, answer.error_message = explain(error, what)
