"""Indexes into arrays, error codes and signatures that the compiled reading loops share with their callers.

Separate from `decode_kernel`, which imports numba (0.4 s): a process that loads cached machine code needs no numba.
"""

HEADER = 61
CHECKED_HERE = 400
"""Up to this size in bytes, `scan` checks a batch's CRC itself; above it, calling google-crc32c is cheaper."""

# A row of the table of batches. POS and END delimit the records, in the response or after decompression; records of
# offsets in [START, STOP) are read; SOURCE is the caller's number of the partition.
POS, END, COUNT, BASE_OFFSET, LAST_DELTA, BASE_TIMESTAMP, MAX_TIMESTAMP, ATTRIBUTES, ROWS, UNCHECKED = range(10)
START, STOP, SOURCE = range(10, 13)
BATCH_FIELDS = 13

# A row of the parts that `scan` reads, one a partition: its bytes, its offsets [PART_START, PART_STOP), the caller's
# number; the span of its aborted transactions, and up to where these have begun; what was found.
PART_POS, PART_END, PART_START, PART_STOP, PART_SOURCE = range(5)
PART_ABORTED, PART_ABORTED_END, PART_BEGUN, PART_NEXT, PART_EPOCH = range(5, 10)
PART_FIELDS = 10

# State of `scan`, kept between calls: the part it is at, and the number in an error's text.
SCAN_PART, SCAN_DETAIL = range(2)
SCAN_STATE = 2

# State of `fill`: position of the next record, then rows and bytes written, then nulls counted.
AT_BATCH, AT_RECORD, AT_POS, AT_ROW, AT_KEY, AT_VALUE, AT_HEADER, AT_NAME, AT_DATA, FILL_DETAIL = range(10)
KEY_NULLS, VALUE_NULLS, HEADERS_NULLS, DATA_NULLS = range(10, 14)
FILL_STATE = 14

DONE, FULL = 0, 1

LAST_TIME, NO_TIME = (2**63 - 1) // 1000, -(2**63)
"""The greatest time of a record, in ms, that fits microseconds; what is written for one that does not fit."""

ERRORS = {
    -1: "record batch: magic {}, only 2 is supported; the format is older than Kafka 0.11",
    -2: "record batch: batch_length {}",
    -3: "record batch: last_offset_delta {}",
    -4: "record batch: records_count {}",
    -5: "record batch: base_offset {} is behind the batch before it",
    -6: "record batch: the CRC does not match its bytes (batch at byte {})",
    -7: "record batch: attributes: compression {}",
    -8: "record: a varint that does not end (record {} of its batch)",
    -9: "record: length beyond the bytes left (record {} of its batch)",
    -10: "record: offset_delta beyond the batch's last (record {} of its batch)",
    -11: "record: key or value longer than the record (record {} of its batch)",
    -12: "record: headers that do not fit (record {} of its batch)",
    -13: "record: bytes behind its headers (record {} of its batch)",
    -14: "record batch: bytes behind its last record (after {} records)",
    -15: "record batch: a control record without a type (batch at byte {})",
}
(
    BAD_MAGIC,
    BAD_LENGTH,
    BAD_LAST_DELTA,
    BAD_COUNT,
    BAD_ORDER,
    BAD_CRC,
    BAD_CODEC,
    BAD_VARINT,
    BAD_RECORD_LENGTH,
    BAD_OFFSET_DELTA,
    BAD_FIELD,
    BAD_HEADERS,
    BAD_RECORD_END,
    BAD_BATCH_END,
    BAD_CONTROL,
) = ERRORS

MOST_ROWS, MOST_KEYS, MOST_VALUES, MOST_HEADERS, MOST_NAMES, MOST_DATAS = range(6)
LIMITS = 6
"""Sizes of the outputs of `fill`: rows, bytes of keys and values, headers, bytes of their names and values."""

SIGNATURES = {
    "seal": "- int64 uint8 int64 uint8 int64 uint8",
    "unsound": "- int64 uint8 int64 uint8 -",
    "join": "- uint8 - int64 uint8 int64 uint8",
    "scan": "uint8 int64 - - int64 int64 uint8 int64 int64 -",
    "fill": "uint8 int64 - - int64 int64 int64 int64 int32 uint8 uint8 int32 uint8 uint8 int32 uint8 int32 uint8 "
    "int32 uint8 uint8",
}
"""Parameters of the loops, in their order: arrays by the type of their elements, and numbers (-)."""
