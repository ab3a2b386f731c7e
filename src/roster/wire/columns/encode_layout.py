"""Indexes into arrays and signatures that the compiled encoding loops share with their callers."""

RECORD_OVERHEAD = 36
"""Maximum size of a record without headers, key and value: six varints (one of 64 bits, the timestamp) and one byte."""
HEADER_OVERHEAD = 10

# State of `place`: the partition for rows without a key, the bytes it still gets, and the row of an error.
STICKY, STICKY_LEFT, PLACE_DETAIL = range(3)
PLACE_STATE = 3
DONE, BAD_PARTITION = 0, -1

# State of `encode`: bytes written, first and latest timestamp.
AT, BASE_TIMESTAMP, MAX_TIMESTAMP = range(3)
ENCODE_STATE = 3

SIGNATURES = {
    "place": "- int32 uint8 uint8 int32 uint8 uint8 - int32 uint8 int32 uint8 int32 uint8 uint8 int32 - - int64 int32 "
    "int64 int64 int64",
    "encode": "int64 - - - int32 uint8 uint8 int32 uint8 uint8 - int32 uint8 int32 uint8 int32 uint8 uint8 int64 int64 "
    "uint8 int64",
}
"""Parameters of the loops, in their order: arrays by the type of their elements, and numbers (-)."""
