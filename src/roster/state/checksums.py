"""Checksums of a store's entries: CRC-32C of key and value, in four bytes behind the value.

A flipped bit in either is always found, as is a value that belongs to another key.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from operator import add

import google_crc32c

_crc, _pack = google_crc32c.value, struct.Struct("<I").pack
SIZE = 4
"""Bytes of a checksum."""
_RESIDUE = 0x48674BC7
"""The CRC-32C of any bytes that end with their own."""


def sealed(keys: Iterable[bytes], values: Iterable[bytes]) -> list[bytes]:
    """Return values with their checksums."""
    values = list(values)
    return list(map(add, values, map(_pack, map(_crc, map(add, keys, values)))))


def are_sound(keys: Iterable[bytes], data: Iterable[bytes]) -> bool:
    """Return True if each is a value of its key with its checksum."""
    return set(map(_crc, map(add, keys, data))) <= {_RESIDUE}
