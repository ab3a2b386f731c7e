"""The loop that encodes columns as Avro values, which interprets their schema as a program, written for numba.

All arrays of the columns lie in one memory, and the caller has made room for the largest result, so nothing is checked.

Source: Apache Avro 1.12, Specification, "Binary Encoding".
"""

from numba import njit
from numpy import int64

from roster.wire.columns import avro_encode_layout as layout
from roster.wire.columns.decode_kernel import OPTIONS
from roster.wire.columns.encode_kernel import put_varint
from roster.wire.columns.text_kernel import copy

__all__ = ["OPTIONS", "avro_encode"]

_function = njit(**OPTIONS)


@_function
def put_decimal(data, place, size, out, pos):
    """Write the little-endian number of 16 bytes as a big-endian one of `size`; return its end, 0 if it does not fit.

    A size of -1 stands for a length and the fewest bytes.
    """
    sign = int64(255) if data[place + 15] > 127 else int64(0)
    least = 16
    while least > 1 and data[place + least - 1] == sign and (data[place + least - 2] ^ sign) < 128:
        least -= 1
    if size < 0:
        size = least
        pos = put_varint(out, pos, int64(size))
    elif size < least:
        return int64(0)
    for index in range(size):
        number = size - 1 - index
        out[pos + index] = data[place + number] if number < 16 else sign
    return pos + size


@_function
def avro_encode(rows, pool, code, counts, ends, data8, data32, data64, out, offsets, state):
    """Write each row behind the prefix at the beginning of the pool, and its end to `offsets`; return 0.

    A row that cannot be written ends the loop, which returns -1 for a null and -2 for another size; `state` then has
    the place of the instruction.
    """
    pos = int64(0)
    prefix = state[0]
    for row in range(rows):
        copy(pool, 0, prefix, out, pos)
        pos += prefix
        counts[0] = row
        pc = int64(0)
        while code[pc + layout.OP] != layout.END:
            op = code[pc + layout.OP]
            here = counts[code[pc + layout.DIM]]
            valid = code[pc + layout.VALID]
            value = code[pc + layout.VALUE]
            size = code[pc + layout.X]
            if valid >= 0 and data8[valid + here] == 0:
                if code[pc + layout.NULL] == -1:
                    state[0] = pc
                    return -1
                if code[pc + layout.NULL] >= 0:
                    out[pos] = code[pc + layout.NULL]
                    pos += 1
                pc = code[pc + layout.BEHIND]
                continue
            if code[pc + layout.BRANCH] >= 0:
                out[pos] = code[pc + layout.BRANCH]
                pos += 1
            if op == layout.LONG:
                pos = put_varint(out, pos, data64[value + here])
            elif op == layout.INT:
                pos = put_varint(out, pos, int64(data32[value + here]))
            elif op == layout.BYTES:
                begin = int64(data32[value + here])
                length = int64(data32[value + here + 1]) - begin
                if size < 0:
                    pos = put_varint(out, pos, length)
                elif size != length:
                    state[0] = pc
                    return -2
                copy(data8, code[pc + layout.DATA] + begin, length, out, pos)
                pos += length
            elif op == layout.PLAIN:
                copy(data8, value + size * here, size, out, pos)
                pos += size
            elif op == layout.DECIMAL:
                end = put_decimal(data8, value + 16 * here, size, out, pos)
                if end == 0:
                    state[0] = pc
                    return -2
                pos = end
            elif op == layout.CONSTANT:
                copy(pool, value, size, out, pos)
                pos += size
            elif op == layout.LIST:
                counts[size] = data32[value + here]
                ends[size] = data32[value + here + 1]
                if counts[size] == ends[size]:
                    out[pos] = 0
                    pos += 1
                    pc = code[pc + layout.BEHIND]
                    continue
                pos = put_varint(out, pos, ends[size] - counts[size])
            elif op == layout.NEXT:
                counts[size] += 1
                if counts[size] < ends[size]:
                    pc = code[pc + layout.BEHIND]
                    continue
                out[pos] = 0
                pos += 1
            pc += layout.WIDTH
        offsets[row + 1] = pos
    return 0
