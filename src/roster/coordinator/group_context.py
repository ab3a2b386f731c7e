"""A group within one step of the coordinator: its sessions, its parked requests and its record in the log.

A member's session is a deadline in memory. The shell's timer may fire before it and is then set again for the time
left, so a heartbeat costs no timer, and a silent member is still removed at its deadline to the millisecond.
"""

from __future__ import annotations

from collections.abc import Mapping

from roster.coordinator import records
from roster.coordinator.group import Group, Member
from roster.coordinator.join_call import JoinCall
from roster.coordinator.responses import join_error, join_response, sync_response
from roster.coordinator.runtime import Continuation, Runtime
from roster.coordinator.states import Trigger
from roster.coordinator.timers import session_timer
from roster.wire import ErrorCode
from roster.wire.messages import SyncGroupResponse


class GroupContext:
    """A group together with the runtime that collects the effects of the current step."""

    __slots__ = ("group", "rt")

    def __init__(self, rt: Runtime, group: Group) -> None:
        self.rt = rt
        self.group = group

    def transition(self, trigger: Trigger) -> None:
        """Change the group's state along TRANSITIONS."""
        self.group.transition(trigger, self.rt.wall_ms)

    def write_group(self, then: Continuation, assignments: Mapping[str, bytes] | None = None) -> None:
        """Append the group's record, with `assignments` by member id or else the current ones."""
        self.rt.write(self.group.partition, [records.group_record(self.group, assignments)], then)

    # -- sessions ------------------------------------------------------------------------------------------------

    def renew_session(self, member: Member, timeout_ms: int | None = None) -> None:
        """Start the session timeout again, or another `timeout_ms`, from now on."""
        rt = self.rt
        member.deadline = rt.now + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        if member.timer_deadline is None or member.timer_deadline > member.deadline:
            self._set_session_timer(member)

    def end_session(self, member: Member) -> None:
        """Cancel the session timer."""
        if member.timer_deadline is not None:
            member.timer_deadline = None
            self.rt.cancel_timer(session_timer(self.group.group_id, member.member_id))

    def session_expired(self, member: Member) -> bool:
        """Handle a session timer: True if the member must be removed; otherwise the timer is set again if needed."""
        member.timer_deadline = None
        if member.counts_as_alive():
            return False
        if self.rt.now < member.deadline:
            self._set_session_timer(member)
            return False
        return True

    def _set_session_timer(self, member: Member) -> None:
        member.timer_deadline = member.deadline
        self.rt.set_timer(session_timer(self.group.group_id, member.member_id), member.deadline)

    def add_pending_member(self, member_id: str, timeout_ms: int) -> None:
        """Reserve a member id for `timeout_ms`."""
        deadline = self.rt.now + timeout_ms
        self.group.pending_members[member_id] = deadline
        self.rt.set_timer(session_timer(self.group.group_id, member_id), deadline)

    def remove_pending_member(self, member_id: str) -> None:
        """Release a reserved member id."""
        del self.group.pending_members[member_id]
        self.rt.cancel_timer(session_timer(self.group.group_id, member_id))

    # -- parked requests -----------------------------------------------------------------------------------------

    def update_member(self, member: Member, join: JoinCall) -> None:
        """Take over protocols and timeouts of a JoinGroup and park it; an earlier one of the member has to retry."""
        self.group.set_protocols(member, join.protocols)
        member.session_timeout_ms = join.request.session_timeout_ms
        member.rebalance_timeout_ms = join.rebalance_timeout_ms
        displaced = self.group.park_join(member, join.parked)
        if displaced is not None:
            self.rt.reply(displaced.token, join_error(displaced, ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))

    def answer_join(self, member: Member) -> None:
        """Answer the member's parked JoinGroup, if any, with the new generation, and start its session."""
        parked = self.group.unpark_join(member)
        if parked is not None:
            member.is_new = False
            self.renew_session(member)
            self.rt.reply(parked.token, join_response(self.group, member))

    def fail_join(self, member: Member, error: ErrorCode, member_id: str = "") -> None:
        """Answer the member's parked JoinGroup, if any, with an error."""
        parked = self.group.unpark_join(member)
        if parked is not None:
            self.rt.reply(parked.token, join_error(parked, error, member_id))

    def propagate_assignment(self, member: Member, error: ErrorCode = ErrorCode.NONE) -> None:
        """Answer the member's parked SyncGroup, if any, with its assignment or an error, and renew its session.

        The session starts again because a parked request kept the member from sending heartbeats.
        """
        if member.parked_sync is not None:
            self.renew_session(member)
            self.answer_sync(member, error)

    def answer_sync(self, member: Member, error: ErrorCode = ErrorCode.NONE) -> None:
        """Answer the member's parked SyncGroup, if any, with its assignment or an error."""
        if member.parked_sync is None:
            return
        token, member.parked_sync = member.parked_sync, None
        self.rt.reply(token, SyncGroupResponse(error_code=error) if error else sync_response(self.group, member))

    def remove_member(self, member: Member) -> None:
        """Remove a member; its parked requests are answered UNKNOWN_MEMBER_ID."""
        self.fail_join(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self.answer_sync(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self.end_session(member)
        self.group.remove(member)
