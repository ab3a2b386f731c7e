"""DeleteRecords: moves the start of partitions forward (KIP-107)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from roster.broker.errors import RefusedError
from roster.broker.request_limits import in_slices
from roster.broker.topic_config import cleanup_policies
from roster.wire import ErrorCode, WireError
from roster.wire.messages import DeleteRecordsRequest, DeleteRecordsResponse

if TYPE_CHECKING:
    from roster.broker.call import Call
    from roster.broker.services import Services
    from roster.broker.topics import Topic
    from roster.wire import Message

HIGH_WATERMARK = -1
_NOWHERE = -1

logger = logging.getLogger(__name__)


async def delete_records(services: Services, call: Call[DeleteRecordsRequest]) -> Message:
    """Delete the records before an offset of each partition; errors are per partition."""
    response = DeleteRecordsResponse()
    async for requested in in_slices(call.message.topics):
        topic = services.topics.get(requested.name)
        answers = DeleteRecordsResponse.Topic(name=requested.name)
        response.topics.append(answers)
        last = {partition.partition_index: partition.offset for partition in requested.partitions}
        for partition, offset in last.items():
            answer = DeleteRecordsResponse.Partition(partition_index=partition, low_watermark=_NOWHERE)
            answers.partitions.append(answer)
            try:
                answer.low_watermark = await _delete(services, topic, partition, offset)
            except RefusedError as error:
                answer.error_code = error.code
            except (OSError, WireError) as error:
                logger.error("cannot delete records of %s-%d: %s", requested.name, partition, error)
                answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    return response


async def _delete(services: Services, topic: Topic | None, partition: int, offset: int) -> int:
    """Return the first offset left; RefusedError if records of the partition may not be deleted."""
    log = topic.log(partition) if topic is not None else None
    if topic is None or log is None:
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such topic or partition")
    if topic.is_internal:
        raise RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} belongs to the broker")
    if "delete" not in cleanup_policies(topic.settings):
        raise RefusedError(
            ErrorCode.POLICY_VIOLATION, f"{topic.name} is compacted, and its cleanup.policy has no delete"
        )
    wanted = log.high_watermark if offset == HIGH_WATERMARK else offset
    if not 0 <= wanted <= log.high_watermark:
        raise RefusedError(ErrorCode.OFFSET_OUT_OF_RANGE, f"the log ends at {log.high_watermark}")
    return await services.retention.delete_records(log, wanted)
