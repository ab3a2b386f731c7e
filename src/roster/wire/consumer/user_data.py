"""User data of the sticky, cooperative-sticky and lag assignors.

    sticky user data       [topic string, [int32]] · V1 generation int32
    cooperative user data  generation int32

Non-flexible, big-endian (Kafka's StickyAssignor, CooperativeStickyAssignor).

The assignors that balance lag put a header in front, in Roster's own layout, big-endian:

    magic      4 bytes  "RLAG"
    version    int16    1; a higher version has more fields before the rest
    length     int16    bytes from the magic to the rest: 13
    flags      int8     bit 0: settling, the member joins because it has just given up partitions
    capacity   int32    how many members with capacity 1 it counts for, at least 1
    rest                the user data of sticky or cooperative-sticky

As sticky's user data, the magic would be a count of over a billion topics, so the two formats cannot be confused. Bytes
without a valid header are all rest, from a member with capacity 1.
"""

from collections.abc import Mapping, Sequence
from struct import Struct

import numpy as np

from roster.model import NO_GENERATION
from roster.model.arrays import Int32
from roster.model.problem import MAX_CAPACITY
from roster.wire.consumer.entries import ListedPartitions, listed_partitions, read_lists
from roster.wire.consumer.topic_index import TopicIndex, WordBuffer

_int16 = Struct(">h")
_int32 = Struct(">i")
_STRAY = b"\x00\x01"


def decode_sticky_user_data(user_data: Sequence[bytes | None], names: TopicIndex) -> tuple[ListedPartitions, Int32]:
    """Decode claims and generations ([members], -1 for V0) from sticky user data; null or invalid has no claims."""
    present = [m for m, data in enumerate(user_data) if data]
    chosen = [without_stray_prefix(user_data[m] or b"") for m in present]
    buffer = WordBuffer(chosen)
    size = np.fromiter(map(len, chosen), dtype=np.int64, count=len(chosen))
    end = np.cumsum(size)
    entries, after = read_lists(buffer, end - size, end, with_numbers=True)
    member = np.array(present, dtype=np.int32)
    generation = np.full(len(user_data), NO_GENERATION, dtype=np.int32)
    dated = (after >= 0) & (after + 4 <= end)
    generation[member[dated]] = np.maximum(buffer.int32[after[dated]], NO_GENERATION)
    listed = listed_partitions(buffer, entries, names)
    return ListedPartitions(member[listed.member], listed.topic, listed.number), generation


def without_stray_prefix(user_data: bytes) -> bytes:
    """Return sticky user data without the leading int16 1 of kafka-python 3, which Java and aiokafka cannot read.

    In Kafka's format, such data would begin with a topic whose name is empty or starts with NUL, which is illegal.
    """
    if user_data.startswith(_STRAY) and len(user_data) >= 10 and (user_data[4:6] == b"\x00\x00" or user_data[6] == 0):
        return user_data[2:]
    return user_data


def decode_cooperative_user_data(user_data: Sequence[bytes | None]) -> Int32:
    """Decode [members] generations from cooperative-sticky user data, -1 if null or too short."""
    generations = [_int32.unpack_from(data)[0] if data and len(data) >= 4 else NO_GENERATION for data in user_data]
    return np.maximum(np.array(generations, dtype=np.int32), NO_GENERATION)


def encode_sticky_user_data(owned: Mapping[str, Sequence[int]], generation: int) -> bytes:
    """Encode sticky user data V1: the last assignment and its generation."""
    parts = [_int32.pack(len(owned))]
    for topic, numbers in owned.items():
        name = topic.encode()
        parts += [_int16.pack(len(name)), name, _int32.pack(len(numbers)), np.array(numbers, dtype=">i4").tobytes()]
    return b"".join([*parts, _int32.pack(generation)])


def encode_cooperative_user_data(generation: int) -> bytes:
    """Encode cooperative-sticky user data: the generation of the last assignment, -1 before the first."""
    return _int32.pack(generation)


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
