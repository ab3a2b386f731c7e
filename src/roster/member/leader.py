"""The group leader's work between JoinGroup and SyncGroup.

The leader learns the group's topics, fetches offsets if the assignor balances lag, has the assignment computed
(`roster.member.assign_group`), and sends it in SyncGroup. Each step waits for an event; `MemberContext.assigning` is
its id.
"""

from collections.abc import Collection, Mapping

from roster.member.context import MemberContext
from roster.member.discovery import send_metadata
from roster.member.events import Assign, Assigned, AssignFailed, FetchOffsets, OffsetsFetched
from roster.member.group_snapshot import GroupSnapshot
from roster.member.states import MemberState
from roster.member.subscription import assignment_bytes, claimed, decode_assignment, topics_of
from roster.member.sync import begin_sync
from roster.member.timers import METADATA
from roster.member.types import ReportKind
from roster.model import PartitionOffsets
from roster.wire import ApiKey
from roster.wire.consumer.messages import failure_assignment
from roster.wire.messages import JoinGroupResponse

MAX_WITHHELD = 3
"""Most consecutive generations in which claimed partitions are withheld under an eager assignor."""


def on_leader_elected(me: MemberContext, response: JoinGroupResponse) -> None:
    """Start the leader's work: track the topics of the whole group from now on."""
    me.group = {m.member_id: (m.metadata, m.group_instance_id) for m in response.members}
    me.topics.track_group(frozenset().union(*(topics_of(metadata) for metadata, _ in me.group.values())))
    me.describes_assignment = response.skip_assignment
    if strangers := _reading_other_topics(me):
        me.report(ReportKind.DIVIDED, strangers)
    if response.skip_assignment:
        me.topics.adopt_next_metadata()
        begin_sync(me, {})
    else:
        me.report(ReportKind.LEADING, f"assigning for {len(me.group)} members")
    me.out.drop(ApiKey.METADATA)  # it asked for other topics
    me.out.end_backoff(METADATA)
    send_metadata(me)


def _reading_other_topics(me: MemberContext) -> str:
    """Describe members without a topic in common with this one, as if two applications used the same group name."""
    topics = {member: topics_of(metadata) for member, (metadata, _) in me.group.items()}
    own_topics = topics.get(me.member_id, frozenset())
    strangers = sorted(member for member, others in topics.items() if own_topics and others and not own_topics & others)
    if not strangers:
        return ""
    first, more = strangers[0], f" (and {len(strangers) - 1} more)" if len(strangers) > 1 else ""
    return (
        f"{first}{more} reads {_brief(topics[first])}, this member {_brief(own_topics)}, and both wait for each other "
        "in every rebalance: give applications with no topic in common a group each"
    )


def _brief(topics: Collection[str]) -> str:
    """Name up to three topics."""
    named = sorted(topics)
    return ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")


def awaits_topics(me: MemberContext) -> bool:
    """Return True if the assignment starts as soon as the group's topics are known."""
    return me.state is MemberState.COMPLETING_REBALANCE and bool(me.group) and me.assigning is None


def on_topics_known(me: MemberContext) -> None:
    """Fetch offsets if the assignor balances lag, else start the assignment."""
    if not me.assignor.wants_lag:
        start_assignment(me, None)
        return
    me.assigning = me.out.next_id()
    partitions, timeout = me.topics.take_snapshot(), me.config.offsets_timeout_ms
    me.out.emit(FetchOffsets(me.assigning, me.config.group, partitions, timeout))


def on_offsets_fetched(me: MemberContext, event: OffsetsFetched) -> None:
    """Start the assignment, without lags if the offsets are not available."""
    if event.id == me.assigning:
        if event.offsets is None:
            text = f"{me.protocol_name} does without lags: {event.reason or 'no offsets'}"
            me.report(ReportKind.LEADING, text)
        start_assignment(me, event.offsets)


def start_assignment(me: MemberContext, offsets: PartitionOffsets | None) -> None:
    """Emit Assign for the whole group."""
    me.assigning = me.out.next_id()
    group = GroupSnapshot(
        subscriptions={member: metadata for member, (metadata, _) in me.group.items()},
        partitions=me.topics.take_snapshot(),
        instance_ids={member: instance for member, (_, instance) in me.group.items()},
        racks=me.topics.racks(),
        generation=me.generation,
        offsets=offsets,
        auto_offset_reset=me.config.auto_offset_reset,
    )
    me.out.emit(Assign(me.assigning, me.assignor, group))


def on_assigned(me: MemberContext, event: Assigned) -> None:
    """Send the assignment in SyncGroup."""
    if event.id == me.assigning:
        me.assigning = None
        # A static member that is killed before it gives up its partitions would not know of the second round.
        me.expects_second_round = event.withholds and not me.is_eager
        begin_sync(me, withhold_claimed(me, event.assignments))


def withhold_claimed(me: MemberContext, assignments: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Return an eager assignment without the partitions that another member still claims.

    Such claims come from members that joined under a cooperative assignor. They give up all partitions when they learn
    of the change, and rejoin. After MAX_WITHHELD generations claims are ignored.
    """
    if not me.is_eager or len(me.config.assignors_by_name) == 1 or me.withheld >= MAX_WITHHELD:
        return assignments
    claims = {member: claimed(metadata) for member, (metadata, _) in me.group.items()}
    owner = {partition: member for member, partitions in claims.items() for partition in partitions}
    chosen = {member: decode_assignment(data) for member, data in assignments.items()} if owner else {}
    allowed = {
        member: assignment._replace(
            partitions=frozenset(p for p in assignment.partitions if owner.get(p, member) == member)
        )
        for member, assignment in chosen.items()
    }
    if allowed == chosen:
        me.withheld = 0
        return assignments
    me.withheld += 1
    me.turned_eager = f"partitions were withheld while the group went over to {me.protocol_name}"
    return {member: assignment_bytes(assignment) for member, assignment in allowed.items()}


def on_assign_failed(me: MemberContext, event: AssignFailed) -> None:
    """Send the reason to every member instead of an assignment."""
    if event.id == me.assigning:
        me.report(ReportKind.RETRY, f"the assignment failed, the group will be told: {event.reason}")
        me.assigning = None
        begin_sync(me, dict.fromkeys(me.group, failure_assignment(event.reason)))
