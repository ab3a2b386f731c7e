"""Loops over CRC-32C checksums, written for numba: of small batches, and of entries of state."""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit
from numpy import int64


def _crc_table() -> npt.NDArray[np.uint32]:
    """Return the eight concatenated tables of the "slicing by 8" algorithm."""
    table = np.arange(256, dtype=np.int64)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ 0x82F63B78, table >> 1)
    tables = [table]
    for _ in range(7):
        tables.append((tables[-1] >> 8) ^ table[tables[-1] & 255])
    return np.concatenate(tables).astype(np.uint32)


_CRC_TABLE = _crc_table()

OPTIONS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "error_model": "numpy", "nogil": True}
"""Options of numba's compiler: no wrappers for Python, so the code calls neither Python nor numba."""

_function = njit(**OPTIONS)


@_function
def extended(crc, data, pos, end):
    """Return the CRC-32C so far, without its last inversion, with these bytes."""
    while pos + 8 <= end:
        crc ^= int64(data[pos]) | int64(data[pos + 1]) << 8 | int64(data[pos + 2]) << 16 | int64(data[pos + 3]) << 24
        crc = (
            int64(_CRC_TABLE[1792 + (crc & 255)])
            ^ int64(_CRC_TABLE[1536 + (crc >> 8 & 255)])
            ^ int64(_CRC_TABLE[1280 + (crc >> 16 & 255)])
            ^ int64(_CRC_TABLE[1024 + (crc >> 24)])
            ^ int64(_CRC_TABLE[768 + int64(data[pos + 4])])
            ^ int64(_CRC_TABLE[512 + int64(data[pos + 5])])
            ^ int64(_CRC_TABLE[256 + int64(data[pos + 6])])
            ^ int64(_CRC_TABLE[int64(data[pos + 7])])
        )
        pos += 8
    while pos < end:
        crc = int64(_CRC_TABLE[(crc ^ int64(data[pos])) & 255]) ^ (crc >> 8)
        pos += 1
    return crc


@_function
def crc32c(data, pos, end):
    """Compute the CRC-32C of a small batch, for which calling google-crc32c costs more."""
    return extended(int64(0xFFFFFFFF), data, pos, end) ^ 0xFFFFFFFF


@_function
def seal(rows, key_ends, keys, value_ends, values, places, out):
    """Write the values at these places, each with the CRC-32C of its key and itself; return the bytes written."""
    position = int64(0)
    for row in range(rows):
        pos = int64(value_ends[places[row]])
        end = int64(value_ends[places[row] + 1])
        crc = extended(int64(0xFFFFFFFF), keys, int64(key_ends[row]), int64(key_ends[row + 1]))
        crc = extended(crc, values, pos, end) ^ 0xFFFFFFFF
        while pos < end:
            out[position] = values[pos]
            position += 1
            pos += 1
        for _ in range(4):
            out[position] = crc & 255
            position += 1
            crc >>= 8
    return position


@_function
def unsound(rows, key_ends, keys, value_ends, values, residue):
    """Return the number of values without the checksum that `seal` wrote behind them."""
    count = int64(0)
    for row in range(rows):
        crc = extended(int64(0xFFFFFFFF), keys, int64(key_ends[row]), int64(key_ends[row + 1]))
        crc = extended(crc, values, int64(value_ends[row]), int64(value_ends[row + 1]))
        if crc ^ 0xFFFFFFFF != residue:
            count += 1
    return count
