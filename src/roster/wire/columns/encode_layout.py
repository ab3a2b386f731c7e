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

_COLUMNS = {
    "key_ends": "int32",
    "keys": "uint8",
    "key_valid": "uint8",
    "value_ends": "int32",
    "values": "uint8",
    "value_valid": "uint8",
    "with_headers": None,
    "header_ends": "int32",
    "header_valid": "uint8",
    "name_ends": "int32",
    "names": "uint8",
    "data_ends": "int32",
    "datas": "uint8",
    "data_valid": "uint8",
}

SIGNATURES: dict[str, dict[str, str | None]] = {
    "place": {
        "rows": None,
        **_COLUMNS,
        "given": "int32",
        "partitions": None,
        "sticky_bytes": None,
        "state": "int64",
        "places": "int32",
        "sizes": "int64",
        "starts": "int64",
        "order": "int64",
    },
    "encode": {
        "order": "int64",
        "start": None,
        "stop": None,
        "limit": None,
        **_COLUMNS,
        "timestamps": "int64",
        "sizes": "int64",
        "out": "uint8",
        "state": "int64",
    },
}
"""Parameters of the compiled functions: arrays by the type of their elements, and numbers (None)."""
