"""Instructions and signature that the loop which encodes Avro values shares with its caller."""

WIDTH = 9
OP, DIM, VALID, VALUE, DATA, NULL, BRANCH, X, BEHIND = range(WIDTH)
"""DIM: the list whose items count the values, 0 for rows. VALID: place of the bytes that say which values are not null,
-1 without. VALUE: place of the values or offsets, counted in their own size. DATA: place of a text's bytes. NULL and
BRANCH: the byte that is written for null, and before another value; -1 for none. BEHIND: the instruction behind it."""
NOTHING = -2
"""NULL: nothing is written for null, another member of the union has the value."""

LONG, INT, BYTES, PLAIN, DECIMAL, CONSTANT, LIST, NEXT, NOTE, END = range(10)
"""BYTES: X bytes, or if X is -1 a length and as many. PLAIN: X bytes as they are. DECIMAL: X bytes, -1 for a length
and as many as needed. CONSTANT: X bytes of the pool. LIST and NEXT: X is the dimension of the items; NEXT goes to
BEHIND for another. NOTE: nothing but the branch."""

SIGNATURES = {
    "avro_encode": "- uint8 int64 int64 int64 uint8 int32 int64 uint8 int32 int64",
}
"""Parameters of the loop, in their order: arrays by the type of their elements, and numbers (-). `data8` to
`data64` are one memory."""
