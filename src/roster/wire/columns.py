"""The consumer protocol as columns: a whole group's subscriptions in, a whole plan out, no Python loop per partition.

Formats (Kafka's ConsumerProtocolSubscription and ConsumerProtocolAssignment v0-v3, non-flexible, big-endian, an int16
version in front; a version above 3 reads as 3 and its tail is ignored):

    Subscription           topics [string] · user data bytes? · v1+ owned [topic string, [int32]] · v2+ generation int32
                           · v3+ rack string?
    Assignment             [topic string, [int32]] · user data bytes?
    sticky user data       [topic string, [int32]] · V1 generation int32
    cooperative user data  generation int32

Lists of unknown length are read in lock-step: one numpy step reads the next entry of every member at once, and when few
members are left the rest is read one by one. Every count and length is checked against the bytes that remain first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from struct import Struct
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from roster.wire.names import WORD, Buffer, Names, as_words

Int32: TypeAlias = npt.NDArray[np.int32]
Int64: TypeAlias = npt.NDArray[np.int64]
UInt64: TypeAlias = npt.NDArray[np.uint64]
Bool: TypeAlias = npt.NDArray[np.bool_]

HIGHEST_VERSION = 3
NO_GENERATION = -1

_LOCKSTEP_MIN = 48
"""Below this many members a Python loop over entries is faster than numpy steps over members."""

_WINDOWS = (16, 64, 1024)
"""Bytes that topic lists must have in common to be taken for alike, round after round; then each is read on its own, as
are lists most of which have nothing in common."""

_int16 = Struct(">h")
_int32 = Struct(">i")
_STRAY = b"\x00\x01"


@dataclass(frozen=True, slots=True, eq=False)
class TopicPartitions:
    """Entries of topic-partition lists: row i says that `member[i]` lists partition `number[i]` of topic `topic[i]`."""

    member: Int32
    topic: Int32
    number: Int32


@dataclass(frozen=True, slots=True, eq=False)
class Subscriptions:
    """What the members of a group sent, members in the order given, topics as indices into the names given.

    sections: distinct topic lists as topic indices, unknown topics left out; section_of: [members] which one was sent.
    user_data: per member, None where null.
    owned: entries of the v1+ field; generation: [members] the v2+ field, -1 if absent.
    racks: per member the v3 field, None if absent or empty.
    readable: [members] False where the bytes are no subscription; such a member has no topics and owns nothing here.
    """

    sections: list[Int32]
    section_of: Int32
    user_data: list[bytes | None]
    owned: TopicPartitions
    generation: Int32
    racks: list[str | None]
    readable: Bool


@dataclass(frozen=True, slots=True, eq=False)
class _Entries:
    """Entries of many lists: the row (list) each is in, where its name is, and where its partition numbers are."""

    row: Int32
    name: Int64
    name_length: Int64
    numbers: Int64
    number_count: Int64

    def where(self, keep: Bool) -> _Entries:
        """The entries for which `keep` is True."""
        return _Entries(
            self.row[keep], self.name[keep], self.name_length[keep], self.numbers[keep], self.number_count[keep]
        )


def _walk(buffer: Buffer, start: Int64, end: Int64, *, with_numbers: bool) -> tuple[_Entries, Int64]:
    """Read one list per row, of names or of names with partition numbers; (entries, position after each list).

    The list of row i starts at `start[i]` with its count and must end by `end[i]`; the position is -1 where it does
    not.
    """
    fixed = 6 if with_numbers else 2
    rows = len(start)
    after = np.full(rows, -1, dtype=np.int64)
    row = np.flatnonzero(start + 4 <= end)
    left = buffer.int32[start[row]].astype(np.int64)
    sane = (left >= 0) & (left * fixed <= end[row] - start[row] - 4)
    row, left = row[sane], left[sane]
    position, limit = start[row] + 4, end[row]
    nothing = np.zeros(len(row), dtype=np.int64)
    steps: list[tuple[Int64, Int64, Int64, Int64, Int64]] = []
    while True:
        if not left.all():
            more = left > 0
            after[row[~more]] = position[~more]
            row, left, position, limit = row[more], left[more], position[more], limit[more]
        if len(row) < _LOCKSTEP_MIN:
            break
        length = buffer.int16[position].astype(np.int64)
        name = position + 2
        numbers = name + length
        intact = (length >= 0) & (numbers + fixed - 2 <= limit)
        count = nothing[: len(row)]
        if with_numbers:
            count = buffer.int32[np.where(intact, numbers, 0)].astype(np.int64)
            numbers += 4
            intact &= (count >= 0) & (numbers + 4 * count <= limit)
        if not intact.all():
            row, left, limit = row[intact], left[intact], limit[intact]
            name, length, numbers, count = name[intact], length[intact], numbers[intact], count[intact]
        steps.append((row, name, length, numbers, count))
        position = numbers + 4 * count if with_numbers else numbers
        left = left - 1
    tail = _walk_one_by_one(buffer.data, row, left, position, limit, after, with_numbers=with_numbers)
    if steps:
        columns = [np.concatenate(column) for column in zip(*steps, strict=True)]
        columns = [np.concatenate((a, b)) for a, b in zip(columns, tail, strict=True)] if len(tail[0]) else columns
    else:
        columns = list(tail)
    entries = _Entries(columns[0].astype(np.int32), *columns[1:])
    intact_rows = after >= 0
    if not intact_rows.all():
        entries = entries.where(intact_rows[entries.row])
    return entries, after


def _walk_one_by_one(
    data: bytes, rows: Int64, counts: Int64, positions: Int64, limits: Int64, after: Int64, *, with_numbers: bool
) -> tuple[Int64, Int64, Int64, Int64, Int64]:
    """The same for few rows, entry by entry; writes `after` for those that are intact."""
    found: list[tuple[int, int, int, int, int]] = []
    count = 0
    for row, left, begin, limit in zip(*(a.tolist() for a in (rows, counts, positions, limits)), strict=True):
        position = begin
        for _ in range(left):
            if position + 2 > limit:
                break
            length = _int16.unpack_from(data, position)[0]
            name = position + 2
            position = name + length
            if length < 0 or position > limit:
                break
            if with_numbers:
                if position + 4 > limit:
                    break
                count = _int32.unpack_from(data, position)[0]
                position += 4
                if count < 0 or position + 4 * count > limit:
                    break
            found.append((row, name, length, position, count))
            position += 4 * count
        else:
            after[row] = position
    columns = np.array(found, dtype=np.int64).reshape(-1, 5).T
    return columns[0], columns[1], columns[2], columns[3], columns[4]


def _numbers(buffer: Buffer, entries: _Entries, names: Names) -> TopicPartitions:
    """Every partition number of the entries, with its member and topic; entries of unknown topics are left out."""
    topic = names.find(buffer, entries.name, entries.name_length)
    known = topic >= 0
    row, start, count = entries.row, entries.numbers, entries.number_count
    if not known.all():
        row, start, count, topic = row[known], start[known], count[known], topic[known]
    if len(count) and (count == 1).all():
        return TopicPartitions(row, topic, buffer.int32[start].astype(np.int32))
    index = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    number = buffer.int32[np.repeat(start, count) + 4 * index].astype(np.int32)
    return TopicPartitions(np.repeat(row, count), np.repeat(topic, count), number)


def decode_subscriptions(subscriptions: Sequence[bytes], names: Names) -> Subscriptions:
    """Read the subscriptions of a group's members. Never raises: unreadable ones are marked."""
    buffer = Buffer(subscriptions)
    size = np.fromiter(map(len, subscriptions), dtype=np.int64, count=len(subscriptions))
    end = np.cumsum(size)
    start = end - size
    long_enough = size >= 2
    version = np.full(len(size), -1, dtype=np.int64)
    version[long_enough] = buffer.int16[start[long_enough]]
    readable = version >= 0
    version = np.minimum(version, HIGHEST_VERSION)

    sections, section_of, after = _topic_sections(subscriptions, readable, buffer, start, end, names)
    user_data, position = _user_data(buffer, after, end)
    lists_owned = np.flatnonzero((position >= 0) & (version >= 1))
    entries, after_owned = _walk(buffer, position[lists_owned], end[lists_owned], with_numbers=True)
    position[lists_owned] = after_owned
    generation, racks = _tails(buffer, version, position, end)
    readable = position >= 0
    section_of[~readable] = 0
    generation[~readable] = NO_GENERATION
    for m in np.flatnonzero(~readable).tolist():
        user_data[m] = racks[m] = None
    entries = replace(entries, row=lists_owned[entries.row].astype(np.int32))
    if not readable.all():
        keep = readable[entries.row]
        entries = entries.where(keep)
    return Subscriptions(sections, section_of, user_data, _numbers(buffer, entries, names), generation, racks, readable)


def _topic_sections(
    subscriptions: Sequence[bytes], readable: Bool, buffer: Buffer, start: Int64, end: Int64, names: Names
) -> tuple[list[Int32], Int32, Int64]:
    """Distinct topic lists, which one each member has, and the position after it (-1 if broken). List 0 is the empty
    one.

    Members mostly send the same lists: of the members whose lists start alike one is read, and the bytes of its list
    are looked for in the others; what does not match is read in the next round.
    """
    sections: list[Int32] = [np.zeros(0, dtype=np.int32)]
    section_of, after = [0] * len(start), [-1] * len(start)
    starts = start.tolist()
    waiting = np.flatnonzero(readable).tolist()
    for window in (*_WINDOWS, None):
        if not waiting:
            break
        alike: dict[bytes | int, list[int]] = {}
        if window is not None:
            for m in waiting:
                alike.setdefault(subscriptions[m][2 : 2 + window], []).append(m)
        if window is None or 2 * len(alike) > len(waiting):
            alike = {m: [m] for m in waiting}
        readers = np.array([group[0] for group in alike.values()], dtype=np.int64)
        entries, ends = _walk(buffer, start[readers] + 2, end[readers], with_numbers=False)
        topic = names.find(buffer, entries.name, entries.name_length)
        row, topic = entries.row[topic >= 0], topic[topic >= 0]
        topic = topic[np.argsort(row, kind="stable")]
        bounds = [0, *np.cumsum(np.bincount(row, minlength=len(readers))).tolist()]
        waiting = []
        for group, at, (begin, stop) in zip(alike.values(), ends.tolist(), pairwise(bounds), strict=True):
            reader = group[0]
            if at < 0:
                waiting += group[1:]
                continue
            length = at - starts[reader]
            section = subscriptions[reader][2:length]
            number = len(sections)
            sections.append(topic[begin:stop])
            for m in group:
                if subscriptions[m].startswith(section, 2):
                    section_of[m] = number
                    after[m] = starts[m] + length
                else:
                    waiting.append(m)
    return sections, np.array(section_of, dtype=np.int32), np.array(after, dtype=np.int64)


def _user_data(buffer: Buffer, at: Int64, end: Int64) -> tuple[list[bytes | None], Int64]:
    """The user data that stands at `at`, None where it is null, and the position after it; -1 where it is broken."""
    user_data: list[bytes | None] = [None] * len(at)
    intact = np.flatnonzero((at >= 0) & (at + 4 <= end))
    length = np.maximum(buffer.int32[at[intact]].astype(np.int64), -1)
    position = np.full(len(at), -1, dtype=np.int64)
    position[intact] = at[intact] + 4 + np.maximum(length, 0)
    position[position > end] = -1
    for m, size in zip(intact[length >= 0].tolist(), length[length >= 0].tolist(), strict=True):
        after = int(position[m])
        if after >= 0:
            user_data[m] = buffer.data[after - size : after]
    return user_data, position


def _tails(buffer: Buffer, version: Int64, position: Int64, end: Int64) -> tuple[Int32, list[str | None]]:
    """Generations and racks, what follows the owned partitions; sets the position to -1 where they are broken."""
    generation = np.full(len(version), NO_GENERATION, dtype=np.int32)
    racks: list[str | None] = [None] * len(version)
    position[(position >= 0) & (position + 4 * (version >= 2) + 2 * (version >= 3) > end)] = -1
    dated = np.flatnonzero((position >= 0) & (version >= 2))
    generation[dated] = np.maximum(buffer.int32[position[dated]], NO_GENERATION)
    racked = np.flatnonzero((position >= 0) & (version >= 3))
    rack = position[racked] + 6
    length = buffer.int16[rack - 2].astype(np.int64)
    position[racked[rack + length > end[racked]]] = -1
    named = length > 0
    for m, begin, size in zip(*(column[named].tolist() for column in (racked, rack, length)), strict=True):
        if position[m] >= 0:
            racks[m] = buffer.data[begin : begin + size].decode("utf-8", "replace")
    return generation, racks


def decode_sticky_user_data(user_data: Sequence[bytes | None], names: Names) -> tuple[TopicPartitions, Int32]:
    """Claims and generations ([members], -1 for V0) in the sticky assignor's user data; null or unparsable is no
    claim.
    """
    present = [m for m, data in enumerate(user_data) if data]
    chosen = [without_stray_prefix(user_data[m] or b"") for m in present]
    buffer = Buffer(chosen)
    size = np.fromiter(map(len, chosen), dtype=np.int64, count=len(chosen))
    end = np.cumsum(size)
    entries, after = _walk(buffer, end - size, end, with_numbers=True)
    member = np.array(present, dtype=np.int32)
    generation = np.full(len(user_data), NO_GENERATION, dtype=np.int32)
    dated = (after >= 0) & (after + 4 <= end)
    generation[member[dated]] = np.maximum(buffer.int32[after[dated]], NO_GENERATION)
    listed = _numbers(buffer, entries, names)
    return TopicPartitions(member[listed.member], listed.topic, listed.number), generation


def without_stray_prefix(user_data: bytes) -> bytes:
    """Sticky user data without the int16 1 that kafka-python 3 puts in front, which Java and aiokafka cannot read.

    It is told from the plain form by what that would then begin with: a topic whose name is empty or starts with NUL,
    and no topic is named so.
    """
    if user_data.startswith(_STRAY) and len(user_data) >= 10 and (user_data[4:6] == b"\x00\x00" or user_data[6] == 0):
        return user_data[2:]
    return user_data


def decode_cooperative_user_data(user_data: Sequence[bytes | None]) -> Int32:
    """[members] generations in the cooperative-sticky assignor's user data, -1 if null or too short."""
    generations = [_int32.unpack_from(data)[0] if data and len(data) >= 4 else NO_GENERATION for data in user_data]
    return np.maximum(np.array(generations, dtype=np.int32), NO_GENERATION)


def encode_sticky_user_data(owned: Mapping[str, Sequence[int]], generation: int) -> bytes:
    """The sticky assignor's user data V1: what a member owned and the generation it was given it in."""
    parts = [_int32.pack(len(owned))]
    for topic, numbers in owned.items():
        name = topic.encode()
        parts += [_int16.pack(len(name)), name, _int32.pack(len(numbers)), np.array(numbers, dtype=">i4").tobytes()]
    return b"".join([*parts, _int32.pack(generation)])


def encode_cooperative_user_data(generation: int) -> bytes:
    """The cooperative-sticky assignor's user data: the generation of the member's last assignment, -1 before the
    first.
    """
    return _int32.pack(generation)


def encode_assignments(
    owner: Int32,
    member_count: int,
    topics: Sequence[str],
    first: Int64,
    *,
    version: int = 0,
    user_data: bytes | None = None,
) -> list[bytes]:
    """One assignment per member; `owner` is [partitions] member index or -1, `first` the flat start of each topic.

    Every assignment lists its topics and their partitions ascending. Raises ValueError if a member's list outgrows
    int32.
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

    tail = _int32.pack(-1) if user_data is None else _int32.pack(len(user_data)) + user_data
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
    for w in range(len(words)):  # whole words spill over the name's end, onto bytes that are written after them
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
    return [bytes(view[a:b]) for a, b in zip(begin.tolist(), end.tolist(), strict=True)]
