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


SIGNATURES = {
    "hash_get": "- - int64 uint8 int64 - - uint8 - int64 int64 uint8 uint8 - int64",
    "hash_append": "- - int64 uint8 int64 uint8 uint8 - uint8 - - - int64 int64 int64",
    "hash_apply": "- - int64 int64 int64 - - uint8 - - int64 int64 int64",
    "hash_move": "- - int64 - - uint8 - - - int64 int64 int64 int64",
    "hash_rebuild": "int64 - int64 - - uint8 -",
    "hash_walk": "- - - uint8 - int64 int64",
    "hash_live": "- - int64 - uint8 - int64",
    "hash_sizes": "- uint8 int64 - int64 uint8",
    "hash_copy": "- uint8 int64 - int64 uint8",
}
"""Parameters of the loops, in their order: arrays by the type of their elements, and numbers (-)."""
