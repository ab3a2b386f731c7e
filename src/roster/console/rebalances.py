"""The rebalances of a group as a timeline: phases, causes and moves, as far as looks can tell."""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from roster.console.events import Event, EventKind
from roster.console.history import GroupHistory
from roster.console.snapshot import REBALANCING
from roster.console.text import counted
from roster.model import TopicPartition

_MEMBERSHIP = frozenset({EventKind.JOINED, EventKind.REJOINED, EventKind.LEFT})


@dataclass(slots=True)
class RebalanceSeen:
    """A rebalance. `phases` are the states it went through, with the time at which each was seen first.

    `ended` is None while it lasts. One that was over between two looks has no phases, and no length that is known.
    `causes` is empty if members and partitions were the same before and after.
    """

    began: float
    ended: float | None = None
    phases: list[tuple[str, float]] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    moved: int = 0
    members: int = 0


class RebalanceTimeline:
    """Makes the timeline of what a GroupHistory says to each look."""

    def __init__(self, kept: int = 100) -> None:
        self.rebalances: deque[RebalanceSeen] = deque(maxlen=kept)
        self._open: RebalanceSeen | None = None
        self._causes: list[str] = []
        self._highest: dict[str, int] = {}
        """The highest partition of each topic that had an owner."""
        self._released: set[TopicPartition] = set()
        """Partitions that the last rebalance took from a member and gave to none."""

    def see(self, history: GroupHistory, events: Sequence[Event]) -> None:
        """Add a look: the history after it, and the events that it brought."""
        kinds = {event.kind for event in events}
        self._causes += [event.text.partition(";")[0] for event in events if event.kind in _MEMBERSHIP]
        if history.rebalancing_since is not None and self._open is None:
            self._open = RebalanceSeen(history.rebalancing_since)
            self.rebalances.append(self._open)
        if self._open is not None and history.state in REBALANCING and history.away_since is None:
            phases = self._open.phases
            if not phases or phases[-1][0] != history.state:
                phases.append((history.state, history.now))
        if EventKind.REBALANCE_ENDED in kinds:
            self._end(history, [event for event in events if event.kind is EventKind.MOVED])
        elif self._open is not None:
            self._open.causes = list(self._causes)
            if history.rebalancing_since is None:  # the group is gone
                self._open.ended, self._open = history.now, None
        for topic, number in history.owners:
            self._highest[topic] = max(number, self._highest.get(topic, -1))

    def _end(self, history: GroupHistory, moves: Sequence[Event]) -> None:
        if self._open is None:
            self._open = RebalanceSeen(history.now)
            self.rebalances.append(self._open)
        assigned = [tp for event in moves if not event.source for tp in event.partitions]
        ended, self._open = self._open, None
        ended.ended, ended.members = history.now, len(history.members)
        ended.moved = sum(len(event.partitions) for event in moves)
        ended.causes = [*self._causes, *self._added(assigned)]
        if self._released.intersection(assigned):
            ended.causes.append("partitions revoked before are given to their new owners")
        self._released = {tp for event in moves if not event.target for tp in event.partitions}
        self._causes = []

    def _added(self, assigned: Collection[TopicPartition]) -> list[str]:
        new = [tp.topic for tp in assigned if tp.partition > self._highest.get(tp.topic, tp.partition)]
        return [f"{topic} has {counted(new.count(topic), 'partition')} more" for topic in dict.fromkeys(new)]
