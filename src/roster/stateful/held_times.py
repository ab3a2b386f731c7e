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
    logs = [
        TopicPartition(name, partition.partition)
        for name in changelogs
        for partition in admin.describe_topic(name).partitions
    ]
    begins, ends = admin.beginning_offsets(logs), admin.stable_offsets(logs)
    left, entries = {log for log in logs if ends[log] > begins[log]}, dict[TopicPartition, bytes | None]()
    for span in _SPANS:
        splits = [Split(*log, max(begins[log], ends[log] - span), ends[log]) for log in sorted(left)]
        for batch in read_splits(config, splits) if splits else ():
            for row in batch.filter(pc.equal(batch["key"], SOURCES_KEY)).to_pylist():
                entries[TopicPartition(row["topic"], row["partition"])] = row["value"]
        left -= entries.keys()
    names = {source_of(*partition): str(partition) for partition in sources}
    held_tasks = []
    for log, entry in sorted(entries.items()):
        known = Known.decode(entry)
        if (source := known.ended.get(HELD, UNLABELLED)) > UNLABELLED:
            furthest = max(time for label, time in known.times.items() if label > UNLABELLED)
            behind_ms = (furthest - known.times[HELD]) // 1000
            held_tasks.append(HeldTime(*log, names.get(source, "an unknown partition"), behind_ms))
    return held_tasks
