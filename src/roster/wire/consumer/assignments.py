"""Assignments of a whole group, encoded from a plan's columns and decoded with no Python loop per partition.

    Assignment   int16 version · [topic string, [int32]] · user data bytes?

Non-flexible, big-endian (Kafka's ConsumerProtocolAssignment).
"""

from collections.abc import Sequence
from dataclasses import replace
from struct import Struct

import numpy as np

from roster.model.arrays import Bool, Int32, Int64
from roster.wire.consumer.entries import ListedPartitions, listed_partitions, read_lists
from roster.wire.consumer.topic_index import WORD, TopicIndex, WordBuffer, as_words

_int32 = Struct(">i")
_NULL = _int32.pack(-1)


def decode_assignments(assignments: Sequence[bytes], names: TopicIndex) -> tuple[ListedPartitions, Bool]:
    """Return the partitions of each assignment, and [assignments] whether it can be read; unknown topics are left out.

    User data is not looked at.
    """
    buffer = WordBuffer(assignments)
    size = np.fromiter(map(len, assignments), dtype=np.int64, count=len(assignments))
    end = np.cumsum(size)
    start = end - size
    long_enough = np.flatnonzero(size >= 2)
    versioned = long_enough[buffer.int16[start[long_enough]] >= 0]
    entries, after = read_lists(buffer, start[versioned] + 2, end[versioned], with_numbers=True)
    readable = np.zeros(len(size), dtype=np.bool_)
    readable[versioned] = after >= 0
    entries = replace(entries, row=versioned[entries.row].astype(np.int32))
    return listed_partitions(buffer, entries, names), readable


def encode_assignments(
    owner: Int32,
    member_count: int,
    topics: Sequence[str],
    first: Int64,
    *,
    version: int = 0,
    user_data: Sequence[bytes | None] | None = None,
) -> list[bytes]:
    """Return one assignment per member, with topics and partitions ascending.

    owner: [partitions] member index or -1. first: flat number of each topic's partition 0. user_data: [members], None
    where null. Raises ValueError if a member's list exceeds int32.
    """
    order = np.argsort(owner.astype(np.uint16) if member_count < 0xFFFF else owner, kind="stable")
    owned = int(np.count_nonzero(owner >= 0))
    unowned_last = member_count < 0xFFFF
    order = order[:owned] if unowned_last else order[len(order) - owned :]
    topic = np.repeat(np.arange(len(topics), dtype=np.int32), np.diff(first))[order]
    member = owner[order]
    number = order - first[topic]

    starts = np.ones(len(order), dtype=np.bool_)
    starts[1:] = (member[1:] != member[:-1]) | (topic[1:] != topic[:-1])
    entry_start = np.flatnonzero(starts)
    entry_member, entry_topic = member[entry_start], topic[entry_start]
    entry_count = np.diff(np.append(entry_start, len(order)))
    words, name_length = as_words(topics)
    entry_size = 6 + name_length[entry_topic] + 4 * entry_count

    tail = _NULL
    head_size = 6
    body_size = np.bincount(entry_member, weights=entry_size, minlength=member_count).astype(np.int64)
    end = np.cumsum(body_size + head_size + len(tail))
    begin = end - body_size - head_size - len(tail)
    total = int(end[-1]) if member_count else 0
    out = bytearray(total + WORD)
    int16 = np.ndarray(total, dtype=">i2", buffer=out, strides=(1,))
    int32 = np.ndarray(total, dtype=">i4", buffer=out, strides=(1,))
    word = np.ndarray(total, dtype="<u8", buffer=out, strides=(1,))

    entry_at = np.cumsum(entry_size) - entry_size + (entry_member + 1) * head_size + entry_member * len(tail)
    length = name_length[entry_topic]
    int16[entry_at] = length
    for w in range(len(words)):  # whole words overwrite bytes after the name, which are written later
        reach = slice(None) if int(name_length.min()) > w * WORD else length > w * WORD
        word[entry_at[reach] + 2 + w * WORD] = words[w, entry_topic[reach]]
    count_at = entry_at + 2 + length
    int32[count_at] = entry_count
    if len(entry_start) == len(order):
        int32[count_at + 4] = number
    else:
        within = np.arange(len(order)) - np.repeat(entry_start, entry_count)
        int32[np.repeat(count_at + 4, entry_count) + 4 * within] = number
    int16[begin] = version
    int32[begin + 2] = np.bincount(entry_member, minlength=member_count)
    bytes_out = np.frombuffer(out, dtype=np.uint8)
    tail_at = (end - len(tail))[:, np.newaxis] + np.arange(len(tail))
    bytes_out[tail_at] = np.frombuffer(tail, dtype=np.uint8)
    view = memoryview(out)
    encoded = [bytes(view[a:b]) for a, b in zip(begin.tolist(), end.tolist(), strict=True)]
    if user_data is None:
        return encoded
    return [
        assignment if data is None else b"".join((assignment[: -len(_NULL)], _int32.pack(len(data)), data))
        for assignment, data in zip(encoded, user_data, strict=True)
    ]
