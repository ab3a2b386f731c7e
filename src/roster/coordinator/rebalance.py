"""The rebalance itself: opening the join phase, completing it, and getting out of a sync phase that stalls.

| from        | to         | when                                                                             |
|-------------|------------|----------------------------------------------------------------------------------|
| any but     | Preparing  | a member joins, leaves, changes, expires, or does not fetch its assignment;      |
|  Preparing  |            | a leader rejoins; the assignment cannot be stored                                |
| Preparing   | Completing | everybody has rejoined and no handed-out id is open, or the time is up           |
| Preparing   | Empty      | the same, and nobody is left                                                     |
| Completing  | Stable     | the leader's assignment is durable (module sync)                                 |
"""

from __future__ import annotations

from roster.coordinator import records, session
from roster.coordinator.group import Group, GroupState, Member, ParkedJoin
from roster.coordinator.runtime import Runtime
from roster.wire import ErrorCode
from roster.wire.messages import JoinGroupResponse, SyncGroupResponse


def join_timer(group: Group) -> tuple[str, str]:
    """Ends the join phase, or a window of the initial one."""
    return ("join", group.group_id)


def sync_timer(group: Group) -> tuple[str, str]:
    """Ends the wait for members that do not fetch their assignment."""
    return ("sync", group.group_id)


# -- answers ---------------------------------------------------------------------------------------------------------


def refuse_join(rt: Runtime, parked: ParkedJoin, error: ErrorCode, member_id: str = "") -> None:
    """Answer a JoinGroup with an error."""
    rt.reply(
        parked.token,
        JoinGroupResponse(error_code=error, member_id=member_id, protocol_name=None if parked.api_version >= 7 else ""),
    )


def generation_reply(
    group: Group, member: Member, *, leader: str | None = None, list_members: bool = True, skip_assignment: bool = False
) -> JoinGroupResponse:
    """The present generation as one member gets to see it; only the leader gets everybody's metadata."""
    protocol = group.protocol
    leads = list_members and member.member_id == group.leader_id
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=protocol,
        leader=(group.leader_id or "") if leader is None else leader,
        skip_assignment=skip_assignment,
        member_id=member.member_id,
        members=[
            JoinGroupResponse.Member(
                member_id=other.member_id, group_instance_id=other.instance_id, metadata=other.metadata(protocol)
            )
            for other in group.members.values()
        ]
        if leads
        else [],
    )


def answer_sync(rt: Runtime, group: Group, member: Member, error: ErrorCode = ErrorCode.NONE) -> None:
    """Answer the member's parked SyncGroup, if any, with its assignment or an error."""
    if member.parked_sync is None:
        return
    token, member.parked_sync = member.parked_sync, None
    rt.reply(token, SyncGroupResponse(error_code=error) if error else assignment_reply(group, member))


def assignment_reply(group: Group, member: Member) -> SyncGroupResponse:
    """What the member is to work on."""
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=member.assignment
    )


# -- join phase ------------------------------------------------------------------------------------------------------


def rebalance(rt: Runtime, group: Group) -> None:
    """Membership or metadata changed: open a join phase, or see whether the one under way is complete."""
    if group.can_rebalance():
        prepare(rt, group)
    else:
        complete_if_all_joined(rt, group)


def prepare(rt: Runtime, group: Group) -> None:
    """Open a join phase; parked SyncGroups are told to rejoin."""
    if group.state is GroupState.COMPLETING:
        fail_syncs(rt, group, ErrorCode.REBALANCE_IN_PROGRESS)
    stop_waiting_for_syncs(rt, group)
    was_empty = group.state is GroupState.EMPTY
    group.move_to(GroupState.PREPARING, rt.wall_ms)
    if was_empty:
        delay = rt.config.initial_rebalance_delay_ms
        group.initial_budget_ms = max(group.rebalance_timeout_ms() - delay, 0)
        open_initial_window(rt, group, delay)
    elif group.all_joined():
        complete(rt, group)
    else:
        wait_for_joins(rt, group, group.rebalance_timeout_ms())


def open_initial_window(rt: Runtime, group: Group, delay_ms: int) -> None:
    """Collect the first members of an empty group for `delay_ms`, so that they share one generation."""
    group.new_member_in_window = False
    group.initial_window_ms = delay_ms
    if delay_ms == 0:
        complete(rt, group)
    else:
        wait_for_joins(rt, group, delay_ms)


def wait_for_joins(rt: Runtime, group: Group, timeout_ms: int) -> None:
    """Let the join phase go on for at most `timeout_ms`."""
    group.join_deadline = rt.now + timeout_ms
    rt.set_timer(join_timer(group), group.join_deadline)


def stop_waiting_for_joins(rt: Runtime, group: Group) -> None:
    """The join phase is over."""
    if group.join_deadline is not None:
        rt.cancel_timer(join_timer(group))
    group.join_deadline = group.initial_budget_ms = None


def complete_if_all_joined(rt: Runtime, group: Group) -> None:
    """End the join phase early once nobody is missing; the initial window always runs its time."""
    if group.state is GroupState.PREPARING and group.initial_budget_ms is None and group.all_joined():
        complete(rt, group)


def join_phase_expired(rt: Runtime, group: Group) -> None:
    """The join timer rang: extend the initial window if a member arrived in it and time is left, else complete."""
    if group.state is not GroupState.PREPARING or group.join_deadline is None or rt.now < group.join_deadline:
        return
    budget = group.initial_budget_ms
    if budget and group.new_member_in_window:
        group.initial_budget_ms = max(budget - group.initial_window_ms, 0)
        open_initial_window(rt, group, min(rt.config.initial_rebalance_delay_ms, budget))
    else:
        complete(rt, group)


def complete(rt: Runtime, group: Group) -> None:
    """End the join phase: dynamic members that did not rejoin are out, the others get the next generation."""
    stop_waiting_for_joins(rt, group)
    for member in [m for m in group.members.values() if m.parked_join is None and m.instance_id is None]:
        session.end(rt, group, member)
        group.remove(member)
    if not group.members:
        become_empty(rt, group)
    elif group.elect_joined_leader():
        start_generation(rt, group)
    else:
        wait_for_joins(rt, group, group.rebalance_timeout_ms())


def become_empty(rt: Runtime, group: Group) -> None:
    """Nobody is left. The log is told; if that fails, the old generation comes back at failover and expires again."""
    group.generation = group.next_generation()
    group.protocol = group.leader_id = None
    group.move_to(GroupState.EMPTY, rt.wall_ms)
    rt.write(group.partition, [records.group_record(group)], lambda _: None)


def start_generation(rt: Runtime, group: Group) -> None:
    """Answer everybody that rejoined, and wait for their SyncGroups."""
    group.generation = group.next_generation()
    group.protocol = group.vote()
    group.move_to(GroupState.COMPLETING, rt.wall_ms)
    for member in group.members.values():  # who describes the group now still sees the assignments before
        parked = group.unpark_join(member)
        if parked is not None:
            member.is_new = False
            session.renew(rt, group, member)
            rt.reply(parked.token, generation_reply(group, member))
    group.pending_sync = set(group.members)
    group.sync_deadline = rt.now + group.rebalance_timeout_ms()
    rt.set_timer(sync_timer(group), group.sync_deadline)


# -- sync phase ------------------------------------------------------------------------------------------------------


def fail_syncs(rt: Runtime, group: Group, error: ErrorCode) -> None:
    """There will be no assignment in this generation: tell those that wait for theirs."""
    for member in group.members.values():
        member.assignment = b""
        if member.parked_sync is not None:
            session.renew(rt, group, member)
            answer_sync(rt, group, member, error)


def stop_waiting_for_syncs(rt: Runtime, group: Group) -> None:
    """The sync phase is over, or everybody is through it."""
    group.pending_sync.clear()
    if group.sync_deadline is not None:
        group.sync_deadline = None
        rt.cancel_timer(sync_timer(group))


def sync_phase_expired(rt: Runtime, group: Group) -> None:
    """Members that never asked for their assignment are out, static ones too, even if the group is stable by now."""
    if group.sync_deadline is None or rt.now < group.sync_deadline:
        return
    group.sync_deadline = None
    if not group.pending_sync:
        return
    for member_id in list(group.pending_sync):
        remove_member(rt, group, group.members[member_id])
    rebalance(rt, group)


# -- departures ------------------------------------------------------------------------------------------------------


def remove_member(rt: Runtime, group: Group, member: Member) -> None:
    """Take a member out; a request of its own that was parked is told that its id is void."""
    parked = group.unpark_join(member)
    if parked is not None:
        refuse_join(rt, parked, ErrorCode.UNKNOWN_MEMBER_ID)
    answer_sync(rt, group, member, ErrorCode.UNKNOWN_MEMBER_ID)
    session.end(rt, group, member)
    group.remove(member)


def session_expired(rt: Runtime, group: Group, member_id: str) -> None:
    """A session timer rang: the member, or the pending id, may have to go."""
    if member_id in group.pending:
        if rt.now >= group.pending[member_id]:
            session.forget_pending(rt, group, member_id)
            complete_if_all_joined(rt, group)
        return
    member = group.members.get(member_id)
    if member is not None and session.overdue(rt, group, member):
        remove_member(rt, group, member)
        rebalance(rt, group)
