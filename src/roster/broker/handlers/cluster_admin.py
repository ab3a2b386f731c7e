"""DescribeLogDirs."""

from __future__ import annotations

import asyncio
import logging
import shutil
from itertools import groupby
from typing import TYPE_CHECKING

from roster.broker.request_limits import in_slices
from roster.wire import ErrorCode
from roster.wire.messages import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from roster.broker.call import Call
    from roster.broker.log.partition_log import PartitionLog
    from roster.broker.services import Services
    from roster.wire import Message

logger = logging.getLogger(__name__)


async def describe_log_dirs(services: Services, call: Call[DescribeLogDirsRequest]) -> Message:
    """Return the size of each partition in the data directory, and of its volume."""
    directory = services.config.data_dir.absolute()
    result = DescribeLogDirsResponse.Result(log_dir=str(directory))
    try:
        volume = await asyncio.to_thread(shutil.disk_usage, directory)
        result.total_bytes, result.usable_bytes = volume.total, volume.free
    except OSError as error:
        logger.error("cannot look at %s: %s", directory, error)
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return DescribeLogDirsResponse(results=[result])
    sizes = [(topic, index, log.size) async for topic, index, log in in_slices(_logs(services, call.message))]
    for name, group in groupby(sizes, lambda entry: entry[0]):
        partitions = [
            DescribeLogDirsResponse.Partition(partition_index=index, partition_size=size) for _, index, size in group
        ]
        result.topics.append(DescribeLogDirsResponse.Topic(name=name, partitions=partitions))
    return DescribeLogDirsResponse(results=[result])


def _logs(services: Services, request: DescribeLogDirsRequest) -> Iterator[tuple[str, int, PartitionLog]]:
    """The partitions asked for that there are."""
    if request.topics is None:
        wanted: dict[str, Iterable[int]] = {topic.name: range(len(topic.logs)) for topic in services.topics}
    else:
        wanted = {topic.topic: sorted(set(topic.partitions)) for topic in request.topics}
    for name, indexes in wanted.items():
        for index in indexes:
            if (log := services.topics.log(name, index)) is not None:
                yield name, index, log
