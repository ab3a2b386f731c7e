"""A group within one step of the coordinator: its parked requests, their responses, and the deadlines of sessions."""

from collections.abc import Mapping
from typing import NamedTuple

from roster.coordinator import records
from roster.coordinator.events import TimerKind, TimerName
from roster.coordinator.group import Group, Member, ParkedJoin
from roster.coordinator.runtime import Runtime
from roster.coordinator_common import Continuation, Reply
from roster.model import CancelTimer, SetTimer
from roster.wire import ErrorCode
from roster.wire.messages import JoinGroupResponse, SyncGroupResponse

NULLABLE_PROTOCOL_NAME_FROM = 7
"""JoinGroup version from which the protocol name of an error is null, not empty."""


class GroupContext(NamedTuple):
    """A group together with the runtime that collects the effects of the current step."""

    rt: Runtime
    group: Group

    def write_generation(self, generation: int, protocol: str, then: Continuation) -> None:
        """Append the record of a generation that is about to begin."""
        self.rt.writes.start(self.group.partition, [records.generation_record(self.group, generation, protocol)], then)

    def write_group(self, then: Continuation, assignments: Mapping[str, bytes] | None = None) -> None:
        """Append the group's record, with `assignments` by member id, by default the current ones."""
        self.rt.writes.start(self.group.partition, [records.group_record(self.group, assignments)], then)

    # -- parked requests -----------------------------------------------------------------------------------------

    def complete_joins(self) -> None:
        """Answer every parked JoinGroup with the new generation, and start the sessions."""
        for member, parked in self.group.unpark_joins():
            member.is_new = False
            self.renew_session(member)
            self.rt.replies.append(Reply(parked.token, join_response(self.group, member)))

    def fail_join(self, member: Member, error: ErrorCode, member_id: str = "") -> None:
        """Answer the member's parked JoinGroup, if any, with an error."""
        parked = self.group.unpark_join(member)
        if parked is not None:
            self.rt.replies.append(Reply(parked.token, join_error(parked, error, member_id)))

    def propagate_assignment(self, member: Member, error: ErrorCode = ErrorCode.NONE) -> None:
        """Answer the member's parked SyncGroup, if any, with its assignment or an error, and renew its session.

        The session starts again because a parked request kept the member from sending heartbeats.
        """
        if member.parked_sync is not None:
            self.renew_session(member)
            self.complete_sync(member, error)

    def complete_sync(self, member: Member, error: ErrorCode = ErrorCode.NONE, explanation: bytes = b"") -> None:
        """Answer the member's parked SyncGroup, if any, with its assignment, or an error and its explanation."""
        if member.parked_sync is None:
            return
        token, member.parked_sync = member.parked_sync, None
        failed = SyncGroupResponse(error_code=error, assignment=explanation)
        response = failed if error else sync_response(self.group, member)
        self.rt.replies.append(Reply(token, response))

    def remove_member(self, member: Member) -> None:
        """Remove a member; its parked requests are answered UNKNOWN_MEMBER_ID."""
        self.fail_join(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self.complete_sync(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self.end_session(member)
        self.group.remove(member)

    # -- sessions ------------------------------------------------------------------------------------------------

    def renew_session(self, member: Member, timeout_ms: int | None = None) -> None:
        """Restart the session: it ends after the session timeout, or after `timeout_ms`."""
        member.deadline = self.rt.now + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        if member.timer_deadline is None or member.timer_deadline > member.deadline:
            self.set_session_timer(member)

    def end_session(self, member: Member) -> None:
        """Cancel the session timer."""
        if member.timer_deadline is not None:
            member.timer_deadline = None
            self.rt.timers.append(CancelTimer(TimerName(TimerKind.SESSION, self.group.group_id, member.member_id)))

    def set_session_timer(self, member: Member) -> None:
        """Set the timer for the member's deadline."""
        member.timer_deadline = member.deadline
        name = TimerName(TimerKind.SESSION, self.group.group_id, member.member_id)
        self.rt.timers.append(SetTimer(name, member.deadline))

    def add_pending_member(self, member_id: str, timeout_ms: int) -> None:
        """Reserve a member id for `timeout_ms`."""
        deadline = self.rt.now + timeout_ms
        self.group.pending_members[member_id] = deadline
        self.rt.timers.append(SetTimer(TimerName(TimerKind.SESSION, self.group.group_id, member_id), deadline))

    def remove_pending_member(self, member_id: str) -> None:
        """Release a reserved member id."""
        del self.group.pending_members[member_id]
        self.rt.timers.append(CancelTimer(TimerName(TimerKind.SESSION, self.group.group_id, member_id)))


# -- responses -------------------------------------------------------------------------------------------------------


def join_response(
    group: Group, member: Member, *, leader: str | None = None, list_members: bool = True, skip_assignment: bool = False
) -> JoinGroupResponse:
    """Build the response that announces the current generation; only the leader gets every member's metadata."""
    leads = list_members and member.member_id == group.leader_id
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=(group.leader_id or "") if leader is None else leader,
        skip_assignment=skip_assignment,
        member_id=member.member_id,
        members=group.current_members() if leads else [],
    )


def join_error(call: ParkedJoin, error: ErrorCode, member_id: str = "") -> JoinGroupResponse:
    """Build the response that rejects a JoinGroup."""
    protocol_name = None if call.api_version >= NULLABLE_PROTOCOL_NAME_FROM else ""
    return JoinGroupResponse(error_code=error, member_id=member_id, protocol_name=protocol_name)


def sync_response(group: Group, member: Member) -> SyncGroupResponse:
    """Build the response with the member's assignment."""
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=member.assignment
    )
