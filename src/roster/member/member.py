"""The client's side of the classic group protocol, pure: `Member.step(event, now) -> effects`.

In a step, the event first changes the `MemberContext` (`states.TRANSITIONS` has every change of state, `error_table`
the action for each error code). Then `_advance` starts what the state needs and allows: FindCoordinator, revocation,
JoinGroup, OffsetCommit. No reason for waiting is stored; the next step examines the state again.

Modules, each calling only those below it:

    join              revocation before a rebalance, JoinGroup
    leader            the leader's work between JoinGroup and SyncGroup
    sync              SyncGroup, taking over the assignment
    discovery         FindCoordinator, Metadata, changes of topics
    kept_assignment   DescribeGroups, for a static member that returned
    heartbeat         Heartbeat
    commit            OffsetCommit
    recovery          a failed join or sync, a lost coordinator, a reset generation
    leave             LeaveGroup, fatal errors, closing
"""

from roster.member import commit, discovery, heartbeat, join, kept_assignment, leader, leave, recovery, sync
from roster.member.causes import Cause
from roster.member.commit_queue import PendingCommit
from roster.member.config import MemberConfig
from roster.member.context import MemberContext
from roster.member.events import (
    Assigned,
    AssignFailed,
    Closed,
    CommitRequested,
    Effect,
    Event,
    OffsetsFetched,
    RebalanceRequested,
    Released,
    RequestFailed,
    Responded,
    SelectionChanged,
    Started,
    TimerExpired,
)
from roster.member.outbox import InFlight
from roster.member.ownership import PartitionOwnership
from roster.member.states import FINAL_STATES, MemberState
from roster.member.timers import DISCOVER, METADATA, RandomSource, TimerKind, TimerName
from roster.member.types import Failure, FailureKind, Node
from roster.wire import ApiKey, ErrorCode, Message
from roster.wire.messages import (
    DescribeGroupsResponse,
    FindCoordinatorResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    MetadataResponse,
    OffsetCommitResponse,
    SyncGroupResponse,
)


class Member:
    """A member of a consumer group. Not thread-safe; time and randomness are arguments, I/O is returned as effects."""

    def __init__(self, config: MemberConfig, random: RandomSource) -> None:
        self._me = MemberContext(config, random)

    def step(self, event: Event, now: int) -> tuple[Effect, ...]:
        """Process one event at `now` (ms, monotonic). Return the effects in the order to carry them out."""
        me = self._me
        me.out.begin(now)
        if me.state is MemberState.LEFT:
            leave.after_leaving(me, event)
        elif me.state is MemberState.FAILED:
            leave.after_failing(me, event)
        else:
            _handle(me, event)
            _advance(me)
        me.publish()
        return me.out.end()

    # Read-only views.

    @property
    def config(self) -> MemberConfig:
        """The options."""
        return self._me.config

    @property
    def state(self) -> MemberState:
        """The state of the member."""
        return self._me.state

    @property
    def generation(self) -> int:
        """The member's generation; -1 if it is in none."""
        return self._me.generation

    @property
    def member_id(self) -> str:
        """The id given by the coordinator; "" before the first."""
        return self._me.member_id

    @property
    def coordinator(self) -> Node | None:
        """The group's coordinator, while it is known."""
        return self._me.coordinator

    @property
    def leader(self) -> bool:
        """True if the newest JoinGroup response named this member the leader."""
        return self._me.leader

    @property
    def protocol_name(self) -> str | None:
        """The name of the assignor that the group chose last (JoinGroup's `protocol_name`)."""
        return self._me.protocol_name

    @property
    def topics(self) -> frozenset[str] | None:
        """The topics subscribed to; None while a pattern has not been matched yet."""
        return self._me.topics.subscribed

    @property
    def ownership(self) -> PartitionOwnership:
        """The partitions owned, being revoked and lost."""
        return self._me.ownership

    @property
    def failure(self) -> Failure | None:
        """The failure that stopped the member, if one did."""
        return self._me.failure


def _handle(me: MemberContext, event: Event) -> None:
    match event:
        case Responded():
            _on_response(me, event)
        case RequestFailed():
            _on_request_failed(me, event)
        case TimerExpired(name):
            _on_timer(me, name)
        case Assigned():
            leader.on_assigned(me, event)
        case AssignFailed():
            leader.on_assign_failed(me, event)
        case OffsetsFetched():
            leader.on_offsets_fetched(me, event)
        case _:
            _on_application(me, event)


def _on_application(me: MemberContext, event: Event) -> None:
    match event:
        case Started(former_id):
            me.member_id = former_id
            me.rejoin_reason = "the member starts"
            me.causes.next = Cause.JOIN
        case Released(partitions):
            me.release(partitions)
        case SelectionChanged(selection):
            discovery.change_selection(me, selection)
        case RebalanceRequested(reason):
            me.request_rejoin(reason, Cause.OWN)
        case CommitRequested(token, offsets, epoch):
            me.commits.add(PendingCommit(token, offsets, epoch))
        case Closed():
            leave.close(me, event)


def _advance(me: MemberContext) -> None:
    if me.state in FINAL_STATES:
        return
    if me.coordinator is None:
        discovery.send_find_coordinator(me)
    if me.rejoin_reason is not None and me.state in (MemberState.UNJOINED, MemberState.STABLE):
        join.prepare_join(me)
    sync.send_sync_group(me)
    kept_assignment.send_describe_groups(me)
    commit.send_offset_commit(me)


def _on_response(me: MemberContext, event: Responded) -> None:
    request = me.out.take(event.id)
    if request is None:
        return
    _take_response(me, event.message, request)
    if request.to is not None and request.to == me.coordinator:
        me.coordinator_works = True
        me.failures[DISCOVER] = 0


def _take_response(me: MemberContext, message: Message, request: InFlight) -> None:
    match message:
        case FindCoordinatorResponse():
            discovery.on_find_coordinator_response(me, message)
        case MetadataResponse():
            discovery.on_metadata_response(me, message)
            if leader.awaits_topics(me):
                leader.on_topics_known(me)
            discovery.rejoin_if_topics_changed(me)
        case JoinGroupResponse():
            join.on_join_group_response(me, message, request)
        case DescribeGroupsResponse():
            kept_assignment.on_describe_groups_response(me, message, request)
            discovery.rejoin_if_topics_changed(me)
        case SyncGroupResponse():
            sync.on_sync_group_response(me, message, request)
        case HeartbeatResponse():
            heartbeat.on_heartbeat_response(me, message, request)
        case OffsetCommitResponse():
            commit.on_offset_commit_response(me, message, request)


def _on_request_failed(me: MemberContext, event: RequestFailed) -> None:
    request = me.out.take(event.id)
    if request is None:
        return
    if event.refused:
        leave.fail(me, Failure(FailureKind.AUTHENTICATION, event.reason, ErrorCode.SASL_AUTHENTICATION_FAILED))
    elif event.unsupported:
        leave.fail(me, Failure(FailureKind.UNSUPPORTED, event.reason, ErrorCode.UNSUPPORTED_VERSION))
    elif request.api is ApiKey.FIND_COORDINATOR:
        me.back_off(DISCOVER, event.reason)
    elif request.api is ApiKey.METADATA:
        me.back_off(METADATA, event.reason)
    else:
        if request.api is ApiKey.OFFSET_COMMIT:
            me.commits.blocked(event.reason)
        if request.to == me.coordinator:
            recovery.mark_coordinator_unknown(me, event.reason)


def _on_timer(me: MemberContext, name: TimerName) -> None:
    me.out.end_backoff(name)
    match name.kind:
        case TimerKind.HEARTBEAT if me.heartbeats_due():
            heartbeat.send_heartbeat(me)
        case TimerKind.METADATA if me.topics.refresh_needed or leader.awaits_topics(me) or me.describes_assignment:
            discovery.send_metadata(me)
        case TimerKind.REVOKE:
            me.lose(me.ownership.revoking, "not released before the revoke deadline")
        case TimerKind.SECOND_ROUND if me.expects_second_round and me.state is MemberState.STABLE:
            me.expects_second_round = False
            me.request_rejoin("partitions that were given up have no owner yet", Cause.REVOKED)
        case TimerKind.COMMIT_DEADLINE:
            me.commits.expire(name.token)
