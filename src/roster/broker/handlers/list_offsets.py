"""ListOffsets: offsets by timestamp."""

from collections import Counter

from roster.broker.call import Call
from roster.broker.errors import RefusedError
from roster.broker.log.batch_check import LEADER_EPOCH
from roster.broker.log.partition_log import PartitionLog, TimedOffset
from roster.broker.request_limits import in_slices
from roster.broker.services import Services
from roster.broker.topics import Topic
from roster.model import OffsetSpec
from roster.wire import ErrorCode, Message, WireError
from roster.wire.api import READ_COMMITTED
from roster.wire.messages import (
    ListOffsetsRequest,
    ListOffsetsResponse,
)

_LEADER_EPOCH_SINCE = 4
_NOWHERE = TimedOffset(-1, -1)


_SPECS_SINCE: dict[int, int] = {OffsetSpec.MAX_TIMESTAMP: 7, OffsetSpec.EARLIEST_LOCAL: 8, OffsetSpec.LATEST_TIERED: 9}
"""The first version of the request that knows each of them."""


async def list_offsets(services: Services, call: Call[ListOffsetsRequest]) -> Message:
    """Answer with the offset for each partition's timestamp, or for an OffsetSpec."""
    response = ListOffsetsResponse()
    committed = call.message.isolation_level == READ_COMMITTED
    async for requested in in_slices(call.message.topics):
        topic = services.topics.get(requested.name)
        answers = ListOffsetsResponse.Topic(name=requested.name)
        response.topics.append(answers)
        times = Counter(partition.partition_index for partition in requested.partitions)
        async for partition in in_slices(
            {partition.partition_index: partition for partition in requested.partitions}.values()
        ):
            answer = ListOffsetsResponse.Partition(partition_index=partition.partition_index)
            answers.partitions.append(answer)
            try:
                if times[partition.partition_index] > 1:
                    raise RefusedError(ErrorCode.INVALID_REQUEST, "the partition is in the request more than once")
                log = _log(topic, partition.partition_index, partition.current_leader_epoch)
                answer.timestamp, answer.offset = find_offset(
                    log, partition.timestamp, call.version, committed=committed
                )
            except RefusedError as error:
                answer.error_code = error.code
                continue
            if answer.offset >= 0 and call.version >= _LEADER_EPOCH_SINCE:
                answer.leader_epoch = LEADER_EPOCH
    return response


def find_offset(log: PartitionLog, timestamp: int, version: int, *, committed: bool = False) -> TimedOffset:
    """Look up a ListOffsets timestamp, offset -1 if no record is that new; raise RefusedError if that is impossible.

    With `committed` the log ends where the first undecided transaction begins.
    """
    if version < _SPECS_SINCE.get(timestamp, 0):
        raise RefusedError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} in version {version}")
    end = log.last_stable_offset if committed else log.high_watermark
    try:
        if timestamp >= 0:
            return _before(end, log.offset_for_time(timestamp))
        match timestamp:
            case OffsetSpec.LATEST:
                return TimedOffset(-1, end)
            case OffsetSpec.EARLIEST | OffsetSpec.EARLIEST_LOCAL:
                return TimedOffset(-1, log.log_start_offset)
            case OffsetSpec.MAX_TIMESTAMP:
                return _before(end, log.newest_record())
            case OffsetSpec.LATEST_TIERED:
                return _NOWHERE
    except WireError as error:
        raise RefusedError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    raise RefusedError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp}")


def _before(end: int, first: TimedOffset | None) -> TimedOffset:
    return first if first is not None and first.offset < end else _NOWHERE


def _log(topic: Topic | None, partition: int, leader_epoch: int) -> PartitionLog:
    """Return a partition's log; raise RefusedError if there is none, or another leader epoch is meant."""
    log = topic.log(partition) if topic is not None else None
    if log is None:
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such topic or partition")
    error = leader_epoch_error(leader_epoch)
    if error != ErrorCode.NONE:
        raise RefusedError(error, f"leader epoch {leader_epoch}")
    return log


def leader_epoch_error(current_leader_epoch: int) -> ErrorCode:
    """Check the leader epoch in a request (KIP-320); -1 means unknown to the client."""
    if current_leader_epoch > LEADER_EPOCH:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    if 0 <= current_leader_epoch < LEADER_EPOCH:
        return ErrorCode.FENCED_LEADER_EPOCH
    return ErrorCode.NONE
