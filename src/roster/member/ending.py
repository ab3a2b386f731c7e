"""How a member ends, by a failure or because it is told to, and what it still answers afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roster.member import requests
from roster.member.commits import PAUSE as COMMIT
from roster.member.events import (
    Closed,
    CommitDone,
    CommitRequested,
    Failure,
    FailureKind,
    RequestFailed,
    Responded,
    Stopped,
)
from roster.member.membership import DISCOVER, HEARTBEAT, JOIN, METADATA, REVOKE
from roster.member.transitions import Trigger
from roster.model import NO_GENERATION
from roster.wire.messages import LeaveGroupResponse

if TYPE_CHECKING:
    from roster.member.events import Event
    from roster.member.membership import Membership

CLOSED = Failure(FailureKind.CLOSED, "the member was closed")


def fail(me: Membership, failure: Failure) -> None:
    """Give up for good: everything held is lost, and a dynamic member leaves so that the group can go on."""
    me.move(Trigger.FATAL)
    me.failure = failure
    me.report("failed", failure.message)
    fenced = failure.kind is FailureKind.FENCED_INSTANCE
    end(me, failure, None if fenced else f"the member failed: {failure.kind.value}")


def close(me: Membership, event: Closed) -> None:
    """The application is done with the group; what it did not commit is given up."""
    me.move(Trigger.CLOSE)
    me.report("left", event.reason)
    end(me, CLOSED, event.reason if event.leave else None)
    if not me.out.in_flight("leave"):
        me.out.emit(Stopped())


def end(me: Membership, failure: Failure, leave_reason: str | None) -> None:
    """Stop everything under way, let go of everything held, and say goodbye if there is a reason to."""
    me.commits.fail_all(failure)
    me.out.cancel(HEARTBEAT, REVOKE, JOIN, DISCOVER, METADATA, COMMIT)
    me.out.clear()
    me.rejoin = None
    me.assigning = None
    me.holdings.lose(me.holdings.held)
    dynamic = me.config.group_instance_id is None
    if leave_reason is not None and dynamic and me.member_id and me.coordinator is not None:
        me.send("leave", requests.leave_group(me.config, me.member_id, leave_reason), me.coordinator)
    me.generation = NO_GENERATION
    me.member_id = ""


def after_failing(me: Membership, event: Event) -> None:
    """Take in an event when the member has failed: it can only be closed."""
    match event:
        case Responded(number) | RequestFailed(number):
            me.out.take(number)
        case CommitRequested(token):
            me.out.emit(CommitDone(token, me.failure))
        case Closed():
            me.move(Trigger.CLOSE)
            if not me.out.in_flight("leave"):
                me.out.emit(Stopped())


def after_leaving(me: Membership, event: Event) -> None:
    """Take in an event when the member was closed: the answer to its goodbye is all that it waits for."""
    match event:
        case Responded(number, LeaveGroupResponse()) | RequestFailed(number):
            if me.out.take(number) is not None:
                me.out.emit(Stopped())
        case CommitRequested(token):
            me.out.emit(CommitDone(token, me.failure or CLOSED))
