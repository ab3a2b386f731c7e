"""The loops over records of `__consumer_offsets`, written for numba; they also run as plain Python.

One reads committed offsets and tells the kinds of other records apart; every index is compared with its bound before it
is used. `roster.wire.offsets_topic` has the format as tables. The other one chooses commits that a history keeps.
"""

from numba import njit
from numpy import int64

from roster.wire.columns import offsets_layout as layout
from roster.wire.columns.decode_kernel import OPTIONS, number
from roster.wire.columns.text_kernel import copy

__all__ = ["OPTIONS", "commits_to_keep", "offset_commits"]

MINUTE = 60_000_000

_function = njit(**OPTIONS)


@_function
def uvarint(data, pos, end):
    """Read an unsigned 32-bit varint; return it and its end, -1 if it does not end or is larger."""
    value = int64(0)
    shift = int64(0)
    while pos < end and shift < 35:
        byte = int64(data[pos])
        pos += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value >> 32:
                break
            return value, pos
        shift += 7
    return int64(0), int64(-1)


@_function
def is_utf8(data, pos, end):
    """Return 1 if [pos, end) is UTF-8 without surrogates and overlong forms, else 0."""
    while pos < end:
        byte = int64(data[pos])
        pos += 1
        if byte < 0x80:
            continue
        more = int64(3)
        if 0xC2 <= byte < 0xE0:
            more = int64(1)
        elif 0xE0 <= byte < 0xF0:
            more = int64(2)
        elif byte < 0xF0 or byte > 0xF4:
            return int64(0)
        if more > end - pos:
            return int64(0)
        second = int64(data[pos])
        least = 0xA0 if byte == 0xE0 else 0x90 if byte == 0xF0 else 0x80
        most = 0x9F if byte == 0xED else 0x8F if byte == 0xF4 else 0xBF
        if second < least or second > most:
            return int64(0)
        for index in range(pos + 1, pos + more):
            if data[index] & 0xC0 != 0x80:
                return int64(0)
        pos += more
    return int64(1)


@_function
def text(data, pos, end, is_compact):
    """Return the start and the end of a string's bytes, -1 if it is null, does not fit or is not UTF-8."""
    if is_compact:
        size, pos = uvarint(data, pos, end)
        if pos < 0:
            return int64(-1), int64(-1)
        size -= 1
    else:
        if end - pos < 2:
            return int64(-1), int64(-1)
        size = number(data, pos, 2)
        pos += 2
    if size < 0 or size > 32767 or size > end - pos:
        return int64(-1), int64(-1)
    for index in range(pos, pos + size):
        if data[index] > 127:
            if not is_utf8(data, index, pos + size):
                return int64(-1), int64(-1)
            break
    return int64(pos), int64(pos + size)


@_function
def after_tags(data, pos, end):
    """Return the position after the tagged fields of an offset, -1 if they do not fit; tag 0 is a topic id."""
    count, pos = uvarint(data, pos, end)
    if pos < 0 or count > (end - pos) // 2:
        return int64(-1)
    last = int64(-1)
    for _ in range(count):
        tag, pos = uvarint(data, pos, end)
        if pos < 0 or tag <= last:
            return int64(-1)
        size, pos = uvarint(data, pos, end)
        if pos < 0 or size > end - pos or (tag == 0 and size != 16):
            return int64(-1)
        last = tag
        pos += size
    return int64(pos)


@_function
def offset_commits(
    rows,
    key_ends,
    keys,
    key_valid,
    value_ends,
    values,
    value_valid,
    kinds,
    numbers,
    group_ends,
    groups,
    topic_ends,
    topics,
    metadata_ends,
    metadatas,
):
    """Write the kind of each row, and the columns of those of kind COMMIT and REMOVED; return the number of these.

    The caller sets `*_ends[0]` to zero; texts take no more bytes than keys and values have.
    """
    commits = int64(0)
    group_at = int64(0)
    topic_at = int64(0)
    metadata_at = int64(0)
    for row in range(rows):
        pos = int64(key_ends[row])
        end = int64(key_ends[row + 1])
        kinds[row] = layout.DAMAGED
        if not key_valid[row] or end - pos < 2:
            continue
        record_type = number(keys, pos, 2)
        if record_type < 0:
            continue
        if record_type > 1:
            kinds[row] = layout.GROUP if record_type <= 8 else layout.OTHER
            continue
        group, group_end = text(keys, pos + 2, end, False)
        if group < 0:
            continue
        topic, topic_end = text(keys, group_end, end, False)
        if topic < 0 or end - topic_end != 4:
            continue
        kind = int64(layout.REMOVED)
        metadata = int64(0)
        metadata_end = int64(0)
        if value_valid[row]:
            pos = int64(value_ends[row])
            end = int64(value_ends[row + 1])
            if end - pos < 2:
                continue
            version = number(values, pos, 2)
            pos += 2
            if version > 4:
                kinds[row] = layout.NEWER
                continue
            if version < 0 or end - pos < 8:
                continue
            numbers[commits * layout.FIELDS + layout.OFFSET] = number(values, pos, 8)
            pos += 8
            numbers[commits * layout.FIELDS + layout.LEADER_EPOCH] = -1
            if version >= 3:
                if end - pos < 4:
                    continue
                numbers[commits * layout.FIELDS + layout.LEADER_EPOCH] = number(values, pos, 4)
                pos += 4
            metadata, metadata_end = text(values, pos, end, version == 4)
            if metadata < 0 or end - metadata_end < 8:
                continue
            pos = metadata_end
            numbers[commits * layout.FIELDS + layout.COMMITTED_AT] = number(values, pos, 8)
            pos += 8
            numbers[commits * layout.FIELDS + layout.EXPIRES_AT] = -1
            if version == 1:
                if end - pos < 8:
                    continue
                numbers[commits * layout.FIELDS + layout.EXPIRES_AT] = number(values, pos, 8)
                pos += 8
            if version == 4:
                pos = after_tags(values, pos, end)
            if pos != end:
                continue
            kind = int64(layout.COMMIT)
        kinds[row] = kind
        numbers[commits * layout.FIELDS + layout.PARTITION] = number(keys, topic_end, 4)
        copy(keys, group, group_end - group, groups, group_at)
        copy(keys, topic, topic_end - topic, topics, topic_at)
        copy(values, metadata, metadata_end - metadata, metadatas, metadata_at)
        group_at += group_end - group
        topic_at += topic_end - topic
        metadata_at += metadata_end - metadata
        commits += 1
        group_ends[commits] = group_at
        topic_ends[commits] = topic_at
        metadata_ends[commits] = metadata_at
    return commits


@_function
def commits_to_keep(
    rows, groups, topics, partitions, times, offsets, numbers, minutes, count, slots, size, steps, looked, kept
):
    """Set which commits, in the order of their log, stay in a history; return the number of partitions.

    A partition keeps its last commit of each minute, the last one that moves its offset with the one just before it,
    the first one that does so after a minute without any, and the first two: rows of before are not known here. All
    commits stay in the `count` ascending `minutes`: minute m of group g is there as `numbers[g]` + m. times: in
    microseconds. slots: `size` zeros, a power of two above the rows. steps: room for two numbers a row. looked: two
    zeros for each group.
    """
    partitions_found = int64(0)
    for row in range(rows):
        group = groups[row]
        minute = times[row] // MINUTE
        if looked[2 * group] != minute + 1:
            low = int64(0)
            high = int64(count)
            while low < high:
                middle = (low + high) // 2
                if minutes[middle] < numbers[group] + minute:
                    low = middle + 1
                else:
                    high = middle
            looked[2 * group] = minute + 1
            looked[2 * group + 1] = low < count and minutes[low] == numbers[group] + minute
        kept[row] = looked[2 * group + 1]
        slot = (group * 0xC2B2AE35 + topics[row] * 0x85EBCA6B + int64(partitions[row]) * 0x9E3779B1) & (size - 1)
        before = slots[slot] - 1
        while before >= 0 and (
            groups[before] != group or topics[before] != topics[row] or partitions[before] != partitions[row]
        ):
            slot = (slot + 1) & (size - 1)
            before = slots[slot] - 1
        slots[slot] = row + 1
        if before < 0:
            partitions_found += 1
            steps[2 * row] = steps[2 * row + 1] = row
            kept[row] = 1
            continue
        if times[before] // MINUTE != minute:
            kept[before] = 1
        if offsets[before] == offsets[row]:
            steps[2 * row] = steps[2 * before]
            steps[2 * row + 1] = steps[2 * before + 1]
            continue
        steps[2 * row] = row
        steps[2 * row + 1] = before
        kept[row] |= steps[2 * before] == steps[2 * before + 1]
        last = times[steps[2 * before]] // MINUTE
        if last != minute:
            kept[steps[2 * before]] = kept[steps[2 * before + 1]] = 1
            kept[row] |= minute - last > 1
    for slot in range(size):
        row = slots[slot] - 1
        if row >= 0:
            kept[row] = kept[steps[2 * row]] = kept[steps[2 * row + 1]] = 1
    return partitions_found
