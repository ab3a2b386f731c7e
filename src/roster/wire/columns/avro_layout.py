"""Instructions and signature that the loop over Avro values shares with its callers.

An instruction has eight numbers. Those of a column name its dimension (which list its values are counted by, 0 for
rows), and the places of its arrays in the output.
"""

from __future__ import annotations

WIDTH = 8
OP, MODE, DIM, VALID, VALUE, DATA, X, Y = range(WIDTH)
"""MODE: 0, or 1 and 2 for a union of two branches whose first or second is null. VALID: place of the bytes that say
which values are not null, -1 without. VALUE: place of the values or offsets, counted in their own size. DATA: place of
a text's bytes. X and Y: more, by instruction."""

(
    END,
    LONG,
    TEXT,
    BYTES,
    DOUBLE,
    INT,
    BOOLEAN,
    FLOAT,
    SCALED,
    LONG_TO_DOUBLE,
    LONG_TO_FLOAT,
    FLOAT_TO_DOUBLE,
    FIXED,
    DECIMAL,
    FIXED_DECIMAL,
    ENUM,
    NULL,
    NOTE,
    UNION,
    JUMP,
    LIST,
    NEXT,
    REFUSE,
    ENTER,
    LEAVE,
    SKIP_VARINT,
    SKIP_BYTES,
    SKIP,
) = range(28)
"""SCALED: a long times X. FIXED: X bytes. DECIMAL and FIXED_DECIMAL: X bytes, the largest number is in `tables` at Y.
ENUM: X symbols, `tables` has their numbers from Y on, -1 for none. NULL: X is a width in bytes, 0 for offsets. NOTE:
the value is not null. UNION: X branches, whose instructions `tables` has from Y on. LIST and NEXT: X is the dimension
of the items, Y the instruction behind or of the first; VALUE -1 skips them, DATA is an item's least size. ENTER and
LEAVE: read the default at [X, Y) of the pool."""

CUT, VARINT, LENGTH, BRANCH, SYMBOL, DIGITS, NOT_TEXT, ITEMS, FLAG, REFUSED, BEHIND = range(1, 12)
PROBLEMS = {
    CUT: "it ends too early",
    VARINT: "a number is too long",
    LENGTH: "a length is negative or larger than what is left",
    BRANCH: "the union has no such branch",
    SYMBOL: "the enum has no such symbol",
    DIGITS: "a decimal or time has too many digits",
    NOT_TEXT: "text is not UTF-8",
    ITEMS: "an array or map has more items than bytes",
    FLAG: "a boolean is neither 0 nor 1",
    REFUSED: "a value is of a type that the column has no place for",
    BEHIND: "there is something behind its end",
}
"""Why a value was refused."""

SIGNATURES: dict[str, dict[str, str | None]] = {
    "avro": {
        "rows": None,
        "data": "uint8",
        "starts": "int64",
        "ends": "int64",
        "pool": "uint8",
        "code": "int64",
        "tables": "int64",
        "counts": "int64",
        "left": "int64",
        "out8": "uint8",
        "out32": "int32",
        "out64": "int64",
        "float32": "float32",
        "float64": "float64",
        "scratch": "int32",
        "scratch_float": "float32",
        "problems": "uint8",
    }
}
"""Parameters of the compiled function: arrays by the type of their elements, and numbers (None). `out8` to `float64`
are one memory; so are `scratch` and `scratch_float`."""
