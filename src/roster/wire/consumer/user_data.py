"""User data of the sticky and cooperative-sticky assignors.

    sticky user data       [topic string, [int32]] · V1 generation int32
    cooperative user data  generation int32

Non-flexible, big-endian (Kafka's StickyAssignor, CooperativeStickyAssignor).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct

import numpy as np

from roster.model import NO_GENERATION
from roster.model.arrays import Int32
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
