"""Names for what a log is made of."""

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """One partition of a topic; sorts by topic, then by number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
