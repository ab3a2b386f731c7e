"""A shell for the coordinator in virtual time: exact timers, an in-memory log, clients that speak real bytes.

Every request and reply passes through the wire encoding of its version, and every step is followed by the structural
invariants of the protocol (S11 and S14). Not the simulator's world, whose members decide by themselves: here a test
chooses each request, also ones that no member sends, and the moment of each write's end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from roster.coordinator import Coordinator, CoordinatorConfig
from roster.coordinator.events import Effects, Event, TimerKind, TimerName
from roster.coordinator.group import Group
from roster.coordinator.states import TRANSITIONS, GroupState
from roster.coordinator_common import (
    PartitionLoaded,
    PartitionUnloaded,
    Reply,
    RequestReceived,
    TimerExpired,
    Write,
    WriteCompleted,
)
from roster.model import CancelTimer, SetTimer
from roster.wire import ErrorCode, Message, decode, encode
from roster.wire.consumer.messages import Subscription, encode_subscription
from roster.wire.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from roster.wire.offsets_topic import GroupMetadataKey, OffsetCommitKey, decode_key, decode_value, partition_of

CONFIG = CoordinatorConfig(min_session_timeout_ms=1, max_session_timeout_ms=600_000)
SUCCESSORS = {state: {after for (before, _), after in TRANSITIONS.items() if before is state} for state in GroupState}
WALL_OFFSET = 1_700_000_000_000
GROUP = "group-id"
LOG_PARTITION = 13
"""Where GROUP lives (worked case GC-30)."""


@dataclass(eq=False)
class Call:
    """A request that was sent, and what came back."""

    token: int
    version: int
    request: Message
    reply: Any = None
    answered_at: int | None = None

    @property
    def parked(self) -> bool:
        return self.reply is None

    @property
    def error(self) -> ErrorCode:
        assert self.reply is not None, f"not answered: {self.request}"
        return ErrorCode(self.reply.error_code)


@dataclass
class Shell:
    """Runs a coordinator; `auto_ack` answers each write at once, otherwise `ack` does, oldest first."""

    config: CoordinatorConfig = CONFIG
    auto_ack: bool = True
    load: Sequence[tuple[bytes, bytes | None]] = ()
    now: int = 0
    log: dict[int, list[tuple[bytes, bytes | None]]] = field(default_factory=dict)
    """Durable records by partition, since the shell began."""
    timers: dict[TimerName, int] = field(default_factory=dict)
    calls: dict[int, Call] = field(default_factory=dict)
    writes: list[Write] = field(default_factory=list)
    fail_with: ErrorCode = ErrorCode.NONE
    """What the next writes fail with."""
    states: dict[int, tuple[Group, GroupState]] = field(default_factory=dict)
    transitions: Counter[tuple[GroupState, GroupState]] = field(default_factory=Counter)
    ids: int = 0
    connected: set[int] = field(default_factory=set)
    """Tokens of the requests whose clients are known to wait on open connections."""
    signs: dict[str, tuple[int, int]] = field(default_factory=dict)
    """GROUP's members: when each was last certainly, and last possibly, seen alive."""
    stored_generation: int = 0
    """GROUP's generation in the log; 0 if the log has no such group."""
    stored_offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    """GROUP's offsets in the log."""

    def __post_init__(self) -> None:
        self.log = {partition: [] for partition in range(self.config.partitions)}
        self.home = partition_of(GROUP, self.config.partitions)
        self.log[self.home] = list(self.load)
        self.ids = len(self.load) * 1_000  # no id that the log may have already
        self.start()

    # -- running the machine -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin with a fresh coordinator that loads what the log has."""
        self.coordinator = Coordinator(self.config, self._new_id, lambda token: token in self.connected)
        self.timers.clear()
        self.writes.clear()
        self.states.clear()
        self.signs.clear()
        for partition, records in self.log.items():
            self.step(PartitionLoaded(partition, tuple(records), self.wall_ms))
        group = self.coordinator.group(GROUP)
        if group is not None:
            self.signs = dict.fromkeys(group.members, (self.now, self.now))

    def fail_over(self) -> None:
        """The coordinator dies; another one takes over with what is durable. Open requests are lost."""
        for call in self.calls.values():
            call.answered_at = self.now if call.answered_at is None else call.answered_at
        self.start()

    def _handled(self, event: Event) -> Effects:
        """What the coordinator makes of an event; every other heartbeat goes the short way, which must not differ."""
        if isinstance(event, RequestReceived) and isinstance(event.message, HeartbeatRequest) and event.token % 2:
            error, timers = self.coordinator.heartbeat(event.message, self.now)
            return Effects((Reply(event.token, HeartbeatResponse(error_code=error)),), (), tuple(timers))
        return self.coordinator.step(event, self.now)

    def unload(self) -> None:
        """Give up the partition that GROUP lives in."""
        self.step(PartitionUnloaded(self.home))

    def step(self, event: Event) -> Effects:
        effects = self._handled(event)
        for timer in effects.timers:
            if isinstance(timer, SetTimer):
                assert timer.deadline >= self.now
                self.timers[timer.name] = timer.deadline
            else:
                assert isinstance(timer, CancelTimer)
                self.timers.pop(timer.name, None)
        for reply in effects.replies:
            call = self.calls[reply.token]
            assert call.reply is None, f"answered twice: {call.request}"
            call.reply = decode(type(reply.message), call.version, encode(reply.message, call.version))
            call.answered_at = self.now
            self.answered(call, at_once=reply.token == getattr(event, "token", None))
        self.writes.extend(effects.writes)
        self._check_structure()
        if self.auto_ack:
            while self.writes:
                self.ack()
        return effects

    def answered(self, call: Call, at_once: bool) -> None:
        """Note whom the answer shows to be alive; an answer that was waited for certainly does."""
        request = call.request
        error = call.reply.error_code if hasattr(call.reply, "error_code") else 0
        if isinstance(request, JoinGroupRequest | SyncGroupRequest):
            self.saw(call.reply.member_id if isinstance(request, JoinGroupRequest) else request.member_id, not at_once)
            group = self.coordinator.group(GROUP)
            holder = group and group.instances.get(request.group_instance_id or "")
            if holder:  # a restart that failed gives its old self another session
                self.saw(holder, certainly=False)
        elif isinstance(request, HeartbeatRequest) and error in {ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS}:
            self.saw(request.member_id, True)

    def saw(self, member_id: str, certainly: bool) -> None:
        self.signs[member_id] = (self.now if certainly else self.signs.get(member_id, (0, 0))[0], self.now)

    def _store(self, write: Write) -> None:
        self.log[write.partition].extend(write.records)
        for key, value in write.records:
            about = decode_key(key)
            if about is None or about.group != GROUP:
                continue
            if isinstance(about, GroupMetadataKey):
                content = None if value is None else decode_value(about, value)
                self.stored_generation = 0 if content is None else content.generation
            else:
                self.stored_offsets.pop((about.topic, about.partition), None)
                if value is not None:
                    self.stored_offsets[about.topic, about.partition] = decode_value(about, value).offset

    def ack(self, error: ErrorCode | None = None) -> None:
        """Complete the oldest write, with `fail_with` unless told."""
        write = self.writes.pop(0)
        outcome = self.fail_with if error is None else error
        if not outcome:
            self._store(write)
        self.step(WriteCompleted(write.id, self.wall_ms, outcome))

    def advance(self, ms: int) -> None:
        """Let time pass; every timer rings exactly at its deadline."""
        self.advance_to(self.now + ms)

    def advance_to(self, end: int) -> None:
        while (deadline := min(self.timers.values(), default=end + 1)) <= end:
            due = (name for name, at_ms in self.timers.items() if at_ms == deadline)
            name = min(due, key=lambda name: (name.kind.value, name[1:]))
            self.now = max(deadline, self.now)
            del self.timers[name]
            self.step(TimerExpired(name, self.wall_ms))
        self.now = end

    @property
    def wall_ms(self) -> int:
        return WALL_OFFSET + self.now

    def _new_id(self) -> str:
        self.ids += 1
        return f"id{self.ids}"

    # -- looking -------------------------------------------------------------------------------------------------

    def group(self, group_id: str = GROUP) -> Group:
        group = self.coordinator.group(group_id)
        assert group is not None
        return group

    @property
    def state(self) -> GroupState:
        return self.group().state

    def records(self) -> list[tuple[Any, Any]]:
        """The durable records of GROUP's partition, decoded; a tombstone is None."""
        decoded = []
        for key, value in self.log[self.home]:
            about = decode_key(key)
            assert about is not None
            decoded.append((about, None if value is None else decode_value(about, value)))
        return decoded

    def group_records(self) -> list[Any]:
        return [value for key, value in self.records() if isinstance(key, GroupMetadataKey)]

    def offset_records(self) -> list[Any]:
        return [value for key, value in self.records() if isinstance(key, OffsetCommitKey)]

    def _check_structure(self) -> None:
        for group_id in self.coordinator.group_ids():
            group = self.coordinator.group(group_id)
            assert group is not None
            _, before = self.states.get(id(group), (group, group.state))
            if before is not group.state:
                both = any(
                    group.state in SUCCESSORS[between] for between in SUCCESSORS[before]
                )  # one step may pass through a state
                assert group.state in SUCCESSORS[before] or both, (before, group.state)
                self.transitions[before, group.state] += 1
            self.states[id(group)] = (group, group.state)
            check_group(group, self.config)
            self._check_timers(group)

    def check_sessions(self, group: Group) -> None:
        """S12: a session ends neither before nor after its timeout since the last sign of life."""
        for member in group.members.values():
            if not member.is_new and not member.waits_for_join():
                certainly, possibly = self.signs[member.member_id]
                assert certainly + member.session_timeout_ms <= member.deadline, f"{member.member_id} too early"
                assert member.deadline <= possibly + member.session_timeout_ms, f"{member.member_id} too late"
                assert self.now <= member.deadline, f"{member.member_id} is overdue"

    def _check_timers(self, group: Group) -> None:
        """S12: every deadline is backed by a timer that rings by then, and no timer watches what is gone."""
        expected = {
            TimerName(TimerKind.SESSION, group.group_id, member_id): deadline
            for member_id, deadline in group.pending_members.items()
        }
        for member in group.members.values():
            if member.timer_deadline is not None:
                expected[TimerName(TimerKind.SESSION, group.group_id, member.member_id)] = member.timer_deadline
        if group.join_deadline is not None:
            expected[TimerName(TimerKind.JOIN, group.group_id)] = group.join_deadline
        if group.sync_deadline is not None:
            expected[TimerName(TimerKind.SYNC, group.group_id)] = group.sync_deadline
        found = {name: deadline for name, deadline in self.timers.items() if name.group_id == group.group_id}
        assert found == expected


def check_group(group: Group, config: CoordinatorConfig) -> None:
    """S10, S11, S13, S14: what holds for a group between any two events."""
    members = group.members
    assert group.awaiting_join == sum(member.parked_join is not None for member in members.values())
    assert len(group.pending_members) <= config.max_pending_members
    assert not group.pending_members.keys() & members.keys()
    assert group.pending_sync_members <= members.keys()
    assert group.instances == {m.instance_id: m.member_id for m in members.values() if m.instance_id is not None}
    assert all(member_id == member.member_id for member_id, member in members.items())
    support = Counter(name for member in members.values() for name, _ in member.protocols)
    assert group.supported_protocols == support
    assert group.metadata_bytes == sum(len(data) for member in members.values() for _, data in member.protocols)
    assert group.leader_id in members if members else group.leader_id is None
    waits = (group.join_deadline is not None) + (group.generation_write is not None)
    assert waits == (group.state is GroupState.PREPARING), "either time runs or the generation is being written"
    parked_syncs = [member for member in members.values() if member.parked_sync is not None]
    match group.state:
        case GroupState.EMPTY | GroupState.DEAD:
            assert not members
            assert group.sync_deadline is None
        case GroupState.PREPARING:
            assert not parked_syncs
            assert group.sync_deadline is None
        case GroupState.COMPLETING:
            assert members
            assert not group.awaiting_join
            assert not group.pending_sync_members & {member.member_id for member in parked_syncs}
        case GroupState.STABLE:
            assert members
            assert not parked_syncs
            assert all(support[group.protocol or ""] == len(members) for _ in members)
    for member in members.values():
        assert member.timer_deadline is not None or member.waits_for_join(), f"{member.member_id} is watched by nobody"
        assert member.timer_deadline is None or member.timer_deadline <= member.deadline


# -- clients -----------------------------------------------------------------------------------------------------------


def subscription(*topics: str) -> bytes:
    return encode_subscription(Subscription(topics=list(topics)))


RANGE = (("range", subscription("t")),)


class Client(Shell):
    """The shell with one method per request, defaults as in the worked cases (session 5000, rebalance 10 000)."""

    def send(self, message: Message, version: int, client_id: str = "client", host: str = "/127.0.0.1") -> Call:
        token = len(self.calls) + 1
        call = self.calls[token] = Call(token, version, message)
        received = decode(type(message), version, encode(message, version))
        self.step(RequestReceived(token, version, client_id, host, self.wall_ms, received))
        return call

    def join(
        self,
        member_id: str = "",
        *,
        version: int = 9,
        group: str = GROUP,
        instance: str | None = None,
        protocols: Iterable[tuple[str, bytes]] = RANGE,
        protocol_type: str = "consumer",
        session: int = 5_000,
        rebalance: int = 10_000,
        client_id: str = "client",
    ) -> Call:
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session,
            rebalance_timeout_ms=rebalance,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequest.Protocol(name=name, metadata=data) for name, data in protocols],
        )
        return self.send(request, version, client_id)

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        version: int = 5,
        group: str = GROUP,
        instance: str | None = None,
        protocol_type: str | None = "consumer",
        protocol: str | None = "range",
    ) -> Call:
        request = SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol,
            assignments=[
                SyncGroupRequest.Assignment(member_id=member, assignment=data)
                for member, data in (assignments or {}).items()
            ],
        )
        call = self.send(request, version)
        if call.parked:
            self.saw(member_id, True)
        return call

    def heartbeat(
        self, member_id: str, generation: int, *, group: str = GROUP, instance: str | None = None
    ) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance
        )
        return self.send(request, 4).error

    def leave(self, *members: str | tuple[str, str], version: int = 5, group: str = GROUP) -> Call:
        """Leave by member id, or by (member id, instance id)."""
        if version < 3:
            (member,) = members
            return self.send(LeaveGroupRequest(group_id=group, member_id=str(member)), version)
        entries = [
            LeaveGroupRequest.Member(member_id=entry)
            if isinstance(entry, str)
            else LeaveGroupRequest.Member(member_id=entry[0], group_instance_id=entry[1])
            for entry in members
        ]
        return self.send(LeaveGroupRequest(group_id=group, members=entries), version)

    def commit(
        self,
        member_id: str = "",
        generation: int = -1,
        offsets: dict[tuple[str, int], int] | None = None,
        *,
        version: int = 9,
        group: str = GROUP,
        instance: str | None = None,
        metadata: str | None = "",
        retention: int = -1,
    ) -> Call:
        topics: dict[str, list[OffsetCommitRequest.Partition]] = {}
        for (topic, partition), offset in (offsets or {("t", 0): 100}).items():
            topics.setdefault(topic, []).append(
                OffsetCommitRequest.Partition(
                    partition_index=partition, committed_offset=offset, committed_metadata=metadata
                )
            )
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance,
            retention_time_ms=retention,
            topics=[OffsetCommitRequest.Topic(name=name, partitions=parts) for name, parts in topics.items()],
        )
        return self.send(request, version)

    def commit_error(self, *args: Any, **kwargs: Any) -> ErrorCode:
        """The outcome of a commit of one partition."""
        reply = self.commit(*args, **kwargs).reply
        return ErrorCode(reply.topics[0].partitions[0].error_code)

    def fetched(self, group: str = GROUP) -> dict[tuple[str, int], int]:
        """Every committed offset of the group."""
        request = OffsetFetchRequest(groups=[OffsetFetchRequest.Group(group_id=group, topics=None)])
        (answer,) = self.send(request, 9).reply.groups
        assert not answer.error_code
        return {(t.name, p.partition_index): p.committed_offset for t in answer.topics for p in t.partitions}

    def delete_offsets(self, *partitions: tuple[str, int], group: str = GROUP) -> Call:
        topics = [
            OffsetDeleteRequest.Topic(name=topic, partitions=[OffsetDeleteRequest.Partition(partition_index=partition)])
            for topic, partition in partitions
        ]
        return self.send(OffsetDeleteRequest(group_id=group, topics=topics), 0)

    def describe(self, group: str = GROUP, version: int = 5) -> Any:
        return self.send(DescribeGroupsRequest(groups=[group]), version).reply.groups[0]

    def list_groups(self, states: Sequence[str] = (), types: Sequence[str] = ()) -> Any:
        return self.send(ListGroupsRequest(states_filter=list(states), types_filter=list(types)), 5).reply

    def delete_group(self, *groups: str) -> Call:
        return self.send(DeleteGroupsRequest(groups_names=list(groups or (GROUP,))), 2)

    # -- whole conversations -------------------------------------------------------------------------------------

    def new_member(self, **options: Any) -> tuple[str, Call]:
        """Join as a dynamic member: id first, then the join itself, which may be parked."""
        first = self.join(**options)
        assert first.error is ErrorCode.MEMBER_ID_REQUIRED
        return first.reply.member_id, self.join(first.reply.member_id, **options)

    def stable_group(self, *instances: str | None, **options: Any) -> list[str]:
        """A stable group in generation 1 of members with these instance ids (None: dynamic), the first one leading."""
        assert self.coordinator.group(GROUP) is None
        calls = [
            self.new_member(**options)[1] if instance is None else self.join(instance=instance, **options)
            for instance in instances
        ]
        while calls[0].parked:  # a window is extended once if members came in it
            self.advance(self.config.initial_rebalance_delay_ms)
        ids = [call.reply.member_id for call in calls]
        assert calls[0].reply.leader == ids[0]
        self.sync_all(ids)
        return ids

    def sync_all(self, ids: Sequence[str], leader: str | None = None, protocol: str = "range") -> None:
        """Everybody syncs; the leader gives each member its own id as assignment."""
        generation = self.group().generation
        leader = leader or self.group().leader_id
        assert leader is not None
        instances = {member.member_id: member.instance_id for member in self.group().members.values()}
        followers = [
            self.sync(member, generation, instance=instances[member], protocol=protocol)
            for member in ids
            if member != leader
        ]
        given = {member: member.encode() for member in ids}
        last = self.sync(leader, generation, given, instance=instances[leader], protocol=protocol)
        assert self.state is GroupState.STABLE
        assert all(not call.error for call in [*followers, last])

    def rejoin_all(self, ids: Sequence[str], **options: Any) -> list[Call]:
        instances = {member.member_id: member.instance_id for member in self.group().members.values()}
        return [self.join(member, instance=instances.get(member), **options) for member in ids]


def with_config(**changes: Any) -> Client:
    return Client(config=replace(CONFIG, **changes))


__all__ = [
    "GROUP",
    "Call",
    "Client",
    "GroupState",
    "HeartbeatResponse",
    "JoinGroupResponse",
    "LeaveGroupResponse",
    "SyncGroupResponse",
    "subscription",
    "with_config",
]
