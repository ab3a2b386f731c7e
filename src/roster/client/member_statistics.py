"""Statistics of a member: rebalances with their causes, moved partitions, failed commits, late heartbeats."""

from collections import Counter, deque
from dataclasses import dataclass, field

from roster.client.types import Ownership
from roster.member.events import CommitDone, Report
from roster.member.types import ReportKind
from roster.model import TopicPartition
from roster.model.timers import Durations


@dataclass(slots=True)
class MemberStatistics:
    """Counted on the member's thread since it was made."""

    rebalances: Counter[str] = field(default_factory=Counter)
    """Generations joined, by cause (`roster.member.causes`)."""
    rebalance_seconds: float = 0.0
    """From the decision to join again to the assignment."""
    moved_partitions: int = 0
    """Partitions assigned to this member that it did not have in its last assignment."""
    commit_failures: Counter[str] = field(default_factory=Counter)
    """Commits not written, by reason."""
    heartbeat_lateness: Durations = field(default_factory=Durations)
    """How much later than planned heartbeats were sent."""
    ownership: Ownership = field(default_factory=Ownership)
    """The partitions that the member has now."""
    lost_partitions: int = 0
    """Partitions lost without being handed over."""
    events: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=100))
    """What only this member knows, newest last: time and text."""
    _assigned: frozenset[TopicPartition] = frozenset()
    _began: float | None = None
    _revoking: float | None = None

    def owns(self, ownership: Ownership, now: float) -> None:
        """Take note of a changed ownership. now: as for `take`."""
        before, self.ownership = self.ownership, ownership
        lost = len(ownership.lost & (before.partitions | before.revoking))
        self.lost_partitions += lost
        if lost:
            self.events.append((now, f"lost partitions: {lost}"))
        if ownership.revoking:
            self._revoking = now if self._revoking is None else self._revoking
        else:
            if self._revoking is not None and not lost:
                self.events.append((now, f"released revoked partitions after {now - self._revoking:.1f} s"))
            self._revoking = None

    def take(self, effect: Report | CommitDone, now: float) -> None:
        """Count an effect of the state machine. now: in seconds, of any clock that only grows."""
        if isinstance(effect, CommitDone):
            if effect.failure is not None:
                self.commit_failures[effect.failure.kind.value] += 1
            return
        if effect.kind is ReportKind.REJOIN and self.rebalances:
            self.events.append((now, f"joins again: {effect.text}"))
        match effect.kind:
            case ReportKind.REJOIN | ReportKind.JOINING if self._began is None:
                self._began = now
            case ReportKind.JOINED:
                self.rebalances[effect.cause] += 1
            case ReportKind.ASSIGNED:
                self.rebalance_seconds += 0.0 if self._began is None else now - self._began
                self.moved_partitions += len(effect.partitions - self._assigned)
                self._assigned, self._began = effect.partitions, None
            case ReportKind.LEFT | ReportKind.FAILED:
                self._began = None
