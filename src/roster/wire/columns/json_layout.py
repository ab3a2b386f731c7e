"""Kinds of columns and signatures that the loops over JSON objects share with their callers."""

INTEGER, DOUBLE, FLOAT, BOOLEAN, TEXT, DATE, MOMENT, INSTANT = range(8)
"""Kinds of columns. From TEXT on values are texts in JSON. MOMENT: without a time zone, INSTANT: in UTC."""
NULL, VALUE, SPAN = range(3)
"""Content of a cell: nothing, its value, or the span of a number for another reader."""
LENGTH_BITS = 32
"""A span is the place of its first byte, shifted by so many bits, and its length. A text's is that of its bytes without
escapes."""

SIGNATURES = {
    "json_cells": "- int32 uint8 uint8 uint8 int32 int32 - - uint8 int64 int64 float64 uint8 uint8",
    "json_texts": "- int64 int32 uint8 uint8",
}
"""Parameters of the loops, in their order: arrays by the type of their elements, and numbers (-). `cells` and `doubles`
are one memory."""
