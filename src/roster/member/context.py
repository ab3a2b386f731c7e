"""State that a member's modules share: identity, subscription, ownership, requests in flight."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from roster.assignors import Assignor, RebalanceProtocol, rebalance_protocol
from roster.member.causes import Cause, Causes
from roster.member.commit_queue import CommitQueue
from roster.member.config import MemberConfig
from roster.member.events import Publish, Report
from roster.member.outbox import Identity, InFlight, Outbox
from roster.member.ownership import PartitionOwnership
from roster.member.states import TRANSITIONS, MemberState, Trigger
from roster.member.timers import HEARTBEAT, REVOKE, RandomSource, TimerName, heartbeat_interval
from roster.member.topic_metadata import TopicMetadata
from roster.member.types import Channel, Failure, Node, ReportKind
from roster.model import NO_GENERATION, TopicPartition
from roster.wire import Message


class MemberContext:
    """The mutable state of one member. The other modules act on it; it calls none of them."""

    def __init__(self, config: MemberConfig, random: RandomSource) -> None:
        self.config = config
        self.out = Outbox(config, random)
        self.commits = CommitQueue(config, self.out)
        self.topics = TopicMetadata(config.selection)
        self.ownership = PartitionOwnership()
        self.failures: Counter[TimerName] = Counter()
        """Consecutive failures of an action, by the name of the timer that ends its back-off."""
        self.failure: Failure | None = None
        """Reason of a fatal failure, if there was one."""
        self._published = Publish(epoch=0)
        self._published_state: tuple[object, ...] | None = None

        # Place in the group.
        self.state = MemberState.UNJOINED
        self.generation = NO_GENERATION
        self.member_id = ""
        self.coordinator: Node | None = None
        self.leader = False
        self.protocol_name: str | None = None

        # Input of the next JoinGroup.
        self.rejoin_reason: str | None = None
        """Reason for a rejoin; None when none is needed."""
        self.causes = Causes()
        self.joined_topics: frozenset[str] = frozenset()
        self.last_assignment: tuple[int, frozenset[TopicPartition]] = (NO_GENERATION, frozenset())
        self.rejoins_after_revocation = False
        """True if the next JoinGroup gives up partitions that the last assignment gave to other members."""

        self.cooperative_sync: int | None = None
        """Time of the newest SyncGroup response under a cooperative assignor (ms); None while there is none."""
        self.turned_eager: str | None = None
        """Reason to rejoin after the group changed from a cooperative assignor to an eager one."""

        # The leader's work.
        self.group: dict[str, tuple[bytes, str | None]] = {}
        """From JoinGroup to SyncGroup: each member's subscription and instance id."""
        self.assignments: Mapping[str, bytes] | None = None
        """Content of SyncGroup from the time it is due until its response; None otherwise."""
        self.coordinator_works = False
        """True once the coordinator has sent a response other than that it is not the coordinator."""
        self.generation_in_doubt = False
        """True if the coordinator was lost after JoinGroup: the new one may not know the generation."""
        self.describes_assignment = False
        """True on a static member that returned, until it has seen the assignment that the group kept."""
        self.missed_generation = False
        """True on a static member that was absent from the last generation; the coordinator removes dynamic ones."""
        self.expects_second_round = False
        """True on a leader whose assignment makes members give up partitions that others get in the next round."""
        self.withheld = 0
        """Consecutive generations in which this leader withheld claimed partitions from an eager assignment."""
        self.assigning: int | None = None
        """Id of the running `FetchOffsets` or `Assign`."""

    @property
    def identity(self) -> Identity:
        """Generation and member id for requests."""
        return self.generation, self.member_id

    @property
    def assignor(self) -> Assignor:
        """The assignor that the group chose."""
        return self.config.assignors_by_name[self.protocol_name or ""]

    @property
    def is_eager(self) -> bool:
        """True while the group's assignor requires that all partitions are revoked before JoinGroup.

        If JoinGroup selects an eager assignor after a cooperative one, the partitions still owned are lost
        (`join.on_join_group_response`); until then no other member gets them (`leader.withhold_claimed`).
        """
        if self.protocol_name is None:
            return True
        return rebalance_protocol({self.protocol_name: self.assignor}) is RebalanceProtocol.EAGER

    def is_current(self, request: InFlight) -> bool:
        """Return True if the request was sent under the present generation and member id."""
        return request.identity == self.identity

    def transition(self, trigger: Trigger) -> None:
        """Change the state. Raises KeyError for a trigger that the state does not allow."""
        self.state = TRANSITIONS[self.state, trigger]

    def request_rejoin(self, reason: str, cause: Cause | None = None) -> None:
        """Rejoin as soon as the state allows. cause: None if the group rebalances for another one."""
        if cause is not None:
            self.causes.next = cause
        if self.rejoin_reason is None:
            self.report(ReportKind.REJOIN, reason)
        self.rejoin_reason = reason

    # Heartbeats.

    def heartbeats_due(self) -> bool:
        """Return True while a heartbeat timer runs: in a generation, with no JoinGroup in flight."""
        return self.generation != NO_GENERATION and self.state is not MemberState.PREPARING_REBALANCE

    def schedule_heartbeat(self) -> None:
        """Schedule the next heartbeat one interval from now; a shorter one while a follow-up round may come."""
        since_sync = None if self.cooperative_sync is None else self.out.now - self.cooperative_sync
        self.out.set(HEARTBEAT, self.out.now + heartbeat_interval(self.config.heartbeat_interval_ms, since_sync))

    # Revocation and loss.

    def revoke(self, partitions: frozenset[TopicPartition]) -> None:
        """Ask the application to release owned `partitions` before the revoke deadline."""
        deadline = self.out.now + self.config.revocation_ms
        self.ownership.revoke(partitions, deadline)
        self.out.set(REVOKE, deadline)
        self.report(ReportKind.REVOKING, "to be finished, committed and released", partitions)

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Record that the application released `partitions`."""
        self.ownership.release(partitions)
        self._cancel_revoke_deadline()

    def lose(self, partitions: frozenset[TopicPartition], reason: str) -> None:
        """Drop `partitions` at once, without waiting for the application."""
        if partitions:
            self.report(ReportKind.LOST, reason, partitions)
        self.ownership.lose(partitions)
        self._cancel_revoke_deadline()

    def _cancel_revoke_deadline(self) -> None:
        if not self.ownership.revoking:
            self.out.cancel(REVOKE)

    # Effects.

    def send(
        self,
        message: Message,
        to: Node | None = None,
        *,
        timeout_ms: int | None = None,
        channel: Channel = Channel.PROMPT,
    ) -> None:
        """Send to the coordinator at `to`, or to any broker."""
        self.out.send(message, self.identity, timeout_ms=timeout_ms, to=to, channel=channel)

    def back_off(self, name: TimerName, reason: str) -> None:
        """Count a failure of the action `name` and back off, longer for each consecutive failure."""
        pause = self.out.back_off(name, self.failures[name])
        self.failures[name] += 1
        self.report(ReportKind.RETRY, f"{name.kind.value}: again in {pause} ms, {reason}")

    def report(
        self, kind: ReportKind, text: str, partitions: frozenset[TopicPartition] = frozenset(), cause: str = ""
    ) -> None:
        """Emit a Report."""
        self.out.emit(Report(kind, text, self.generation, self.member_id, partitions, cause))

    def publish(self) -> None:
        """Emit a Publish if ownership changed; the epoch counts the changes published."""
        ownership = self.ownership
        state = (
            ownership.epoch,
            self.generation,
            self.member_id,
            ownership.owned,
            ownership.revoking,
            ownership.lost,
            ownership.revoke_deadline,
            self.failure,
        )
        if state == self._published_state:
            return
        current = Publish(*state)
        if current != self._published:
            ownership.epoch += 1
            current = self._published = replace(current, epoch=ownership.epoch)
            self.out.emit(current)
        self._published_state = (ownership.epoch, *state[1:])
