"""A loop over Avro values that interprets the schema as a program, written for numba.

Each value goes through the instructions, which read its bytes and append to the columns' arrays. What a list or a text
has appended so far is the end of its last one, so a value that is refused midway is undone by the next, which begins at
the same places. Every index is compared with its bound before it is used, since numba does not check bounds.

Source: Apache Avro 1.12, Specification, "Binary Encoding".
"""

from __future__ import annotations

from numba import njit
from numpy import int64

from roster.wire.columns.avro_layout import (
    BEHIND,
    BOOLEAN,
    BRANCH,
    BYTES,
    CUT,
    DATA,
    DECIMAL,
    DIGITS,
    DIM,
    DOUBLE,
    END,
    ENTER,
    ENUM,
    FIXED,
    FIXED_DECIMAL,
    FLAG,
    FLOAT,
    FLOAT_TO_DOUBLE,
    INT,
    ITEMS,
    JUMP,
    LEAVE,
    LENGTH,
    LIST,
    LONG,
    LONG_TO_DOUBLE,
    LONG_TO_FLOAT,
    MODE,
    NEXT,
    NOT_TEXT,
    NOTE,
    NULL,
    OP,
    REFUSE,
    REFUSED,
    SCALED,
    SKIP,
    SKIP_BYTES,
    SKIP_VARINT,
    SYMBOL,
    TEXT,
    UNION,
    VALID,
    VALUE,
    VARINT,
    WIDTH,
    X,
    Y,
)
from roster.wire.columns.decode_kernel import OPTIONS, varint
from roster.wire.columns.offsets_kernel import is_utf8

__all__ = ["OPTIONS", "avro"]

# ruff: noqa: C901, PLR0912, PLR0915, PLR1714, SIM109 - as in decode_kernel; a tuple of numbers is compared one by one too

_function = njit(**OPTIONS)
_LEAST = -0x8000000000000000
_MOST = 0x7FFFFFFFFFFFFFFF


@_function
def little(data, pos, size):  # type: ignore[no-untyped-def]
    """Read the little-endian number of `size` bytes at `pos`, as its bits."""
    value = int64(0)
    for index in range(size):
        value |= int64(data[pos + index]) << (8 * index)
    return value


@_function
def decimal(data, pos, size, out, at, bounds, bound):  # type: ignore[no-untyped-def]
    """Write the big-endian number of `size` bytes as two numbers to `out[at:]`; return 0 if it is beyond the bound."""
    sign = int64(0)
    if size > 0 and data[pos] > 127:
        sign = int64(-1)
    high = sign
    low = sign
    for index in range(size):
        if index < size - 16:
            if int64(data[pos + index]) != sign & 255:
                return 0
        else:
            high = (high << 8) | (low >> 56 & 255)
            low = (low << 8) | int64(data[pos + index])
    if size > 16 and (high ^ sign) < 0:
        return 0
    out[at] = low
    out[at + 1] = high
    if high < 0:
        low = -low
        high = ~high
        if low == 0:
            high += 1
    if high < 0 or high > bounds[bound]:
        return 0
    if high == bounds[bound] and (low ^ _LEAST) > (bounds[bound + 1] ^ _LEAST):
        return 0
    return 1


@_function
def avro(  # type: ignore[no-untyped-def]
    rows,
    data,
    starts,
    ends,
    pool,
    code,
    tables,
    counts,
    left,
    out8,
    out32,
    out64,
    float32,
    float64,
    scratch,
    scratch_float,
    problems,
):
    """Append the values at [starts, ends) of `data` to the columns; return how many were accepted.

    `problems` gets 0 or a problem for each. The caller sets the first offset of each text and list to zero.
    """
    good = int64(0)
    for row in range(rows):
        src = data
        pos = starts[row]
        end = ends[row]
        kept_pos = pos
        kept_end = end
        counts[0] = good
        problem = 0
        pc = 0
        while problem == 0:
            op = code[pc + OP]
            mode = code[pc + MODE]
            dim = code[pc + DIM]
            valid = code[pc + VALID]
            value = code[pc + VALUE]
            if mode != 0:
                if pos >= end:
                    problem = CUT
                    break
                branch = int64(src[pos])
                pos += 1
                if branch != 0 and branch != 2:
                    branch, pos = varint(src, pos - 1, end, 64)
                    if pos < 0 or branch < 0 or branch > 1:
                        problem = BRANCH
                        break
                if (branch == 0) == (mode == 1):
                    here = counts[dim]
                    out8[valid + here] = 0
                    if op == LONG or op == DOUBLE or op == SCALED or op == LONG_TO_DOUBLE or op == FLOAT_TO_DOUBLE:
                        out64[value + here] = 0
                    elif op == TEXT or op == BYTES or op == FIXED:
                        out32[value + here + 1] = out32[value + here]
                    elif op == DECIMAL or op == FIXED_DECIMAL:
                        out64[value + 2 * here] = 0
                        out64[value + 2 * here + 1] = 0
                    elif op == BOOLEAN:
                        out8[value + here] = 0
                    else:
                        out32[value + here] = 0
                    pc += WIDTH
                    continue
            if op == LONG:
                number, pos = varint(src, pos, end, 64)
                if pos < 0:
                    problem = VARINT
                    break
                here = counts[dim]
                out64[value + here] = number
            elif op == TEXT or op == BYTES:
                size, pos = varint(src, pos, end, 64)
                if pos < 0:
                    problem = VARINT
                    break
                if size < 0 or size > end - pos:
                    problem = LENGTH
                    break
                here = counts[dim]
                begin = int64(out32[value + here])
                at = code[pc + DATA] + begin
                high = 0
                for index in range(size):
                    byte = src[pos + index]
                    out8[at + index] = byte
                    high |= byte
                if op == TEXT and high > 127 and is_utf8(src, pos, pos + size) == 0:
                    problem = NOT_TEXT
                    break
                out32[value + here + 1] = begin + size
                pos += size
            elif op == DOUBLE:
                if end - pos < 8:
                    problem = CUT
                    break
                here = counts[dim]
                out64[value + here] = little(src, pos, 8)
                pos += 8
            elif op == INT:
                number, pos = varint(src, pos, end, 32)
                if pos < 0:
                    problem = VARINT
                    break
                here = counts[dim]
                out32[value + here] = number
            elif op == BOOLEAN:
                if pos >= end:
                    problem = CUT
                    break
                if src[pos] > 1:
                    problem = FLAG
                    break
                here = counts[dim]
                out8[value + here] = src[pos]
                pos += 1
            elif op == FLOAT or op == FLOAT_TO_DOUBLE:
                if end - pos < 4:
                    problem = CUT
                    break
                here = counts[dim]
                if op == FLOAT:
                    out32[value + here] = little(src, pos, 4) << 32 >> 32
                else:
                    scratch[0] = little(src, pos, 4) << 32 >> 32
                    float64[value + here] = scratch_float[0]
                pos += 4
            elif op == SCALED or op == LONG_TO_DOUBLE or op == LONG_TO_FLOAT:
                number, pos = varint(src, pos, end, 64)
                if pos < 0:
                    problem = VARINT
                    break
                here = counts[dim]
                if op == LONG_TO_DOUBLE:
                    float64[value + here] = number
                elif op == LONG_TO_FLOAT:
                    float32[value + here] = number
                else:
                    most = _MOST // code[pc + X]
                    if number > most or number < -most:
                        problem = DIGITS
                        break
                    out64[value + here] = number * code[pc + X]
            elif op == FIXED:
                size = code[pc + X]
                if size > end - pos:
                    problem = CUT
                    break
                here = counts[dim]
                begin = int64(out32[value + here])
                at = code[pc + DATA] + begin
                for index in range(size):
                    out8[at + index] = src[pos + index]
                out32[value + here + 1] = begin + size
                pos += size
            elif op == DECIMAL or op == FIXED_DECIMAL:
                size = code[pc + X]
                if op == DECIMAL:
                    size, pos = varint(src, pos, end, 64)
                    if pos < 0:
                        problem = VARINT
                        break
                if size < 0 or size > end - pos:
                    problem = LENGTH
                    break
                here = counts[dim]
                if decimal(src, pos, size, out64, value + 2 * here, tables, code[pc + Y]) == 0:
                    problem = DIGITS
                    break
                pos += size
            elif op == ENUM:
                number, pos = varint(src, pos, end, 32)
                if pos < 0:
                    problem = VARINT
                    break
                if number < 0 or number >= code[pc + X] or tables[code[pc + Y] + number] < 0:
                    problem = SYMBOL
                    break
                here = counts[dim]
                out32[value + here] = tables[code[pc + Y] + number]
            elif op == LIST or op == NEXT:
                if op == NEXT:
                    if value >= 0:
                        counts[code[pc + X]] += 1
                    left[code[pc + X]] -= 1
                    other = code[pc + Y]  # of the first item
                    behind = pc + WIDTH
                else:
                    if value >= 0:
                        counts[code[pc + X]] = out32[value + counts[dim]]
                    left[code[pc + X]] = 0
                    other = pc + WIDTH
                    behind = code[pc + Y]
                if left[code[pc + X]] == 0:
                    count, pos = varint(src, pos, end, 64)
                    if pos < 0:
                        problem = VARINT
                        break
                    least = code[pc + DATA]
                    if count < 0:
                        size, pos = varint(src, pos, end, 64)
                        if pos < 0:
                            problem = VARINT
                            break
                        if size < 0 or size > end - pos or count == _LEAST:
                            problem = LENGTH
                            break
                        count = -count
                        if value < 0:
                            pos += size
                            pc = pc if op == NEXT else behind - WIDTH
                            left[code[pc + X]] = 1
                            continue
                    if count == 0:
                        if value < 0:
                            pc = behind
                            continue
                        here = counts[dim]
                        out32[value + here + 1] = counts[code[pc + X]]
                        if valid >= 0:
                            out8[valid + here] = 1
                        pc = behind
                        continue
                    if least > 0 and count > (end - pos) // least:
                        problem = ITEMS
                        break
                    left[code[pc + X]] = count if least > 0 else 1
                pc = other
                continue
            elif op == NOTE:
                here = counts[dim]
            elif op == NULL:
                here = counts[dim]
                width = code[pc + X]
                if width == 8:
                    out64[value + here] = 0
                elif width == 0:
                    out32[value + here + 1] = out32[value + here]
                elif width == 4:
                    out32[value + here] = 0
                elif width == 16:
                    out64[value + 2 * here] = 0
                    out64[value + 2 * here + 1] = 0
                elif width == 1:
                    out8[value + here] = 0
                if valid >= 0:
                    out8[valid + here] = 0
                pc += WIDTH
                continue
            else:
                if op == END:
                    if pos != end:
                        problem = BEHIND
                    break
                if op == UNION:
                    number, pos = varint(src, pos, end, 64)
                    if pos < 0:
                        problem = VARINT
                        break
                    if number < 0 or number >= code[pc + X]:
                        problem = BRANCH
                        break
                    pc = tables[code[pc + Y] + number]
                    continue
                if op == JUMP:
                    pc = code[pc + X]
                    continue
                if op == ENTER:
                    kept_pos = pos
                    kept_end = end
                    src = pool
                    pos = code[pc + X]
                    end = code[pc + Y]
                elif op == LEAVE:
                    src = data
                    pos = kept_pos
                    end = kept_end
                elif op == SKIP_VARINT:
                    number, pos = varint(src, pos, end, 64)
                    if pos < 0:
                        problem = VARINT
                        break
                elif op == SKIP_BYTES:
                    size, pos = varint(src, pos, end, 64)
                    if pos < 0:
                        problem = VARINT
                        break
                    if size < 0 or size > end - pos:
                        problem = LENGTH
                        break
                    pos += size
                elif op == SKIP:
                    if code[pc + X] > end - pos:
                        problem = CUT
                        break
                    pos += code[pc + X]
                elif op == REFUSE:
                    problem = REFUSED
                    break
                pc += WIDTH
                continue
            if valid >= 0:
                out8[valid + here] = 1
            pc += WIDTH
        problems[row] = problem
        if problem == 0:
            good += 1
    counts[0] = good
    return good
