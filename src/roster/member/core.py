"""The client's half of the classic group protocol, pure: `Member.step(event, now) -> effects`.

A step first lets the event change the member's state (`transitions.TRANSITIONS` has every state change, `matrix` what
each error means), then `_advance` starts whatever the state allows and needs: discovery, revocation, joining, commits.
So nothing has to be remembered about why an action waits; the next step looks again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from roster.assignors import ASSIGNORS, RebalanceProtocol
from roster.member import matrix, requests
from roster.member.backoff import Chance
from roster.member.commits import PAUSE as COMMIT
from roster.member.commits import Commit, Commits, commit_request, split_errors
from roster.member.config import MemberConfig, check_selection
from roster.member.events import (
    Assign,
    Assigned,
    AssignFailed,
    Channel,
    Closed,
    CommitDone,
    CommitRequested,
    Disconnect,
    Effect,
    Event,
    Failure,
    FailureKind,
    FetchOffsets,
    Node,
    OffsetsFetched,
    Publish,
    Released,
    Report,
    RequestFailed,
    Responded,
    SelectionChanged,
    Started,
    Stopped,
    TimerExpired,
    TimerName,
)
from roster.member.failures import fatal_answer
from roster.member.holdings import Holdings
from roster.member.matrix import Action, error_code
from roster.member.outbox import Identity, Outbox, Sent
from roster.member.subscription import (
    LeaderFailure,
    decode_assignment,
    failure_assignment,
    subscription_bytes,
    topics_of,
)
from roster.member.transitions import OVER, TRANSITIONS, State, Trigger
from roster.member.watch import TopicWatch
from roster.model import TopicPartition
from roster.wire import ErrorCode, Message, WireError
from roster.wire.messages import (
    FindCoordinatorResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    MetadataResponse,
    OffsetCommitResponse,
    SyncGroupResponse,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roster.assignors.lag import Offsets

NO_GENERATION = -1
IMMEDIATE_ATTEMPTS = 5
"""Joins that follow each other at once; after that even errors that ask for an immediate retry pause."""

HEARTBEAT: TimerName = ("heartbeat",)
REVOKE: TimerName = ("revoke",)
JOIN: TimerName = ("join",)
DISCOVER: TimerName = ("discover",)
METADATA: TimerName = ("metadata",)


class Member:
    """A member of a consumer group. Not thread-safe; time and chance come in, everything else goes out as effects."""

    def __init__(self, config: MemberConfig, chance: Chance) -> None:
        self.config = config
        self.state = State.UNJOINED
        self.generation = NO_GENERATION
        self.member_id = ""
        self.coordinator: Node | None = None
        self.leader = False
        self.protocol: str | None = None
        self.holdings = Holdings()
        self.failure: Failure | None = None
        self._watch = TopicWatch(config.selection)
        self._out = Outbox(config, chance)
        self._commits = Commits(config, self._out)
        self._published = Publish(epoch=0)
        self._assigning: int | None = None
        """The number of the running `FetchOffsets` or `Assign`."""
        self._settling = False
        """Whether the next join tells the group that partitions were given up for others to have."""
        self._group: dict[str, tuple[bytes, str | None]] = {}
        """While leading: each member's subscription and instance id."""
        self._rejoin: str | None = None
        """Why to join again; None when there is no reason to."""
        self._joined_topics: frozenset[str] = frozenset()
        self._last_assignment: tuple[int, frozenset[TopicPartition]] = (NO_GENERATION, frozenset())
        self._failures = 0
        self._lookups = 0
        self._refreshes = 0

    # The one entry.

    def step(self, event: Event, now: int) -> tuple[Effect, ...]:
        """Take in one event at `now` (ms, monotonic); returns the effects in the order they are to be carried out."""
        self._out.begin(now)
        if self.state is State.LEFT:
            self._after_leaving(event)
        elif self.state is State.FAILED:
            self._after_failing(event)
        else:
            self._take(event)
            self._advance()
        self._publish()
        return self._out.end()

    def _take(self, event: Event) -> None:
        match event:
            case Started():
                self._rejoin = "the member starts"
            case Responded(number, message):
                self._answered(number, message)
            case RequestFailed(number, reason, unsupported):
                self._unanswered(number, reason, unsupported)
            case TimerExpired(name):
                self._timer(name)
            case Assigned(number, assignments):
                self._assigned(number, assignments)
            case AssignFailed(number, reason):
                if number == self._assigning:
                    self._report("retry", f"the assignment failed, the group will be told: {reason}")
                    self._assigned(number, dict.fromkeys(self._group, failure_assignment(reason)))
            case OffsetsFetched(number, found, reason):
                if number == self._assigning:
                    if found is None:
                        self._report("leading", f"{self.protocol} does without lags: {reason or 'no offsets'}")
                    self._assign(found)
            case Released(partitions):
                self.holdings.release(partitions)
                self._end_revocation()
            case SelectionChanged(selection):
                check_selection(selection)
                self._watch.select(selection)
                if self._watch.topics is None:
                    self._refresh_metadata()
                self._check_topics()
            case CommitRequested(token, offsets, epoch):
                self._commits.add(Commit(token, offsets, epoch))
            case Closed(leave, reason):
                self._close(leave, reason)

    def _move(self, trigger: Trigger) -> None:
        self.state = TRANSITIONS[self.state, trigger]

    # What the state allows and needs.

    def _advance(self) -> None:
        if self.state in OVER:
            return
        if self.coordinator is None:
            self._discover()
        if self._rejoin is not None and self.state in (State.UNJOINED, State.STABLE):
            self._approach_join()
        self._send_commit()

    def _discover(self) -> None:
        if self._out.paused(DISCOVER) or self._out.in_flight("find"):
            return
        self._send("find", requests.find_coordinator(self.config))

    def _approach_join(self) -> None:
        """Give up what must be given up before joining, learn the topics, then join."""
        if self.holdings.revoking:
            return
        surplus = self._revoke_before_join()
        if surplus:
            self._revoke(surplus)
            return
        if self._watch.topics is None:
            self._refresh_metadata()
            return
        if self.coordinator is not None and not self._out.paused(JOIN):
            self._join(self.coordinator)

    def _revoke_before_join(self) -> frozenset[TopicPartition]:
        if self.config.mode is RebalanceProtocol.EAGER:
            return self.holdings.owned
        topics = self._watch.topics
        if topics is None:
            return frozenset()
        return frozenset(p for p in self.holdings.owned if p.topic not in topics)

    def _revoke(self, partitions: frozenset[TopicPartition]) -> None:
        deadline = self._out.now + self.config.revocation_ms
        self.holdings.revoke(partitions, deadline)
        self._out.set(REVOKE, deadline)
        self._report("revoking", "to be finished, committed and released", partitions)

    def _end_revocation(self) -> None:
        if not self.holdings.revoking:
            self._out.cancel(REVOKE)

    def _join(self, coordinator: Node) -> None:
        topics = self._watch.topics or frozenset()
        self._joined_topics = topics
        reason, self._rejoin = self._rejoin or "", None
        self._move(Trigger.JOIN_SENT)
        self._out.cancel(HEARTBEAT)
        self._report("joining", reason)
        subscriptions = {
            name: subscription_bytes(
                name,
                topics=topics,
                owned=self.holdings.owned,
                generation=self.generation,
                rack=self.config.rack_id,
                last_assignment=self._last_assignment,
                capacity=self.config.capacity,
                settling=self._settling,
            )
            for name in self.config.assignors
        }
        request = requests.join_group(self.config, self.member_id, subscriptions, reason)
        timeout = self.config.join_timeout_ms
        self._send("join", request, coordinator, timeout_ms=timeout, channel=Channel.PARKED)

    # Answers.

    def _answered(self, number: int, message: Message) -> None:
        sent = self._out.take(number)
        if sent is None:
            return
        match message:
            case FindCoordinatorResponse():
                self._found(message)
            case MetadataResponse():
                self._metadata(message)
            case JoinGroupResponse():
                self._joined(message, sent)
            case SyncGroupResponse():
                self._synced(message, sent)
            case HeartbeatResponse():
                self._heartbeat_answered(message, sent)
            case OffsetCommitResponse():
                self._commit_answered(message, sent)

    def _unanswered(self, number: int, reason: str, unsupported: bool) -> None:
        sent = self._out.take(number)
        if sent is None:
            return
        if unsupported:
            self._fail(Failure(FailureKind.UNSUPPORTED, reason, ErrorCode.UNSUPPORTED_VERSION))
        elif sent.kind == "find":
            self._pause_lookup(reason)
        elif sent.kind == "metadata":
            self._refreshes = self._pause(METADATA, self._refreshes, reason)
        else:
            if sent.kind == "commit":
                self._commits.obstructed(reason)
            if sent.to == self.coordinator:
                self._coordinator_lost(reason)

    def _found(self, response: FindCoordinatorResponse) -> None:
        if not response.coordinators:
            self._pause_lookup("the broker named no coordinator")
            return
        found = response.coordinators[0]
        code = error_code(found.error_code)
        match matrix.FIND_COORDINATOR.get(code, Action.FATAL):
            case Action.ACCEPT:
                self._lookups = 0
                self.coordinator = Node(found.node_id, found.host, found.port)
                self._report("coordinator", f"the group's coordinator is broker {found.node_id} at {self.coordinator}")
                if self._beating():
                    self._heartbeat()
            case Action.BACK_OFF:
                self._pause_lookup(f"{code.name}: {found.error_message or 'no coordinator yet'}")
            case _:
                self._fail(fatal_answer("FindCoordinator", code, self.config))

    def _pause_lookup(self, reason: str) -> None:
        self._lookups = self._pause(DISCOVER, self._lookups, reason)

    def _coordinator_lost(self, reason: str) -> None:
        """Look for the coordinator again; an attempt to join is over, but generation, member id and partitions stay."""
        if self.coordinator is None:
            return
        self._report("coordinator", f"the coordinator at {self.coordinator} is lost: {reason}")
        self._out.emit(Disconnect(self.coordinator))
        self._out.forget_node(self.coordinator)
        self.coordinator = None
        self._out.cancel(HEARTBEAT)
        if self.state in (State.PREPARING_REBALANCE, State.COMPLETING_REBALANCE):
            self._attempt_failed("the coordinator was lost", pause=True)

    # Joining.

    def _joined(self, response: JoinGroupResponse, sent: Sent) -> None:
        code = error_code(response.error_code)
        action = matrix.JOIN_GROUP.get(code, Action.FATAL)
        if action is Action.TAKE_MEMBER_ID:
            self.member_id = response.member_id
            self._attempt_failed(f"need to re-join with the given member-id: {response.member_id}", pause=False)
        elif action is not Action.ACCEPT:
            self._attempt_refused("JoinGroup", code, action, sent)
        elif (
            response.protocol_type not in (None, requests.PROTOCOL_TYPE)
            or response.protocol_name not in self.config.assignors
        ):
            self._fail(fatal_answer("JoinGroup", ErrorCode.INCONSISTENT_GROUP_PROTOCOL, self.config))
        else:
            self._move(Trigger.JOIN_ACCEPTED)
            self.generation, self.member_id = response.generation_id, response.member_id
            self.protocol = response.protocol_name
            self.leader = response.leader == response.member_id
            self._set_heartbeat()
            self._report("joined", f"generation {self.generation}, assignor {self.protocol}")
            if self.leader:
                self._lead(response)
            else:
                self._watch.follow()
                self._sync({})

    def _lead(self, response: JoinGroupResponse) -> None:
        self._group = {m.member_id: (m.metadata, m.group_instance_id) for m in response.members}
        self._watch.lead(frozenset().union(*(topics_of(metadata) for metadata, _ in self._group.values())))
        if response.skip_assignment:
            self._watch.adopt()
            self._sync({})
        else:
            self._report("leading", f"assigning for {len(self._group)} members")
        self._out.forget("metadata")  # it asked for other topics
        self._out.resume(METADATA)
        self._refresh_metadata()

    def _start_assignment(self) -> None:
        if not ASSIGNORS[self.protocol or ""].wants_lag:
            self._assign(None)
            return
        self._assigning = self._out.number()
        partitions, timeout = self._watch.assigned(), self.config.offsets_timeout_ms
        self._out.emit(FetchOffsets(self._assigning, self.config.group, partitions, timeout))

    def _assign(self, offsets: Offsets | None) -> None:
        self._assigning = self._out.number()
        self._out.emit(
            Assign(
                self._assigning,
                self.protocol or "",
                {member: metadata for member, (metadata, _) in self._group.items()},
                self._watch.assigned(),
                {member: instance for member, (_, instance) in self._group.items()},
                self._watch.racks(),
                self.generation,
                offsets,
                self.config.auto_offset_reset,
            )
        )

    def _assigned(self, number: int, assignments: Mapping[str, bytes]) -> None:
        if number == self._assigning:
            self._assigning = None
            self._sync(assignments)

    def _sync(self, assignments: Mapping[str, bytes]) -> None:
        self._group = {}
        request = requests.sync_group(self.config, self._identity, self.protocol, assignments)
        timeout = self.config.join_timeout_ms
        self._send("sync", request, self.coordinator, timeout_ms=timeout, channel=Channel.PARKED)

    def _synced(self, response: SyncGroupResponse, sent: Sent) -> None:
        code = error_code(response.error_code)
        action = matrix.SYNC_GROUP.get(code, Action.FATAL)
        if action is not Action.ACCEPT:
            self._attempt_refused("SyncGroup", code, action, sent)
            return
        if response.protocol_type not in (None, requests.PROTOCOL_TYPE) or response.protocol_name not in (
            None,
            self.protocol,
        ):
            self._fail(fatal_answer("SyncGroup", ErrorCode.INCONSISTENT_GROUP_PROTOCOL, self.config))
            return
        try:
            assigned = decode_assignment(response.assignment)
        except LeaderFailure as failure:
            self._fail(Failure(FailureKind.ASSIGNMENT, f"the group's leader could not assign partitions: {failure}"))
            return
        except WireError as error:
            text = f"the group's leader sent an assignment that cannot be read: {error}"
            self._fail(Failure(FailureKind.ASSIGNMENT, text))
            return
        self._move(Trigger.SYNC_ACCEPTED)
        self._failures = 0
        self._install(assigned)

    def _install(self, assigned: frozenset[TopicPartition]) -> None:
        topics = frozenset(p.topic for p in assigned)
        if not self._watch.accepts(topics):
            self._request_rejoin("received assignment does not match the current subscription")
            return
        if self._watch.topics is not None and topics - self._watch.topics:
            self._watch.topics |= topics
            self._joined_topics |= topics
        self._last_assignment = (self.generation, assigned)
        revoked = self.holdings.owned - assigned
        self._settling = bool(revoked)
        added = self.holdings.assign(assigned | revoked)
        self._report("assigned", f"{len(assigned)} partitions, {len(added)} of them new", assigned)
        if revoked:
            self._revoke(revoked)
            self._request_rejoin("need to revoke partitions and re-join")
        self._check_topics()
        if self._watch.needed:
            self._out.set(METADATA, self._out.now + self.config.metadata_max_age_ms)

    def _attempt_refused(self, api: str, code: ErrorCode, action: Action, sent: Sent) -> None:
        """JoinGroup or SyncGroup was answered with an error."""
        reason = f"rebalance failed due to {code.name}"
        match action:
            case Action.RETRY:
                self._attempt_failed(reason, pause=False)
            case Action.BACK_OFF:
                self._attempt_failed(reason, pause=True)
            case Action.REDISCOVER:
                self._coordinator_lost(code.name)
            case Action.RESET_MEMBER | Action.RESET_GENERATION:
                if self._is_me(sent):
                    self._reset(f"encountered {code.name} from {api} response", action)
                else:
                    self._attempt_failed(reason, pause=False)
            case _:
                self._fail(fatal_answer(api, code, self.config))

    def _attempt_failed(self, reason: str, *, pause: bool) -> None:
        self._move(Trigger.ATTEMPT_FAILED)
        self._drop_attempt()
        self._request_rejoin(reason)
        self._pause_join(reason, pause=pause)
        if self._beating():
            self._set_heartbeat()

    def _pause_join(self, reason: str, *, pause: bool) -> None:
        if pause or self._failures >= IMMEDIATE_ATTEMPTS:
            self._failures = self._pause(JOIN, self._failures, reason)
        else:
            self._failures += 1

    def _drop_attempt(self) -> None:
        """Forget what a join or sync is still waiting for; answers that come after all are ignored."""
        self._assigning = None
        self._group = {}
        self._out.forget("join", "sync")

    def _reset(self, reason: str, action: Action) -> None:
        """The coordinator does not know this member in this generation: what it held is lost."""
        self._move(Trigger.RESET)
        self._drop_attempt()
        self.generation = NO_GENERATION
        if action is Action.RESET_MEMBER:
            self.member_id = ""
        self.leader = False
        self._watch.follow()
        self._last_assignment = (NO_GENERATION, frozenset())
        self._settling = False
        self._out.cancel(HEARTBEAT)
        self._lose(self.holdings.held, reason)
        self._request_rejoin(reason)
        self._pause_join(reason, pause=False)

    def _lose(self, partitions: frozenset[TopicPartition], reason: str) -> None:
        if partitions:
            self._report("lost", reason, partitions)
        self.holdings.lose(partitions)
        self._end_revocation()

    def _request_rejoin(self, reason: str) -> None:
        if self._rejoin is None:
            self._report("rejoin", reason)
        self._rejoin = reason

    # Staying in the group.

    def _beating(self) -> bool:
        """Whether the coordinator expects heartbeats: in a generation, and no JoinGroup is on its way."""
        return self.generation != NO_GENERATION and self.state is not State.PREPARING_REBALANCE

    def _set_heartbeat(self) -> None:
        self._out.set(HEARTBEAT, self._out.now + self.config.heartbeat_interval_ms)

    def _heartbeat(self) -> None:
        self._set_heartbeat()
        if self.coordinator is None or self._out.in_flight("heartbeat"):
            return
        request = requests.heartbeat(self.config, self._identity)
        self._send("heartbeat", request, self.coordinator, timeout_ms=self.config.heartbeat_timeout_ms)

    def _heartbeat_answered(self, response: HeartbeatResponse, sent: Sent) -> None:
        code = error_code(response.error_code)
        match matrix.HEARTBEAT.get(code, Action.FATAL):
            case Action.REJOIN:
                if self.state is State.STABLE and self._rejoin is None:
                    self._request_rejoin("group is already rebalancing")
            case Action.REDISCOVER:
                self._coordinator_lost(code.name)
            case (Action.RESET_MEMBER | Action.RESET_GENERATION) as action:
                if self._is_me(sent) and self._beating():
                    self._reset(f"encountered {code.name} from Heartbeat response", action)
            case Action.FATAL if code is not ErrorCode.FENCED_INSTANCE_ID or self._is_me(sent):
                self._fail(fatal_answer("Heartbeat", code, self.config))

    # Metadata.

    def _refresh_metadata(self) -> None:
        if self._out.paused(METADATA) or self._out.in_flight("metadata"):
            return
        self._send("metadata", self._watch.request())

    def _metadata(self, response: MetadataResponse) -> None:
        self._refreshes = 0
        self._watch.update(response)
        if self._watch.needed:
            self._out.set(METADATA, self._out.now + self.config.metadata_max_age_ms)
        if self.state is State.COMPLETING_REBALANCE and self._group and self._assigning is None:
            self._start_assignment()
        self._check_topics()

    def _check_topics(self) -> None:
        """Join again when the assignment was made from metadata, or with a subscription, that is out of date."""
        topics, change = self._watch.topics, self._watch.change()
        if self.state is not State.STABLE or self._rejoin is not None:
            return
        if change is not None:
            self._request_rejoin(f"cached metadata has changed ({change})")
        elif topics is not None and topics != self._joined_topics:
            before, after = ", ".join(sorted(self._joined_topics)), ", ".join(sorted(topics))
            self._request_rejoin(f"subscription has changed from [{before}] to [{after}]")

    # Commits.

    def _send_commit(self) -> None:
        self._commits.fence(self.holdings)
        if self.coordinator is None or self.state is State.COMPLETING_REBALANCE:
            return  # between join and sync it would be refused
        commit = self._commits.due()
        if commit is not None:
            request = commit_request(commit, self.config.group, *self._identity, self.config.group_instance_id)
            self._send("commit", request, self.coordinator)

    def _commit_answered(self, response: OffsetCommitResponse, sent: Sent) -> None:
        code, own = split_errors(response)
        match matrix.COMMIT.get(code, Action.FATAL):
            case Action.REJOIN:
                if self.state is State.STABLE and self._rejoin is None:
                    self._request_rejoin("offset commit failed since group is already rebalancing")
                self._commits.delayed(code)
            case Action.BACK_OFF:
                self._commits.delayed(code)
            case Action.REDISCOVER:
                self._commits.delayed(code)
                if sent.to == self.coordinator:
                    self._coordinator_lost(code.name)
            case (Action.RESET_MEMBER | Action.RESET_GENERATION) as action:
                if self._is_me(sent) and self.state is State.STABLE:
                    self._reset(f"encountered {code.name} from OffsetCommit response", action)
                else:
                    self._commits.delayed(code)
            case Action.FATAL if code is ErrorCode.FENCED_INSTANCE_ID and not self._is_me(sent):
                self._commits.delayed(code)
            case Action.FATAL:
                self._fail(fatal_answer("OffsetCommit", code, self.config))
            case _:
                self._commits.answered(own)

    # Timers.

    def _timer(self, name: TimerName) -> None:
        self._out.resume(name)
        if name == HEARTBEAT:
            if self._beating():
                self._heartbeat()
        elif name == METADATA:
            awaited = self.state is State.COMPLETING_REBALANCE and bool(self._group) and self._assigning is None
            if self._watch.needed or awaited:
                self._refresh_metadata()
        elif name == REVOKE:
            self._lose(self.holdings.revoking, "not released before the revoke deadline")
        elif len(name) == 2 and isinstance(name[1], int):
            self._commits.expired(name[1])

    def _pause(self, name: TimerName, attempts: int, reason: str) -> int:
        """Hold back the action `name` for a while; returns the new number of attempts."""
        pause = self._out.pause(name, attempts)
        self._report("retry", f"{name[0]}: again in {pause} ms, {reason}")
        return attempts + 1

    # The end.

    def _fail(self, failure: Failure) -> None:
        """Give up for good: everything held is lost, and a dynamic member leaves so that the group can go on."""
        self._move(Trigger.FATAL)
        self.failure = failure
        self._report("failed", failure.message)
        fenced = failure.kind is FailureKind.FENCED_INSTANCE
        self._end(failure, None if fenced else f"the member failed: {failure.kind.value}")

    def _close(self, leave: bool, reason: str) -> None:
        self._move(Trigger.CLOSE)
        self._report("left", reason)
        self._end(Failure(FailureKind.CLOSED, "the member was closed"), reason if leave else None)
        if not self._out.in_flight("leave"):
            self._out.emit(Stopped())

    def _end(self, failure: Failure, leave_reason: str | None) -> None:
        self._commits.fail_all(failure)
        self._out.cancel(HEARTBEAT, REVOKE, JOIN, DISCOVER, METADATA, COMMIT)
        self._out.clear()
        self._rejoin = None
        self._assigning = None
        self.holdings.lose(self.holdings.held)
        dynamic = self.config.group_instance_id is None
        if leave_reason is not None and dynamic and self.member_id and self.coordinator is not None:
            self._send("leave", requests.leave_group(self.config, self.member_id, leave_reason), self.coordinator)
        self.generation = NO_GENERATION
        self.member_id = ""

    def _after_failing(self, event: Event) -> None:
        match event:
            case Responded(number) | RequestFailed(number):
                self._out.take(number)
            case CommitRequested(token):
                self._out.emit(CommitDone(token, self.failure))
            case Closed():
                self._move(Trigger.CLOSE)
                if not self._out.in_flight("leave"):
                    self._out.emit(Stopped())

    def _after_leaving(self, event: Event) -> None:
        match event:
            case Responded(number, LeaveGroupResponse()) | RequestFailed(number):
                if self._out.take(number) is not None:
                    self._out.emit(Stopped())
            case CommitRequested(token):
                closed = Failure(FailureKind.CLOSED, "the member was closed")
                self._out.emit(CommitDone(token, self.failure or closed))

    # Small change.

    @property
    def _identity(self) -> Identity:
        return self.generation, self.member_id

    def _is_me(self, sent: Sent) -> bool:
        """Whether the request was sent in the present generation; an answer to an older one tells nothing of it."""
        return sent.identity == self._identity

    def _send(
        self,
        kind: str,
        message: Message,
        to: Node | None = None,
        *,
        timeout_ms: int | None = None,
        channel: Channel = Channel.PROMPT,
    ) -> None:
        self._out.send(kind, message, self._identity, timeout_ms=timeout_ms, to=to, channel=channel)

    def _report(self, kind: str, text: str, partitions: frozenset[TopicPartition] = frozenset()) -> None:
        self._out.emit(Report(kind, text, self.generation, self.member_id, partitions))

    def _publish(self) -> None:
        """Tell of a change; the epoch counts the changes told."""
        held = self.holdings
        news = Publish(
            held.epoch,
            self.generation,
            self.member_id,
            held.owned,
            held.revoking,
            held.lost,
            held.deadline,
            self.failure,
        )
        if news != self._published:
            held.epoch += 1
            self._published = replace(news, epoch=held.epoch)
            self._out.emit(self._published)


def _foreign(response: JoinGroupResponse | SyncGroupResponse) -> bool:
    """Whether the group is not one of consumers; old versions do not say."""
    return response.protocol_type not in (None, requests.PROTOCOL_TYPE)
