"""The coordinator: one `step` per event, dispatched to the module that knows the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from roster.coordinator import describe, offsets, session
from roster.coordinator.config import CoordinatorConfig
from roster.coordinator.events import (
    Effects,
    Event,
    PartitionLoaded,
    PartitionLoading,
    PartitionUnloaded,
    RequestReceived,
    TimerExpired,
    TopicsDeleted,
    WriteCompleted,
)
from roster.coordinator.group import Group, GroupState
from roster.coordinator.join import join
from roster.coordinator.membership import heartbeat, leave
from roster.coordinator.rebalance import (
    answer_sync,
    join_phase_expired,
    prepare,
    refuse_join,
    session_expired,
    stop_waiting_for_joins,
    stop_waiting_for_syncs,
    sync_phase_expired,
)
from roster.coordinator.records import Replay
from roster.coordinator.runtime import PartitionStatus, Runtime
from roster.coordinator.sync import sync
from roster.wire import ErrorCode
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
)

REQUEST_HANDLERS: dict[type, Callable[[Runtime, RequestReceived, Any], None]] = {
    JoinGroupRequest: join,
    SyncGroupRequest: sync,
    HeartbeatRequest: heartbeat,
    LeaveGroupRequest: leave,
    OffsetCommitRequest: offsets.commit,
    OffsetFetchRequest: offsets.fetch,
    OffsetDeleteRequest: offsets.delete,
    ListGroupsRequest: describe.list_groups,
    DescribeGroupsRequest: describe.describe_groups,
    DeleteGroupsRequest: describe.delete_groups,
}
"""The requests that may be put into RequestReceived."""


class Coordinator:
    """Kafka's classic group protocol as a state machine; deterministic, no I/O, no clock.

    `new_id` returns a fresh unguessable text each time, the tail of the member ids made here (a UUID, say). Writes to
    one partition must be reported complete in the order in which they were asked for.
    """

    def __init__(self, config: CoordinatorConfig, new_id: Callable[[], str]) -> None:
        self._rt = Runtime(config, new_id)
        self.unreadable_records = 0
        """Records left out while loading because they could not be decoded."""
        self._event_handlers: dict[type, Callable[[Any], None]] = {
            RequestReceived: self._request_received,
            TimerExpired: self._timer_expired,
            WriteCompleted: self._write_completed,
            PartitionLoading: self._partition_loading,
            PartitionLoaded: self._partition_loaded,
            PartitionUnloaded: self._partition_unloaded,
            TopicsDeleted: self._topics_deleted,
        }

    def step(self, event: Event, now: int) -> Effects:
        """Take in one event at monotonic time `now` (ms, never decreasing); returns what the shell is to do."""
        self._rt.now = now
        self._event_handlers[type(event)](event)
        return self._rt.take_effects()

    # -- queries -------------------------------------------------------------------------------------------------

    def partition_of(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` that the group lives in."""
        return self._rt.partition_of(group_id)

    def owns(self, group_id: str) -> bool:
        """Whether this process is coordinator for the group, be it loading still."""
        return self.partition_of(group_id) in self._rt.partitions

    def group(self, group_id: str) -> Group | None:
        """The group's state, for looking at only."""
        return self._rt.groups.get(group_id)

    def group_ids(self) -> list[str]:
        """The groups this process knows."""
        return list(self._rt.groups)

    # -- events --------------------------------------------------------------------------------------------------

    def _request_received(self, event: RequestReceived) -> None:
        self._rt.wall_ms = event.wall_ms
        REQUEST_HANDLERS[type(event.message)](self._rt, event, event.message)

    def _timer_expired(self, event: TimerExpired) -> None:
        rt = self._rt
        rt.wall_ms = event.wall_ms
        kind, subject, *rest = event.name
        if kind == "expiry":
            partition = int(subject)
            if rt.partitions.get(partition) is PartitionStatus.ACTIVE:
                offsets.expire(rt, partition)
                self._schedule_expiry(partition)
            return
        group = rt.groups.get(subject)
        if group is None:
            return
        if kind == "session":
            session_expired(rt, group, rest[0])
        elif kind == "join":
            join_phase_expired(rt, group)
        else:
            sync_phase_expired(rt, group)

    def _write_completed(self, event: WriteCompleted) -> None:
        self._rt.write_completed(event.id, event.error)

    def _topics_deleted(self, event: TopicsDeleted) -> None:
        self._rt.wall_ms = event.wall_ms
        offsets.topics_deleted(self._rt, event.topics)

    # -- partitions coming and going -----------------------------------------------------------------------------

    def _partition_loading(self, event: PartitionLoading) -> None:
        self._give_up(event.partition)
        self._rt.partitions[event.partition] = PartitionStatus.LOADING

    def _partition_loaded(self, event: PartitionLoaded) -> None:
        rt = self._rt
        rt.wall_ms = event.wall_ms
        self._give_up(event.partition)
        replay = Replay(event.partition)
        replay.apply_all(event.records)
        self.unreadable_records += replay.unreadable
        rt.partitions[event.partition] = PartitionStatus.ACTIVE
        rt.groups.update(replay.groups)
        for group in replay.groups.values():
            for member in group.members.values():
                session.renew(rt, group, member)
            if len(group.members) > rt.config.max_group_size:
                prepare(rt, group)
        self._schedule_expiry(event.partition)

    def _partition_unloaded(self, event: PartitionUnloaded) -> None:
        self._give_up(event.partition)
        self._rt.partitions.pop(event.partition, None)

    def _give_up(self, partition: int) -> None:
        """Whoever waits for a group of this partition has to look for its new coordinator."""
        rt = self._rt
        if partition not in rt.partitions:
            return
        rt.cancel_timer(("expiry", str(partition)))
        for group in rt.groups_in(partition):
            self._close(group)
        rt.abandon_writes(partition)

    def _close(self, group: Group) -> None:
        rt = self._rt
        for member in group.members.values():
            parked = group.unpark_join(member)
            if parked is not None:
                refuse_join(rt, parked, ErrorCode.NOT_COORDINATOR, member.member_id)
            answer_sync(rt, group, member, ErrorCode.NOT_COORDINATOR)
            session.end(rt, group, member)
        for member_id in list(group.pending):
            session.forget_pending(rt, group, member_id)
        stop_waiting_for_joins(rt, group)
        stop_waiting_for_syncs(rt, group)
        group.state = GroupState.DEAD
        rt.drop_group(group)

    def _schedule_expiry(self, partition: int) -> None:
        interval = self._rt.config.offsets_retention_check_interval_ms
        self._rt.set_timer(("expiry", str(partition)), self._rt.now + interval)
