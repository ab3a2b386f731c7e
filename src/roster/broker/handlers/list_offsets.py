"""ListOffsets and OffsetForLeaderEpoch: offsets by timestamp and by leader epoch."""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from typing import TYPE_CHECKING

from roster.broker.handlers.leader_epoch import leader_epoch_error
from roster.broker.log.batch_check import LEADER_EPOCH
from roster.broker.log.partition_log import TimedOffset
from roster.broker.request_limits import in_slices
from roster.wire import ErrorCode, WireError
from roster.wire.messages import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

if TYPE_CHECKING:
    from roster.broker.call import Call
    from roster.broker.log.partition_log import PartitionLog
    from roster.broker.services import Services
    from roster.wire import Message

_LEADER_EPOCH_SINCE = 4
_NOWHERE = TimedOffset(-1, -1)


class SpecialTime(IntEnum):
    """Timestamps of a ListOffsets request that are not times (protocol guide, ListOffsets)."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5


_SPECIAL_TIMES_SINCE: dict[int, int] = {
    SpecialTime.MAX_TIMESTAMP: 7,
    SpecialTime.EARLIEST_LOCAL: 8,
    SpecialTime.LATEST_TIERED: 9,
}
"""The first version of the request that knows each of them."""


async def list_offsets(services: Services, call: Call[ListOffsetsRequest]) -> Message:
    """Answer with the offset for each partition's timestamp, or for one of the special times."""
    request = call.message
    response = ListOffsetsResponse()
    async for asked in in_slices(request.topics):
        topic = services.topics.get(asked.name)
        answers = ListOffsetsResponse.Topic(name=asked.name)
        response.topics.append(answers)
        times = Counter(partition.partition_index for partition in asked.partitions)
        async for partition in in_slices({each.partition_index: each for each in asked.partitions}.values()):
            answer = ListOffsetsResponse.Partition(partition_index=partition.partition_index)
            answers.partitions.append(answer)
            if times[partition.partition_index] > 1:
                answer.error_code = ErrorCode.INVALID_REQUEST
                continue
            log = topic.log(partition.partition_index) if topic is not None else None
            if log is None:
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            answer.error_code = leader_epoch_error(partition.current_leader_epoch)
            if answer.error_code != ErrorCode.NONE:
                continue
            if call.version < _SPECIAL_TIMES_SINCE.get(partition.timestamp, 0):
                answer.error_code = ErrorCode.UNSUPPORTED_VERSION
                continue
            try:
                found = find_offset(log, partition.timestamp)
            except WireError:
                answer.error_code = ErrorCode.CORRUPT_MESSAGE
                continue
            if found is None:
                answer.error_code = ErrorCode.UNSUPPORTED_VERSION
                continue
            answer.timestamp, answer.offset = found
            if found.offset >= 0 and call.version >= _LEADER_EPOCH_SINCE:
                answer.leader_epoch = LEADER_EPOCH
    return response


def find_offset(log: PartitionLog, timestamp: int) -> TimedOffset | None:
    """Look up a ListOffsets timestamp: offset -1 if no record is that new, None for an unknown special time."""
    if timestamp >= 0:
        return log.offset_for_time(timestamp) or _NOWHERE
    match timestamp:
        case SpecialTime.LATEST:
            return TimedOffset(-1, log.high_watermark)
        case SpecialTime.EARLIEST | SpecialTime.EARLIEST_LOCAL:
            return TimedOffset(-1, log.log_start_offset)
        case SpecialTime.MAX_TIMESTAMP:
            return log.newest_record() or _NOWHERE
        case SpecialTime.LATEST_TIERED:
            return _NOWHERE
    return None


async def offset_for_leader_epoch(services: Services, call: Call[OffsetForLeaderEpochRequest]) -> Message:
    """Return the end offset of a leader epoch; a single broker has only one."""
    request = call.message
    response = OffsetForLeaderEpochResponse()
    async for asked in in_slices(request.topics):
        topic = services.topics.get(asked.topic)
        answers = OffsetForLeaderEpochResponse.Topic(topic=asked.topic)
        response.topics.append(answers)
        async for partition in in_slices(asked.partitions):
            answer = OffsetForLeaderEpochResponse.Partition(partition=partition.partition)
            answers.partitions.append(answer)
            log = topic.log(partition.partition) if topic is not None else None
            if log is None:
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            answer.error_code = leader_epoch_error(partition.current_leader_epoch)
            if answer.error_code == ErrorCode.NONE and partition.leader_epoch == LEADER_EPOCH:
                answer.leader_epoch, answer.end_offset = LEADER_EPOCH, log.high_watermark
    return response
