"""Writes of a coordinator that are not yet durable, each with its continuation."""

from collections.abc import Callable, Iterable
from typing import TypeAlias

from roster.coordinator_common.events import LogRecord, Write
from roster.wire import ErrorCode

Continuation: TypeAlias = Callable[[ErrorCode], None]
"""Called when a write is complete, with the error for clients."""

CLIENT_ERRORS: dict[ErrorCode, ErrorCode] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""{error of an append to the log: error for clients of the coordinator}; other errors stay as they are."""


class PendingWrites:
    """Numbers the writes of a coordinator and keeps their continuations."""

    def __init__(self) -> None:
        self.started: list[Write] = []
        """Writes that the current step started."""
        self._pending: dict[int, tuple[int, list[Continuation]]] = {}
        self._last = 0

    def start(
        self, partition: int, records: Iterable[LogRecord], then: Continuation, producer: tuple[int, int] | None = None
    ) -> None:
        """Append records to the log, as part of a producer's (id, epoch) transaction if there is one.

        `then` runs in the step that reports the result.
        """
        self._last += 1
        self._pending[self._last] = (partition, [then])
        self.started.append(Write(self._last, partition, tuple(records), producer))

    def after_last(self, then: Continuation) -> None:
        """Run `then` also when the last write of the current step is complete; requires that there is one."""
        self._pending[self._last][1].append(then)

    def complete(self, write_id: int, error: ErrorCode) -> None:
        """Run the continuations of a write; an id from before an unload is ignored."""
        _, continuations = self._pending.pop(write_id, (0, []))
        for resume in continuations:
            resume(CLIENT_ERRORS.get(error, error))

    def fail(self, partition: int) -> None:
        """Fail the pending writes of an unloaded partition; its next coordinator learns which are durable."""
        for write_id in [number for number, (owner, _) in self._pending.items() if owner == partition]:
            self.complete(write_id, ErrorCode.NOT_COORDINATOR)

    def take_started(self) -> list[Write]:
        """Return the writes started since the last call."""
        started = self.started
        if started:
            self.started = []
        return started
