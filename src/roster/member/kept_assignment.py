"""A static member that returned: what the assignment that the group kept does not have.

The coordinator tells a leader that returns not to assign (KIP-814), as the group keeps its assignment, and Kafka's
client takes the topics of that moment for those of the assignment. Partitions added in between would then be read by no
member. So this leader asks for the assignment with DescribeGroups, and compares the topics with that.

Apache Kafka's coordinator keeps the assignment too when a follower returns with another subscription. So a follower
asks as well, and joins again if a topic that it subscribes to is assigned to nobody; its subscription then has the
generation, and the coordinator sees a change.
"""

from __future__ import annotations

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
    """Send DescribeGroups once the member is Stable and knows the topics, unless in flight or backing off."""
    if not me.describes_assignment or me.coordinator is None or me.state is not MemberState.STABLE:
        return
    is_due = me.topics.has_snapshot if me.leader else _without(me, {topic for topic, _ in me.ownership.owned})
    if is_due and not me.out.in_flight(ApiKey.DESCRIBE_GROUPS) and not me.out.backing_off(DESCRIBE):
        me.send(requests.describe_group(me.config), me.coordinator)


def on_describe_groups_response(me: MemberContext, response: DescribeGroupsResponse, request: InFlight) -> None:
    """Compare the topics with the assignment: as leader from now on, without it with those of its return."""
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
    """Return the topics that there are and that the member subscribes to, without these."""
    return sorted(topic for topic in me.topics.subscribed or () if topic in me.topics.counts and topic not in topics)


def assigned_counts(group: DescribeGroupsResponse.Group) -> dict[str, int]:
    """Return the number of partitions of each topic that are assigned.

    They are fewer than there are also where the group was between the two rounds of a cooperative rebalance, and the
    member that was to give a partition up, and to join again then, died.
    """
    assigned: set[TopicPartition] = set()
    for member in group.members:
        try:
            assigned |= decode_assignment(member.member_assignment).partitions
        except (LeaderFailure, WireError):
            continue
    return dict(Counter(partition.topic for partition in assigned))
