"""Events of a group between two looks."""

from dataclasses import dataclass
from enum import StrEnum

from roster.model import TopicPartition


class EventKind(StrEnum):
    """The kinds of events; the page has their values."""

    FOUND = "found"
    GONE = "gone"
    EMPTY = "empty"
    JOINED = "joined"
    REJOINED = "rejoined"
    LEFT = "left"
    MOVED = "moved"
    REBALANCE_BEGAN = "rebalance_began"
    REBALANCE_ENDED = "rebalance_ended"
    COORDINATOR_AWAY = "coordinator_away"
    COORDINATOR_BACK = "coordinator_back"
    COORDINATOR_MOVED = "coordinator_moved"
    OFFSETS_BACK = "offsets_back"
    OWN = "own"
    """What a member in this process says of itself."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event, at the time of the look that showed it.

    `member` is a member id. For a move, `source` and `target` are the member ids that had and have `partitions`, ""
    when no member had or has them; of a member that is back, `source` is the id it had
    before. `seconds` is how long a rebalance or an absence took, as far as looks can tell.
    """

    at: float
    kind: EventKind
    text: str
    member: str = ""
    partitions: tuple[TopicPartition, ...] = ()
    source: str = ""
    target: str = ""
    seconds: float | None = None
