"""SyncGroup: the request, its response, and the new assignment."""

from collections.abc import Mapping

from roster.member import error_table, requests
from roster.member.causes import Cause
from roster.member.context import MemberContext
from roster.member.discovery import rejoin_if_topics_changed, schedule_refresh
from roster.member.error_table import Action
from roster.member.failures import fatal_error
from roster.member.leave import fail
from roster.member.outbox import InFlight
from roster.member.recovery import on_rebalance_error
from roster.member.states import Trigger
from roster.member.subscription import AssignorError, ReceivedAssignment, assignor_errors, decode_assignment
from roster.member.timers import JOIN, SECOND_ROUND
from roster.member.types import Channel, Failure, FailureKind, ReportKind
from roster.wire import ApiKey, ErrorCode, WireError
from roster.wire.consumer import PROTOCOL_TYPE
from roster.wire.consumer.messages import failure_reason
from roster.wire.errors import error_code
from roster.wire.messages import SyncGroupResponse


def begin_sync(me: MemberContext, assignments: Mapping[str, bytes]) -> None:
    """Begin to synchronize; `assignments` is empty for a follower."""
    me.group = {}
    me.assignments = assignments
    send_sync_group(me)


def send_sync_group(me: MemberContext) -> None:
    """Send SyncGroup while it is due, and once more after a lost coordinator is found."""
    if me.assignments is None or me.coordinator is None:
        return
    if me.out.in_flight(ApiKey.SYNC_GROUP) or me.out.backing_off(JOIN):
        return
    request = requests.sync_group(me.config, me.identity, me.protocol_name, me.assignments)
    me.send(request, me.coordinator, timeout_ms=me.config.join_timeout_ms, channel=Channel.PARKED)


def on_sync_group_response(me: MemberContext, response: SyncGroupResponse, request: InFlight) -> None:
    """Apply the assignment, or handle the error."""
    if (reason := failure_reason(response.assignment)) is not None:  # some brokers send it without an error code
        fail(me, Failure(FailureKind.ASSIGNMENT, f"the group's leader could not assign partitions: {reason}"))
        return
    code = error_code(response.error_code)
    action = error_table.SYNC_GROUP.get(code, Action.FATAL)
    if action is not Action.ACCEPT:
        on_rebalance_error(me, "SyncGroup", code, action, request)
        return
    if response.protocol_type not in (None, PROTOCOL_TYPE) or response.protocol_name not in (None, me.protocol_name):
        fail(me, fatal_error("SyncGroup", ErrorCode.INCONSISTENT_GROUP_PROTOCOL, me.config))
        return
    try:
        assigned = decode_assignment(response.assignment)
    except WireError as error:
        text = f"the group's leader sent an assignment that cannot be read: {error}"
        fail(me, Failure(FailureKind.ASSIGNMENT, text))
        return
    me.transition(Trigger.SYNC_ACCEPTED)
    me.assignments = None
    me.generation_in_doubt = False
    me.failures[JOIN] = 0
    me.cooperative_sync = None if me.is_eager else me.out.now
    me.schedule_heartbeat()
    if me.expects_second_round:
        me.out.set(SECOND_ROUND, me.out.now + me.config.rebalance_timeout_ms)
    on_join_complete(me, assigned)


def on_join_complete(me: MemberContext, assignment: ReceivedAssignment) -> None:
    """Own new partitions at once; begin to revoke those no longer assigned."""
    assigned = assignment.partitions
    topics = frozenset(p.topic for p in assigned)
    if not me.topics.accepts(topics):
        me.request_rejoin("received assignment does not match the current subscription")
        return
    if me.topics.subscribed is not None and topics - me.topics.subscribed:
        me.topics.subscribed |= topics
        me.joined_topics |= topics
    try:
        with assignor_errors(me.assignor, "on_assignment"):
            joins_again = me.assignor.on_assignment(assigned, assignment.user_data, me.generation)
    except AssignorError as error:
        fail(me, Failure(FailureKind.ASSIGNMENT, str(error)))
        return
    me.last_assignment = (me.generation, assigned)
    revoked = me.ownership.owned - assigned
    me.rejoins_after_revocation = bool(revoked)
    added = me.ownership.assign(assigned | revoked)
    me.report(ReportKind.ASSIGNED, f"{len(assigned)} partitions, {len(added)} of them new", assigned)
    if me.turned_eager is not None:
        me.request_rejoin(me.turned_eager, Cause.REVOKED)
        me.turned_eager = None
    if revoked:
        if me.missed_generation:  # another member may own them; a late commit would overwrite its offsets
            me.lose(revoked, "a generation was missed")
        else:
            me.revoke(revoked)
        me.request_rejoin("need to revoke partitions and re-join", Cause.REVOKED)
    me.missed_generation = False
    if joins_again is not None:
        me.request_rejoin(joins_again, Cause.OWN)
    rejoin_if_topics_changed(me)
    schedule_refresh(me)
