"""The first half of an attempt to join: giving up what must be given up, then JoinGroup."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roster.assignors import RebalanceProtocol
from roster.member import assigning, matrix, requests
from roster.member.ending import fail
from roster.member.events import Channel
from roster.member.failures import fatal_answer
from roster.member.lookups import refresh_topics
from roster.member.matrix import Action, error_code
from roster.member.membership import HEARTBEAT, JOIN
from roster.member.setbacks import attempt_failed, attempt_refused
from roster.member.subscription import subscription_bytes
from roster.member.syncing import sync
from roster.member.transitions import Trigger
from roster.wire import ErrorCode

if TYPE_CHECKING:
    from roster.member.events import Node
    from roster.member.membership import Membership
    from roster.member.outbox import Sent
    from roster.model import TopicPartition
    from roster.wire.messages import JoinGroupResponse


def approach(me: Membership) -> None:
    """Give up what must be given up before joining, learn the topics, then join."""
    if me.holdings.revoking:
        return
    surplus = surplus_before_join(me)
    if surplus:
        me.revoke(surplus)
        return
    if me.watch.topics is None:
        refresh_topics(me)
        return
    if me.coordinator is not None and not me.out.paused(JOIN):
        join(me, me.coordinator)


def surplus_before_join(me: Membership) -> frozenset[TopicPartition]:
    """What must not be owned in a join: everything for eager assignors, else what is not subscribed to any more."""
    if me.config.mode is RebalanceProtocol.EAGER:
        return me.holdings.owned
    topics = me.watch.topics
    if topics is None:
        return frozenset()
    return frozenset(p for p in me.holdings.owned if p.topic not in topics)


def join(me: Membership, coordinator: Node) -> None:
    """Send JoinGroup; heartbeats rest until it is answered."""
    topics = me.watch.topics or frozenset()
    me.joined_topics = topics
    reason, me.rejoin = me.rejoin or "", None
    me.move(Trigger.JOIN_SENT)
    me.out.cancel(HEARTBEAT)
    me.report("joining", reason)
    subscriptions = {
        name: subscription_bytes(
            assignor,
            topics=topics,
            owned=me.holdings.owned,
            generation=me.generation,
            rack=me.config.rack_id,
            last_assignment=me.last_assignment,
            capacity=me.config.capacity,
            settling=me.settling,
        )
        for name, assignor in me.config.policies.items()
    }
    request = requests.join_group(me.config, me.member_id, subscriptions, reason)
    me.send("join", request, coordinator, timeout_ms=me.config.join_timeout_ms, channel=Channel.PARKED)


def joined(me: Membership, response: JoinGroupResponse, sent: Sent) -> None:
    """In a new generation, as its leader or not; or the attempt has failed."""
    code = error_code(response.error_code)
    action = matrix.JOIN_GROUP.get(code, Action.FATAL)
    if action is Action.TAKE_MEMBER_ID:
        me.member_id = response.member_id
        attempt_failed(me, f"need to re-join with the given member-id: {response.member_id}", pause=False)
    elif action is not Action.ACCEPT:
        attempt_refused(me, "JoinGroup", code, action, sent)
    elif (
        response.protocol_type not in (None, requests.PROTOCOL_TYPE) or response.protocol_name not in me.config.policies
    ):
        fail(me, fatal_answer("JoinGroup", ErrorCode.INCONSISTENT_GROUP_PROTOCOL, me.config))
    else:
        me.move(Trigger.JOIN_ACCEPTED)
        me.generation, me.member_id = response.generation_id, response.member_id
        me.protocol = response.protocol_name
        me.leader = response.leader == response.member_id
        me.set_heartbeat()
        me.report("joined", f"generation {me.generation}, assignor {me.protocol}")
        if me.leader:
            assigning.lead(me, response)
        else:
            me.watch.follow()
            sync(me, {})
