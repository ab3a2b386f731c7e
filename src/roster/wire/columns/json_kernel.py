"""Loops over JSON objects of flat fields, written for numba; they also run as plain Python.

They read what is JSON beyond doubt and fits its column. Any other object is odd: the caller reads it in its own way, so
that there is one meaning of malformed values, of other types and of repeated names. Every index is compared with its
bound before it is used, since numba does not check bounds.

Source: RFC 8259. A quotient or product of two exact numbers is rounded once: W. Clinger, "How to Read Floating Point
Numbers Accurately"; digits up to 2^53 and powers of ten up to 22 are exact, for a float 2^24 and 10. Days: H. Hinnant,
"chrono-Compatible Low-Level Date Algorithms".
"""

import numpy as np
from numba import njit
from numpy import int64

from roster.wire.columns import json_layout as layout
from roster.wire.columns.checksum_kernel import OPTIONS
from roster.wire.columns.offsets_kernel import is_utf8

__all__ = ["OPTIONS", "json_cells", "json_texts"]

_function = njit(**OPTIONS)

_QUOTE, _COMMA, _COLON, _OPEN, _CLOSE, _BRACKET, _ESCAPE = (ord(character) for character in '",:{}[\\')
_MINUS, _POINT, _ZERO = (ord(character) for character in "-.0")
_PLAIN = np.array([byte > 31 and byte < 128 and byte not in b'"\\' for byte in range(256)], np.uint8)
"""Bytes that stand for themselves in a text."""
_ESCAPED = np.zeros(256, np.uint8)
_ESCAPED[list(b'"\\/bfnrt')] = list(b'"\\/\b\f\n\r\t')
_POWERS = np.array([float(f"1e{power}") for power in range(23)])
_DAYS = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)
_DEEPEST = 60
_DAY_US = 86_400_000_000
_NONE = -0x8000000000000000
"""No day, no moment."""


@_function
def behind_space(data, pos, end):
    """Return where something else than white space begins."""
    while pos < end and (data[pos] == 32 or data[pos] == 10 or data[pos] == 13 or data[pos] == 9):
        pos += 1
    return pos


@_function
def hexadecimal(data, pos, end):
    """Return the number of four hexadecimal digits, -1 if there are none."""
    if end - pos < 4:
        return int64(-1)
    code = int64(0)
    for index in range(pos, pos + 4):
        digit = int64(data[index])
        if 48 <= digit <= 57:
            digit -= 48
        elif 97 <= digit | 32 <= 102:
            digit = (digit | 32) - 87
        else:
            return int64(-1)
        code = code << 4 | digit
    return code


@_function
def character(data, pos, end):
    """Return the character of the escape at `pos`, and where it ends; -1 if it is odd: none, half a pair, or zero."""
    if end - pos < 2:
        return int64(0), int64(-1)
    letter = data[pos + 1]
    if letter != 117:
        return int64(_ESCAPED[letter]), int64(pos + 2 if _ESCAPED[letter] else -1)
    code = hexadecimal(data, pos + 2, end)
    if code <= 0 or 0xDC00 <= code < 0xE000:
        return int64(0), int64(-1)
    pos += 6
    if 0xD800 <= code < 0xDC00:
        if end - pos < 2 or data[pos] != _ESCAPE or data[pos + 1] != 117:
            return int64(0), int64(-1)
        low = hexadecimal(data, pos + 2, end)
        if low < 0xDC00 or low >= 0xE000:
            return int64(0), int64(-1)
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
        pos += 6
    return code, int64(pos)


@_function
def text_end(data, pos, end):
    """Return the place of the quote that ends the text at `pos`, -1 if it is odd, and its bytes without escapes."""
    begin = pos
    size = int64(0)
    high = False
    while pos < end:
        byte = data[pos]
        if _PLAIN[byte]:
            pos += 1
            size += 1
        elif byte == _QUOTE:
            if high and is_utf8(data, begin, pos) == 0:
                return int64(-1), size
            return int64(pos), size
        elif byte == _ESCAPE:
            code, pos = character(data, pos, end)
            if pos < 0:
                return int64(-1), size
            size += 1 + (code > 0x7F) + (code > 0x7FF) + (code > 0xFFFF)
        elif byte < 32:
            return int64(-1), size
        else:
            high = True
            pos += 1
            size += 1
    return int64(-1), size


@_function
def named(data, pos, end):
    """Return where the name ends that begins behind `pos`, its bytes without escapes, and where its value begins.

    The value's place is -1 if it is odd.
    """
    if pos >= end or data[pos] != _QUOTE:
        return int64(0), int64(0), int64(-1)
    stop, size = text_end(data, pos + 1, end)
    if stop < 0:
        return int64(0), int64(0), int64(-1)
    pos = behind_space(data, stop + 1, end)
    if pos >= end or data[pos] != _COLON:
        return int64(0), int64(0), int64(-1)
    return stop, size, int64(behind_space(data, pos + 1, end))


@_function
def word_end(data, pos, end):
    """Return the end of `true`, `false` or `null`, -1 if there is none."""
    if end - pos >= 4:
        first = data[pos]
        if first == 116 and data[pos + 1] == 114 and data[pos + 2] == 117 and data[pos + 3] == 101:
            return int64(pos + 4)
        if first == 110 and data[pos + 1] == 117 and data[pos + 2] == 108 and data[pos + 3] == 108:
            return int64(pos + 4)
        is_fals = first == 102 and data[pos + 1] == 97 and data[pos + 2] == 108 and data[pos + 3] == 115
        if is_fals and end - pos >= 5 and data[pos + 4] == 101:
            return int64(pos + 5)
    return int64(-1)


@_function
def digits_from(data, pos, end, value):
    """Return an integer with the digits at `pos` appended, and where they end."""
    while pos < end and 48 <= data[pos] <= 57:
        value = value * 10 + (int64(data[pos]) - 48)
        pos += 1
    return value, pos


@_function
def number(data, pos, end):
    """Return the end of a number, -1 if there is none, its digits as an integer, their count and the power of ten.

    The integer is right for up to 18 digits, and for 19 if it is not negative.
    """
    digits = int64(0)
    power = int64(0)
    if pos < end and data[pos] == _MINUS:
        pos += 1
    first = pos
    digits, pos = digits_from(data, first, end, digits)
    count = int64(pos - first)
    if count == 0 or (count > 1 and data[first] == _ZERO):
        return int64(-1), digits, count, power
    if pos < end and data[pos] == _POINT:
        pos += 1
        first = pos
        digits, pos = digits_from(data, first, end, digits)
        power = int64(first - pos)
        count -= power
        if power == 0:
            return int64(-1), digits, count, power
    if pos < end and int64(data[pos]) | 32 == 101:
        pos += 1
        is_less = pos < end and data[pos] == _MINUS
        if pos < end and (is_less or data[pos] == 43):
            pos += 1
        first = pos
        exponent, pos = digits_from(data, first, min(end, first + 5), int64(0))
        if pos == first or pos - first == 5:
            return int64(-1), digits, count, power
        power += -exponent if is_less else exponent
    return int64(pos), digits, count, power


@_function
def skipped(data, pos, end):
    """Return the end of any value, -1 if it is odd."""
    depth = 0
    are_objects = int64(0)  # a bit for each list or object that is open
    while pos < end:
        byte = int64(data[pos])
        if byte == _OPEN or byte == _BRACKET:
            if depth == _DEEPEST:
                return int64(-1)
            pos = behind_space(data, pos + 1, end)
            if pos < end and data[pos] == byte + 2:
                pos += 1
            else:
                depth += 1
                are_objects = are_objects << 1 | (byte == _OPEN)
                if byte == _OPEN:
                    _, _, pos = named(data, pos, end)
                    if pos < 0:
                        return int64(-1)
                continue
        elif byte == _QUOTE:
            stop, _ = text_end(data, pos + 1, end)
            if stop < 0:
                return int64(-1)
            pos = stop + 1
        elif byte == _MINUS or 48 <= byte <= 57:
            pos, _, count, _ = number(data, pos, end)
            if pos < 0 or count > 60:
                return int64(-1)
        else:
            pos = word_end(data, pos, end)
            if pos < 0:
                return int64(-1)
        while depth > 0:
            pos = behind_space(data, pos, end)
            if pos >= end:
                return int64(-1)
            byte = int64(data[pos])
            pos += 1
            if byte == _COMMA:
                pos = behind_space(data, pos, end)
                if are_objects & 1:
                    _, _, pos = named(data, pos, end)
                    if pos < 0:
                        return int64(-1)
                break
            if byte != (_CLOSE if are_objects & 1 else _BRACKET + 2):
                return int64(-1)
            depth -= 1
            are_objects >>= 1
        if depth == 0:
            return int64(pos)
    return int64(-1)


@_function
def two(data, pos):
    """Return the number of two digits, far below zero if they are none."""
    high = int64(data[pos]) - 48
    low = int64(data[pos + 1]) - 48
    return 10 * high + low if 0 <= high <= 9 and 0 <= low <= 9 else int64(-1_000_000)


@_function
def day(data, pos):
    """Return the days since 1970 of the ten bytes YYYY-MM-DD, _NONE if they are not a date."""
    year = 100 * two(data, pos) + two(data, pos + 2)
    month = two(data, pos + 5)
    date = two(data, pos + 8)
    if year < 1 or month < 1 or month > 12 or date < 1 or data[pos + 4] != _MINUS or data[pos + 7] != _MINUS:
        return int64(_NONE)
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if date > _DAYS[month - 1] + (month == 2 and is_leap):
        return int64(_NONE)
    if month <= 2:
        year -= 1
        month += 12
    in_era = year % 400
    of_year = (153 * (month - 3) + 2) // 5 + date - 1
    return year // 400 * 146097 + in_era * 365 + in_era // 4 - in_era // 100 + of_year - 719468


@_function
def moment(data, pos, end, is_instant):
    """Return microseconds since 1970 of [pos, end): YYYY-MM-DD, or with T or a space hh:mm:ss, a fraction, and Z."""
    days = day(data, pos) if end - pos >= 10 else int64(_NONE)
    if days == _NONE or end - pos == 10:
        return days if days == _NONE else days * _DAY_US
    if end - pos < 19 or (data[pos + 10] != 84 and data[pos + 10] != 32):
        return int64(_NONE)
    hour = two(data, pos + 11)
    minute = two(data, pos + 14)
    second = two(data, pos + 17)
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return int64(_NONE)
    if data[pos + 13] != _COLON or data[pos + 16] != _COLON:
        return int64(_NONE)
    pos += 19
    fraction = int64(0)
    if pos < end and data[pos] == _POINT:
        pos += 1
        first = pos
        fraction, pos = digits_from(data, first, end, fraction)
        if pos == first or pos - first > 6:
            return int64(_NONE)
        for _ in range(6 - (pos - first)):
            fraction *= 10
    if is_instant and pos < end and data[pos] == 90:
        pos += 1
    if pos != end:
        return int64(_NONE)
    return days * _DAY_US + ((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction


@_function
def cell(data, pos, end, kind, most, place, cells, doubles, has):
    """Write the value at `pos`; return its end, -1 if it is odd. A name that had a value before is odd."""
    if pos >= end or has[place] != layout.NULL:
        return int64(-1)
    if data[pos] == 110:
        return word_end(data, pos, end)
    if kind >= layout.TEXT:
        if data[pos] != _QUOTE:
            return int64(-1)
        begin = pos + 1
        pos, size = text_end(data, begin, end)
        if pos < 0:
            return int64(-1)
        if kind == layout.TEXT:
            cells[place] = begin << layout.LENGTH_BITS | size
        else:
            if kind != layout.DATE:
                time = moment(data, begin, pos, kind == layout.INSTANT)
            else:
                time = day(data, begin) if pos - begin == 10 else int64(_NONE)
            if time == _NONE:
                return int64(-1)
            cells[place] = time
        has[place] = layout.VALUE
        return int64(pos + 1)
    if kind == layout.BOOLEAN:
        cells[place] = data[pos] == 116
        has[place] = layout.VALUE
        return word_end(data, pos, end)
    begin = pos
    pos, digits, count, power = number(data, begin, end)
    if pos < 0:
        return int64(-1)
    is_negative = data[begin] == _MINUS
    is_whole = count <= 19 and 0 <= digits <= most
    if kind == layout.INTEGER:
        if not is_whole or count + is_negative != pos - begin:
            return int64(-1)
        cells[place] = -digits if is_negative else digits
    elif is_whole and -22 <= power <= 22 and (kind == layout.DOUBLE or -10 <= power <= 10):
        value = digits / _POWERS[-power] if power < 0 else digits * _POWERS[power]
        doubles[place] = -1.0 * value if is_negative else value
    else:
        reach = 250 if kind == layout.DOUBLE else 30  # no larger or smaller than the column can hold
        if count > 60 or power < -reach or power + count > reach:
            return int64(-1)
        cells[place] = begin << layout.LENGTH_BITS | (pos - begin)
        has[place] = layout.SPAN
        return int64(pos)
    has[place] = layout.VALUE
    return int64(pos)


@_function
def column_of(data, pos, end, names, name_ends, table, mask):
    """Return the column of a name, -1 for an unknown name."""
    code = int64(0)
    for index in range(pos, end):
        code = code * 33 ^ int64(data[index])
    code &= mask
    while table[code] >= 0:
        column = int64(table[code])
        begin = int64(name_ends[column])
        left = int64(name_ends[column + 1]) - begin
        if left == end - pos:
            while left > 0 and names[begin + left - 1] == data[pos + left - 1]:
                left -= 1
            if left == 0:
                return column
        code = (code + 1) & mask
    return int64(-1)


@_function
def row_of(data, pos, end, row, rows, names, name_ends, table, mask, kinds, most, cells, doubles, has):
    """Write the cells of the object at [pos, end); return 0 if it is odd."""
    pos = behind_space(data, pos, end)
    if pos >= end or data[pos] != _OPEN:
        return int64(0)
    pos = behind_space(data, pos + 1, end)
    if pos < end and data[pos] == _CLOSE:
        return int64(behind_space(data, pos + 1, end) == end)
    while True:
        begin = pos + 1
        stop, size, pos = named(data, pos, end)
        if pos < 0 or size != stop - begin:
            return int64(0)
        column = column_of(data, begin, stop, names, name_ends, table, mask)
        if column < 0:
            pos = skipped(data, pos, end)
        else:
            pos = cell(data, pos, end, kinds[column], most[column], column * rows + row, cells, doubles, has)
        if pos < 0:
            return int64(0)
        pos = behind_space(data, pos, end)
        if pos >= end or (data[pos] != _COMMA and data[pos] != _CLOSE):
            return int64(0)
        if data[pos] == _CLOSE:
            return int64(behind_space(data, pos + 1, end) == end)
        pos = behind_space(data, pos + 1, end)


@_function
def json_cells(rows, ends, data, given, names, name_ends, table, mask, columns, kinds, most, cells, doubles, has, odd):
    """Write the cells of each object, column after column, and which objects are odd; return how many.

    The caller sets `cells` and `has` to zero. A row that is not given, or odd, has none.
    """
    count = int64(0)
    for row in range(rows):
        odd[row] = 0
        if not given[row]:
            continue
        pos = int64(ends[row])
        end = int64(ends[row + 1])
        if row_of(data, pos, end, row, rows, names, name_ends, table, mask, kinds, most, cells, doubles, has):
            continue
        for column in range(columns):
            cells[column * rows + row] = 0
            has[column * rows + row] = layout.NULL
        odd[row] = 1
        count += 1
    return count


@_function
def json_texts(rows, cells, ends, data, out):
    """Write the texts of a column's spans, to end at `ends[1:]`; return the bytes written."""
    written = int64(0)
    for row in range(rows):
        pos = cells[row] >> layout.LENGTH_BITS
        end = int64(ends[row + 1])
        while written < end:
            byte = int64(data[pos])
            if byte != _ESCAPE:
                out[written] = byte
                written += 1
                pos += 1
                continue
            code, pos = character(data, pos, pos + 12)
            if code < 0x80:
                out[written] = code
                written += 1
                continue
            more = 1 + (code > 0x7FF) + (code > 0xFFFF)
            out[written] = (0xFF00 >> more + 1 & 0xFF) | code >> 6 * more
            for index in range(1, more + 1):
                out[written + index] = 0x80 | (code >> 6 * (more - index) & 63)
            written += more + 1
    return written
