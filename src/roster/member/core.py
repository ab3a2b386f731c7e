"""The client's half of the classic group protocol, pure: `Member.step(event, now) -> effects`.

A step first lets the event change the `Membership` (`transitions.TRANSITIONS` has every state change, `matrix` what
each error means), then `_advance` starts whatever the state allows and needs: discovery, revocation, joining, commits.
So nothing has to be remembered about why an action waits; the next step looks again.

The parts; each calls only those below it:

    joining     what must be given up first, JoinGroup
    assigning   the leader's duty
    syncing     SyncGroup, taking up the assignment
    lookups     the coordinator, topics
    staying     heartbeats, commits
    setbacks    losing an attempt, the coordinator, the place in the group
    ending      failing for good, closing
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roster.member import assigning, ending, joining, lookups, setbacks, staying, syncing
from roster.member.commits import Commit
from roster.member.events import (
    Assigned,
    AssignFailed,
    Closed,
    CommitRequested,
    Failure,
    FailureKind,
    OffsetsFetched,
    Released,
    RequestFailed,
    Responded,
    SelectionChanged,
    Started,
    TimerExpired,
)
from roster.member.membership import DISCOVER, HEARTBEAT, METADATA, REVOKE, Membership
from roster.member.transitions import OVER, State
from roster.wire import ErrorCode
from roster.wire.messages import (
    FindCoordinatorResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    MetadataResponse,
    OffsetCommitResponse,
    SyncGroupResponse,
)

if TYPE_CHECKING:
    from roster.member.backoff import Chance
    from roster.member.config import MemberConfig
    from roster.member.events import Effect, Event, Node, TimerName
    from roster.member.holdings import Holdings


class Member:
    """A member of a consumer group. Not thread-safe; time and chance come in, everything else goes out as effects."""

    def __init__(self, config: MemberConfig, chance: Chance) -> None:
        self._me = Membership(config, chance)

    def step(self, event: Event, now: int) -> tuple[Effect, ...]:
        """Take in one event at `now` (ms, monotonic); returns the effects in the order they are to be carried out."""
        me = self._me
        me.out.begin(now)
        if me.state is State.LEFT:
            ending.after_leaving(me, event)
        elif me.state is State.FAILED:
            ending.after_failing(me, event)
        else:
            _take(me, event)
            _advance(me)
        me.publish()
        return me.out.end()

    # For looking at only.

    @property
    def config(self) -> MemberConfig:
        """The options."""
        return self._me.config

    @property
    def state(self) -> State:
        """Where the member stands."""
        return self._me.state

    @property
    def generation(self) -> int:
        """The group's generation that this member is in; -1 for none."""
        return self._me.generation

    @property
    def member_id(self) -> str:
        """The id given by the coordinator; empty for none."""
        return self._me.member_id

    @property
    def coordinator(self) -> Node | None:
        """The group's coordinator, while it is known."""
        return self._me.coordinator

    @property
    def leader(self) -> bool:
        """Whether this member was made leader in its newest generation."""
        return self._me.leader

    @property
    def protocol(self) -> str | None:
        """The assignor that the group chose last."""
        return self._me.protocol

    @property
    def holdings(self) -> Holdings:
        """The partitions owned, being given up and lost."""
        return self._me.holdings

    @property
    def failure(self) -> Failure | None:
        """Why the member failed, if it did."""
        return self._me.failure


def _take(me: Membership, event: Event) -> None:
    match event:
        case Started():
            me.rejoin = "the member starts"
        case Responded():
            _answered(me, event)
        case RequestFailed():
            _unanswered(me, event)
        case TimerExpired(name):
            _timer(me, name)
        case Assigned():
            assigning.assigned(me, event)
        case AssignFailed():
            assigning.assign_failed(me, event)
        case OffsetsFetched():
            assigning.offsets_fetched(me, event)
        case Released(partitions):
            me.release(partitions)
        case SelectionChanged(selection):
            lookups.select(me, selection)
        case CommitRequested(token, offsets, epoch):
            me.commits.add(Commit(token, offsets, epoch))
        case Closed():
            ending.close(me, event)


def _advance(me: Membership) -> None:
    if me.state in OVER:
        return
    if me.coordinator is None:
        lookups.find_coordinator(me)
    if me.rejoin is not None and me.state in (State.UNJOINED, State.STABLE):
        joining.approach(me)
    staying.send_commit(me)


def _answered(me: Membership, event: Responded) -> None:
    sent = me.out.take(event.id)
    if sent is None:
        return
    match message := event.message:
        case FindCoordinatorResponse():
            lookups.coordinator_found(me, message)
        case MetadataResponse():
            lookups.topics_refreshed(me, message)
            if assigning.awaits_topics(me):
                assigning.topics_known(me)
            lookups.check_topics(me)
        case JoinGroupResponse():
            joining.joined(me, message, sent)
        case SyncGroupResponse():
            syncing.synced(me, message, sent)
        case HeartbeatResponse():
            staying.heartbeat_answered(me, message, sent)
        case OffsetCommitResponse():
            staying.commit_answered(me, message, sent)


def _unanswered(me: Membership, event: RequestFailed) -> None:
    sent = me.out.take(event.id)
    if sent is None:
        return
    if event.unsupported:
        ending.fail(me, Failure(FailureKind.UNSUPPORTED, event.reason, ErrorCode.UNSUPPORTED_VERSION))
    elif sent.kind == "find":
        me.pause(DISCOVER, event.reason)
    elif sent.kind == "metadata":
        me.pause(METADATA, event.reason)
    else:
        if sent.kind == "commit":
            me.commits.obstructed(event.reason)
        if sent.to == me.coordinator:
            setbacks.coordinator_lost(me, event.reason)


def _timer(me: Membership, name: TimerName) -> None:
    me.out.resume(name)
    if name == HEARTBEAT:
        if me.beating():
            staying.heartbeat(me)
    elif name == METADATA:
        if me.watch.needed or assigning.awaits_topics(me):
            lookups.refresh_topics(me)
    elif name == REVOKE:
        me.lose(me.holdings.revoking, "not released before the revoke deadline")
    elif len(name) == 2 and isinstance(name[1], int):
        me.commits.expired(name[1])
