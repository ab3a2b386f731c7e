"""Sub-topologies of a stateful pipeline: their topics, their tasks, and the partitions that each task reads.

A pipeline is split where it repartitions. All topics that a sub-topology reads have the same number of partitions (they
are co-partitioned), so a key is in the same partition of each. Task `<sub-topology>_p` reads partition p of all of
them. Topic names follow Kafka Streams (developer guide, "Internal topics").
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from roster.model.tasks import TaskId
from roster.model.topics import NAME_RULE, TopicPartition, is_legal_name

CHANGELOG_SETTINGS: Mapping[str, str] = {"cleanup.policy": "compact"}
"""Settings that a changelog topic must have: the last record of each key is the state."""

REPARTITION_SETTINGS: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "segment.bytes": "52428800",
}
"""Settings of a repartition topic: no record expires before it is read; small segments free disk space early."""


class TopologyError(ValueError):
    """A pipeline's topics do not fit its tasks; the message names the topics and the fix."""


@dataclass(frozen=True, slots=True)
class Subtopology:
    """A part of a pipeline between repartitions: the topics it reads, and its stores by name."""

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
    """Return each repetition of a name."""
    return [name for place, name in enumerate(names) if name in names[:place]]


CHANGELOG, REPARTITION = "-changelog", "-repartition"
"""Suffixes of the names of a group's own topics, as in Kafka Streams."""


def changelog_topic(group: str, store: str) -> str:
    """Return the name of a store's changelog topic. Raises TopologyError for an illegal name."""
    return _internal_topic(f"{group}-{store}{CHANGELOG}")


def repartition_topic(group: str, name: str) -> str:
    """Return the name of a repartition topic. Raises TopologyError for an illegal name."""
    return _internal_topic(f"{group}-{name}{REPARTITION}")


def _internal_topic(name: str) -> str:
    if not is_legal_name(name):
        raise TopologyError(f"{name!r} is not a topic name, which has {NAME_RULE}: choose another group or store name")
    return name


def own_topics(
    group: str, topics: Collection[str], others: Collection[str], end: str
) -> tuple[list[str], dict[str, str]]:
    """Return a group's topics with this suffix, and those that may be another group's, as names are ambiguous."""
    own = [topic for topic in sorted(topics) if _is_own(group, topic, end)]
    doubtful = {topic: other for topic in own for other in sorted(others) if _is_own(other, topic, end)}
    return [topic for topic in own if topic not in doubtful], doubtful


def _is_own(group: str, topic: str, end: str) -> bool:
    begin = f"{group}-"
    return topic.startswith(begin) and topic.endswith(end) and len(topic) > len(begin) + len(end)


def partition_count(subtopology: Subtopology, partitions: Mapping[str, int]) -> int:
    """Return the number of partitions of each topic of the sub-topology.

    partitions: of each existing topic. Raises TopologyError if a topic is missing or they are not co-partitioned.
    """
    if missing := [topic for topic in subtopology.sources if topic not in partitions]:
        raise TopologyError(f"topic {missing[0]!r} is not there, and sub-topology {subtopology.number} reads it")
    counts = {topic: partitions[topic] for topic in subtopology.sources}
    if len(set(counts.values())) > 1:
        sizes = ", ".join(f"{topic} {count}" for topic, count in counts.items())
        raise TopologyError(
            f"the topics of sub-topology {subtopology.number} must have equally many partitions, so that a key is in"
            f" the same partition of each ({sizes}): repartition those that differ"
        )
    return next(iter(counts.values()))


def check_subtopologies(subtopologies: Sequence[Subtopology]) -> None:
    """Raise TopologyError if two sub-topologies have a number, store or topic in common."""
    for what, names in (
        ("number", [subtopology.number for subtopology in subtopologies]),
        ("store", [store for subtopology in subtopologies for store in subtopology.stores]),
        ("topic", [topic for subtopology in subtopologies for topic in subtopology.sources]),
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
        TaskId(subtopology.number, partition): tuple(TopicPartition(topic, partition) for topic in subtopology.sources)
        for subtopology in sorted(subtopologies, key=lambda subtopology: subtopology.number)
        for partition in range(partition_count(subtopology, partitions))
    }
