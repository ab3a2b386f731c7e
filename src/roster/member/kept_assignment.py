"""Finds partitions without an owner after a static member returned and the group kept its assignment.

The coordinator tells a returning leader to keep the group's assignment (KIP-814). Kafka's client then assumes that this
assignment was made from the current metadata, so partitions added since then would be read by no member. This leader
reads the assignment with DescribeGroups instead, and compares the topics with it.

Apache Kafka's coordinator also keeps the assignment if a follower returns with another subscription. So a follower
reads the assignment too, and rejoins if a topic of its subscription is assigned to no member. Its subscription then
contains its generation, so the coordinator sees that the subscription changed.
"""

from collections import Counter
from collections.abc import Collection

from roster.member import error_table, requests
from roster.member.context import MemberContext
from roster.member.error_table import Action
from roster.member.outbox import InFlight
from roster.member.recovery import mark_coordinator_unknown
from roster.member.states import MemberState
from roster.member.subscription import LeaderFailure, decode_assignment
from roster.member.timers import DESCRIBE
from roster.member.types import ReportKind
from roster.model import TopicPartition
from roster.wire import ApiKey, WireError
from roster.wire.errors import error_code
from roster.wire.messages import DescribeGroupsResponse


def send_describe_groups(me: MemberContext) -> None:
    """Send DescribeGroups if the member is Stable and has the metadata, unless one is in flight or backing off."""
    if not me.describes_assignment or me.coordinator is None or me.state is not MemberState.STABLE:
        return
    is_due = me.topics.has_snapshot if me.leader else _without(me, {topic for topic, _ in me.ownership.owned})
    if is_due and not me.out.in_flight(ApiKey.DESCRIBE_GROUPS) and not me.out.backing_off(DESCRIBE):
        me.send(requests.describe_group(me.config), me.coordinator)


def on_describe_groups_response(me: MemberContext, response: DescribeGroupsResponse, request: InFlight) -> None:
    """Compare the topics with the assignment: a leader from now on; a follower rejoins if a topic has no reader."""
    if not me.describes_assignment or not me.is_current(request):
        return
    group = response.groups[0] if response.groups else DescribeGroupsResponse.Group()
    code = error_code(group.error_code)
    match error_table.DESCRIBE_GROUPS.get(code, Action.FATAL):
        case Action.REDISCOVER:
            mark_coordinator_unknown(me, code.name)
        case Action.BACK_OFF:
            me.back_off(DESCRIBE, code.name)
        case Action.FATAL:
            me.describes_assignment = False
            text = f"topic changes from before this member's return are not noticed: DescribeGroups failed, {code.name}"
            me.report(ReportKind.RETRY, text)
        case _:
            me.describes_assignment = False
            if group.group_state == MemberState.STABLE.value and me.state is MemberState.STABLE:
                _compare(me, assigned_counts(group))


def _compare(me: MemberContext, assigned: dict[str, int]) -> None:
    if me.leader:
        me.topics.compare_with(assigned)
    elif unread := _without(me, assigned):
        me.request_rejoin(f"no member of the group reads {', '.join(unread)}")


def _without(me: MemberContext, topics: Collection[str]) -> list[str]:
    """Return the existing topics of the member's subscription, except `topics`."""
    return sorted(topic for topic in me.topics.subscribed or () if topic in me.topics.counts and topic not in topics)


def assigned_counts(group: DescribeGroupsResponse.Group) -> dict[str, int]:
    """Return the number of partitions of each topic that are assigned.

    Partitions are also missing if the group was between the two rounds of a cooperative rebalance, and the member that
    had to give up a partition died before it rejoined.
    """
    assigned: set[TopicPartition] = set()
    for member in group.members:
        try:
            assigned |= decode_assignment(member.member_assignment).partitions
        except (LeaderFailure, WireError):
            continue
    return dict(Counter(partition.topic for partition in assigned))
