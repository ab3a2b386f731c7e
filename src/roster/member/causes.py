"""Why a group rebalances, as far as one of its members can know."""

from collections.abc import Set
from dataclasses import dataclass
from enum import StrEnum

from roster.model import NO_GENERATION


class Cause(StrEnum):
    """Cause of a rebalance."""

    JOIN = "join"
    """Members joined; also this one's own start."""
    LEAVE = "leave"
    """Members are gone: they left, or their sessions expired."""
    REPLACED = "replaced"
    """Members are gone and others joined, as after a restart."""
    EXPIRED = "expired"
    """The coordinator no longer knew this member: its session expired, or a tool removed it."""
    PARTITIONS = "partitions"
    """Topics have other partitions than before."""
    SUBSCRIPTION = "subscription"
    """This member reads other topics than before: it was told to, or others match its pattern."""
    REVOKED = "revoked"
    """Partitions that were given up in the rebalance before need an owner."""
    OWN = "own"
    """This member asked for it, for its tasks or its application."""
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Causes:
    """Knowledge of one member about the causes of rebalances."""

    next: Cause | None = None
    """Why this member joins again; None if only because the group rebalances."""
    joining: Cause | None = None
    """The same of the JoinGroup under way, until one is accepted."""
    led: tuple[int, Set[str]] = (NO_GENERATION, frozenset())
    """The newest generation that this member led, and its members by instance id or member id."""

    def join_sent(self) -> None:
        """Note that JoinGroup is sent."""
        self.joining, self.next = self.next or self.joining, None

    def joined(self, generation: int, group: Set[str] | None, *, follows_up: bool) -> Cause:
        """Return why a generation began.

        group: its members if this one leads it. follows_up: this member's last assignment withheld partitions.
        """
        own, self.joining = self.joining, None
        observed = self._by_members(generation, group, follows_up=follows_up)
        return own or observed

    def _by_members(self, generation: int, group: Set[str] | None, *, follows_up: bool) -> Cause:
        (before, old), self.led = self.led, (generation, group) if group is not None else (NO_GENERATION, frozenset())
        if group is None or before != generation - 1:
            return Cause.UNKNOWN
        came, gone = group - old, old - group
        if came and gone:
            return Cause.REPLACED
        if came or gone:
            return Cause.JOIN if came else Cause.LEAVE
        return Cause.REVOKED if follows_up else Cause.UNKNOWN
