"""The hash of keys in Kafka's Java client: of one, as plain Python that numba can compile, and of many by columns.

Source: `org.apache.kafka.common.utils.Utils.murmur2`.
"""

import numpy as np
from numpy import int64, uint32

from roster.model.arrays import Array, Int64, UInt8

_M = uint32(0x5BD1E995)


def murmur2(data, pos, end):
    """Return the hash of [pos, end) as an unsigned 32-bit number."""
    size = end - pos
    value = int64(0x9747B28C) ^ size
    while pos + 4 <= end:
        word = int64(data[pos]) | int64(data[pos + 1]) << 8 | int64(data[pos + 2]) << 16 | int64(data[pos + 3]) << 24
        word = (word * 0x5BD1E995) & 0xFFFFFFFF
        word ^= word >> 24
        word = (word * 0x5BD1E995) & 0xFFFFFFFF
        value = ((value * 0x5BD1E995) & 0xFFFFFFFF) ^ word
        pos += 4
    left = end - pos
    if left == 3:
        value ^= int64(data[pos + 2]) << 16
    if left >= 2:
        value ^= int64(data[pos + 1]) << 8
    if left >= 1:
        value ^= int64(data[pos])
        value = (value * 0x5BD1E995) & 0xFFFFFFFF
    value ^= value >> 13
    value = (value * 0x5BD1E995) & 0xFFFFFFFF
    return value ^ (value >> 15)


def murmur2_of(data: UInt8, offsets: Array) -> Int64:
    """Return the lower 31 bits of the hash of each value, as Kafka's default partitioner takes them.

    data: the bytes of all values. offsets: where each begins, and the end of the last one.
    """
    sizes = np.diff(offsets)
    order = np.argsort(-sizes, kind="stable")
    starts, sizes = offsets[:-1][order], sizes[order]
    value = (uint32(0x9747B28C) ^ sizes.astype(uint32)).astype(uint32)
    words = np.ndarray(max(len(data) - 3, 0), "<u4", data, strides=(1,))
    for place in range(0, int(sizes[0]) - 3 if len(sizes) else 0, 4):
        count = int(np.searchsorted(-sizes, -(place + 4), side="right"))
        word = words[starts[:count] + place] * _M
        word = (word ^ (word >> uint32(24))) * _M
        value[:count] = (value[:count] * _M) ^ word
    left = sizes % 4
    for behind in (3, 2, 1):
        has = left >= behind
        place = starts[has] + sizes[has] - left[has] + behind - 1
        value[has] ^= data[place].astype(uint32) << uint32(8 * (behind - 1))
    value[left > 0] *= _M
    value = (value ^ (value >> uint32(13))) * _M
    hashes = np.empty(len(value), np.int64)
    hashes[order] = (value ^ (value >> uint32(15))) & uint32(0x7FFFFFFF)
    return hashes
