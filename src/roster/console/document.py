"""A group as a document for JSON, and what each look changes in it: of the partitions only the rows that differ."""

from collections import deque
from collections.abc import Mapping

from roster._json import JsonObject
from roster.console.events import Event, EventKind
from roster.console.history import GroupHistory, Member
from roster.console.rebalances import RebalanceSeen, RebalanceTimeline
from roster.console.rows import PartitionRow, rows_of
from roster.model import TopicPartition

_EVENTS, _REBALANCES = 100, 50
Document = JsonObject


class GroupDocument:
    """The document of one group. Times in it are wall-clock ms; `zero` is the wall clock less that of snapshots, in s.

    `state` has every field. A change has the fields that differ; `rows` in it are [index, *row] of changed partitions,
    `points` and `events` are those to append. A row is topic (index in `topics`), partition, owner (index in `members`,
    -1: none), committed, end, lag, age of the next record in s, records read a second.
    """

    def __init__(self, zero: float) -> None:
        self._zero = zero
        self._fields: Document = {}
        self._rows: list[list[object]] = []
        self._points: list[list[object]] = []
        self._events: deque[Document] = deque(maxlen=_EVENTS)
        self._events_until = float("-inf")

    @property
    def state(self) -> Document:
        """The whole document."""
        return {**self._fields, "all_rows": self._rows, "points": self._points, "events": list(self._events)}

    def update(
        self,
        history: GroupHistory,
        timeline: RebalanceTimeline,
        ages: Mapping[TopicPartition, float],
        more: Mapping[str, object],
    ) -> Document:
        """Take the newest look, and return what it changed. more: other fields of the document."""
        rows = rows_of(history)
        place = {row.member.seen.key: index for index, row in enumerate(rows.members)}
        topics = {topic: index for index, topic in enumerate(rows.topics)}
        fields: Document = {
            **more,
            "head": self._head(history, ages),
            "topics": list(topics),
            "members": [
                {**_member(row.member), "partitions": len(row.partitions), "lag": row.lag, "read": _round(row.rate)}
                for row in rows.members
            ],
            "rebalances": [self._rebalance(rebalance) for rebalance in list(timeline.rebalances)[-_REBALANCES:]],
        }
        change = {name: value for name, value in fields.items() if self._fields.get(name) != value}
        change |= self._changed_rows([_row(row, place, topics, ages) for row in rows.partitions], "topics" in change)
        self._fields = fields
        self._points = self._totals(history)
        change["points"] = self._points[-1:]
        change["events"] = [self._event(event) for event in history.events if event.at > self._events_until][-_EVENTS:]
        self._events += change["events"]
        self._events_until = history.now
        return change

    def _changed_rows(self, rows: list[list[object]], renamed: bool) -> Document:
        before, self._rows = self._rows, rows
        if renamed or [row[:2] for row in before] != [row[:2] for row in rows]:
            return {"all_rows": rows}
        return {
            "rows": [[index, *row] for index, (old, row) in enumerate(zip(before, rows, strict=True)) if old != row]
        }

    def _head(self, history: GroupHistory, ages: Mapping[TopicPartition, float]) -> Document:
        return {
            **row_of_group(history, ages),
            "at": self.wall(history.now),
            "protocol": history.protocol,
            "coordinator": history.coordinator,
            "epoch": history.epoch,
            "generation": history.generation_at_least,
            "unknown": history.unknown_lags,
            "away": history.away_reason,
        }

    def _totals(self, history: GroupHistory) -> list[list[object]]:
        lags, reads, written = history.lag_total, history.rate_total.values, history.produced_total.values
        points = zip(lags.times, lags.values, reads, written, strict=True)
        return [[self.wall(moment), lag, _round(read), _round(write)] for moment, lag, read, write in points]

    def _event(self, event: Event) -> Document:
        return {"at": self.wall(event.at), "kind": event.kind.value, "text": event.text}

    def partition(self, history: GroupHistory, tp: TopicPartition) -> Document:
        """Return the life of one partition as far as it was seen: owners, and lag over time."""
        track, moves = history.tracks.get(tp), [event for event in history.events if tp in event.partitions]
        points = () if track is None else zip(track.lag.times, track.lag.values, strict=True)
        return {
            "lags": [[self.wall(moment), lag] for moment, lag in points],
            "events": [
                {
                    **self._event(event),
                    "source": event.source,
                    "target": event.target,
                    "moved": event.kind is EventKind.MOVED,
                }
                for event in moves
            ],
        }

    def _rebalance(self, rebalance: RebalanceSeen) -> Document:
        return {
            "began": self.wall(rebalance.began),
            "ended": None if rebalance.ended is None else self.wall(rebalance.ended),
            "phases": [[state, self.wall(moment)] for state, moment in rebalance.phases],
            "causes": rebalance.causes,
            "moved": rebalance.moved,
            "members": rebalance.members,
        }

    def wall(self, at: float) -> int:
        """Return the wall-clock ms of a snapshot's time."""
        return round((self._zero + at) * 1000)


def row_of_group(history: GroupHistory, ages: Mapping[TopicPartition, float]) -> Document:
    """Return a group's row in the list of groups."""
    known = any(position.lag is not None for position in history.positions.values())
    return {
        "state": history.state,
        "members": len(history.members),
        "partitions": len(history.positions),
        "lag": history.lag if known else None,
        "seconds": _round(max(ages.values(), default=None)),
        "read": _round(history.rate),
        "written": _round(history.produced_rate),
        "rebalances": history.rebalances,
        "results": history.results,
        "trouble": history.away_reason or history.trouble,
        "lost": sum(position.lost for position in history.positions.values()),
    }


def _row(
    row: PartitionRow, place: Mapping[str, int], topics: Mapping[str, int], ages: Mapping[TopicPartition, float]
) -> list[object]:
    owner = -1 if row.owner is None else place[row.owner.seen.key]
    topic, number = row.partition
    return [
        topics[topic],
        number,
        owner,
        row.committed,
        row.end,
        row.lag,
        _round(ages.get(row.partition)),
        _round(row.rate),
    ]


def _member(member: Member) -> Document:
    identity = member.seen
    return {
        "id": identity.member_id,
        "name": member.name,
        "mark": member.mark,
        "colour": member.colour,
        "client": identity.client_id,
        "host": identity.host,
        "left": member.left_at is not None,
    }


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
