"""Offset ranges of the next batch, and their split over tasks. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from roster.model import TopicPartition
from roster.pipeline.batch import Range, Split


def limit(available: Mapping[TopicPartition, Range], most: int | None) -> dict[TopicPartition, Range]:
    """Return the part of `available` that a batch of at most `most` offsets reads, in proportion to each lag.

    Every partition with lag gets at least one offset, so none starves; with more such partitions than `most`, the batch
    has one offset of each. Largest remainders get what rounding leaves. Empty ranges are left out.
    """
    waiting = {partition: span for partition, span in sorted(available.items()) if span.size > 0}
    total = sum(span.size for span in waiting.values())
    if most is None or total <= most:
        return waiting
    share = dict.fromkeys(waiting, 1)
    spare = max(most - len(waiting), 0)
    rest = total - len(waiting)
    if spare and rest:
        remainders = {}
        for partition, span in waiting.items():
            whole, remainders[partition] = divmod((span.size - 1) * spare, rest)
            share[partition] += whole
        left = spare - sum(share.values()) + len(waiting)
        for partition in sorted(remainders, key=lambda p: (-remainders[p], p))[:left]:
            share[partition] += 1
    return {partition: Range(span.start, span.start + share[partition]) for partition, span in waiting.items()}


def tasks(ranges: Mapping[TopicPartition, Range], cores: int, least: int = 1) -> list[tuple[Split, ...]]:
    """Split ranges over at most `cores` tasks of equal size, each (unless alone) of at least about `least` offsets.

    The ranges are laid end to end in order and cut into equal lengths: small ones share a task, large ones are split
    over several, and no task reads a partition twice.
    """
    spans = [(partition, span) for partition, span in sorted(ranges.items()) if span.size > 0]
    total = sum(span.size for _, span in spans)
    count = max(1, min(cores, total // max(least, 1)))
    cuts = [total * task // count for task in range(1, count + 1)]
    plan: list[list[Split]] = [[]]
    dealt = 0  # offsets dealt so far
    for partition, span in spans:
        start = span.start
        while start < span.end:
            if dealt == cuts[len(plan) - 1]:
                plan.append([])
            end = min(span.end, start + cuts[len(plan) - 1] - dealt)
            plan[-1].append(Split(partition.topic, partition.partition, start, end))
            dealt += end - start
            start = end
    return [tuple(splits) for splits in plan if splits]


def whole(ranges: Mapping[TopicPartition, Range], cores: int, least: int = 1) -> list[tuple[Split, ...]]:
    """Assign whole ranges to tasks, the largest first, each to the least loaded task.

    Sizes of tasks differ by at most the largest range. Empty ranges count: their tasks may have work without records.
    """
    spans = sorted(ranges.items(), key=lambda item: (-item[1].size, item))
    total = sum(span.size for _, span in spans)
    count = max(1, min(cores, len(spans), total // max(least, 1)))
    plan: list[list[Split]] = [[] for _ in range(count)]
    loads = [0] * count
    for partition, span in spans:
        lightest = loads.index(min(loads))
        plan[lightest].append(Split(partition.topic, partition.partition, span.start, span.end))
        loads[lightest] += span.size
    return [tuple(splits) for splits in plan if splits]
