"""Which partitions hold the stream times of a group's tasks back, read from the ends of its changelogs."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import pyarrow.compute as pc

from roster.client import Admin
from roster.model import TopicPartition
from roster.pipeline.batch import Split
from roster.pipeline.tasks.reader import ReaderConfig, read_splits
from roster.state.source_times import HELD, SOURCES_KEY, UNLABELLED, Known, source_of

_SPANS = (64, 4096)
"""Offsets before the end of a changelog that are read, until one of them says it."""


class HeldTime(NamedTuple):
    """A task's stream time that is held back, by the task's partition of the changelog."""

    changelog: str
    partition: int
    held_by: str
    """`topic-partition` that has more to read, and of all such the least time."""
    held_ms: int
    """Milliseconds that stream time is behind that of the source that is furthest."""


def held_times(
    admin: Admin, config: ReaderConfig, changelogs: Collection[str], sources: Collection[TopicPartition]
) -> list[HeldTime]:
    """Return the stream times that are held back, as of each task's last batch. Raises ClientError and ReadError.

    sources: partitions that the group reads.
    """
    logs = [TopicPartition(name, at.partition) for name in changelogs for at in admin.describe_topic(name).partitions]
    begins, ends = admin.beginning_offsets(logs), admin.stable_offsets(logs)
    left, entries = {log for log in logs if ends[log] > begins[log]}, dict[TopicPartition, bytes | None]()
    for span in _SPANS:
        splits = [Split(*log, max(begins[log], ends[log] - span), ends[log]) for log in sorted(left)]
        for batch in read_splits(config, splits) if splits else ():
            for row in batch.filter(pc.equal(batch["key"], SOURCES_KEY)).to_pylist():
                entries[TopicPartition(row["topic"], row["partition"])] = row["value"]
        left -= entries.keys()
    known = {log: Known.decode(entry) for log, entry in sorted(entries.items())}
    held = {log: each for log, each in known.items() if each.ended.get(HELD, UNLABELLED) > UNLABELLED}
    names = {source_of(*at): str(at) for at in sources}
    return [
        HeldTime(
            *log,
            names.get(of.ended[HELD], "an unknown partition"),
            (max(time for source, time in of.times.items() if source > UNLABELLED) - of.times[HELD]) // 1000,
        )
        for log, of in held.items()
    ]
