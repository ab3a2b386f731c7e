"""The hash of keys in Kafka's Java client, as plain Python that numba can compile.

Source: `org.apache.kafka.common.utils.Utils.murmur2`.
"""

from __future__ import annotations

from numpy import int64


def murmur2(data, pos, end):  # type: ignore[no-untyped-def]
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
