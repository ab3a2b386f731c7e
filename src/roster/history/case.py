"""A recorded rebalance as a test: what its leader was given, and what it answered, as JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from roster._json import JsonObject
from roster.assignors import find_assignor
from roster.member.assign_group import assign_group
from roster.member.group_snapshot import GroupSnapshot

if TYPE_CHECKING:
    from roster.history.derived import GroupHistory


@dataclass(frozen=True)
class Case:
    """A rebalance: the assignor by name, its input, and the recorded assignments ({member id: bytes})."""

    assignor: str
    group: GroupSnapshot
    assignments: Mapping[str, bytes]

    def differing(self) -> list[str]:
        """Compute the assignment, and return the members whose bytes are not those recorded."""
        computed = assign_group(self.assignor, self.group).assignments
        return sorted(member for member, data in self.assignments.items() if computed[member] != data)

    def as_json(self) -> dict[str, object]:
        """Return a document; bytes are in base 64."""
        return {
            "assignor": self.assignor,
            **{name: getattr(self.group, name) for name in ("generation", "partitions", "instance_ids", "offsets")},
            "subscriptions": _texts(self.group.subscriptions),
            "assignments": _texts(self.assignments),
        }

    @classmethod
    def from_json(cls, document: JsonObject) -> Case:
        """Read a document that `as_json` made."""
        offsets = document["offsets"]
        group = GroupSnapshot(
            subscriptions=_bytes(document["subscriptions"]),
            partitions=document["partitions"],
            instance_ids=document["instance_ids"],
            generation=document["generation"],
            offsets=offsets
            and {
                t: {int(n): tuple(position) for n, position in partitions.items()} for t, partitions in offsets.items()
            },
        )
        return cls(document["assignor"], group, _bytes(document["assignments"]))


def replay_case(path: str | Path) -> None:
    """Compute the assignment of a file that `roster history export-case` wrote, and compare it byte by byte.

    Raises AssertionError that names the members whose assignment is another.
    """
    case = Case.from_json(json.loads(Path(path).read_bytes()))
    if differing := case.differing():
        raise AssertionError(f"{case.assignor} assigns otherwise than recorded to {', '.join(differing)}")


def case_of(history: GroupHistory, generation: int) -> Case:
    """Return a generation of a group as a case. Raises ValueError that names what is missing."""
    places = [i for i, rebalance in enumerate(history.timeline.rebalances) if rebalance.now.number == generation]
    if not places:
        raise ValueError(f"generation {generation} is not in the history")
    now = history.timeline.rebalances[places[0]].now
    record = next(
        value
        for value in history.records()
        if value.generation == generation and any(member.assignment for member in value.members)
    )
    known = zip(history.timeline.group.topics, history.counts()[places[0]].tolist(), strict=True)
    counts = {topic: count for topic, count in known if count}
    group = GroupSnapshot(
        subscriptions={member.member_id: member.subscription for member in record.members},
        partitions=counts,
        instance_ids={member.member_id: member.group_instance_id for member in record.members},
        generation=generation,
        offsets=history.offsets(counts, now.at_ms) if find_assignor(now.assignor).wants_lag else None,
    )
    return Case(now.assignor, group, {member.member_id: member.assignment for member in record.members})


def _texts(data: Mapping[str, bytes]) -> dict[str, str]:
    return {member: base64.b64encode(content).decode() for member, content in data.items()}


def _bytes(document: Mapping[str, str]) -> dict[str, bytes]:
    return {member: base64.b64decode(data) for member, data in document.items()}
