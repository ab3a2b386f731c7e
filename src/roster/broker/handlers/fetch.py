"""Fetch: returns records, and waits for them up to `max_wait_ms`."""

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import Any

from roster.broker.call import Call
from roster.broker.handlers.list_offsets import leader_epoch_error
from roster.broker.log.batch_check import CorruptSegmentError
from roster.broker.log.partition_log import PartitionLog
from roster.broker.log.record_range import PIECE_BYTES, RecordRange
from roster.broker.log.segment import Segment
from roster.broker.request_limits import in_slices
from roster.broker.services import Services
from roster.model.acl import AclOperation
from roster.wire import ErrorCode, Message
from roster.wire.api import READ_COMMITTED
from roster.wire.messages import FetchRequest, FetchResponse

_TOPIC_IDS_SINCE = 13
_FULL_FETCH = (-1, 0)
"""Epochs of requests that name all partitions."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Wanted:
    """One partition of the request, and the records available for it now."""

    answer: FetchResponse.Topic.Partition
    log: PartitionLog | None
    offset: int
    max_bytes: int
    committed: bool = False
    """Read up to the last stable offset only."""
    place: tuple[Segment, int, int] | None = None

    def locate(self, log: PartitionLog, limit: int, *, at_least_one: bool) -> None:
        """Find the records to return, and what in them was aborted."""
        before = log.last_stable_offset if self.committed else None
        self.place = log.locate(self.offset, limit, at_least_one=at_least_one, before=before)
        if self.committed and self.place is not None:
            segment, _, end = self.place
            self.answer.aborted_transactions = [
                FetchResponse.AbortedTransaction(producer_id=entry.producer_id, first_offset=entry.first_offset)
                for entry in log.aborted_in(self.offset, segment, end)
            ]


async def fetch(services: Services, call: Call[FetchRequest]) -> Message:
    """Answer once `min_bytes` are available, a partition has an error, or `max_wait_ms` are over.

    No fetch session begins (KIP-227): each request names all its partitions.
    """
    request = call.message
    if request.session_epoch not in _FULL_FETCH:
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    response, wanted = await _resolve(services, call)
    available = await _wait(services, request, wanted)
    call.hold(services, min(available, 2 * PIECE_BYTES))
    left_at_once = PIECE_BYTES
    for want in wanted:
        if want.place is not None:
            try:
                want.answer.records = await _records(*want.place, left_at_once)
            except (CorruptSegmentError, OSError) as error:
                want.answer.error_code = _read_error(error)
            left_at_once -= len(want.answer.records or b"")
    return response


async def _wait(services: Services, request: FetchRequest, wanted: list[_Wanted]) -> int:
    """Wait for `min_bytes` or `max_wait_ms`; return the bytes available."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + max(0, request.max_wait_ms) / 1000
    changed = asyncio.Event()
    logs = [want.log for want in wanted if want.log is not None]
    for log in logs:
        log.watchers.add(changed.set)
    try:
        while True:
            changed.clear()
            room = services.config.max_buffered_bytes - services.unsent_bytes
            budget = max(0, min(request.max_bytes, services.config.max_fetch_bytes)) if room > PIECE_BYTES else 0
            available, wrong = await _locate(wanted, budget)
            left = deadline - loop.time()
            if available >= request.min_bytes or wrong or left <= 0:
                return available
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await changed.wait()
    finally:
        for log in logs:
            log.watchers.discard(changed.set)


async def _records(segment: Segment, start: int, end: int, at_once: int) -> Any:
    """Checked batches: their bytes if there are at most `at_once`, else a RecordRange to be read while it is sent."""
    loop = asyncio.get_running_loop()
    if end - start <= at_once:
        data = segment.read_without_waiting(start, end)
        return memoryview(await loop.run_in_executor(None, segment.read, start, end) if data is None else data)
    if not segment.is_checked(start, end):
        end = await loop.run_in_executor(None, segment.good_end, start, end)
    return RecordRange(segment, start, end)


def _read_error(error: CorruptSegmentError | OSError) -> ErrorCode:
    """Return the error code for a log that cannot be read.

    Damage is CORRUPT_MESSAGE: clients raise it to the application. KAFKA_STORAGE_ERROR they retry silently, which
    fits a segment that was replaced since it was located.
    """
    if isinstance(error, CorruptSegmentError):
        return ErrorCode.CORRUPT_MESSAGE
    if not isinstance(error, FileNotFoundError):
        logger.error("cannot read a log: %s", error)
    return ErrorCode.KAFKA_STORAGE_ERROR


async def _resolve(services: Services, call: Call[FetchRequest]) -> tuple[FetchResponse, list[_Wanted]]:
    """Return the response to fill in, and each partition with its log or its error."""
    response = FetchResponse()
    wanted = []
    request, access = call.message, call.access
    by_id = call.version >= _TOPIC_IDS_SINCE
    committed = request.isolation_level == READ_COMMITTED
    async for requested in in_slices(request.topics):
        topic = services.topics.by_id(requested.topic_id) if by_id else services.topics.get(requested.topic)
        name = requested.topic if topic is None else topic.name
        may_read = (by_id and topic is None) or access.may_on_topic(AclOperation.READ, name)
        answers = FetchResponse.Topic(topic=requested.topic, topic_id=requested.topic_id)
        response.responses.append(answers)
        async for partition in in_slices(
            {partition.partition: partition for partition in requested.partitions}.values()
        ):
            answer = FetchResponse.Partition(partition_index=partition.partition, high_watermark=-1, records=b"")
            answers.partitions.append(answer)
            log = topic.log(partition.partition) if topic is not None else None
            if not may_read:
                log, answer.error_code = None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif log is None:
                unknown_id = by_id and topic is None
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_ID if unknown_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                answer.error_code = leader_epoch_error(partition.current_leader_epoch)
                if not committed:
                    answer.aborted_transactions = None
            wanted.append(
                _Wanted(answer, log, partition.fetch_offset, max(0, partition.partition_max_bytes), committed)
            )
    return response, wanted


async def _locate(wanted: list[_Wanted], budget: int) -> tuple[int, bool]:
    """Find what each partition can give within the budget; return the bytes and whether any partition has an error.

    The first partition that has records gives at least one batch, whatever its size (KIP-74), so that a consumer
    always makes progress.
    """
    available = 0
    wrong = False
    async for want in in_slices(wanted):
        want.place = None
        log, answer = want.log, want.answer
        if log is not None and log.removed:
            answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if log is None or answer.error_code != ErrorCode.NONE:
            wrong = True
            continue
        if not log.log_start_offset <= want.offset <= log.end_offset:
            answer.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            wrong = True
            continue
        answer.high_watermark, answer.last_stable_offset = log.high_watermark, log.last_stable_offset
        answer.log_start_offset = log.log_start_offset
        limit = min(want.max_bytes, budget - available)
        if limit <= 0 and available:
            continue
        try:
            want.locate(log, limit, at_least_one=available == 0)
        except (CorruptSegmentError, OSError) as error:
            answer.error_code = _read_error(error)  # reported after the wait: some clients retry at once, for ever
            continue
        if want.place is not None:
            available += want.place[2] - want.place[1]
    return available, wrong
