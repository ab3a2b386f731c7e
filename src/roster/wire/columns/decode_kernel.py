"""Loops over record batches (format v2) and their records, written for numba; the functions also run as plain Python.

`scan` reads the batch headers of each partition's bytes, `fill` the records of the batches that `scan` kept. Both stop
when an output is full, and continue from their state at the next call. Every index is compared with its bound before it
is used, since numba does not check bounds.

Source: Kafka's documentation, "Message Format"; KIP-98 for control records and aborted transactions.
"""

from numba import njit
from numpy import int64

from roster.wire.columns import decode_layout as layout
from roster.wire.columns.checksum_kernel import OPTIONS, crc32c, seal, unsound
from roster.wire.columns.text_kernel import copy, join

__all__ = ["OPTIONS", "fill", "join", "scan", "seal", "unsound"]

_function = njit(**OPTIONS)


@_function
def number(data, pos, size):
    """Read the signed big-endian number of `size` bytes at `pos`."""
    value = int64(data[pos])
    if value > 127:
        value -= 256
    for index in range(pos + 1, pos + size):
        value = (value << 8) | int64(data[index])
    return value


@_function
def varint(data, pos, end, bits):
    """Read a zig-zag varint; return it and its end, -1 if it does not end or has more than `bits` bits."""
    if pos < end:
        byte = int64(data[pos])
        if byte < 128:
            return (byte >> 1) ^ -(byte & 1), pos + 1
    value = int64(0)
    shift = int64(0)
    while pos < end:
        byte = int64(data[pos])
        pos += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if bits == 32 and (value >> 32) != 0:
                break
            if shift == 63 and byte > 1:
                break
            return ((value >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1), pos
        shift += 7
        if shift > 63 or (bits == 32 and shift > 28):
            break
    return int64(0), int64(-1)


@_function
def control_type(data, pos, end):
    """Return the type of a control batch's first record: 0 abort, 1 commit, -1 if it has none."""
    length, pos = varint(data, pos, end, 32)
    if pos < 0 or length < 0 or length > end - pos:
        return int64(-1)
    end = pos + length
    _, pos = varint(data, pos + 1, end, 64)
    if pos < 0:
        return int64(-1)
    _, pos = varint(data, pos, end, 32)
    if pos < 0:
        return int64(-1)
    size, pos = varint(data, pos, end, 32)
    if pos < 0 or size < 4 or size > end - pos:
        return int64(-1)
    return number(data, pos + 2, 2)


@_function
def is_aborted(data, pos, size, last_offset, producers, firsts, active, parts, part):
    """Return 1 for a batch of an aborted transaction, 0 for any other, -1 for a control batch without a type.

    An abort marker ends its producer's transaction. `firsts` are the first offsets of the aborted transactions,
    ascending; `active` marks those that have begun and not ended.
    """
    begun = parts[part + layout.PART_BEGUN]
    while begun < parts[part + layout.PART_ABORTED_END] and firsts[begun] <= last_offset:
        active[begun] = 1
        begun += 1
    parts[part + layout.PART_BEGUN] = begun
    producer = number(data, pos + 43, 8)
    is_control = data[pos + 22] & 32
    if is_control:
        marker = control_type(data, pos + layout.HEADER, pos + size)
        if marker < 0:
            return int64(-1)
        if marker != 0:
            return int64(0)
    for index in range(parts[part + layout.PART_ABORTED], begun):
        if active[index] and producers[index] == producer:
            if is_control:
                active[index] = 0
            else:
                return int64(1)
    return int64(0)


@_function
def scan(data, parts, count, committed, producers, firsts, active, state, table, room):
    """Write the batches with visible records of each part's offsets to `table`; return their number or an error.

    PART_NEXT becomes the offset after the last batch read. A part ends at a batch that is cut off or that begins at or
    after its stop. UNCHECKED marks batches of more than CHECKED_HERE bytes, whose CRC the caller has to check.
    """
    kept = 0
    while state[layout.SCAN_PART] < count and kept < room:
        part = state[layout.SCAN_PART] * layout.PART_FIELDS
        pos, end = parts[part + layout.PART_POS], parts[part + layout.PART_END]
        start, stop = parts[part + layout.PART_START], parts[part + layout.PART_STOP]
        while kept < room and end - pos >= layout.HEADER:
            magic = number(data, pos + 16, 1)
            state[layout.SCAN_DETAIL] = magic
            if magic != 2:
                return layout.BAD_MAGIC
            length = number(data, pos + 8, 4)
            state[layout.SCAN_DETAIL] = length
            if length < layout.HEADER - 12:
                return layout.BAD_LENGTH
            size = length + 12
            if size > end - pos:
                break
            is_small = size <= layout.CHECKED_HERE
            state[layout.SCAN_DETAIL] = pos
            if is_small and crc32c(data, pos + 21, pos + size) != number(data, pos + 17, 4) & 0xFFFFFFFF:
                return layout.BAD_CRC
            base_offset = number(data, pos, 8)
            state[layout.SCAN_DETAIL] = base_offset
            if base_offset < 0:
                return layout.BAD_ORDER
            last_delta = number(data, pos + 23, 4)
            state[layout.SCAN_DETAIL] = last_delta
            if last_delta < 0 or base_offset > 0x7FFFFFFFFFFFFFFF - 0x80000000:
                return layout.BAD_LAST_DELTA
            last_offset = base_offset + last_delta
            records = number(data, pos + 57, 4)
            state[layout.SCAN_DETAIL] = records
            if records < 0 or (records == 0 and size != layout.HEADER):  # compaction leaves empty batches
                return layout.BAD_COUNT
            attributes = number(data, pos + 21, 2)
            state[layout.SCAN_DETAIL] = attributes & 7
            if attributes & 7 > 4:
                return layout.BAD_CODEC
            # The first batch may begin before the requested offset; after it, offsets must ascend.
            state[layout.SCAN_DETAIL] = base_offset
            if parts[part + layout.PART_NEXT] >= 0 and base_offset < parts[part + layout.PART_NEXT]:
                return layout.BAD_ORDER
            # Beyond the range: its existence shows that the range is complete.
            is_beyond = base_offset >= stop
            hidden = int64(0)
            if committed and attributes & 16 and not is_beyond:
                hidden = is_aborted(data, pos, size, last_offset, producers, firsts, active, parts, part)
                if hidden < 0:
                    state[layout.SCAN_DETAIL] = pos
                    return layout.BAD_CONTROL
            is_wanted = not is_beyond and hidden == 0 and not attributes & 32 and last_offset >= start and records > 0
            if is_wanted or not is_small:
                table[kept * layout.BATCH_FIELDS + layout.POS] = pos + layout.HEADER
                table[kept * layout.BATCH_FIELDS + layout.END] = pos + size
                table[kept * layout.BATCH_FIELDS + layout.COUNT] = records if is_wanted else -1
                table[kept * layout.BATCH_FIELDS + layout.BASE_OFFSET] = base_offset
                table[kept * layout.BATCH_FIELDS + layout.LAST_DELTA] = last_delta
                table[kept * layout.BATCH_FIELDS + layout.BASE_TIMESTAMP] = number(data, pos + 27, 8)
                table[kept * layout.BATCH_FIELDS + layout.MAX_TIMESTAMP] = number(data, pos + 35, 8)
                table[kept * layout.BATCH_FIELDS + layout.ATTRIBUTES] = attributes
                table[kept * layout.BATCH_FIELDS + layout.ROWS] = 0
                table[kept * layout.BATCH_FIELDS + layout.START] = start
                table[kept * layout.BATCH_FIELDS + layout.STOP] = stop
                table[kept * layout.BATCH_FIELDS + layout.SOURCE] = parts[part + layout.PART_SOURCE]
                table[kept * layout.BATCH_FIELDS + layout.UNCHECKED] = int64(-1) if is_small else pos
                kept += 1
            if is_beyond:
                parts[part + layout.PART_NEXT], pos = base_offset, end
                break
            parts[part + layout.PART_EPOCH] = number(data, pos + 12, 4)
            pos += size
            parts[part + layout.PART_NEXT] = last_offset + 1
        parts[part + layout.PART_POS] = pos
        if kept < room:
            state[layout.SCAN_PART] += 1
    return kept


@_function
def headers_fit(data, pos, end):
    """Return the number of a record's headers if they fill [pos, end) exactly, else an error."""
    count, pos = varint(data, pos, end, 32)
    if pos < 0:
        return layout.BAD_VARINT
    if count < 0 or count > (end - pos) >> 1:
        return layout.BAD_HEADERS
    for _ in range(count):
        for least in range(0, -2, -1):  # a name, which is never null, and a value
            size, pos = varint(data, pos, end, 32)
            if pos < 0:
                return layout.BAD_VARINT
            if size < least or size > end - pos:
                return layout.BAD_HEADERS
            pos += max(size, 0)
    return count if pos == end else int64(layout.BAD_RECORD_END)


@_function
def fill_headers(data, pos, end, row, state, header_ends, header_bits, name_ends, names, data_ends, datas, data_bits):
    """Append the headers of a record, checked by `headers_fit`; no headers become null, as in Spark's Kafka source."""
    count, pos = varint(data, pos, end, 32)
    header = state[layout.AT_HEADER]
    for _ in range(count):
        size, pos = varint(data, pos, end, 32)
        copy(data, pos, size, names, state[layout.AT_NAME])
        state[layout.AT_NAME] += size
        pos += size
        size, pos = varint(data, pos, end, 32)
        if size >= 0:
            copy(data, pos, size, datas, state[layout.AT_DATA])
            state[layout.AT_DATA] += size
            pos += size
            data_bits[header >> 3] |= 1 << (header & 7)
        else:
            state[layout.DATA_NULLS] += 1
        header += 1
        name_ends[header] = state[layout.AT_NAME]
        data_ends[header] = state[layout.AT_DATA]
    state[layout.AT_HEADER] = header
    header_ends[row + 1] = header
    if count > 0:
        header_bits[row >> 3] |= 1 << (row & 7)
    else:
        state[layout.HEADERS_NULLS] += 1


@_function
def fill(
    data,
    table,
    batches,
    with_headers,
    limits,
    state,
    offsets,
    timestamps,
    key_ends,
    keys,
    key_bits,
    value_ends,
    values,
    value_bits,
    header_ends,
    header_bits,
    name_ends,
    names,
    data_ends,
    datas,
    data_bits,
):
    """Append the records of the batches in `table` to the outputs; return DONE, FULL or an error.

    After FULL, call again with new outputs. Timestamps are written in microseconds, NO_TIME if they do not fit. The
    caller sets the null bits and `*_ends[0]` to zero.
    """
    row = state[layout.AT_ROW]
    key_at = state[layout.AT_KEY]
    value_at = state[layout.AT_VALUE]
    outcome = layout.DONE
    while state[layout.AT_BATCH] < batches:
        batch = state[layout.AT_BATCH]
        count = table[batch * layout.BATCH_FIELDS + layout.COUNT]
        end = table[batch * layout.BATCH_FIELDS + layout.END]
        base_offset = table[batch * layout.BATCH_FIELDS + layout.BASE_OFFSET]
        last_delta = table[batch * layout.BATCH_FIELDS + layout.LAST_DELTA]
        base_timestamp = table[batch * layout.BATCH_FIELDS + layout.BASE_TIMESTAMP]
        max_timestamp = table[batch * layout.BATCH_FIELDS + layout.MAX_TIMESTAMP]
        is_append_time = table[batch * layout.BATCH_FIELDS + layout.ATTRIBUTES] & 8
        start = table[batch * layout.BATCH_FIELDS + layout.START]
        stop = table[batch * layout.BATCH_FIELDS + layout.STOP]
        record = state[layout.AT_RECORD]
        pos = state[layout.AT_POS] if record > 0 else table[batch * layout.BATCH_FIELDS + layout.POS]
        first_row = row
        while record < count:
            state[layout.FILL_DETAIL] = record
            here = pos
            length, pos = varint(data, pos, end, 32)
            if pos < 0:
                return layout.BAD_VARINT
            if length < 0 or length > end - pos:
                return layout.BAD_RECORD_LENGTH
            record_end = pos + length
            timestamp_delta, pos = varint(data, pos + 1, record_end, 64)
            if pos < 0:
                return layout.BAD_VARINT
            offset_delta, pos = varint(data, pos, record_end, 32)
            if pos < 0:
                return layout.BAD_VARINT
            if offset_delta < 0 or offset_delta > last_delta:
                return layout.BAD_OFFSET_DELTA
            key_size, pos = varint(data, pos, record_end, 32)
            if pos < 0:
                return layout.BAD_VARINT
            if key_size < -1 or key_size > record_end - pos:
                return layout.BAD_FIELD
            key_pos = pos
            pos += max(key_size, 0)
            value_size, pos = varint(data, pos, record_end, 32)
            if pos < 0:
                return layout.BAD_VARINT
            if value_size < -1 or value_size > record_end - pos:
                return layout.BAD_FIELD
            value_pos = pos
            pos += max(value_size, 0)
            header_count = int64(0)
            if pos + 1 != record_end or data[pos] != 0:
                header_count = headers_fit(data, pos, record_end)
                if header_count < 0:
                    return header_count
            offset = base_offset + offset_delta
            if offset >= start and offset < stop:
                is_full = row >= limits[layout.MOST_ROWS] or max(key_size, 0) > limits[layout.MOST_KEYS] - key_at
                is_full = is_full or max(value_size, 0) > limits[layout.MOST_VALUES] - value_at
                if with_headers:
                    left = record_end - pos
                    is_full = is_full or header_count > limits[layout.MOST_HEADERS] - state[layout.AT_HEADER]
                    is_full = is_full or left > limits[layout.MOST_NAMES] - state[layout.AT_NAME]
                    is_full = is_full or left > limits[layout.MOST_DATAS] - state[layout.AT_DATA]
                if is_full:
                    pos = here
                    outcome = layout.FULL
                    break
                if with_headers:
                    fill_headers(
                        data,
                        pos,
                        record_end,
                        row,
                        state,
                        header_ends,
                        header_bits,
                        name_ends,
                        names,
                        data_ends,
                        datas,
                        data_bits,
                    )
                if key_size >= 0:
                    copy(data, key_pos, key_size, keys, key_at)
                    key_at += key_size
                    key_bits[row >> 3] |= 1 << (row & 7)
                else:
                    state[layout.KEY_NULLS] += 1
                if value_size >= 0:
                    copy(data, value_pos, value_size, values, value_at)
                    value_at += value_size
                    value_bits[row >> 3] |= 1 << (row & 7)
                else:
                    state[layout.VALUE_NULLS] += 1
                offsets[row] = offset
                stamp = max_timestamp if is_append_time else base_timestamp + timestamp_delta
                timestamps[row] = stamp * 1000 if -layout.LAST_TIME <= stamp <= layout.LAST_TIME else layout.NO_TIME
                row += 1
                key_ends[row] = key_at
                value_ends[row] = value_at
            pos = record_end
            record += 1
        table[batch * layout.BATCH_FIELDS + layout.ROWS] = row - first_row
        state[layout.AT_RECORD] = record
        state[layout.AT_POS] = pos
        if outcome == layout.FULL:
            break
        if count >= 0 and pos != end:
            state[layout.FILL_DETAIL] = count
            return layout.BAD_BATCH_END
        state[layout.AT_RECORD] = 0
        state[layout.AT_BATCH] = batch + 1
    state[layout.AT_ROW] = row
    state[layout.AT_KEY] = key_at
    state[layout.AT_VALUE] = value_at
    return outcome
