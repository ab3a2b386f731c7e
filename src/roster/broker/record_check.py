"""What a Produce may write to a topic: a batch's records are read where the topic needs that (Kafka's LogValidator).

A compacted topic takes records with keys only, since compaction has to read them. A topic with a compression of its own
takes batches in that compression; others are compressed anew. Batches of other topics are kept as they came.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from roster._extras import MissingExtraError
from roster.broker.errors import RefusedError
from roster.broker.topic_config import topic_codec
from roster.wire import ErrorCode, WireError
from roster.wire.compression import Compression, decompress, expanded
from roster.wire.record_spans import record_spans
from roster.wire.records import HEADER_SIZE, with_body

if TYPE_CHECKING:
    from collections.abc import Iterable

    from roster.broker.topics import Topic
    from roster.wire.records import BatchHeader

_AT_ONCE_BYTES = 4 * 1024
"""A batch that is not compressed and so small is read in the event loop."""
_MOST_ERRORS = 1_000
"""Records named in one refusal."""


class InvalidRecordsError(RefusedError):
    """A batch refused for its records; `indexes` are those at fault, none if the batch cannot be read."""

    def __init__(self, message: str, indexes: list[int]) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, message)
        self.indexes = indexes


def without_key(header: BatchHeader, pieces: Iterable[bytes]) -> list[int]:
    """Return the indexes of the first records without a key; WireError for records that compaction could not read."""
    found = []
    for index, span in enumerate(record_spans(pieces, header.records_count)):
        if span.offset_delta != index:
            raise WireError(f"record {index} of the batch has offset delta {span.offset_delta}")
        if span.key_size < 0:
            found.append(index)
            if len(found) == _MOST_ERRORS:
                break
    return found


class RecordCheck:
    """Reads the records of batches in a thread, one batch at a time: each may expand to tens of megabytes."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def prepared(self, topic: Topic, header: BatchHeader, batch: memoryview) -> memoryview:
        """Return a batch as it is to be written; RefusedError if its records may not be."""
        codec = topic_codec(topic.settings)
        if len(batch) <= _AT_ONCE_BYTES and not header.is_compressed and not codec:
            return _prepared(batch, header, topic.is_compacted, codec)
        async with self._turn:
            return await asyncio.to_thread(_prepared, batch, header, topic.is_compacted, codec)


def needs_records(topic: Topic) -> bool:
    """Return True if batches for the topic have to be read."""
    return topic.is_compacted or topic_codec(topic.settings) is not None


def _prepared(batch: memoryview, header: BatchHeader, is_compacted: bool, codec: Compression | None) -> memoryview:
    try:
        came = header.compression, bytes(batch[HEADER_SIZE:])
        keyless = without_key(header, expanded(*came)) if is_compacted else []
        if keyless:
            raise InvalidRecordsError("a record of a compacted topic needs a key", keyless)
        if codec is None or codec is header.compression:
            return batch
        return memoryview(with_body(header.in_compression(codec), decompress(*came)))
    except WireError as error:
        raise InvalidRecordsError(f"the records cannot be read: {error}", []) from error
    except MissingExtraError as error:
        raise RefusedError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, str(error)) from error
