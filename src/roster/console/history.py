"""History of a group from its snapshots: owners, rates, rebalances, events."""

from array import array
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from math import isnan, nan
from types import MappingProxyType
from typing import Any

from roster.console.events import Event, EventKind
from roster.console.snapshot import ABSENT, REBALANCING, Away, MemberSeen, Snapshot
from roster.console.text import counted, escaped, named_briefly
from roster.model import GroupPosition, TopicPartition
from roster.model.switch import results_of

KEPT = 120
"""Values kept per series."""
RATE_WINDOW_S = 10.0
"""Seconds a rate is averaged over: batches commit in bursts."""


class Series:
    """The newest values of one figure with their times in seconds; None stands for a look that did not find it."""

    __slots__ = ("_times", "_values")

    def __init__(self) -> None:
        self._times, self._values = array("d"), array("d")

    def add(self, at: float, value: float | None) -> None:
        """Add the value of a snapshot."""
        if len(self._times) == KEPT:
            del self._times[0], self._values[0]
        self._times.append(at)
        self._values.append(nan if value is None else value)

    @property
    def values(self) -> tuple[float | None, ...]:
        """Values kept, oldest first."""
        return tuple(None if isnan(value) else value for value in self._values)

    @property
    def times(self) -> tuple[float, ...]:
        """Their times."""
        return tuple(self._times)

    def rate(self, window: float = RATE_WINDOW_S) -> float | None:
        """The increase a second over the window, or since the look before where looks are rarer; None after one look.

        After a decrease counting restarts from the lower value.
        """
        points = zip(reversed(self._times), reversed(self._values), strict=True)
        known = (point for point in points if not isnan(point[1]))
        last = next(known, None)
        if last is None:
            return None
        first, looks = last, 1
        for point in known:
            looks += 1
            if point[1] > first[1] or (last[0] - point[0] > window and first is not last):
                break
            first = point
        if looks == 1:
            return None
        seconds = last[0] - first[0]
        return (last[1] - first[1]) / seconds if seconds > 0 else 0.0


COLOURS = 8
"""How many members in a row get a colour of their own."""
NO_MARK = "+"
MARKS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
EVENTS_KEPT = 10_000
_SHORT_ID = 4


@dataclass(slots=True)
class Member:
    """A member as a view names it: a letter, a colour's number, a short name. `left_at` is None while it is there."""

    seen: MemberSeen
    mark: str
    colour: int
    name: str
    left_at: float | None = None


class Track:
    """One partition over time."""

    __slots__ = ("committed", "end", "lag")

    def __init__(self) -> None:
        self.committed, self.end, self.lag = Series(), Series(), Series()

    def add(self, at: float, position: GroupPosition) -> None:
        """Add the position of a snapshot."""
        self.committed.add(at, position.committed)
        self.end.add(at, position.end)
        self.lag.add(at, position.lag)


class GroupHistory:
    """A group over time. `see` takes snapshots in order of time and returns the events each of them brings.

    Args:
        marks: letters for members by client id, where a caller has better ones than the order of joining.
        events: how many events are kept.
    """

    def __init__(self, marks: Mapping[str, str] = MappingProxyType({}), events: int = EVENTS_KEPT) -> None:
        self._marks = marks
        self._letters, self._colours = count(), count()
        self.now: float = 0.0
        self.looks = 0
        self.state = ABSENT
        self.protocol = ""
        self.coordinator = ""
        self.trouble = ""
        self.away_since: float | None = None
        self.away_reason = ""
        self.rebalancing_since: float | None = None
        self.rebalances = 0
        """Rebalances seen; several between two snapshots count once."""
        self.generation_at_least: int | None = None
        """Lower bound of a classic group's generation, which no request returns: a member that joined with partitions
        of generation g proves that the group is past g, and a leader of Roster's notes the number."""
        self.epoch: int | None = None
        """Group epoch of a KIP-848 group, from its coordinator."""
        self.members: dict[str, Member] = {}
        """Present members by key, in the order they were first seen."""
        self.departed: dict[str, Member] = {}
        """The last owners of partitions that no member has yet, by key."""
        self.owners: dict[TopicPartition, str] = {}
        """Keys of members, by partition; of the last settled assignment while a classic group rebalances."""
        self.positions: dict[TopicPartition, GroupPosition] = {}
        self.tracks: dict[TopicPartition, Track] = {}
        self.lag_total, self.rate_total, self.produced_total = Series(), Series(), Series()
        self.rate: float | None = None
        """Records committed per second over all partitions, recently; None before two snapshots."""
        self.produced_rate: float | None = None
        """Records appended per second to the partitions, recently."""
        self.events: deque[Event] = deque(maxlen=events)
        self._new: list[Event] = []

    # Adding snapshots.

    def see(self, look: Snapshot | Away, own: Iterable[tuple[float, str]] = ()) -> list[Event]:
        """Add a snapshot; return its events, which are also appended to `events`.

        own: what a member in this process has told since the last one, and when.
        """
        self._new = [
            Event(moment if self.now < moment < look.at else look.at, EventKind.OWN, text) for moment, text in own
        ]
        self.now = look.at
        if isinstance(look, Away):
            self._see_away(look)
        else:
            self._see_group(look)
        self.events.extend(self._new)
        return self._new

    def _see_away(self, look: Away) -> None:
        self.away_reason = look.reason
        if self.away_since is None:
            self.away_since = look.at
            self._happened(EventKind.COORDINATOR_AWAY, "the coordinator does not answer")
        for series in (
            self.lag_total,
            self.rate_total,
            self.produced_total,
            *(track.lag for track in self.tracks.values()),
        ):
            series.add(look.at, None)

    def _see_group(self, look: Snapshot) -> None:
        self._see_coordinator(look)
        first, before = self.looks == 0, self.state
        self.looks += 1
        self.epoch = look.epoch
        self.trouble, self.protocol = look.trouble, escaped(look.protocol) or self.protocol
        joined, left = self._see_members(look)
        moved = self._see_owners(look)
        renewed = self._see_generation(look)
        self.state = look.state
        if first:
            self._report_first(look)
        else:
            self._report_state(before, look.state)
            self._report_members(joined, left)
            self._report_rebalance(before, look, bool(joined or left or moved or renewed))
            self._report_moves(moved)
        self._see_positions(look)
        self._forget_departed()

    def _see_coordinator(self, look: Snapshot) -> None:
        if self.away_since is not None:
            seconds = look.at - self.away_since
            self.away_since, self.away_reason = None, ""
            self._happened(
                EventKind.COORDINATOR_BACK, f"the coordinator answers again after {seconds:.1f} s", seconds=seconds
            )
        if look.coordinator and self.coordinator and look.coordinator != self.coordinator:
            text = f"coordinator moved: {self.coordinator} → {look.coordinator}"
            self._happened(EventKind.COORDINATOR_MOVED, text, source=self.coordinator, target=look.coordinator)
        self.coordinator = look.coordinator or self.coordinator

    def _see_members(self, look: Snapshot) -> tuple[list[tuple[Member, str]], list[Member]]:
        """Members that joined, with the id they had before if they are known already, and members that left."""
        there = {member.key: member for member in look.members}
        left = [member for key, member in self.members.items() if key not in there]
        joined = []
        for key, seen in there.items():
            known = self.members.get(key) or self.departed.pop(key, None)
            if known is None:
                known = self._named(seen)
                joined.append((known, ""))
            elif known.left_at is not None or known.seen.member_id != seen.member_id:
                joined.append((known, known.seen.member_id))
            known.seen, known.left_at = seen, None
            self.members[key] = known
        for member in left:
            member.left_at = look.at
            self.departed[member.seen.key] = self.members.pop(member.seen.key)
        return joined, left

    def _named(self, seen: MemberSeen) -> Member:
        """A letter and a colour that, if possible, no present or departed member has: departed ones may return."""
        members = [*self.members.values(), *self.departed.values()]
        colour = _next_free(self._colours, COLOURS, {member.colour for member in members})
        mark = self._marks.get(seen.client_id)
        if mark is None:
            used = {MARKS.index(m) for m in (*self._marks.values(), *(member.mark for member in members)) if m in MARKS}
            mark = MARKS[_next_free(self._letters, len(MARKS), used)] if len(used) < len(MARKS) else NO_MARK
        return Member(seen, mark, colour, escaped(self._short_name(seen)))

    def _short_name(self, seen: MemberSeen) -> str:
        if seen.instance_id is not None:
            return seen.instance_id
        if seen.client_id in self._marks:
            return seen.client_id
        if seen.client_id and seen.member_id.startswith(f"{seen.client_id}-"):
            return seen.member_id[: len(seen.client_id) + 1 + _SHORT_ID]
        return f"{seen.client_id or 'member'}-{seen.member_id[:_SHORT_ID]}"

    def _see_owners(self, look: Snapshot) -> dict[TopicPartition, tuple[str, str]]:
        """Find the old and the new owner of each partition that moved; "" for no member."""
        if look.state in REBALANCING and self.state != ABSENT and self.looks > 1 and not _epochs(look.state):
            return {}
        before = self.owners
        self.owners = {tp: member.key for member in look.members for tp in sorted(member.partitions)}
        changed = before.keys() | self.owners.keys()
        pairs = {tp: (before.get(tp, ""), self.owners.get(tp, "")) for tp in sorted(changed)}
        return {tp: pair for tp, pair in pairs.items() if pair[0] != pair[1]}

    def _see_generation(self, look: Snapshot) -> bool:
        """Return True if members rejoined since the last snapshot, by the generations they claim."""
        before = self.generation_at_least
        if look.state == ABSENT:
            self.generation_at_least = None
        claims = [member.generation for member in look.members if member.generation >= 0]
        if claims:
            self.generation_at_least = max(max(claims) + 1, before or 0)
        return before is not None and (self.generation_at_least or 0) > before

    def _see_positions(self, look: Snapshot) -> None:
        back = [
            tp
            for tp, now in look.positions.items()
            if (was := self.positions.get(tp)) is not None
            and was.committed is not None
            and now.committed is not None
            and now.committed < was.committed
        ]
        if back:
            text = f"committed offsets went back: {named_briefly(back)}"
            self._happened(EventKind.OFFSETS_BACK, text, partitions=tuple(sorted(back)))
        self.positions = dict(sorted(look.positions.items()))
        self.tracks = {tp: self.tracks.get(tp) or Track() for tp in self.positions}
        for tp, position in self.positions.items():
            self.tracks[tp].add(look.at, position)
        self._add_totals(look.at)

    def _add_totals(self, at: float) -> None:
        # Sums of the partitions' own rates: a partition that comes into view must not look like work done.
        tracks = self.tracks.values()
        self.rate = _sum(track.committed.rate() for track in tracks)
        self.produced_rate = _sum(track.end.rate() for track in tracks)
        known = sum(position.lag is not None for position in self.positions.values())
        self.lag_total.add(at, self.lag if known else None)
        self.rate_total.add(at, self.rate)
        self.produced_total.add(at, self.produced_rate)

    # Events.

    def _happened(self, kind: EventKind, text: str, **more: Any) -> None:
        self._new.append(Event(self.now, kind, text, **more))

    def _report_first(self, look: Snapshot) -> None:
        if look.state == ABSENT:
            self._happened(EventKind.GONE, "there is no such group yet")
            return
        shared = f", {counted(len(self.owners), 'partition')} owned" if self.owners else ""
        self._happened(EventKind.FOUND, f"{look.state}, {counted(len(look.members), 'member')}{shared}")
        if look.state in REBALANCING:
            self.rebalancing_since = look.at

    def _report_state(self, before: str, state: str) -> None:
        if state == ABSENT and before != ABSENT:
            self._happened(EventKind.GONE, "the group is gone")
        elif state == "Empty" and before not in ("Empty", ABSENT):
            self._happened(EventKind.EMPTY, "no members any more")
        elif before == ABSENT and state != ABSENT:
            self._happened(EventKind.FOUND, f"the group appears: {state}")

    def _report_members(self, joined: list[tuple[Member, str]], left: list[Member]) -> None:
        for member in left:
            had = sum(owner == member.seen.key for owner in self.owners.values())
            waiting = f"; {counted(had, 'partition')} wait for the rebalance" if had else ""
            text = f"{self.title(member)} left (or its session ended){waiting}"
            self._happened(EventKind.LEFT, text, member=member.seen.member_id)
        for member, before in joined:
            kind, verb = (EventKind.REJOINED, "is back") if before else (EventKind.JOINED, "joined")
            self._happened(kind, f"{self.title(member)} {verb}", member=member.seen.member_id, source=before)

    def _report_rebalance(self, before: str, look: Snapshot, changed: bool) -> None:
        if look.state in REBALANCING:
            if self.rebalancing_since is None:
                self.rebalancing_since = look.at
                self._happened(EventKind.REBALANCE_BEGAN, "rebalance began")
            return
        if self.rebalancing_since is not None:
            seconds = look.at - self.rebalancing_since
            self.rebalancing_since = None
            self.rebalances += 1
            text = f"rebalance ended after {seconds:.1f} s{self._shares()}"
            self._happened(EventKind.REBALANCE_ENDED, text, seconds=seconds)
        elif changed and look.members:
            self.rebalances += 1
            self._happened(EventKind.REBALANCE_ENDED, f"rebalance, over between two looks{self._shares()}")

    def _shares(self) -> str:
        numbers: dict[str, int] = defaultdict(int)
        for key in self.owners.values():
            numbers[key] += 1
        shares = [f"{member.mark} {numbers[key]}" for key, member in self.members.items()]
        return f": {', '.join(shares)}" if 0 < len(shares) <= 8 else ""

    def _report_moves(self, moved: dict[TopicPartition, tuple[str, str]]) -> None:
        pairs: dict[tuple[str, str], list[TopicPartition]] = defaultdict(list)
        for tp, pair in moved.items():
            pairs[pair].append(tp)
        for (source, target), partitions in pairs.items():
            text = f"{self._mark_of(source)} → {self._mark_of(target)}: {named_briefly(partitions)}"
            ids = (self._id_of(source), self._id_of(target))
            self._happened(EventKind.MOVED, text, partitions=tuple(partitions), source=ids[0], target=ids[1])

    def _forget_departed(self) -> None:
        needed = set(self.owners.values())
        self.departed = {key: member for key, member in self.departed.items() if key in needed}

    # Queries.

    def title(self, member: Member) -> str:
        """Letter and name; the letter alone where the name says no more."""
        return member.mark if member.seen.client_id in self._marks else f"{member.mark} {member.name}"

    def member_of(self, key: str) -> Member | None:
        """The member of that key, also one that left and whose partitions wait."""
        return self.members.get(key) or self.departed.get(key)

    def _mark_of(self, key: str) -> str:
        member = self.member_of(key)
        return "no member" if member is None else member.mark

    def _id_of(self, key: str) -> str:
        member = self.member_of(key)
        return "" if member is None else member.seen.member_id

    @property
    def results(self) -> str:
        """What becomes of the group's results, "" if they do not depend on another group."""
        return results_of(position.metadata for position in self.positions.values() if position.committed is not None)

    @property
    def lag(self) -> int:
        """Records not committed yet, of the partitions where that is known."""
        return sum(position.lag or 0 for position in self.positions.values())

    @property
    def unknown_lags(self) -> int:
        """Partitions whose lag cannot be known."""
        partitions = self.positions.keys() | self.owners.keys()
        return sum(tp not in self.positions or self.positions[tp].lag is None for tp in partitions)

    @property
    def lag_is_whole(self) -> bool:
        """True if `lag` counts every partition that the group reads."""
        hidden = self.state in REBALANCING and not self.owners
        return not self.unknown_lags and not hidden and bool(self.positions)


def _next_free(slots: Iterator[int], size: int, used: Collection[int]) -> int:
    """The next free slot, round robin; the next slot if all are used."""
    first = next(slots) % size
    return next((slot for slot in (first, *(next(slots) % size for _ in range(size - 1))) if slot not in used), first)


def _sum(values: Iterable[float | None]) -> float | None:
    """Sum the known values; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _epochs(state: str) -> bool:
    """Return True for states that only groups of KIP-848 have; those list owned partitions in every state."""
    return state in ("Assigning", "Reconciling")
