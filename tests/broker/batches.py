"""Record batches for the broker's tests, written with `struct`: an oracle that shares no code with the broker."""

from __future__ import annotations

import struct

import google_crc32c

HEADER = struct.Struct(">qiibIhiqqqhii")


def varint(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def record(delta: int, time_delta: int, key: bytes | None, value: bytes | None) -> bytes:
    body = b"\0" + varint(time_delta) + varint(delta)
    for data in (key, value):
        body += varint(-1) if data is None else varint(len(data)) + data
    body += varint(0)
    return varint(len(body)) + body


def batch(
    values: list[bytes | None],
    *,
    times: list[int] | None = None,
    keys: list[bytes | None] | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
    attributes: int = 0,
) -> bytes:
    """A batch at offset 0; `producer` is id, epoch and base sequence."""
    times = times or [1_000] * len(values)
    keys = keys or [None] * len(values)
    body = b"".join(record(n, t - times[0], k, v) for n, (t, k, v) in enumerate(zip(times, keys, values, strict=True)))
    rest = struct.pack(">hiqqqhii", attributes, len(values) - 1, times[0], max(times), *producer, len(values)) + body
    length = 4 + 1 + 4 + len(rest)
    return struct.pack(">qiibI", 0, length, -1, 2, google_crc32c.value(rest)) + rest


def placed(data: bytes, offset: int) -> bytes:
    """The same batch at an offset, with leader epoch 0."""
    return struct.pack(">q", offset) + data[8:12] + struct.pack(">i", 0) + data[16:]


def base_offsets(data: bytes | bytearray | memoryview) -> list[int]:
    """Where the batches in these bytes begin; they must be whole."""
    found, position = [], 0
    while position < len(data):
        offset, length = struct.unpack_from(">qi", data, position)
        found.append(offset)
        position += 12 + length
    assert position == len(data)
    return found
