"""Kinds of columns and signatures that the loops over JSON objects share with their callers."""

INTEGER, DOUBLE, FLOAT, BOOLEAN, TEXT, DATE, MOMENT, INSTANT = range(8)
"""Kinds of columns. From TEXT on values are texts in JSON. MOMENT: without a time zone, INSTANT: in UTC."""
NULL, VALUE, SPAN = range(3)
"""Content of a cell: nothing, its value, or the span of a number for another reader."""
LENGTH_BITS = 32
"""A span is the place of its first byte, shifted by so many bits, and its length. A text's is that of its bytes without
escapes."""

SIGNATURES: dict[str, dict[str, str | None]] = {
    "json_cells": {
        "rows": None,
        "ends": "int32",
        "data": "uint8",
        "given": "uint8",
        "names": "uint8",
        "name_ends": "int32",
        "table": "int32",
        "mask": None,
        "columns": None,
        "kinds": "uint8",
        "most": "int64",
        "cells": "int64",
        "doubles": "float64",
        "has": "uint8",
        "odd": "uint8",
    },
    "json_texts": {"rows": None, "cells": "int64", "ends": "int32", "data": "uint8", "out": "uint8"},
}
"""Parameters of the compiled functions: arrays by the type of their elements, and numbers (None). `cells` and `doubles`
are one memory."""
