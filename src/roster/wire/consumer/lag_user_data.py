"""User data of the assignors that balance lag, in Roster's own layout, big-endian.

    magic      4 bytes  "RLAG"
    version    int16    1; a higher version has more fields before the rest
    length     int16    bytes from the magic to the rest: 13
    flags      int8     bit 0: settling, the member joins because it has just given up partitions
    capacity   int32    how many members with capacity 1 it counts for, at least 1
    rest                the user data of sticky or cooperative-sticky

As sticky's user data, the magic would be a count of over a billion topics, so the two formats cannot be confused. Bytes
without a valid header are all rest, from a member with capacity 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

import numpy as np

from roster.model.arrays import Int32
from roster.model.problem import MAX_CAPACITY

MAGIC = b"RLAG"
VERSION = 1

_HEADER = Struct(">4shhbi")
_SETTLING = 1


def encode_lag_user_data(rest: bytes | None, *, capacity: int, settling: bool) -> bytes:
    """Put the header in front of a sticky assignor's user data; capacity is clamped to 1..2^20."""
    capacity = min(max(capacity, 1), MAX_CAPACITY)
    return _HEADER.pack(MAGIC, VERSION, _HEADER.size, _SETTLING * settling, capacity) + (rest or b"")


def split_lag_user_data(user_data: Sequence[bytes | None]) -> tuple[list[bytes | None], Int32, bool]:
    """Return the rest per member, [members] capacity, and whether any member is settling. Never raises."""
    rests: list[bytes | None] = []
    capacity = np.ones(len(user_data), dtype=np.int32)
    settling = False
    for m, data in enumerate(user_data):
        rests.append(data)
        if data is None or len(data) < _HEADER.size or not data.startswith(MAGIC):
            continue
        _, version, length, flags, claimed = _HEADER.unpack_from(data)
        if version < VERSION or not _HEADER.size <= length <= len(data):
            continue
        rests[m] = data[length:]
        capacity[m] = min(max(claimed, 1), MAX_CAPACITY)
        settling = settling or bool(flags & _SETTLING)
    return rests, capacity, settling
