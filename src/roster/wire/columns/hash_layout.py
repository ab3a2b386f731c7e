"""Layout of the hash store's files, and the parameters of the loops over them.

A slot is 8 bytes: 24 bits of the key's hash, 33 bits of the entry's offset in units of 16 bytes, 7 bits of checksum. It
is written at once, so a killed process leaves none half written. An entry is 8 bytes of checksum, 4 of the key's length
and 4 of the value's, key, value, and zero to 15 bytes up to the next unit.
"""

import numpy as np
import numpy.typing as npt

HEAD, UNIT_BITS = 16, 4
"""Bytes before an entry's key; offsets are multiples of 1 << UNIT_BITS."""
SEGMENT_BITS = 20
"""The heap is cut into segments of 1 << SEGMENT_BITS bytes; only an entry that fills several is in more than one."""
NONE = 0xFFFFFFFF
"""Length of the value of an entry that removes its key."""
CHECK_BITS, PLACE_BITS, TAG_BITS = 7, 33, 24
SMALL_BITS, SKIPPED_BITS = 16, 8
"""A slot has the first bits of the hash; if there are more than 1 << SMALL_BITS slots, those behind SKIPPED_BITS: the
first ones follow from its place, and others tell more keys apart."""
MOST_BYTES = 1 << PLACE_BITS + UNIT_BITS
"""Most bytes of a heap."""
BLOCK = 64
"""Keys whose slots and entries are fetched together."""
BAD, FULL = -1, 1
"""Results of the loops: a slot or an entry is damaged; the index, or what is written to, has no room."""
KEY, VALUE = range(2)


def _check_table() -> npt.NDArray[np.uint8]:
    """Return the checksum of each byte of 57 bits.

    Each bit has one of the 57 numbers below 128 with three, five or seven bits set, which finds three flipped bits.
    """
    columns = [number for number in range(128) if number.bit_count() in (3, 5, 7)]
    table = np.zeros((8, 256), np.uint8)
    for bit, column in enumerate(columns):
        numbers = np.arange(256)
        table[bit // 8][numbers >> bit % 8 & 1 == 1] ^= np.uint8(column)
    return table.ravel()


CHECKS = _check_table()


def checked(number: int) -> int:
    """Return a number of up to 57 bits with its checksum, as slots have it."""
    check = 0
    for place in range(8):
        check ^= int(CHECKS[256 * place + (number >> 8 * place & 255)])
    return number << CHECK_BITS | check


_HEAP = {"seed": None, "heap": "uint8", "size": None}
_INDEX = {"slots": "int64", "bits": None, **_HEAP}
_KEYS = {"key_ends": "int64", "keys": "uint8"}
_VALUES = {"value_ends": "int64", "values": "uint8", "is_there": "uint8"}
_PART = {"rows": None, "heap": "uint8", "where": "int64", "part": None, "ends": "int64"}
_FOUND = {"where": "int64", "hashes": "int64"}

SIGNATURES = {
    "hash_get": {"first": None, "rows": None, **_KEYS, **_INDEX, "scratch": "int64"}
    | {"ends": "int64", "is_there": "uint8", "out": "uint8", "room": None, "state": "int64"},
    "hash_append": {"first": None, "rows": None, **_KEYS, **_VALUES, "seed": None, "out": "uint8", "begin": None}
    | {"pos": None, "limit": None, **_FOUND, "state": "int64"},
    "hash_apply": {"first": None, "rows": None, **_FOUND, **_INDEX, "room": None}
    | {"segments": "int64", "scratch": "int64", "state": "int64"},
    "hash_move": {"begin": None, "end": None, **_INDEX, "pos": None, "limit": None}
    | {"scratch": "int64", **_FOUND, "state": "int64"},
    "hash_rebuild": {"old": "int64", "count": None, **_INDEX},
    "hash_walk": {"pos": None, "end": None, **_HEAP, **_FOUND},
    "hash_live": {"begin": None, "end": None, "slots": "int64", **_HEAP, "where": "int64"},
    "hash_sizes": {**_PART, "is_there": "uint8"},
    "hash_copy": {**_PART, "out": "uint8"},
}
"""Parameters of the compiled functions: arrays by the type of their elements, and numbers (None)."""
