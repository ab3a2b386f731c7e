"""Rows encoded inside the tasks, and written later by one writer a partition: batches that know no producer yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from roster.records.produce import KafkaOutput, KafkaWriter
from roster.wire.columns.writer import Body

if TYPE_CHECKING:
    from collections.abc import Callable


class StagedBatch(NamedTuple):
    """A record batch on its way to its partition's writer."""

    topic: str
    partition: int
    body: Body


@dataclass(frozen=True)
class StagingWriter:
    """Makes record batches as `writer` does, and returns them.

    `most_bytes` bounds those that a task holds when it ends; None: `take` is called in between.
    """

    writer: KafkaWriter
    most_bytes: int | None = None

    def open(self, on_wait: Callable[[], None] | None = None) -> StagingOutput:
        """Start the output of one attempt of a task; `on_wait` is called ten times a second while it waits."""
        return StagingOutput(self.writer, self.most_bytes, on_wait)


class StagingOutput(KafkaOutput):
    """Record batches of one attempt of a task: nothing is sent, so that an attempt too many has no effect."""

    def __init__(
        self, writer: KafkaWriter, most_bytes: int | None = None, on_wait: Callable[[], None] | None = None
    ) -> None:
        super().__init__(writer, on_wait)
        self._staged: list[StagedBatch] = []
        self._bytes, self._most_bytes = 0, most_bytes

    def _add(self, topic: str, partition: int, body: Body) -> None:
        self._bytes += body.size
        if self._most_bytes is None or self._bytes <= self._most_bytes:
            self._staged.append(StagedBatch(topic, partition, body))

    def take(self) -> list[StagedBatch]:
        """Return the batches that are full by now."""
        staged, self._staged = self._staged, []
        return staged

    def close(self) -> list[StagedBatch] | None:  # type: ignore[override]
        """Return the batches, of each partition in the order of the rows; None if they are too many bytes."""
        self.flush()
        self._release()
        return self._staged if self._most_bytes is None or self._bytes <= self._most_bytes else None
