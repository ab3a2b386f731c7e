"""The loop that joins pieces of text, written for numba."""

from __future__ import annotations

from numba import njit
from numpy import int64

from roster.wire.columns.checksum_kernel import OPTIONS

_function = njit(**OPTIONS)


@_function
def put_piece(data, pos, end, out, place):
    """Copy [pos, end) to `place`, eight bytes at a time; return the place behind it."""
    while pos + 8 <= end:
        for index in range(8):
            out[place + index] = data[pos + index]
        pos += 8
        place += 8
    while pos < end:
        out[place] = data[pos]
        pos += 1
        place += 1
    return place


@_function
def join(rows, before, size, ends, data, places, out):
    """Write a constant of so many bytes and each row's value to the row's place, which moves behind them; return 0."""
    for row in range(rows):
        place = put_piece(before, int64(0), size, out, places[row])
        places[row] = put_piece(data, ends[row], ends[row + 1], out, place)
    return int64(0)
