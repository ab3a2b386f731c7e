"""Which of two groups writes results, and how it changes: the state of each task, decided without I/O.

OLD and NEW read the same topics, each with state of its own. A task's standing is in the metadata of its committed
offsets, so it changes with them, and only its owner changes it. One group reads the standing of the other:

| standing of NEW | standing of OLD | then |
|---|---|---|
| PAUSED, asked to take over | WRITES | NEW: WAITS, it reads no further |
| WAITS | WRITES, asked to hand over | OLD goes on to NEW's offset or past it: HANDED_OVER at X, it reads no further |
| WAITS | HANDED_OVER | NEW reads up to X without results: WRITES |
| WRITES | HANDED_OVER | OLD: PAUSED, it follows NEW |
| WAITS, no longer asked to | any | NEW: PAUSED |
| PAUSED | HANDED_OVER | OLD: WRITES |
| no offsets, as it was deleted | HANDED_OVER, a switch is asked for | OLD: WRITES |

OLD goes on writing only once NEW has given up, and NEW gives up only what it has not taken. A group that is made anew
does not go on with a switch for which OLD had handed over to the one before.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from roster._json import JsonObject, loads
from roster.model.offsets import OffsetAndMetadata
from roster.model.topics import TopicPartition

_FIELD = "results"


class Results(StrEnum):
    """Fate of a task's results."""

    WRITES = "written"
    PAUSED = "paused"
    WAITS = "waiting"
    """As PAUSED; nothing is read until the other group has handed over."""
    HANDED_OVER = "handed over"
    """All results before the offset are written, none after it; nothing is read until the other group writes."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A task's part in the latest switch that concerned it.

    switch, peer: id of that switch, and the other group. took: id of the switch by which it came to write last.
    """

    results: Results = Results.WRITES
    switch: str = ""
    peer: str = ""
    took: str = ""

    def added_to(self, metadata: str) -> str:
        """Return the metadata of a committed offset, which is a JSON object or "", with this standing in it."""
        if self == Standing():
            return metadata
        return json.dumps(_object(metadata) | {_FIELD: {name: value for name, value in asdict(self).items() if value}})

    @classmethod
    def of(cls, metadata: str) -> "Standing | None":
        """Return the standing in a committed offset's metadata, None if there is none."""
        fields: Any = _object(metadata).get(_FIELD)
        try:
            standing = cls(**(fields | {"results": Results(fields["results"])}))
        except (KeyError, TypeError, ValueError):
            return None
        return standing if all(isinstance(value, str) for value in fields.values()) else None


_TEXTS = {
    Results.WRITES: ("written", "written, not by {peer}"),
    Results.PAUSED: ("paused", "paused, {peer} writes"),
    Results.WAITS: ("waiting", "waiting for {peer}"),
    Results.HANDED_OVER: ("handed over", "handed over to {peer}"),
}


def results_of(metadata: Iterable[str]) -> str:
    """Return what becomes of a group's results, by the metadata of its committed offsets; "" without another group."""
    standings = {Standing.of(text) or Standing() for text in metadata}
    texts = {_TEXTS[standing.results][bool(standing.peer)].format(peer=standing.peer) for standing in standings}
    return "" if texts == {"written"} else "; ".join(sorted(texts))


class Request(NamedTuple):
    """A requested switch: its id, the group that writes now, and the group that shall write."""

    switch: str
    source: str
    target: str

    def encode(self) -> str:
        """Return the request as text."""
        return json.dumps(self._asdict())

    @classmethod
    def of(cls, text: str) -> "Request | None":
        """Return the request in a text, None if there is none."""
        try:
            request = cls(**_object(text))
        except TypeError:
            return None
        return request if all(isinstance(text, str) for text in request) else None


def _object(text: str) -> JsonObject:
    """Return the JSON object in a text, an empty one if there is none."""
    try:
        value = loads(text)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {}


class Seen(NamedTuple):
    """A partition's committed offset in the other group, and the standing with it."""

    offset: int
    standing: Standing

    @classmethod
    def of(cls, committed: OffsetAndMetadata) -> "Seen":
        """Return what a committed offset says."""
        return cls(committed.offset, Standing.of(committed.metadata) or Standing())


class Step(NamedTuple):
    """The standing to commit at the present offsets, and offsets that must not be passed under it."""

    standing: Standing
    limits: Mapping[TopicPartition, int]


def peer_of(group: str, own: Standing, request: Request | None) -> str:
    """Return the group whose committed offsets the next step depends on, "" if it depends on none."""
    if own.results is Results.PAUSED and request is not None and request.target == group:
        return request.source
    if own.results is Results.WRITES:
        return request.target if request is not None and request.source == group else ""
    return own.peer


def step(
    group: str,
    own: Standing,
    positions: Mapping[TopicPartition, int],
    request: Request | None,
    peer: Mapping[TopicPartition, Seen],
) -> Step:
    """Return the next step of a task of `group`.

    positions: next offset of each of its input partitions. peer: the same partitions in the group of `peer_of`.
    """
    theirs = [peer[partition] for partition in positions if partition in peer]
    complete = len(theirs) == len(positions)
    match own.results:
        case Results.WRITES:
            if request is None or request.source != group or not _is_awaited(request.switch, positions, peer):
                return Step(own, {})
            handed_over = replace(own, results=Results.HANDED_OVER, switch=request.switch, peer=request.target)
            return Step(handed_over, positions)
        case Results.HANDED_OVER if complete and all(partition.standing.took == own.switch for partition in theirs):
            return Step(replace(own, results=Results.PAUSED), positions)
        case Results.HANDED_OVER:
            is_given_up = complete and not any(_waits(partition, own.switch) for partition in theirs)
            if is_given_up or (request is not None and not theirs):
                return Step(replace(own, results=Results.WRITES), {})
            return Step(own, positions)
        case Results.WAITS if request is None or request.switch != own.switch:
            return Step(replace(own, results=Results.PAUSED), positions)
        case Results.WAITS:
            handed = [p for p in positions if p in peer and _is_handed(peer[p].standing, own.switch, group)]
            ends = {p: peer[p].offset for p in handed}
            if ends == dict(positions):
                return Step(replace(own, results=Results.WRITES, took=own.switch), {})
            return Step(own, ends if len(ends) == len(positions) else positions)
    if (
        complete
        and request is not None
        and request.target == group
        and not any(_is_handed(partition.standing, request.switch, group) for partition in theirs)
    ):
        return Step(replace(own, results=Results.WAITS, switch=request.switch, peer=request.source), positions)
    return Step(
        own,
        {p: max(positions[p], peer[p].offset) if p in peer else positions[p] for p in positions} if own.peer else {},
    )


def _is_awaited(switch: str, positions: Mapping[TopicPartition, int], peer: Mapping[TopicPartition, Seen]) -> bool:
    """Return True if the other group waits everywhere, and has gone no further."""
    return all(p in peer and _waits(peer[p], switch) and peer[p].offset <= offset for p, offset in positions.items())


def _is_handed(standing: Standing, switch: str, to: str) -> bool:
    return (standing.results, standing.switch, standing.peer) == (Results.HANDED_OVER, switch, to)


def _waits(peer: Seen, switch: str) -> bool:
    return peer.standing.results is Results.WAITS and peer.standing.switch == switch
