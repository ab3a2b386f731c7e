"""What a Produce may write to a topic: a batch's records are read where the topic needs that (Kafka's LogValidator).

A compacted topic takes records with keys only, since compaction has to read them. A topic with a compression of its own
takes batches in that compression; others are compressed anew. Records are read too if the batch's header has a time
that the topic does not take. Other batches are kept as they came.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from roster._clock import wall_ms
from roster._extras import MissingExtraError
from roster.broker.errors import RefusedError
from roster.broker.topic_config import topic_codec
from roster.broker.topics import Topic
from roster.wire import ErrorCode, WireError
from roster.wire.compression import Compression, decompress, expanded
from roster.wire.record_spans import record_spans
from roster.wire.records import HEADER_SIZE, BatchHeader, is_time, with_body

_AT_ONCE_BYTES = 4 * 1024
"""A batch that is not compressed and so small is read in the event loop."""
_MOST_ERRORS = 1_000
"""Records named in one refusal."""
_NO_TIME = -1


class InvalidRecordsError(RefusedError):
    """A batch refused for its records; `errors` says by index what is wrong, nothing if the batch cannot be read."""

    def __init__(self, message: str, errors: Mapping[int, str], code: ErrorCode = ErrorCode.INVALID_RECORD) -> None:
        super().__init__(code, message)
        self.errors = errors


class Times(NamedTuple):
    """The times, in ms, that a topic takes now."""

    first: int
    last: int

    def has(self, stamp: int) -> bool:
        """Return True for a time within them, or none."""
        return self.first <= stamp <= self.last or stamp == _NO_TIME


def times_taken(topic: Topic, now_ms: int) -> Times:
    """Return the times of records that a topic takes now."""
    config = topic.config
    return Times(now_ms - config.message_timestamp_before_max_ms, now_ms + config.message_timestamp_after_max_ms)


def _checked(header: BatchHeader, pieces: Iterable[bytes], needs_keys: bool, times: Times) -> int:
    """Return the newest time of the records, -1 for none; WireError for records that compaction could not read.

    Raises InvalidRecordsError that names the first records without a key, or with a time that is not taken.
    """
    errors: dict[int, str] = {}
    newest, code = _NO_TIME, ErrorCode.INVALID_RECORD
    for index, span in enumerate(record_spans(pieces, header.records_count)):
        if span.offset_delta != index:
            raise WireError(f"record {index} of the batch has offset delta {span.offset_delta}")
        stamp = header.time_of(span.timestamp_delta)
        if needs_keys and span.key_size < 0:
            errors[index] = "a record of a compacted topic needs a key"
        elif not times.has(stamp):
            side, limit = ("after", times.last) if stamp > times.last else ("before", times.first)
            errors[index] = f"its time, {stamp} ms, is {side} {limit}: message.timestamp.{side}.max.ms"
            code = ErrorCode.INVALID_TIMESTAMP
        elif is_time(stamp):
            newest = max(newest, stamp)
        if len(errors) == _MOST_ERRORS:
            break
    if errors:
        raise InvalidRecordsError(next(iter(errors.values())), errors, code)
    return newest


class RecordCheck:
    """Reads the records of batches in a thread, one batch at a time: each may expand to tens of megabytes."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def prepared(self, topic: Topic, header: BatchHeader, batch: memoryview) -> memoryview:
        """Return a batch as it is to be written; RefusedError if its records may not be."""
        codec = topic_codec(topic.settings)
        times = times_taken(topic, wall_ms())
        if len(batch) <= _AT_ONCE_BYTES and not header.is_compressed and not codec:
            return _prepared(batch, header, topic.is_compacted, codec, times)
        async with self._turn:
            return await asyncio.to_thread(_prepared, batch, header, topic.is_compacted, codec, times)


def needs_records(topic: Topic, header: BatchHeader) -> bool:
    """Return True if a batch for the topic has to be read."""
    is_kept = not topic.is_compacted and topic_codec(topic.settings) is None
    return not is_kept or not _is_timely(header, times_taken(topic, wall_ms()))


def _is_timely(header: BatchHeader, times: Times) -> bool:
    """Return True if a batch's header says that the times of its records are taken."""
    if not is_time(times.first) and is_time(header.base_timestamp) and is_time(header.max_timestamp):
        return header.max_timestamp <= times.last
    return False


def _prepared(
    batch: memoryview, header: BatchHeader, is_compacted: bool, codec: Compression | None, times: Times
) -> memoryview:
    try:
        body = header.compression, bytes(batch[HEADER_SIZE:])
        newest, is_timely = header.max_timestamp, _is_timely(header, times)
        if is_compacted or not is_timely:
            newest_read = _checked(header, expanded(*body), is_compacted, times)
            newest = newest if is_timely else newest_read
        codec = header.compression if codec is None else codec
        if codec is header.compression and newest == header.max_timestamp:
            return batch
        header = header.in_compression(codec)._replace(max_timestamp=newest)
        return memoryview(with_body(header, decompress(*body)))
    except WireError as error:
        raise InvalidRecordsError(f"the records cannot be read: {error}", {}) from error
    except MissingExtraError as error:
        raise RefusedError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, str(error)) from error
