"""Topic metadata a member depends on."""

import re
from collections.abc import Iterable

from roster.member.types import Selection
from roster.wire import ErrorCode
from roster.wire.messages import MetadataRequest, MetadataResponse


class TopicMetadata:
    """Topics of the subscription and, for the leader, the partition counts that its assignment was computed from."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self.subscribed: frozenset[str] | None = None
        """Topics subscribed to; None until a pattern has been matched with metadata."""
        self.counts: dict[str, int] = {}
        """Partition count of each topic in the newest metadata."""
        self._group_topics: frozenset[str] = frozenset()
        self._snapshot: dict[str, int] | None = None
        self._adopt_next = False
        self._racks: dict[str, list[frozenset[str]]] | None = None
        self.select(selection)

    def select(self, selection: Selection) -> None:
        """Replace the selection."""
        self.selection = selection
        self.subscribed = None if isinstance(selection, re.Pattern) else selection

    @property
    def refresh_needed(self) -> bool:
        """True if new metadata can have an effect: there is a pattern to match or an assignment to compare with."""
        return isinstance(self.selection, re.Pattern) or self._snapshot is not None or self._adopt_next

    def request(self) -> MetadataRequest:
        """Build the Metadata request: the topics tracked, or every topic for a pattern."""
        if isinstance(self.selection, re.Pattern):
            return MetadataRequest(topics=None, allow_auto_topic_creation=False)
        names = sorted(self.selection | self._group_topics)
        return MetadataRequest(
            topics=[MetadataRequest.Topic(name=name) for name in names], allow_auto_topic_creation=False
        )

    def accepts(self, topics: Iterable[str]) -> bool:
        """Return True if an assignment of `topics` fits the selection; a pattern accepts topics not seen before."""
        if isinstance(self.selection, re.Pattern):
            return all(self.selection.fullmatch(topic) for topic in topics)
        return self.selection.issuperset(topics)

    def track_group(self, group_topics: frozenset[str]) -> None:
        """Track all of the group's topics, as its leader."""
        self._group_topics = group_topics
        self._snapshot = None

    def stop_tracking_group(self) -> None:
        """Track only the member's own topics: another member leads."""
        self._group_topics = frozenset()
        self._snapshot = None
        self._adopt_next = False

    def take_snapshot(self) -> dict[str, int]:
        """Return the partition counts of the group's existing topics; `change` compares with them from now on."""
        self._snapshot = self._group_counts()
        self._adopt_next = False
        return dict(self._snapshot)

    def adopt_next_metadata(self) -> None:
        """Take the snapshot from the next metadata, because the group keeps an earlier assignment (KIP-814)."""
        self._adopt_next = True

    @property
    def has_snapshot(self) -> bool:
        """True once `change` compares with a snapshot."""
        return self._snapshot is not None

    def compare_with(self, counts: dict[str, int]) -> None:
        """Make `change` compare with these partition counts of the group's topics from now on."""
        self._snapshot = {topic: counts[topic] for topic in sorted(self._group_topics) if topic in counts}

    def update(self, response: MetadataResponse) -> None:
        """Store newer metadata. A topic with a retriable error keeps its count."""
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
            self.subscribed = frozenset(t for t in counts if t not in internal and self.selection.fullmatch(t))
        self.counts = counts
        self._racks = replica_racks(response) if any(broker.rack for broker in response.brokers) else None
        if self._adopt_next:
            self.take_snapshot()

    def racks(self) -> dict[str, list[frozenset[str]]] | None:
        """Return racks[topic][partition], the racks that hold a replica; None when no broker has a rack."""
        return self._racks

    def change(self) -> str | None:
        """Describe how the newest metadata differs from the snapshot; None if it does not."""
        before, now = self._snapshot, self._group_counts()
        if before is None or before == now:
            return None
        differing = sorted(t for t in before.keys() | now.keys() if before.get(t) != now.get(t))
        return ", ".join(f"{t}: {before.get(t, 'none')} -> {now.get(t, 'none')}" for t in differing)

    def _group_counts(self) -> dict[str, int]:
        return {topic: self.counts[topic] for topic in sorted(self._group_topics) if topic in self.counts}


def replica_racks(response: MetadataResponse) -> dict[str, list[frozenset[str]]]:
    """Return racks[topic][partition]: the racks of the brokers that hold a replica, from a Metadata response."""
    rack_of = {broker.node_id: broker.rack for broker in response.brokers if broker.rack}
    return {
        topic.name: [
            frozenset(rack_of[node] for node in partition.replica_nodes if node in rack_of)
            for partition in sorted(topic.partitions, key=lambda p: p.partition_index)
        ]
        for topic in response.topics
        if topic.name is not None and topic.error_code == ErrorCode.NONE
    }


GONE = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.UNKNOWN_TOPIC_ID})
