"""Who is still there: session deadlines, and the timers behind them.

A member's session is a deadline in memory. The shell's timer may ring early; it is then set again for what is left, so
a heartbeat costs no timer and a silent member is still removed at its deadline to the millisecond.
"""

from __future__ import annotations

from roster.coordinator.events import TimerName
from roster.coordinator.group import Group, Member
from roster.coordinator.runtime import Runtime
from roster.wire import ErrorCode


def session_timer(group_id: str, member_id: str) -> TimerName:
    """The timer of a member's, or a pending member's, session."""
    return ("session", group_id, member_id)


def renew(rt: Runtime, group: Group, member: Member, timeout_ms: int | None = None) -> None:
    """Give the member its session timeout (or another one) from now on."""
    member.deadline = rt.now + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
    if member.alarm is None or member.alarm > member.deadline:
        member.alarm = member.deadline
        rt.set_timer(session_timer(group.group_id, member.member_id), member.deadline)


def end(rt: Runtime, group: Group, member: Member) -> None:
    """Stop watching a member."""
    if member.alarm is not None:
        member.alarm = None
        rt.cancel_timer(session_timer(group.group_id, member.member_id))


def overdue(rt: Runtime, group: Group, member: Member) -> bool:
    """The member's timer rang: whether it is to be removed. If not, it is watched on."""
    member.alarm = None
    if member.counts_as_alive():
        return False
    if rt.now < member.deadline:
        member.alarm = member.deadline
        rt.set_timer(session_timer(group.group_id, member.member_id), member.deadline)
        return False
    return True


def validate(group: Group, member_id: str, instance_id: str | None) -> ErrorCode:
    """Whether the ids name a member of the group, and the one that holds its instance id (KIP-345 fencing)."""
    if instance_id is not None:
        holder = group.instances.get(instance_id)
        if holder is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if holder != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    return ErrorCode.NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID


def watch_pending(rt: Runtime, group: Group, member_id: str, timeout_ms: int) -> None:
    """Keep a member id reserved for its owner for one session timeout."""
    group.pending[member_id] = rt.now + timeout_ms
    rt.set_timer(session_timer(group.group_id, member_id), rt.now + timeout_ms)


def forget_pending(rt: Runtime, group: Group, member_id: str) -> None:
    """Give up a reserved member id."""
    del group.pending[member_id]
    rt.cancel_timer(session_timer(group.group_id, member_id))
