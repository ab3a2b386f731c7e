"""The group coordinator: one `step` per event, dispatched to the module of the request or timer."""

from collections.abc import Callable, Sequence
from typing import Any

from roster.coordinator.config import CoordinatorConfig
from roster.coordinator.events import (
    Effects,
    Event,
    LoadedRecord,
    TimerEffect,
    TimerKind,
    TimerName,
    TopicsDeleted,
    TransactionEnded,
)
from roster.coordinator.group import Group
from roster.coordinator.group_admin import delete_groups, describe_groups, list_groups
from roster.coordinator.group_context import GroupContext
from roster.coordinator.heartbeat import beat, expire_session, heartbeat
from roster.coordinator.join_group import join_group
from roster.coordinator.leave_group import leave_group
from roster.coordinator.offset_commit import commit_offsets, commit_transactional_offsets
from roster.coordinator.offset_delete import delete_offsets, topics_deleted
from roster.coordinator.offset_fetch import fetch_offsets
from roster.coordinator.offset_store import end_transaction, expire_offsets
from roster.coordinator.rebalance import (
    cancel_join_phase,
    cancel_sync_phase,
    expire_join_phase,
    expire_pending_sync,
    prepare_rebalance,
    schedule_sync_phase_end,
)
from roster.coordinator.records import Replay
from roster.coordinator.runtime import PartitionStatus, Runtime
from roster.coordinator.states import GroupState, Trigger
from roster.coordinator.sync_group import sync_group
from roster.coordinator_common import (
    PartitionLoaded,
    PartitionLoading,
    PartitionUnloaded,
    Reply,
    RequestReceived,
    TimerExpired,
    WriteCompleted,
)
from roster.model import CancelTimer, SetTimer
from roster.wire import ErrorCode, Message
from roster.wire.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)

REQUEST_HANDLERS: dict[type, Callable[[Runtime, RequestReceived, Any], Message | None]] = {
    JoinGroupRequest: join_group,
    SyncGroupRequest: sync_group,
    HeartbeatRequest: heartbeat,
    LeaveGroupRequest: leave_group,
    OffsetCommitRequest: commit_offsets,
    TxnOffsetCommitRequest: commit_transactional_offsets,
    OffsetFetchRequest: fetch_offsets,
    OffsetDeleteRequest: delete_offsets,
    ListGroupsRequest: list_groups,
    DescribeGroupsRequest: describe_groups,
    DeleteGroupsRequest: delete_groups,
}
"""Handler of each request in RequestReceived; it returns the response, or None if the response comes later."""

TIMER_HANDLERS: dict[TimerKind, Callable[[GroupContext, TimerName], None]] = {
    TimerKind.SESSION: lambda ctx, name: expire_session(ctx, name.member_id),
    TimerKind.JOIN: lambda ctx, _: expire_join_phase(ctx),
    TimerKind.SYNC: lambda ctx, _: expire_pending_sync(ctx),
}
"""Handler of each timer of a group."""


class Coordinator:
    """Kafka's classic group protocol as a state machine; deterministic, no I/O, no clock.

    `new_id` returns a new unguessable string for a member id, such as a UUID. `is_connected(token)` returns True while
    the client of that request waits for the response on an open connection; without it, the session of a waiting member
    ends at its timeout. The shell must report the writes to one partition complete in the order of the effects.
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        new_id: Callable[[], str],
        is_connected: Callable[[int], bool] = lambda token: False,
    ) -> None:
        self._rt = Runtime(config, new_id, is_connected)
        self.unreadable_records = 0
        """Number of records skipped while loading because they could not be decoded."""

    def step(self, event: Event, now: int) -> Effects:
        """Handle one event at monotonic time `now` (ms, never decreasing); return the effects for the shell."""
        rt = self._rt
        rt.now, rt.wall_ms = now, getattr(event, "wall_ms", rt.wall_ms)
        match event:
            case RequestReceived():
                response = REQUEST_HANDLERS[type(event.message)](rt, event, event.message)
                if response is not None:
                    rt.replies.append(Reply(event.token, response))
            case TimerExpired():
                self._timer_expired(event.name)
            case WriteCompleted():
                rt.writes.complete(event.id, event.error)
            case TransactionEnded():
                end_transaction(rt, event.partition, event.end)
            case TopicsDeleted():
                topics_deleted(rt, event.topics)
            case PartitionLoaded():
                self._load(event.partition, event.records)
            case PartitionLoading():
                self._unload(event.partition)
                rt.partitions[event.partition] = PartitionStatus.LOADING
            case PartitionUnloaded():
                self._unload(event.partition)
                rt.partitions.pop(event.partition, None)
        return rt.take_effects()

    def heartbeat(self, request: HeartbeatRequest, now: int) -> tuple[ErrorCode, Sequence[TimerEffect]]:
        """Handle a heartbeat as `step` does; return its error code and timers, as it has no other effects."""
        rt = self._rt
        rt.now = now
        error = beat(rt, request)
        return (error, rt.take_effects().timers) if rt.timers else (error, ())

    # -- queries -------------------------------------------------------------------------------------------------

    def partition_of(self, group_id: str) -> int:
        """Return the partition of `__consumer_offsets` that has the group."""
        return self._rt.partition_of(group_id)

    def owns(self, group_id: str) -> bool:
        """Return True if this process is coordinator for the group, even while it is loading."""
        return self.partition_of(group_id) in self._rt.partitions

    def group(self, group_id: str) -> Group | None:
        """Return the group, for inspection, or None."""
        return self._rt.groups.get(group_id)

    def group_ids(self) -> list[str]:
        """Return the ids of all groups."""
        return list(self._rt.groups)

    # -- events --------------------------------------------------------------------------------------------------

    def _timer_expired(self, name: TimerName) -> None:
        if name.kind is TimerKind.OFFSET_EXPIRATION:
            self._expire_offsets(name.partition)
        elif group := self._rt.groups.get(name.group_id):
            TIMER_HANDLERS[name.kind](GroupContext(self._rt, group), name)

    def _expire_offsets(self, partition: int) -> None:
        if self._rt.partitions.get(partition) is PartitionStatus.ACTIVE:
            expire_offsets(self._rt, partition)
            self._schedule_expiration(partition)

    # -- loading and unloading -----------------------------------------------------------------------------------

    def _load(self, partition: int, records: Sequence[LoadedRecord]) -> None:
        rt = self._rt
        self._unload(partition)
        replay = Replay(partition)
        replay.apply_all(records)
        self.unreadable_records += replay.unreadable
        rt.partitions[partition] = PartitionStatus.ACTIVE
        rt.groups.update(replay.groups)
        for group in replay.groups.values():
            for producer_id in group.pending_offsets:
                rt.in_transaction.setdefault((partition, producer_id), set()).add(group.group_id)
            ctx = GroupContext(rt, group)
            for member in group.members.values():
                ctx.renew_session(member)
            if group.state is GroupState.COMPLETING:
                schedule_sync_phase_end(ctx)
            if len(group.members) > rt.config.max_group_size:
                prepare_rebalance(ctx)
        self._schedule_expiration(partition)

    def _unload(self, partition: int) -> None:
        """Answer every parked request of the partition NOT_COORDINATOR and drop its groups."""
        rt = self._rt
        if partition not in rt.partitions:
            return
        rt.timers.append(CancelTimer(offset_expiration_timer(partition)))
        for group in rt.groups_in(partition):
            self._unload_group(group)
        for key in [entry for entry in rt.in_transaction if entry[0] == partition]:
            del rt.in_transaction[key]
        rt.writes.fail(partition)

    def _unload_group(self, group: Group) -> None:
        ctx = GroupContext(self._rt, group)
        for member in group.members.values():
            ctx.fail_join(member, ErrorCode.NOT_COORDINATOR, member.member_id)
            ctx.complete_sync(member, ErrorCode.NOT_COORDINATOR)
            ctx.end_session(member)
        for member_id in list(group.pending_members):
            ctx.remove_pending_member(member_id)
        cancel_join_phase(ctx)
        cancel_sync_phase(ctx)
        group.transition(Trigger.UNLOADED, self._rt.wall_ms)
        self._rt.drop_group(group)

    def _schedule_expiration(self, partition: int) -> None:
        interval = self._rt.config.offsets_retention_check_interval_ms
        self._rt.timers.append(SetTimer(offset_expiration_timer(partition), self._rt.now + interval))


def offset_expiration_timer(partition: int) -> TimerName:
    """Name the timer of the periodic expiration in a partition of `__consumer_offsets`."""
    return TimerName(TimerKind.OFFSET_EXPIRATION, partition=partition)
