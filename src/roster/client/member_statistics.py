"""What a member has been through: rebalances with their causes, moved partitions, failed commits, late heartbeats."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from roster.member.events import CommitDone, Report
from roster.member.types import ReportKind
from roster.model import TopicPartition
from roster.model.durations import Durations


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
    _assigned: frozenset[TopicPartition] = frozenset()
    _began: float | None = None

    def take(self, effect: Report | CommitDone, now: float) -> None:
        """Count an effect of the state machine. now: in seconds, of any clock that only grows."""
        if isinstance(effect, CommitDone):
            if effect.failure is not None:
                self.commit_failures[effect.failure.kind.value] += 1
            return
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
