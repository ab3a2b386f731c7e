"""Sidecar of a sealed segment: its index and its producers, under a checksum."""

import struct
from array import array
from typing import NamedTuple

import google_crc32c

from roster.broker.log.producer_state import ProducerTable
from roster.broker.log.segment_index import BEFORE_ALL_TIME, BlockEnd, SegmentIndex
from roster.wire.records import is_time

SIDECAR_SUFFIX = ".index"
_HEAD = struct.Struct(">4sHqqqqii")
"""Magic, version, the segment's end (size, next offset, newest timestamp and its batch), number of blocks, bytes of the
producer table."""
_MAGIC = b"RSTR"
_VERSION = 2


class Sidecar(NamedTuple):
    """Contents of a sidecar; `producers` is the table as of the segment's end, with the transactions aborted in it."""

    end: BlockEnd
    max_timestamp: int
    max_timestamp_offset: int
    columns: "array[int]"
    producers: ProducerTable

    def load_into(self, index: SegmentIndex) -> None:
        """Replace the contents of an index."""
        index.load(self.columns, self.end, self.max_timestamp, self.max_timestamp_offset)


def encode_sidecar(index: SegmentIndex, producers: bytes) -> bytes:
    """Return the bytes of the file; `producers` is an encoded ProducerTable."""
    ends = (index.size, index.next_offset, index.max_timestamp, index.max_timestamp_offset)
    columns = index.columns
    head = _HEAD.pack(_MAGIC, _VERSION, *ends, len(index), len(producers))
    body = head + struct.pack(f">{len(columns)}q", *columns) + producers
    return body + struct.pack(">I", google_crc32c.value(body))


def decode_sidecar(data: bytes) -> Sidecar | None:
    """Read what `encode_sidecar` wrote; None for anything else, and for times that an earlier release took for such."""
    try:
        (crc,) = struct.unpack_from(">I", data, len(data) - 4)
        magic, version, size, next_offset, newest, newest_offset, count, table = _HEAD.unpack_from(data)
        if (magic, version, crc) != (_MAGIC, _VERSION, google_crc32c.value(data[:-4])):
            return None
        if newest != BEFORE_ALL_TIME and not is_time(newest):
            return None
        columns = array("q", struct.unpack_from(f">{3 * count}q", data, _HEAD.size))
        start = _HEAD.size + 8 * len(columns)
        producers = ProducerTable.decode(data[start : start + table])
    except struct.error:
        return None
    return Sidecar(BlockEnd(size, next_offset), newest, newest_offset, columns, producers)
