"""Leader epochs in requests for a partition."""

from __future__ import annotations

from roster.broker.log.batch_check import LEADER_EPOCH
from roster.wire import ErrorCode


def leader_epoch_error(current_leader_epoch: int) -> ErrorCode:
    """Check the leader epoch in a request (KIP-320); -1 means unknown to the client."""
    if current_leader_epoch > LEADER_EPOCH:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    if 0 <= current_leader_epoch < LEADER_EPOCH:
        return ErrorCode.FENCED_LEADER_EPOCH
    return ErrorCode.NONE
