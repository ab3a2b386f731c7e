"""Where a partition's log begins, once records were deleted from its front.

The file `log-start` holds the offset, and the producers as of the end of what was deleted, which the sidecars of the
segments that are left may lack. It is durable before a segment goes, so the start never moves back.
"""

import struct
from pathlib import Path
from typing import NamedTuple

import google_crc32c

from roster._files import write_atomically
from roster.broker.log.batch_check import CorruptSegmentError
from roster.broker.log.producer_state import ProducerTable

NAME = "log-start"
_HEAD = struct.Struct(">4sHq")
"""Magic, version, offset."""
_MAGIC = b"RSTO"
_VERSION = 1


class LogStart(NamedTuple):
    """The first offset that can be asked for; `producers` is an encoded ProducerTable, b"" if nothing was deleted."""

    offset: int = 0
    producers: bytes = b""

    def table(self) -> ProducerTable:
        """Decode the producers."""
        return ProducerTable.decode(self.producers) if self.producers else ProducerTable()


def write_log_start(directory: Path, start: LogStart) -> None:
    """Replace the file durably."""
    body = _HEAD.pack(_MAGIC, _VERSION, start.offset) + start.producers
    write_atomically(directory / NAME, body + struct.pack(">I", google_crc32c.value(body)))


def read_log_start(directory: Path) -> LogStart:
    """Read the file; offset 0 if there is none. CorruptSegmentError if it is damaged."""
    path = directory / NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return LogStart()
    try:
        magic, version, offset = _HEAD.unpack_from(data)
        (crc,) = struct.unpack_from(">I", data, len(data) - 4)
    except struct.error:
        magic, version, offset, crc = b"", 0, 0, -1
    if (magic, version, crc) != (_MAGIC, _VERSION, google_crc32c.value(data[:-4])):
        raise CorruptSegmentError(
            f"{path} is damaged; restore it from a backup, or delete it: deleted records that are still in the first "
            f"segment can be read again then"
        )
    return LogStart(offset, data[_HEAD.size : -4])
