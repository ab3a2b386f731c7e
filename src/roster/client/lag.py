"""Where a group stands in the topics it reads, for assignors that look at lag."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from roster.client.cluster import Cluster
from roster.client.positions import EARLIEST, LATEST, Groups, list_offsets
from roster.model import TopicPartition


async def group_offsets(
    cluster: Cluster, groups: Groups, group: str, partitions: Mapping[str, int], timeout: float
) -> dict[str, dict[int, tuple[int, int, int | None]]]:
    """offsets[topic][partition] = (first, end, committed or None) for every partition of these topics.

    One request per broker and kind of offset, all at once. Raises TimeoutError after `timeout` seconds, and
    ClientError.
    """
    wanted = [TopicPartition(topic, number) for topic, count in partitions.items() for number in range(count)]
    async with asyncio.timeout(timeout), asyncio.TaskGroup() as tasks:
        first = tasks.create_task(list_offsets(cluster, dict.fromkeys(wanted, EARLIEST)))
        end = tasks.create_task(list_offsets(cluster, dict.fromkeys(wanted, LATEST)))
        committed = tasks.create_task(groups.committed(group, wanted))
    found: dict[str, dict[int, tuple[int, int, int | None]]] = {topic: {} for topic in partitions}
    for partition in wanted:
        position = committed.result().get(partition)
        found[partition.topic][partition.partition] = (
            first.result().get(partition) or 0,
            end.result().get(partition) or 0,
            None if position is None else position.offset,
        )
    return found
