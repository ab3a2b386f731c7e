"""Sub-topologies of a pipeline with state: their topics, their tasks, and which partitions each task reads.

A pipeline is split where it repartitions. All topics that one sub-topology reads have equally many partitions
(co-partitioned), so that a key is in the same partition of each; partition p of all of them is the task
`<sub-topology>_p`. Topic names are Kafka Streams' own (developer guide, "Internal topics").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roster.model.tasks import TaskId
from roster.model.topics import NAME_RULE, TopicPartition, is_legal_name

CHANGELOG_SETTINGS: Mapping[str, str] = {"cleanup.policy": "compact"}
"""Settings a changelog topic must have: its last record of each key is the state."""

REPARTITION_SETTINGS: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "segment.bytes": "52428800",
}
"""Settings of a repartition topic: nothing is lost before it is read, and small segments give room back early."""


class TopologyError(ValueError):
    """A pipeline's topics cannot make up its tasks; the message names them and the way out."""


@dataclass(frozen=True, slots=True)
class Subtopology:
    """A part of a pipeline without repartitioning inside: the topics it reads, and its stores by name."""

    number: int
    sources: Sequence[str]
    stores: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.sources:
            raise TopologyError(f"sub-topology {self.number} reads no topic")
        for kind, names in (("topic", self.sources), ("store", self.stores)):
            if twice := repeated(names):
                raise TopologyError(f"sub-topology {self.number} names the {kind} {twice[0]!r} twice")


def repeated(names: Sequence[object]) -> list[object]:
    """Return the names that come again, as often as they do."""
    return [name for place, name in enumerate(names) if name in names[:place]]


CHANGELOG, REPARTITION = "-changelog", "-repartition"
"""Ends of the names of a group's own topics, as with Kafka Streams."""


def changelog_topic(group: str, store: str) -> str:
    """Name the compacted topic that holds a store's truth. Raises TopologyError for an illegal name."""
    return _internal_topic(f"{group}-{store}{CHANGELOG}")


def repartition_topic(group: str, name: str) -> str:
    """Name the topic through which records get another key. Raises TopologyError for an illegal name."""
    return _internal_topic(f"{group}-{name}{REPARTITION}")


def _internal_topic(name: str) -> str:
    if not is_legal_name(name):
        raise TopologyError(f"{name!r} is no topic name, which has {NAME_RULE}: choose another group or store name")
    return name


def partition_count(subtopology: Subtopology, partitions: Mapping[str, int]) -> int:
    """Return the partitions that all topics of the sub-topology have.

    partitions: of each topic there is. Raises TopologyError if a topic is missing or if they are not co-partitioned.
    """
    if missing := [topic for topic in subtopology.sources if topic not in partitions]:
        raise TopologyError(f"topic {missing[0]!r} is not there, and sub-topology {subtopology.number} reads it")
    counts = {topic: partitions[topic] for topic in subtopology.sources}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{topic} {count}" for topic, count in counts.items())
        raise TopologyError(
            f"the topics of sub-topology {subtopology.number} must have equally many partitions, so that a key is in"
            f" the same partition of each ({told}): repartition those that differ"
        )
    return next(iter(counts.values()))


def check_subtopologies(subtopologies: Sequence[Subtopology]) -> None:
    """Raise TopologyError for a number, a store or a topic that two sub-topologies have."""
    for what, names in (
        ("number", [each.number for each in subtopologies]),
        ("store", [store for each in subtopologies for store in each.stores]),
        ("topic", [topic for each in subtopologies for topic in each.sources]),
    ):
        if twice := repeated(names):
            raise TopologyError(f"two sub-topologies have the {what} {twice[0]!r}")


def task_sources(
    subtopologies: Sequence[Subtopology], partitions: Mapping[str, int]
) -> dict[TaskId, tuple[TopicPartition, ...]]:
    """Return {task: its source partitions} of all sub-topologies, ascending.

    Raises TopologyError as `partition_count` and `check_subtopologies` do.
    """
    check_subtopologies(subtopologies)
    return {
        TaskId(each.number, partition): tuple(TopicPartition(topic, partition) for topic in each.sources)
        for each in sorted(subtopologies, key=lambda each: each.number)
        for partition in range(partition_count(each, partitions))
    }
