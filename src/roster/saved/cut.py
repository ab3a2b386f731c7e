"""A consistent cut of a running group: committed offsets, and the ends of the logs that belong to them.

A batch writes changelogs, records for the next sub-topology and offsets in one transaction. Its markers reach the logs
and the group at different moments, so a cut is a moment at which no log of it has anything undecided:

1. the last stable offset of each log,
2. the committed offsets, once no transaction holds others (`require_stable`),
3. the end of each log.

If each end is the last stable offset, nothing was written or decided in between: what the offsets say is in the logs,
all of it and nothing else. Otherwise the cut is taken again; between two batches it succeeds.

A group's first offset in a partition would not be listed while a transaction holds it; but a pipeline commits its
starting offsets, without a transaction, before its first batch.

A task with its changelogs is cut by itself. Only with repartition topics the group is cut as a whole, as each task
before such a topic writes to all its partitions: records between the two committed offsets belong to the cut.
"""

import time
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from roster.client import Admin
from roster.model import TopicPartition
from roster.pipeline.errors import PipelineError

_PAUSE = 0.02
_MOST_PAUSE = 0.5


class Cut(NamedTuple):
    """Committed offsets, and the end of each log up to which its records belong to them."""

    offsets: dict[TopicPartition, int]
    ends: dict[TopicPartition, int]


def take_cut(
    logs: Admin,
    group: str,
    changelogs: Iterable[TopicPartition],
    repartitions: Iterable[TopicPartition] = (),
    *,
    patience: float = 60.0,
    now: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Cut:
    """Return a cut of a group; see the module's text.

    changelogs, repartitions: all partitions of the group's own topics. patience: seconds for each part of it. Raises
    PipelineError if no moment is found in that time, and ClientError.
    """
    units: dict[int, list[TopicPartition]] = {}
    whole = list(repartitions)
    for log in changelogs:
        units.setdefault(0 if whole else log.partition, []).append(log)
    if whole:
        units.setdefault(0, []).extend(whole)
    cut = Cut({}, {})
    taken = set[TopicPartition]()
    for number, unit in sorted(units.items()):
        until, wait = now() + patience, _PAUSE
        while True:
            part = _try(logs, group, unit, None if whole else number)
            if part is not None:
                break
            if now() >= until:
                names = ", ".join(sorted({log.topic for log in unit}))
                raise PipelineError(
                    f"no moment was found in {patience:.0f} s at which no transaction was open in {names}",
                    fix="Export when it has less to do, give it a longer trigger interval, or stop it meanwhile",
                )
            pause(wait)
            wait = min(2 * wait, _MOST_PAUSE)
        cut.offsets.update(part.offsets)
        cut.ends.update(part.ends)
        taken |= part.offsets.keys()
    rest = [partition for partition in logs.group_offsets(group, stable=False) if partition not in taken]
    cut.offsets.update(
        {partition: committed.offset for partition, committed in logs.group_offsets(group, rest).items()}
        if rest
        else {}
    )
    return cut


def _try(logs: Admin, group: str, unit: Collection[TopicPartition], number: int | None) -> Cut | None:
    """Return the cut of some logs and the group's offsets of this partition number (None: all), None if they move."""
    stable = logs.stable_offsets(unit)
    known = [
        partition for partition in logs.group_offsets(group, stable=False) if number in (None, partition.partition)
    ]
    offsets = (
        {partition: committed.offset for partition, committed in logs.group_offsets(group, known).items()}
        if known
        else {}
    )
    return Cut(offsets, stable) if logs.end_offsets(unit) == stable else None
