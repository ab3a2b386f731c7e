"""LeaveGroup: close or fail a member, and handle the events that arrive afterwards."""

from roster.member import requests
from roster.member.context import MemberContext
from roster.member.events import Closed, CommitDone, CommitRequested, Event, RequestFailed, Responded, Stopped
from roster.member.states import Trigger
from roster.member.timers import COMMIT, DESCRIBE, DISCOVER, HEARTBEAT, JOIN, METADATA, REVOKE, SECOND_ROUND
from roster.member.types import Failure, FailureKind, ReportKind
from roster.model import NO_GENERATION
from roster.wire import ApiKey
from roster.wire.messages import LeaveGroupResponse

CLOSED = Failure(FailureKind.CLOSED, "the member was closed")


def fail(me: MemberContext, failure: Failure) -> None:
    """Fail the member: every partition is lost, and a dynamic member sends LeaveGroup so that the group rebalances."""
    me.transition(Trigger.FATAL)
    me.failure = failure
    me.report(ReportKind.FAILED, failure.message)
    fenced = failure.kind is FailureKind.FENCED_INSTANCE
    stop(me, failure, None if fenced else f"the member failed: {failure.kind.value}")


def close(me: MemberContext, event: Closed) -> None:
    """Leave the group; commits that are still queued fail."""
    me.transition(Trigger.CLOSE)
    me.report(ReportKind.LEFT, event.reason)
    stop(me, CLOSED, event.reason if event.leave else None)
    if not me.out.in_flight(ApiKey.LEAVE_GROUP):
        me.out.emit(Stopped())


def stop(me: MemberContext, failure: Failure, leave_reason: str | None) -> None:
    """Fail queued commits, cancel timers, drop partitions, and send LeaveGroup if there is a `leave_reason`."""
    me.commits.fail_all(failure)
    me.out.cancel(HEARTBEAT, REVOKE, SECOND_ROUND, JOIN, DISCOVER, METADATA, DESCRIBE, COMMIT)
    me.out.clear()
    me.rejoin_reason = None
    me.assigning = None
    me.assignments = None
    me.ownership.lose(me.ownership.owned_or_revoking)
    dynamic = me.config.group_instance_id is None
    if leave_reason is not None and dynamic and me.member_id and me.coordinator is not None:
        me.send(requests.leave_group(me.config, me.member_id, leave_reason), me.coordinator)
    me.generation = NO_GENERATION
    me.member_id = ""


def after_failing(me: MemberContext, event: Event) -> None:
    """Handle an event of a failed member; it can only be closed."""
    match event:
        case Responded(number) | RequestFailed(number):
            me.out.take(number)
        case CommitRequested(token):
            me.out.emit(CommitDone(token, me.failure))
        case Closed():
            me.transition(Trigger.CLOSE)
            if not me.out.in_flight(ApiKey.LEAVE_GROUP):
                me.out.emit(Stopped())


def after_leaving(me: MemberContext, event: Event) -> None:
    """Handle an event of a closed member; it only waits for the LeaveGroup response."""
    match event:
        case Responded(number, LeaveGroupResponse()) | RequestFailed(number):
            if me.out.take(number) is not None:
                me.out.emit(Stopped())
        case CommitRequested(token):
            me.out.emit(CommitDone(token, me.failure or CLOSED))
