"""Events, effects and pending writes that the group coordinator and the transaction coordinator share."""

from roster.coordinator_common.events import (
    CommonEvent,
    IllegalTransitionError,
    LogRecord,
    PartitionLoaded,
    PartitionLoading,
    PartitionUnloaded,
    Reply,
    RequestReceived,
    TimerExpired,
    Write,
    WriteCompleted,
)
from roster.coordinator_common.pending_writes import Continuation, PendingWrites

__all__ = [
    "CommonEvent",
    "Continuation",
    "IllegalTransitionError",
    "LogRecord",
    "PartitionLoaded",
    "PartitionLoading",
    "PartitionUnloaded",
    "PendingWrites",
    "Reply",
    "RequestReceived",
    "TimerExpired",
    "Write",
    "WriteCompleted",
]
