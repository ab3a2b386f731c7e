"""Which topics there are, as far as a member cares."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from roster.wire import ErrorCode
from roster.wire.messages import MetadataRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from roster.member.events import Selection
    from roster.wire.messages import MetadataResponse


class TopicWatch:
    """The topics of a selection and, for the group's leader, the partition counts its assignment was computed from."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self.topics: frozenset[str] | None = None
        """The topics subscribed to; None while a pattern has not been matched with metadata yet."""
        self.counts: dict[str, int] = {}
        """Partition counts by the newest metadata."""
        self._group: frozenset[str] = frozenset()
        self._assigned_from: dict[str, int] | None = None
        self._awaits_baseline = False
        self._racks: dict[str, list[frozenset[str]]] | None = None
        self.select(selection)

    def select(self, selection: Selection) -> None:
        """Follow another selection."""
        self.selection = selection
        self.topics = None if isinstance(selection, re.Pattern) else selection

    @property
    def needed(self) -> bool:
        """Whether metadata can change anything: a pattern to match, or a leader's assignment to watch over."""
        return isinstance(self.selection, re.Pattern) or self._assigned_from is not None or self._awaits_baseline

    def request(self) -> MetadataRequest:
        """Ask for what this member watches; a pattern needs every topic."""
        if isinstance(self.selection, re.Pattern):
            return MetadataRequest(topics=None, allow_auto_topic_creation=False)
        names = sorted(self.selection | self._group)
        return MetadataRequest(
            topics=[MetadataRequest.Topic(name=name) for name in names], allow_auto_topic_creation=False
        )

    def accepts(self, topics: Iterable[str]) -> bool:
        """Whether an assignment of `topics` fits the selection; a pattern accepts topics it has not seen yet."""
        if isinstance(self.selection, re.Pattern):
            return all(self.selection.fullmatch(topic) for topic in topics)
        return self.selection.issuperset(topics)

    def lead(self, group_topics: frozenset[str]) -> None:
        """Watch all of the group's topics, as its leader; then `update` and `assigned`, or `adopt`."""
        self._group = group_topics
        self._assigned_from = None

    def follow(self) -> None:
        """Watch nothing for the group: another member leads."""
        self._group = frozenset()
        self._assigned_from = None
        self._awaits_baseline = False

    def assigned(self) -> dict[str, int]:
        """The partition counts of the group's existing topics, from now on the state to compare with."""
        self._assigned_from = self._snapshot()
        self._awaits_baseline = False
        return dict(self._assigned_from)

    def adopt(self) -> None:
        """The group keeps an assignment made earlier (KIP-814): compare with the next metadata."""
        self._awaits_baseline = True

    def update(self, response: MetadataResponse) -> None:
        """Take in newer metadata. A topic with a passing error keeps the count it had."""
        counts: dict[str, int] = {}
        for topic in response.topics:
            if topic.name is None or topic.error_code in GONE:
                continue
            if topic.error_code == ErrorCode.NONE:
                counts[topic.name] = len(topic.partitions)
            elif topic.name in self.counts:
                counts[topic.name] = self.counts[topic.name]
        if isinstance(self.selection, re.Pattern):
            internal = {topic.name for topic in response.topics if topic.is_internal}
            self.topics = frozenset(t for t in counts if t not in internal and self.selection.fullmatch(t))
        self.counts = counts
        self._racks = replica_racks(response)
        if self._awaits_baseline:
            self.assigned()

    def racks(self) -> dict[str, list[frozenset[str]]] | None:
        """The racks that hold a replica of each partition of each topic; None when brokers tell none."""
        return self._racks

    def change(self) -> str | None:
        """What differs between the assignment's topics and the newest metadata, in words; None when nothing does."""
        before, now = self._assigned_from, self._snapshot()
        if before is None or before == now:
            return None
        differing = sorted(t for t in before.keys() | now.keys() if before.get(t) != now.get(t))
        return ", ".join(f"{t}: {before.get(t, 'none')} -> {now.get(t, 'none')}" for t in differing)

    def _snapshot(self) -> dict[str, int]:
        return {topic: self.counts[topic] for topic in sorted(self._group) if topic in self.counts}


def replica_racks(response: MetadataResponse) -> dict[str, list[frozenset[str]]] | None:
    """racks[topic][partition] by this metadata; None when no broker has a rack."""
    rack_of = {broker.node_id: broker.rack for broker in response.brokers if broker.rack}
    if not rack_of:
        return None
    return {
        topic.name: [
            frozenset(rack_of[node] for node in partition.replica_nodes if node in rack_of)
            for partition in sorted(topic.partitions, key=lambda p: p.partition_index)
        ]
        for topic in response.topics
        if topic.name is not None and topic.error_code == ErrorCode.NONE
    }


GONE = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.UNKNOWN_TOPIC_ID})
