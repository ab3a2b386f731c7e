"""JoinGroup: revocation before a rebalance, the request and its response."""

from roster.assignors import JoinContext
from roster.member import error_table, leader, requests
from roster.member.context import MemberContext
from roster.member.discovery import send_metadata
from roster.member.error_table import Action
from roster.member.failures import fatal_error
from roster.member.leave import fail
from roster.member.outbox import InFlight
from roster.member.recovery import attempt_failed, on_rebalance_error
from roster.member.states import Trigger
from roster.member.subscription import AssignorError, subscription_bytes
from roster.member.sync import begin_sync
from roster.member.timers import HEARTBEAT, JOIN
from roster.member.types import Channel, Failure, FailureKind, Node, ReportKind
from roster.model import NO_GENERATION, TopicPartition
from roster.wire import ErrorCode
from roster.wire.consumer import PROTOCOL_TYPE
from roster.wire.errors import error_code
from roster.wire.messages import JoinGroupResponse


def prepare_join(me: MemberContext) -> None:
    """Revoke the partitions that must not be owned in a rebalance, fetch metadata, then send JoinGroup."""
    if me.ownership.revoking:
        return
    to_revoke = revoked_before_join(me)
    if to_revoke:
        me.revoke(to_revoke)
        return
    if me.topics.subscribed is None:
        send_metadata(me)
        return
    if me.coordinator is not None and not me.out.backing_off(JOIN):
        send_join_group(me, me.coordinator)


def revoked_before_join(me: MemberContext) -> frozenset[TopicPartition]:
    """Return the partitions to revoke before JoinGroup: all if eager, else those of topics no longer subscribed to."""
    if me.is_eager:
        return me.ownership.owned
    topics = me.topics.subscribed
    if topics is None:
        return frozenset()
    return frozenset(p for p in me.ownership.owned if p.topic not in topics)


def send_join_group(me: MemberContext, coordinator: Node) -> None:
    """Send JoinGroup; heartbeats pause until its response."""
    topics = me.topics.subscribed or frozenset()
    last_generation, last_assignment = me.last_assignment
    context = JoinContext(
        topics=topics,
        owned=me.ownership.owned,
        generation=me.generation,
        last_assignment=last_assignment,
        last_generation=last_generation,
        rack=me.config.rack_id,
        capacity=me.config.capacity,
        settling=me.rejoins_after_revocation,
        is_static=me.config.group_instance_id is not None,
    )
    try:
        subscriptions = {
            name: subscription_bytes(assignor, context) for name, assignor in me.config.assignors_by_name.items()
        }
    except AssignorError as error:
        fail(me, Failure(FailureKind.ASSIGNMENT, str(error)))
        return
    me.joined_topics = topics
    reason, me.rejoin_reason = me.rejoin_reason or "", None
    me.causes.join_sent()
    me.transition(Trigger.JOIN_SENT)
    me.out.cancel(HEARTBEAT)
    me.report(ReportKind.JOINING, reason)
    request = requests.join_group(me.config, me.member_id, subscriptions, reason)
    me.send(request, coordinator, timeout_ms=me.config.join_timeout_ms, channel=Channel.PARKED)


def on_join_group_response(me: MemberContext, response: JoinGroupResponse, request: InFlight) -> None:
    """Enter the new generation, as its leader or a follower; or handle the error."""
    code = error_code(response.error_code)
    action = error_table.JOIN_GROUP.get(code, Action.FATAL)
    if action is Action.TAKE_MEMBER_ID:
        me.member_id = response.member_id
        attempt_failed(me, f"need to re-join with the given member-id: {response.member_id}", back_off=False)
    elif action is not Action.ACCEPT:
        on_rebalance_error(me, "JoinGroup", code, action, request)
    elif (
        response.protocol_type not in (None, PROTOCOL_TYPE) or response.protocol_name not in me.config.assignors_by_name
    ):
        fail(me, fatal_error("JoinGroup", ErrorCode.INCONSISTENT_GROUP_PROTOCOL, me.config))
    else:
        me.transition(Trigger.JOIN_ACCEPTED)
        is_static = me.config.group_instance_id is not None
        returns = is_static and me.generation == NO_GENERATION
        me.missed_generation |= is_static and not returns and response.generation_id > me.generation + 1
        me.generation, me.member_id = response.generation_id, response.member_id
        me.protocol_name = response.protocol_name
        me.leader = response.leader == response.member_id
        me.cooperative_sync = None
        group = {member.group_instance_id or member.member_id for member in response.members} if me.leader else None
        cause = me.causes.joined(me.generation, group, follows_up=me.expects_second_round)
        me.expects_second_round = False
        me.schedule_heartbeat()
        if me.is_eager and me.ownership.owned_or_revoking:
            me.turned_eager = f"gave up everything: the group went over to {me.protocol_name}"
            me.lose(me.ownership.owned_or_revoking, me.turned_eager)
        # A group of consumers has a leader, unless the coordinator assigns because some speak KIP-848.
        assigns = f"assignor {me.protocol_name}" if response.leader else "the broker assigns (KIP-848)"
        me.report(ReportKind.JOINED, f"generation {me.generation}, {assigns}", cause=cause)
        if me.leader:
            leader.on_leader_elected(me, response)
        else:
            me.topics.stop_tracking_group()
            me.describes_assignment = returns
            if returns:
                send_metadata(me)
            begin_sync(me, {})
