"""The loop that encodes columns as records (format v2), written for numba; the functions also run as plain Python.

Columns are as in Arrow: ends (one more than rows), bytes, and a byte of validity for each row. All numbers are int64,
so that plain Python has the same results.

Source: Kafka's documentation, "Message Format".
"""

from numba import njit
from numpy import int64

from roster.wire.columns.decode_kernel import OPTIONS
from roster.wire.columns.encode_layout import AT, BASE_TIMESTAMP, MAX_TIMESTAMP
from roster.wire.columns.partition_kernel import place
from roster.wire.columns.text_kernel import copy

__all__ = ["OPTIONS", "encode", "place"]


_function = njit(**OPTIONS)


@_function
def varint_size(value):
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
def put_varint(out, position, value):
    """Write a zig-zag varint; return the position after it."""
    rest = (value << 1) ^ (value >> 63)
    while rest < 0 or rest > 127:
        out[position] = (rest & 127) | 128
        rest = (rest >> 7) & 0x1FFFFFFFFFFFFFF
        position += 1
    out[position] = rest
    return position + 1


@_function
def put_bytes(out, position, data, pos, end, is_valid):
    """Write a length and the bytes, or -1 for null; return the position after them."""
    if not is_valid:
        return put_varint(out, position, int64(-1))
    position = put_varint(out, position, end - pos)
    copy(data, pos, end - pos, out, position)
    return position + end - pos


@_function
def encode(
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
    position = int64(0)
    base = int64(timestamps[order[start]])
    state[BASE_TIMESTAMP] = base
    state[MAX_TIMESTAMP] = base
    count = int64(0)
    for index in range(start, stop):
        row = order[index]
        if count > 0 and position + sizes[row] > limit:
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
        position = put_varint(out, position, size)
        out[position] = 0
        position = put_varint(out, position + 1, delta)
        position = put_varint(out, position, count)
        position = put_bytes(out, position, keys, int64(key_ends[row]), int64(key_ends[row + 1]), key_valid[row])
        position = put_bytes(
            out, position, values, int64(value_ends[row]), int64(value_ends[row + 1]), value_valid[row]
        )
        position = put_varint(out, position, headers)
        if headers > 0:
            for header in range(header_ends[row], header_ends[row + 1]):
                position = put_bytes(out, position, names, int64(name_ends[header]), int64(name_ends[header + 1]), 1)
                position = put_bytes(
                    out, position, datas, int64(data_ends[header]), int64(data_ends[header + 1]), data_valid[header]
                )
        state[MAX_TIMESTAMP] = max(state[MAX_TIMESTAMP], timestamps[row])
        count += 1
    state[AT] = position
    return count
