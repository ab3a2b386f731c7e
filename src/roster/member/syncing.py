"""The second half of an attempt to join: SyncGroup, and taking up the assignment that it brings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roster.member import matrix, requests
from roster.member.ending import fail
from roster.member.events import Channel, Failure, FailureKind
from roster.member.failures import fatal_answer
from roster.member.lookups import check_topics, schedule_refresh
from roster.member.matrix import Action, error_code
from roster.member.membership import JOIN
from roster.member.setbacks import attempt_refused
from roster.member.subscription import LeaderFailure, decode_assignment
from roster.member.transitions import Trigger
from roster.wire import ErrorCode, WireError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roster.member.membership import Membership
    from roster.member.outbox import Sent
    from roster.model import TopicPartition
    from roster.wire.messages import SyncGroupResponse


def sync(me: Membership, assignments: Mapping[str, bytes]) -> None:
    """Ask for this member's assignment; the leader brings everyone's."""
    me.group = {}
    request = requests.sync_group(me.config, me.identity, me.protocol, assignments)
    me.send("sync", request, me.coordinator, timeout_ms=me.config.join_timeout_ms, channel=Channel.PARKED)


def synced(me: Membership, response: SyncGroupResponse, sent: Sent) -> None:
    """The assignment is there, or the attempt has failed."""
    code = error_code(response.error_code)
    action = matrix.SYNC_GROUP.get(code, Action.FATAL)
    if action is not Action.ACCEPT:
        attempt_refused(me, "SyncGroup", code, action, sent)
        return
    if response.protocol_type not in (None, requests.PROTOCOL_TYPE) or response.protocol_name not in (
        None,
        me.protocol,
    ):
        fail(me, fatal_answer("SyncGroup", ErrorCode.INCONSISTENT_GROUP_PROTOCOL, me.config))
        return
    try:
        assigned = decode_assignment(response.assignment)
    except LeaderFailure as failure:
        fail(me, Failure(FailureKind.ASSIGNMENT, f"the group's leader could not assign partitions: {failure}"))
        return
    except WireError as error:
        text = f"the group's leader sent an assignment that cannot be read: {error}"
        fail(me, Failure(FailureKind.ASSIGNMENT, text))
        return
    me.move(Trigger.SYNC_ACCEPTED)
    me.tries[JOIN] = 0
    take_up(me, assigned)


def take_up(me: Membership, assigned: frozenset[TopicPartition]) -> None:
    """Own what is new at once, and begin to give up what is not assigned any more."""
    topics = frozenset(p.topic for p in assigned)
    if not me.watch.accepts(topics):
        me.request_rejoin("received assignment does not match the current subscription")
        return
    if me.watch.topics is not None and topics - me.watch.topics:
        me.watch.topics |= topics
        me.joined_topics |= topics
    me.last_assignment = (me.generation, assigned)
    revoked = me.holdings.owned - assigned
    me.settling = bool(revoked)
    added = me.holdings.assign(assigned | revoked)
    me.report("assigned", f"{len(assigned)} partitions, {len(added)} of them new", assigned)
    if revoked:
        me.revoke(revoked)
        me.request_rejoin("need to revoke partitions and re-join")
    check_topics(me)
    schedule_refresh(me)
