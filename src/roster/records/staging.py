"""Rows encoded inside the tasks, and written later by one writer a partition: batches that know no producer yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from roster.records.produce import KafkaOutput, KafkaWriter
from roster.wire.columns.writer import Body


class StagedBatch(NamedTuple):
    """A record batch on its way to its partition's writer."""

    topic: str
    partition: int
    body: Body


@dataclass(frozen=True)
class StagingWriter:
    """Makes record batches as `writer` does, and returns them."""

    writer: KafkaWriter

    def open(self) -> StagingOutput:
        """Start the output of one attempt of a task."""
        return StagingOutput(self.writer)


class StagingOutput(KafkaOutput):
    """Record batches of one attempt of a task: nothing is sent, so that an attempt too many has no effect."""

    def __init__(self, writer: KafkaWriter) -> None:
        super().__init__(writer)
        self._staged: list[StagedBatch] = []

    def _add(self, topic: str, partition: int, body: Body) -> None:
        self._staged.append(StagedBatch(topic, partition, body))

    def close(self) -> list[StagedBatch]:  # type: ignore[override]
        """Return the batches, of each partition in the order of the rows."""
        self.flush()
        self._release()
        return self._staged
