"""Numbers and short pieces of bytes copied, and the loop that joins pieces of text, written for numba."""

from numba import njit
from numpy import int64

from roster.wire.columns.checksum_kernel import OPTIONS

_function = njit(**OPTIONS)


@_function
def four(data, pos):
    """Read a number of four bytes."""
    return int64(data[pos]) | int64(data[pos + 1]) << 8 | int64(data[pos + 2]) << 16 | int64(data[pos + 3]) << 24


@_function
def eight(data, pos):
    """Read a number of eight bytes."""
    return (
        int64(data[pos])
        | int64(data[pos + 1]) << 8
        | int64(data[pos + 2]) << 16
        | int64(data[pos + 3]) << 24
        | int64(data[pos + 4]) << 32
        | int64(data[pos + 5]) << 40
        | int64(data[pos + 6]) << 48
        | int64(data[pos + 7]) << 56
    )


@_function
def put(out, pos, number, size):
    """Write a number of so many bytes."""
    for index in range(size):
        out[pos + index] = number >> 8 * index & 255


@_function
def copy(data, pos, size, out, place):
    """Copy `size` bytes to `out[place:]`, eight and four at a time: what is copied is short."""
    end = pos + size
    while pos + 8 <= end:
        put(out, place, eight(data, pos), 8)
        pos += 8
        place += 8
    if pos + 4 <= end:
        put(out, place, four(data, pos), 4)
        pos += 4
        place += 4
    while pos < end:
        out[place] = data[pos]
        pos += 1
        place += 1


@_function
def join(rows, before, size, ends, data, places, out):
    """Write a constant of so many bytes and each row's value to the row's place, which moves behind them; return 0."""
    for row in range(rows):
        place = places[row]
        copy(before, int64(0), size, out, place)
        place += size
        length = ends[row + 1] - ends[row]
        copy(data, ends[row], length, out, place)
        places[row] = place + length
    return int64(0)
