"""Rows encoded inside the tasks, and written later by one writer a partition: batches that know no producer yet."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from roster.records.produce import KafkaOutput, KafkaWriter
from roster.wire.columns.writer import Body


class EncodedBatch(NamedTuple):
    """A record batch on its way to its partition's writer."""

    topic: str
    partition: int
    body: Body


@dataclass(frozen=True)
class EncodingWriter:
    """Makes record batches as `writer` does, and returns them.

    `most_bytes` bounds those that a task holds when it ends; None: `take` is called in between.
    """

    writer: KafkaWriter
    most_bytes: int | None = None

    def open(self, on_wait: Callable[[], None] | None = None) -> "EncodingOutput":
        """Start the output of one attempt of a task; `on_wait` is called ten times a second while it waits."""
        return EncodingOutput(self.writer, self.most_bytes, on_wait)


class EncodingOutput(KafkaOutput):
    """Record batches of one attempt of a task: nothing is sent, so that an attempt too many has no effect."""

    def __init__(
        self, writer: KafkaWriter, most_bytes: int | None = None, on_wait: Callable[[], None] | None = None
    ) -> None:
        super().__init__(writer, on_wait)
        self._encoded: list[EncodedBatch] = []
        self._bytes, self._most_bytes = 0, most_bytes

    def _add(self, topic: str, partition: int, body: Body) -> None:
        self._bytes += body.size
        if self._most_bytes is None or self._bytes <= self._most_bytes:
            self._encoded.append(EncodedBatch(topic, partition, body))

    def take(self) -> list[EncodedBatch]:
        """Return the batches that are full by now."""
        encoded, self._encoded = self._encoded, []
        return encoded

    def close(self) -> list[EncodedBatch] | None:  # type: ignore[override]
        """Return the batches, of each partition in the order of the rows; None if they are too many bytes."""
        self.flush()
        self._release()
        return self._encoded if self._most_bytes is None or self._bytes <= self._most_bytes else None
