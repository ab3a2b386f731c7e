"""A loop over Avro values that interprets the schema as a program, written for numba.

Each value goes through its writer's instructions, which read its bytes and append to the columns' arrays. What a list
or a text has appended so far is the end of its last one, so a value that is refused midway is undone by its row of
nulls, which is made at the same places. Every index is compared with its bound before it is used, since numba does not
check bounds.

Source: Apache Avro 1.12, Specification, "Binary Encoding".
"""

from numba import njit
from numpy import int64

from roster.wire.columns import avro_layout as layout
from roster.wire.columns.decode_kernel import OPTIONS, varint
from roster.wire.columns.offsets_kernel import is_utf8

__all__ = ["OPTIONS", "avro"]

_function = njit(**OPTIONS)
_LEAST = -0x8000000000000000
_MOST = 0x7FFFFFFFFFFFFFFF


@_function
def little(data, pos, size):
    """Read the little-endian number of `size` bytes at `pos`, as its bits."""
    value = int64(0)
    for index in range(size):
        value |= int64(data[pos + index]) << (8 * index)
    return value


@_function
def decimal(data, pos, size, out, place, bounds, bound):
    """Write the big-endian number of `size` bytes as two numbers to `out[place:]`; return 0 if it exceeds the bound."""
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
    out[place] = low
    out[place + 1] = high
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
def avro(
    rows,
    nulls,
    data,
    begins,
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
    problems,
):
    """Append a row for each of the values at [starts, ends) of `data`, by the program that begins there; return 0.

    `problems` gets 0 or a problem for each; the row of one that is refused is made by the program at `nulls`. The
    caller sets the first offset of each text and list to zero.
    """
    for row in range(rows):
        src = data
        pos = starts[row]
        end = ends[row]
        kept_pos = pos
        kept_end = end
        counts[0] = row
        problems[row] = 0
        pc = begins[row]
        while True:
            problem = 0
            while problem == 0:
                op = code[pc + layout.OP]
                mode = code[pc + layout.MODE]
                here = counts[code[pc + layout.DIM]]
                valid = code[pc + layout.VALID]
                value = code[pc + layout.VALUE]
                if mode != 0:
                    branch = int64(0)
                    if mode != layout.NULL:
                        branch, pos = varint(src, pos, end, 64)
                        if pos < 0 or branch < 0 or branch > 1:
                            problem = layout.BRANCH
                            break
                    if (branch == 0) == (mode != layout.NULL_LAST):
                        width = code[pc + layout.SIZE]
                        if width == 8:
                            out64[value + here] = 0
                        elif width == 0:
                            out32[value + here + 1] = out32[value + here]
                        elif width == 4:
                            out32[value + here] = 0
                        elif width == 1:
                            out8[value + here] = 0
                        elif width == 16:
                            out64[value + 2 * here] = 0
                            out64[value + 2 * here + 1] = 0
                        if valid >= 0:
                            out8[valid + here] = 0
                        pc += layout.WIDTH
                        continue
                if op <= layout.SKIP_VARINT:
                    number, pos = varint(src, pos, end, 64)
                    if pos < 0 or (op <= layout.ENUM and number != number << 32 >> 32):
                        problem = layout.VARINT
                        break
                    if op == layout.LONG:
                        out64[value + here] = number
                    elif op == layout.INT:
                        out32[value + here] = number
                    elif op == layout.LONG_TO_DOUBLE:
                        float64[value + here] = number
                    elif op == layout.LONG_TO_FLOAT:
                        float32[value + here] = number
                    elif op == layout.SCALED:
                        most = _MOST // code[pc + layout.X]
                        if number > most or number < -most:
                            problem = layout.DIGITS
                            break
                        out64[value + here] = number * code[pc + layout.X]
                    elif op == layout.ENUM:
                        if number < 0 or number >= code[pc + layout.X] or tables[code[pc + layout.Y] + number] < 0:
                            problem = layout.SYMBOL
                            break
                        out32[value + here] = tables[code[pc + layout.Y] + number]
                    elif op == layout.UNION:
                        if number < 0 or number >= code[pc + layout.X]:
                            problem = layout.BRANCH
                            break
                        pc = tables[code[pc + layout.Y] + number]
                        continue
                elif op <= layout.SKIP:
                    size = code[pc + layout.X]
                    if op <= layout.SKIP_BYTES:
                        size, pos = varint(src, pos, end, 64)
                        if pos < 0:
                            problem = layout.VARINT
                            break
                    if size < 0 or size > end - pos:
                        problem = layout.LENGTH if op <= layout.SKIP_BYTES else layout.CUT
                        break
                    if op == layout.TEXT or op == layout.BYTES or op == layout.FIXED:
                        begin = int64(out32[value + here])
                        place = code[pc + layout.DATA] + begin
                        high = 0
                        for index in range(size):
                            byte = src[pos + index]
                            out8[place + index] = byte
                            high |= byte
                        if op == layout.TEXT and high > 127 and is_utf8(src, pos, pos + size) == 0:
                            problem = layout.NOT_TEXT
                            break
                        out32[value + here + 1] = begin + size
                    elif op == layout.DOUBLE:
                        out64[value + here] = little(src, pos, 8)
                    elif op == layout.BOOLEAN:
                        if src[pos] > 1:
                            problem = layout.FLAG
                            break
                        out8[value + here] = src[pos]
                    elif op == layout.FLOAT:
                        out32[value + here] = little(src, pos, 4) << 32 >> 32
                    elif op == layout.FLOAT_TO_DOUBLE:
                        out32[2 * (value + here)] = little(src, pos, 4) << 32 >> 32
                        float64[value + here] = float32[2 * (value + here)]
                    elif op == layout.DECIMAL or op == layout.FIXED_DECIMAL:
                        fits = decimal(src, pos, size, out64, value + 2 * here, tables, code[pc + layout.Y])
                        if fits == 0:
                            problem = layout.DIGITS
                            break
                    pos += size
                elif op == layout.LIST or op == layout.NEXT:
                    if op == layout.NEXT:
                        if value >= 0:
                            counts[code[pc + layout.X]] += 1
                        left[code[pc + layout.X]] -= 1
                        other = code[pc + layout.Y]  # of the first item
                        behind = pc + layout.WIDTH
                    else:
                        if value >= 0:
                            counts[code[pc + layout.X]] = out32[value + here]
                        left[code[pc + layout.X]] = 0
                        other = pc + layout.WIDTH
                        behind = code[pc + layout.Y]
                    if left[code[pc + layout.X]] == 0:
                        count, pos = varint(src, pos, end, 64)
                        if pos < 0:
                            problem = layout.VARINT
                            break
                        least = code[pc + layout.DATA]
                        if count < 0:
                            size, pos = varint(src, pos, end, 64)
                            if pos < 0:
                                problem = layout.VARINT
                                break
                            if size < 0 or size > end - pos or count == _LEAST:
                                problem = layout.LENGTH
                                break
                            count = -count
                            if value < 0:
                                pos += size
                                pc = pc if op == layout.NEXT else behind - layout.WIDTH
                                left[code[pc + layout.X]] = 1
                                continue
                        if count == 0:
                            if value < 0:
                                pc = behind
                                continue
                            out32[value + here + 1] = counts[code[pc + layout.X]]
                            if valid >= 0:
                                out8[valid + here] = 1
                            pc = behind
                            continue
                        if least > 0 and count > (end - pos) // least:
                            problem = layout.ITEMS
                            break
                        left[code[pc + layout.X]] = count if least > 0 else 1
                    pc = other
                    continue
                elif op == layout.JUMP:
                    pc = code[pc + layout.X]
                    continue
                elif op == layout.ENTER:
                    kept_pos = pos
                    kept_end = end
                    src = pool
                    pos = code[pc + layout.X]
                    end = code[pc + layout.Y]
                elif op == layout.LEAVE:
                    src = data
                    pos = kept_pos
                    end = kept_end
                elif op == layout.REFUSE:
                    problem = layout.REFUSED
                    break
                elif op == layout.END:
                    if pos != end:
                        problem = layout.BEHIND
                    break
                if valid >= 0:
                    out8[valid + here] = 1
                pc += layout.WIDTH
            if problem == 0:
                break
            problems[row] = problem
            pos = end
            pc = nulls
    return 0
