"""Loops that encode columns as records (format v2), written for numba; the functions also run as plain Python.

`place` chooses the partition of each row and sorts rows by it; `encode` writes the records of one batch. Columns are as
in Arrow: ends (one more than rows), bytes, and a byte of validity for each row. All numbers are int64, so that plain
Python has the same results.

Source: Kafka's documentation, "Message Format"; `org.apache.kafka.common.utils.Utils.murmur2` and KIP-480, KIP-794 for
the choice of partitions.
"""

from __future__ import annotations

from numba import njit
from numpy import int64

from roster.wire.columns import encode_layout
from roster.wire.columns.decode_kernel import OPTIONS, copy
from roster.wire.columns.encode_layout import (
    AT,
    BAD_PARTITION,
    BASE_TIMESTAMP,
    DONE,
    HEADER_OVERHEAD,
    MAX_TIMESTAMP,
    PLACE_DETAIL,
    RECORD_OVERHEAD,
    STICKY,
    STICKY_LEFT,
)

__all__ = ["OPTIONS", "encode", "murmur2", "place"]

# ruff: noqa: C901, PLR0912 - one loop a function: calls cost a test each for numba's error status

_function = njit(**OPTIONS)


murmur2 = _function(encode_layout.murmur2)


@_function
def varint_size(value):  # type: ignore[no-untyped-def]
    """Return the size of a zig-zag varint in bytes."""
    rest = (value << 1) ^ (value >> 63)
    size = int64(1)
    # A negative number has its highest bit set as an unsigned one.
    if rest < 0:
        return int64(10)
    while rest > 127:
        rest >>= 7
        size += 1
    return size


@_function
def put_varint(out, at, value):  # type: ignore[no-untyped-def]
    """Write a zig-zag varint; return the position after it."""
    rest = (value << 1) ^ (value >> 63)
    while rest < 0 or rest > 127:
        out[at] = (rest & 127) | 128
        rest = (rest >> 7) & 0x1FFFFFFFFFFFFFF
        at += 1
    out[at] = rest
    return at + 1


@_function
def put_bytes(out, at, data, pos, end, is_valid):  # type: ignore[no-untyped-def]
    """Write a length and the bytes, or -1 for null; return the position after them."""
    if not is_valid:
        return put_varint(out, at, int64(-1))
    at = put_varint(out, at, end - pos)
    copy(data, pos, end - pos, out, at)
    return at + end - pos


@_function
def place(  # type: ignore[no-untyped-def]
    rows,
    key_ends,
    keys,
    key_valid,
    value_ends,
    values,
    value_valid,
    with_headers,
    header_ends,
    header_valid,
    name_ends,
    names,
    data_ends,
    datas,
    data_valid,
    given,
    partitions,
    sticky_bytes,
    state,
    places,
    sizes,
    starts,
    order,
):
    """Fill `places` (partitions), `sizes` (maximum size of each record), and `order` (rows by partition, then as
    given).

    A given partition (not negative) stays; rows with a key go to the partition of its hash; rows without fill one
    partition with `sticky_bytes`, then the next. `starts` (one more than `partitions`) gets the begin of each
    partition's rows in `order`. Returns DONE, or BAD_PARTITION with the row in the state.
    """
    for partition in range(partitions + 1):
        starts[partition] = 0
    for row in range(rows):
        size = int64(RECORD_OVERHEAD)
        if key_valid[row]:
            size += int64(key_ends[row + 1]) - int64(key_ends[row])
        if value_valid[row]:
            size += int64(value_ends[row + 1]) - int64(value_ends[row])
        if with_headers and header_valid[row]:
            for header in range(header_ends[row], header_ends[row + 1]):
                size += HEADER_OVERHEAD + int64(name_ends[header + 1]) - int64(name_ends[header])
                if data_valid[header]:
                    size += int64(data_ends[header + 1]) - int64(data_ends[header])
        sizes[row] = size
        chosen = int64(given[row])
        if chosen >= partitions:
            state[PLACE_DETAIL] = row
            return BAD_PARTITION
        if chosen < 0:
            if key_valid[row]:
                chosen = (murmur2(keys, int64(key_ends[row]), int64(key_ends[row + 1])) & 0x7FFFFFFF) % partitions
            else:
                if state[STICKY_LEFT] <= 0:
                    state[STICKY] = (state[STICKY] + 1) % partitions
                    state[STICKY_LEFT] = sticky_bytes
                state[STICKY_LEFT] -= size
                chosen = int64(state[STICKY])
        places[row] = chosen
        starts[chosen + 1] += 1
    for partition in range(partitions):
        starts[partition + 1] += starts[partition]
    for row in range(rows):
        order[starts[places[row]]] = row
        starts[places[row]] += 1
    for partition in range(partitions, 0, -1):
        starts[partition] = starts[partition - 1]
    starts[0] = 0
    return DONE


@_function
def encode(  # type: ignore[no-untyped-def]
    order,
    start,
    stop,
    limit,
    key_ends,
    keys,
    key_valid,
    value_ends,
    values,
    value_valid,
    with_headers,
    header_ends,
    header_valid,
    name_ends,
    names,
    data_ends,
    datas,
    data_valid,
    timestamps,
    sizes,
    out,
    state,
):
    """Write the records of rows `order[start:stop]` up to `limit` bytes; return their number, at least one.

    `out` has room for `limit` bytes and for the largest record.
    """
    at = int64(0)
    base = int64(timestamps[order[start]])
    state[BASE_TIMESTAMP] = base
    state[MAX_TIMESTAMP] = base
    count = int64(0)
    for index in range(start, stop):
        row = order[index]
        if count > 0 and at + sizes[row] > limit:
            break
        key_size = int64(key_ends[row + 1]) - int64(key_ends[row]) if key_valid[row] else int64(-1)
        value_size = int64(value_ends[row + 1]) - int64(value_ends[row]) if value_valid[row] else int64(-1)
        delta = timestamps[row] - base
        headers = int64(0)
        header_bytes = int64(0)
        if with_headers and header_valid[row]:
            headers = int64(header_ends[row + 1]) - int64(header_ends[row])
            for header in range(header_ends[row], header_ends[row + 1]):
                name_size = int64(name_ends[header + 1]) - int64(name_ends[header])
                header_bytes += varint_size(name_size) + name_size
                if data_valid[header]:
                    data_size = int64(data_ends[header + 1]) - int64(data_ends[header])
                    header_bytes += varint_size(data_size) + data_size
                else:
                    header_bytes += 1
        size = 1 + varint_size(delta) + varint_size(count)
        size += varint_size(key_size) + max(key_size, int64(0)) + varint_size(value_size) + max(value_size, int64(0))
        size += varint_size(headers) + header_bytes
        at = put_varint(out, at, size)
        out[at] = 0
        at = put_varint(out, at + 1, delta)
        at = put_varint(out, at, count)
        at = put_bytes(out, at, keys, int64(key_ends[row]), int64(key_ends[row + 1]), key_valid[row])
        at = put_bytes(out, at, values, int64(value_ends[row]), int64(value_ends[row + 1]), value_valid[row])
        at = put_varint(out, at, headers)
        if headers > 0:
            for header in range(header_ends[row], header_ends[row + 1]):
                at = put_bytes(out, at, names, int64(name_ends[header]), int64(name_ends[header + 1]), 1)
                at = put_bytes(
                    out, at, datas, int64(data_ends[header]), int64(data_ends[header + 1]), data_valid[header]
                )
        state[MAX_TIMESTAMP] = max(state[MAX_TIMESTAMP], timestamps[row])
        count += 1
    state[AT] = at
    return count
