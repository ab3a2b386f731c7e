"""Instructions and signature that the loop over Avro values shares with its callers.

An instruction has nine numbers. Those of a column name its dimension (which list its values are counted by, 0 for
rows), and the places of its arrays in the output.
"""

WIDTH = 9
OP, MODE, DIM, VALID, VALUE, SIZE, DATA, X, Y = range(WIDTH)
"""VALID: place of the bytes that say which values are not null, -1 without. VALUE: place of the values or offsets,
counted in their own size. SIZE: bytes of a value, 0 for offsets, -1 for a struct. DATA: place of a text's bytes. X and
Y: more, by instruction."""
NULL_FIRST, NULL_LAST, NULL = 1, 2, 3
"""MODE: of a union of null and another type, or always null; else 0."""

# A number of 32 bits, a number of 64, a length and as many bytes, X bytes: the loop compares with the ends of groups.
INT, ENUM, *_LONGS = range(19)
LONG, SCALED, LONG_TO_DOUBLE, LONG_TO_FLOAT, UNION, SKIP_VARINT, *_LENGTHS = _LONGS
TEXT, BYTES, DECIMAL, SKIP_BYTES, *_SIZED = _LENGTHS
BOOLEAN, FLOAT, FLOAT_TO_DOUBLE, DOUBLE, FIXED, FIXED_DECIMAL, SKIP = _SIZED
LIST, NEXT, NOTE, JUMP, ENTER, LEAVE, REFUSE, END = range(19, 27)
"""SCALED: a long times X. DECIMAL and FIXED_DECIMAL: the largest number is in `tables` at Y. ENUM: X symbols, `tables`
has their numbers from Y on, -1 for none. NOTE: the value is not null. UNION: X branches, whose instructions `tables`
has from Y on. LIST and NEXT: X is the dimension of the items, Y the instruction behind or of the first; VALUE -1 skips
them, DATA is an item's least size. JUMP: to X. ENTER and LEAVE: read the default at [X, Y) of the pool."""

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

SIGNATURES = {
    "avro": "- - uint8 int64 int64 int64 uint8 int64 int64 int64 int64 uint8 int32 int64 float32 float64 uint8",
}
"""Parameters of the loop, in their order: arrays by the type of their elements, and numbers (-). `out8` to `float64`
are one memory."""
