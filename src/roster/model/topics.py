"""Topics and partitions, and the rule for topic names."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

MAX_NAME = 249
"""Longest topic name and longest group instance id, in characters."""

NAME_RULE = f"1 to {MAX_NAME} letters, digits, '.', '_' or '-', and neither '.' nor '..'"
"""The rule of `is_legal_name`, for messages."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


class TopicPartition(NamedTuple):
    """One partition of a topic; sorts by topic, then by number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def numbers_by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """Return {topic: its partitions}, both ascending."""
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    return topics


def offsets_by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return {topic: {partition: offset}} as JSON has it in Spark's offsets, both ascending by number."""
    topics: dict[str, dict[str, int]] = {}
    for partition, offset in sorted(offsets.items()):
        topics.setdefault(partition.topic, {})[str(partition.partition)] = offset
    return topics


def is_legal_name(name: str) -> bool:
    """Return True for a legal topic name or group instance id (Kafka's Topic.isValid)."""
    return len(name) <= MAX_NAME and name not in (".", "..") and _LEGAL.fullmatch(name) is not None
