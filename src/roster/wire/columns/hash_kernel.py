"""Loops over a hash store's index and heap, written for numba; `hash_layout` describes both.

Keys are looked up in blocks, first all slots, then all entries, so that the processor waits for the memory of many at
once. Slots and entries are checked before they are used. A slot's place is the first bits of the hash, or soon behind,
so an index of up to 2**32 slots is made from a smaller one in the order of its slots, without the keys.
"""

from numba import njit
from numpy import int64

from roster.wire.columns.checksum_kernel import OPTIONS
from roster.wire.columns.hash_layout import (
    BAD,
    BLOCK,
    CHECK_BITS,
    CHECKS,
    FULL,
    HEAD,
    KEY,
    NONE,
    PLACE_BITS,
    SEGMENT_BITS,
    SKIPPED_BITS,
    SMALL_BITS,
    TAG_BITS,
    UNIT_BITS,
    checked,
)
from roster.wire.columns.text_kernel import copy, eight, four, put

_function = njit(**OPTIONS)

_FACTOR, _OTHER, _THIRD = -0x61C8864680B583EB, -0x3D4D51C2D82B14B1, 0x165667B19E3779F9
_LOW, _PLACE, _TAG = (1 << 57) - 1, (1 << PLACE_BITS) - 1, (1 << TAG_BITS) - 1
_REMOVED = checked(1 << PLACE_BITS)
"""The slot of a key that was removed."""
_NO_SLOT = -(1 << 62)
_AHEAD, _LINE = 8, 63
"""Slots that may be looked at ahead; from the first byte of a cache line to its last."""


@_function
def check_of(number):
    """Return the checksum of a number of 57 bits."""
    return int64(
        CHECKS[number & 255]
        ^ CHECKS[256 + (number >> 8 & 255)]
        ^ CHECKS[512 + (number >> 16 & 255)]
        ^ CHECKS[768 + (number >> 24 & 255)]
        ^ CHECKS[1024 + (number >> 32 & 255)]
        ^ CHECKS[1280 + (number >> 40 & 255)]
        ^ CHECKS[1536 + (number >> 48 & 255)]
        ^ CHECKS[1792 + (number >> 56 & 255)]
    )


@_function
def skipped(bits):
    """Return how many of the first bits of a hash slots lack in an index of 1 << bits."""
    return int64(SKIPPED_BITS if bits > SMALL_BITS else 0)


@_function
def tag_of(hashed, bits):
    """Return the part of a hash that is in slots."""
    return hashed >> (64 - TAG_BITS - skipped(bits)) & _TAG


@_function
def slot_of(hashed, offset, bits):
    """Return the slot of an entry."""
    number = tag_of(hashed, bits) << PLACE_BITS | offset >> UNIT_BITS
    return number << CHECK_BITS | check_of(number)


@_function
def mixed(seed, data, pos, end):
    """Return the hash of [pos, end): other bytes in one word of eight always give another one."""
    value = seed ^ (end - pos) * _THIRD
    while pos + 8 <= end:
        value = (value ^ eight(data, pos)) * _FACTOR
        value ^= value >> 29 & 0x7FFFFFFFF
        pos += 8
    if pos < end:
        word = int64(0)
        shift = int64(0)
        while pos < end:
            word |= int64(data[pos]) << shift
            shift += 8
            pos += 1
        value = (value ^ word) * _FACTOR
        value ^= value >> 29 & 0x7FFFFFFFF
    value *= _OTHER
    value ^= value >> 32 & 0xFFFFFFFF
    return value * _FACTOR


@_function
def bytes_of(length):
    """Return the bytes of a value of this length, 0 for none."""
    return int64(0) if length == NONE else length


@_function
def entry_end(heap, size, offset):
    """Return where an entry's value ends, BAD if it is not within the heap."""
    if offset < 0 or offset + HEAD > size:
        return int64(BAD)
    end = offset + HEAD + four(heap, offset + 8) + bytes_of(four(heap, offset + 12))
    return end if end <= size else int64(BAD)


@_function
def entry_bytes(heap, offset):
    """Return the bytes that an entry takes."""
    size = HEAD + four(heap, offset + 8) + bytes_of(four(heap, offset + 12))
    return (size + 15) >> UNIT_BITS << UNIT_BITS


@_function
def key_hash(heap, seed, offset):
    """Return the hash of an entry's key."""
    return mixed(seed, heap, offset + HEAD, offset + HEAD + four(heap, offset + 8))


@_function
def is_sound(heap, size, offset, hashed):
    """Return True if an entry whose key has this hash has its checksum."""
    end = entry_end(heap, size, offset)
    if end < 0:
        return False
    start = offset + HEAD + four(heap, offset + 8)
    return eight(heap, offset) == mixed(hashed ^ eight(heap, offset + 8), heap, start, end)


@_function
def is_same(left, pos, right, start, size):
    """Return True if both have the same bytes."""
    end = pos + size
    while pos + 8 <= end:
        if eight(left, pos) != eight(right, start):
            return False
        pos += 8
        start += 8
    while pos < end:
        if left[pos] != right[start]:
            return False
        pos += 1
        start += 1
    return True


@_function
def place_of(hashed, bits):
    """Return the first slot for a hash."""
    return hashed >> (64 - bits) & ((1 << bits) - 1)


@_function
def find_slot(hashed, data, pos, length, slots, bits, seed, heap, size):
    """Return the slot of the key at `pos`, else -1 - the slot for it; _NO_SLOT if a slot or an entry is damaged."""
    place = place_of(hashed, bits)
    tag = tag_of(hashed, bits)
    free = int64(-1)
    for _ in range(1 << bits):
        slot = slots[place]
        if slot == 0:
            return -1 - (place if free < 0 else free)
        number = slot >> CHECK_BITS & _LOW
        if check_of(number) != slot & 127:
            return int64(_NO_SLOT)
        offset = (number & _PLACE) << UNIT_BITS
        if offset == 0:
            if free < 0:
                free = place
        elif number >> PLACE_BITS == tag:
            if entry_end(heap, size, offset) < 0:
                return int64(_NO_SLOT)
            if four(heap, offset + 8) == length and is_same(data, pos, heap, offset + HEAD, length):
                return place
            if not is_sound(heap, size, offset, key_hash(heap, seed, offset)):
                return int64(_NO_SLOT)
        place = (place + 1) & ((1 << bits) - 1)
    return int64(_NO_SLOT)


@_function
def fetch(count, slots, bits, heap, size, scratch):
    """Bring the slots and the entries of hashes to the processor, those of other keys that have the same tag too."""
    for index in range(count):
        scratch[2 * BLOCK + index] = slots[place_of(scratch[index], bits)]
    for index in range(count):
        place = place_of(scratch[index], bits)
        tag = tag_of(scratch[index], bits)
        some = int64(0)
        for _ in range(_AHEAD):
            slot = slots[place]
            if slot == 0:
                break
            number = slot >> CHECK_BITS & _LOW
            offset = (number & _PLACE) << UNIT_BITS
            if number >> PLACE_BITS == tag and offset + _LINE < size:
                some += heap[offset] + heap[offset + _LINE]
            place = (place + 1) & ((1 << bits) - 1)
        scratch[2 * BLOCK + index] = some


@_function
def hash_get(first, rows, key_ends, keys, slots, bits, seed, heap, size, scratch, ends, is_there, out, room, state):
    """Write the values of keys, from the row `first` on, one after the other; return 0, FULL or BAD.

    ends: where values end, nothing for a missing key. room: bytes of `out`. state: the next row, and the room that it
    needs.
    """
    pos = ends[first]
    for begin in range(first, rows, BLOCK):
        count = min(rows - begin, BLOCK)
        for index in range(count):
            scratch[index] = mixed(seed, keys, key_ends[begin + index], key_ends[begin + index + 1])
        fetch(count, slots, bits, heap, size, scratch)
        for index in range(count):
            row = begin + index
            start = key_ends[row]
            length = key_ends[row + 1] - start
            place = find_slot(scratch[index], keys, start, length, slots, bits, seed, heap, size)
            if place == _NO_SLOT:
                return int64(BAD)
            is_there[row] = 0
            if place >= 0:
                offset = (slots[place] >> CHECK_BITS & _PLACE) << UNIT_BITS
                taken = four(heap, offset + 12)
                if taken == NONE or not is_sound(heap, size, offset, scratch[index]):
                    return int64(BAD)
                if pos + taken > room:
                    state[0] = row
                    state[1] = pos + taken
                    return int64(FULL)
                copy(heap, offset + HEAD + length, taken, out, pos)
                is_there[row] = 1
                pos += taken
            ends[row + 1] = pos
    return int64(0)


@_function
def hash_append(
    first, rows, key_ends, keys, value_ends, values, is_there, seed, out, begin, pos, limit, where, hashes, state
):
    """Write entries from the row `first` on at `pos`, up to the limit; return their end.

    out: the heap's bytes from `begin` on. where, hashes: their offsets, and the hashes of their keys. state: the next
    row.
    """
    row = first
    pos -= begin
    limit -= begin
    while row < rows:
        start = key_ends[row]
        length = key_ends[row + 1] - start
        value = value_ends[row]
        size = value_ends[row + 1] - value if is_there[row] else int64(0)
        end = pos + ((HEAD + length + size + 15) >> UNIT_BITS << UNIT_BITS)
        if end > limit:
            break
        put(out, pos + 8, length, 4)
        put(out, pos + 12, size if is_there[row] else int64(NONE), 4)
        copy(keys, start, length, out, pos + HEAD)
        copy(values, value, size, out, pos + HEAD + length)
        hashed = mixed(seed, keys, start, start + length)
        put(out, pos, mixed(hashed ^ eight(out, pos + 8), values, value, value + size), 8)
        where[row] = begin + pos
        hashes[row] = hashed
        pos = end
        row += 1
    state[0] = row
    return begin + pos


@_function
def hash_apply(first, rows, where, hashes, slots, bits, seed, heap, size, room, segments, scratch, state):
    """Let the index have entries at these offsets, from the row `first` on; return 0, FULL or BAD.

    hashes: of their keys. room: most slots in use. segments: two numbers each, the second one the bytes of entries that
    the index has. state: slots in use, entries, and the next row as the index was full. What is there already is left
    as it is.
    """
    used, entries = state[0], state[1]
    result = int64(0)
    for begin in range(first, rows, BLOCK):
        count = min(rows - begin, BLOCK)
        for index in range(count):
            scratch[index] = hashes[begin + index]
        fetch(count, slots, bits, heap, size, scratch)
        for row in range(begin, begin + count):
            if used >= room:
                state[2] = row
                result = int64(FULL)
                break
            offset = where[row]
            length = four(heap, offset + 8)
            place = find_slot(hashes[row], heap, offset + HEAD, length, slots, bits, seed, heap, size)
            if place == _NO_SLOT:
                return int64(BAD)
            if place >= 0:
                old = (slots[place] >> CHECK_BITS & _PLACE) << UNIT_BITS
                if old == offset:
                    continue
                segments[2 * (old >> SEGMENT_BITS) + 1] -= entry_bytes(heap, old)
            if four(heap, offset + 12) == NONE:
                if place >= 0:
                    slots[place] = _REMOVED
                    entries -= 1
                continue
            segments[2 * (offset >> SEGMENT_BITS) + 1] += entry_bytes(heap, offset)
            if place < 0:
                place = -1 - place
                used += slots[place] == 0
                entries += 1
            slots[place] = slot_of(hashes[row], offset, bits)
        if result != 0:
            break
    state[0], state[1] = used, entries
    return result


@_function
def hash_move(begin, end, slots, bits, seed, heap, size, pos, limit, scratch, where, hashes, state):
    """Copy the entries of [begin, end) that the index has to `pos`, up to the limit; return their end, or BAD.

    where, hashes: of the copies, as for `hash_apply`. state: the next entry, and bytes and number of the copies.
    """
    while begin < end:
        count = int64(0)
        while count < BLOCK and begin < end:
            if entry_end(heap, size, begin) < 0:
                return int64(BAD)
            scratch[count] = key_hash(heap, seed, begin)
            scratch[BLOCK + count] = begin
            begin += entry_bytes(heap, begin)
            count += 1
        for index in range(count):
            scratch[2 * BLOCK + index] = slots[place_of(scratch[index], bits)]
        for index in range(count):
            offset = scratch[BLOCK + index]
            slot = slot_of(scratch[index], offset, bits)
            place = place_of(scratch[index], bits)
            for _ in range(1 << bits):
                if slots[place] == slot or slots[place] == 0:
                    break
                place = (place + 1) & ((1 << bits) - 1)
            if slots[place] == slot:
                if not is_sound(heap, size, offset, scratch[index]):
                    return int64(BAD)
                taken = entry_bytes(heap, offset)
                if pos + taken > limit:
                    state[0] = offset
                    return pos
                copy(heap, offset, taken, heap, pos)
                where[state[2]] = pos
                hashes[state[2]] = scratch[index]
                state[1] += taken
                state[2] += 1
                pos += taken
    state[0] = end
    return pos


@_function
def first_bits(tag, place, bits):
    """Return the first 32 bits of a hash, given the tag in its slot and the slot's place."""
    known = bits - SKIPPED_BITS
    first = place - ((place - (tag >> (TAG_BITS - known))) & ((1 << known) - 1))
    return first >> known << TAG_BITS | tag


@_function
def hash_rebuild(old, count, slots, bits, seed, heap, size):
    """Fill empty slots from old ones; return their number, or BAD."""
    before = int64(0)
    while 1 << before < count:
        before += 1
    # A slot is less behind its first place than there are slots since a free one, and such a run is rarely so long.
    most = int64(1) << max(before - SKIPPED_BITS, int64(0))
    if skipped(min(before, bits)) == 0 or max(before, bits) > TAG_BITS + SKIPPED_BITS:
        most = int64(0)
    together = most + 1
    entries = int64(0)
    for index in range(count):
        slot = old[index]
        together += 1
        if slot == 0:
            together = int64(0)
        if slot == 0 or slot == _REMOVED:
            continue
        number = slot >> CHECK_BITS & _LOW
        if check_of(number) != slot & 127:
            return int64(BAD)
        entries += 1
        if entries >= 1 << bits:
            return int64(BAD)
        if together <= most:
            hashed = first_bits(number >> PLACE_BITS, index, before) << (64 - TAG_BITS - SKIPPED_BITS)
        else:
            offset = (number & _PLACE) << UNIT_BITS
            if entry_end(heap, size, offset) < 0:
                return int64(BAD)
            hashed = key_hash(heap, seed, offset)
            if not is_sound(heap, size, offset, hashed):
                return int64(BAD)
            slot = slot_of(hashed, offset, bits)
        place = place_of(hashed, bits)
        while slots[place] != 0:
            place = (place + 1) & ((1 << bits) - 1)
        slots[place] = slot
    return entries


@_function
def hash_walk(pos, end, seed, heap, size, where, hashes):
    """Write the offset of each entry of [pos, end), and the hash of its key; return their number, or BAD."""
    count = int64(0)
    while pos < end:
        if entry_end(heap, size, pos) < 0:
            return int64(BAD)
        hashes[count] = key_hash(heap, seed, pos)
        if not is_sound(heap, size, pos, hashes[count]):
            return int64(BAD)
        where[count] = pos
        count += 1
        pos += entry_bytes(heap, pos)
    return count


@_function
def hash_live(begin, end, slots, seed, heap, size, where):
    """Write the offsets of the entries of slots to `where`; return their number, or BAD."""
    count = int64(0)
    for place in range(begin, end):
        number = slots[place] >> CHECK_BITS & _LOW
        if check_of(number) != slots[place] & 127:
            return int64(BAD)
        offset = (number & _PLACE) << UNIT_BITS
        if offset != 0:
            where[count] = offset
            count += 1
    for index in range(count):
        offset = where[index]
        if entry_end(heap, size, offset) < 0:
            return int64(BAD)
        hashed = key_hash(heap, seed, offset)
        if not is_sound(heap, size, offset, hashed):
            return int64(BAD)
    return count


@_function
def hash_sizes(rows, heap, where, part, ends, is_there):
    """Write where keys or values of entries end one after the other; return the last end."""
    end = int64(0)
    ends[0] = 0
    for row in range(rows):
        length = int64(NONE)
        if where[row] >= 0:
            length = four(heap, where[row] + (8 if part == KEY else 12))
        is_there[row] = length != NONE
        end += bytes_of(length)
        ends[row + 1] = end
    return end


@_function
def hash_copy(rows, heap, where, part, ends, out):
    """Copy keys or values of entries to where `hash_sizes` has them end."""
    for row in range(rows):
        size = ends[row + 1] - ends[row]
        if size > 0:
            start = where[row] + HEAD
            if part != KEY:
                start += four(heap, where[row] + 8)
            copy(heap, start, size, out, ends[row])
    return ends[rows]
