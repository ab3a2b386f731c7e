"""Which event met which state, and how often each kind of fault happened."""

from __future__ import annotations

from collections import Counter

from roster.member.events import Event, Responded


class Coverage:
    """Counts of (state, event), for coordinators of groups and of transactions, and for members."""

    def __init__(self) -> None:
        self.coordinators: Counter[tuple[str, str]] = Counter()
        self.members: Counter[tuple[str, str]] = Counter()
        self.transactions: Counter[tuple[str, str]] = Counter()

    def coordinator(self, state: str, event: str) -> None:
        """Count an event of a coordinator, by the state of the group."""
        self.coordinators[state, event] += 1

    def transaction(self, state: str, event: str) -> None:
        """Count an event of a transaction coordinator, by the state of the transactional id."""
        self.transactions[state, event] += 1

    def member(self, state: str, event: Event) -> None:
        """Count an event of a member, by its state."""
        kind = type(event.message if isinstance(event, Responded) else event)
        self.members[state, kind.__name__] += 1

    def add(self, other: Coverage) -> None:
        """Add the counts of another run."""
        self.coordinators.update(other.coordinators)
        self.members.update(other.members)
        self.transactions.update(other.transactions)


def table(counts: Counter[tuple[str, str]]) -> list[tuple[str, ...]]:
    """Return rows of a table: one event each, one column for each state; the first row has the states."""
    states = sorted({state for state, _ in counts})
    events = sorted({event for _, event in counts})
    rows = [("", *states)]
    rows += [(event, *(str(counts[state, event] or ".") for state in states)) for event in events]
    return rows
