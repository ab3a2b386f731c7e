"""Values in the encoding of Java's DataInput and DataOutput, for formats that message tables cannot describe.

Integers are big-endian. `utf` is Java's modified UTF-8: a uint16 length in bytes, then each UTF-16 unit encoded by
itself, and NUL as two bytes. Lists of numbers are read and written as numpy columns. Source: java.io.DataInput.
"""

from struct import Struct as Packing
from struct import error as struct_error

import numpy as np

from roster.model.arrays import Array
from roster.wire.codec.runtime import bad_count, bad_text, cut_short
from roster.wire.codec.varint import Buffer
from roster.wire.errors import WireError

_INT32 = Packing(">i")
_UINT16 = Packing(">H")

MOST_TEXT = 0xFFFF
"""Maximum size of `utf` in bytes."""

_FOUR_BYTE_FORMS = bytes(range(0xF0, 0x100))


class Cursor:
    """Reads values in order. Raises WireError that names the field if the bytes end too early."""

    def __init__(self, data: Buffer, message: str) -> None:
        self.data = bytes(data)
        self.message = message
        self.position = 0

    @property
    def left(self) -> int:
        """Number of bytes not read yet."""
        return len(self.data) - self.position

    def where(self, field: str) -> str:
        """Return the name of the field for errors."""
        return f"{self.message}: {field}"

    def int32(self, field: str) -> int:
        """Four bytes, signed."""
        return int(_INT32.unpack(self.read(field, 4))[0])

    def read(self, field: str, size: int) -> bytes:
        """Read a number of bytes."""
        if size > self.left:
            raise cut_short(((self.where(field), size),), self.left)
        self.position += size
        return self.data[self.position - size : self.position]

    def utf(self, field: str) -> str:
        """Java's text."""
        size = int(_UINT16.unpack(self.read(field, 2))[0])
        data = self.read(field, size)
        if data.isascii():
            return data.decode("ascii")
        try:
            if data.translate(None, _FOUR_BYTE_FORMS) != data:
                raise UnicodeDecodeError("utf-8", data, 0, size, "a form of four bytes, which Java does not write")
            units = data.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise bad_text(self.where(field), error) from error
        return units.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")

    def count(self, field: str, least: int) -> int:
        """Read a count of elements of at least `least` bytes each; checked against the remaining bytes."""
        count = self.int32(field)
        if not 0 <= count <= self.left // least:
            raise bad_count(self.where(field), count, self.left, least)
        return count

    def rows(self, field: str, row: np.dtype[np.void]) -> Array:
        """Read rows of constant size after their int32 count, as a view of the bytes."""
        count = self.count(field, row.itemsize)
        self.position += count * row.itemsize
        return np.frombuffer(self.data, row, count, self.position - count * row.itemsize)

    def end(self) -> None:
        """Raise WireError if bytes are left."""
        if self.left:
            raise WireError(f"{self.message}: {self.left} bytes behind the end")


def int32(value: int, where: str) -> bytes:
    """Four bytes, signed."""
    try:
        return _INT32.pack(value)
    except struct_error as error:
        raise WireError(f"{where}: {value!r} is not an int32 ({error})") from error


def utf(text: str, where: str) -> bytes:
    """Java's text."""
    if not isinstance(text, str):
        raise WireError(f"{where}: {type(text).__name__} instead of text")
    if text.isascii() and "\0" not in text:
        data = text.encode()
    else:
        units = np.frombuffer(text.encode("utf-16-le", "surrogatepass"), "<u2").tolist()
        data = "".join(map(chr, units)).encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")
    if len(data) > MOST_TEXT:
        raise WireError(f"{where}: {len(data)} bytes of text, at most {MOST_TEXT} fit")
    return _UINT16.pack(len(data)) + data


def rows(columns: tuple[Array, ...], row: np.dtype[np.void]) -> bytes:
    """Encode columns as rows of constant size after their int32 count."""
    table = np.empty(len(columns[0]), row)
    for name, column in zip(row.names or (), columns, strict=True):
        table[name] = column
    return _INT32.pack(len(table)) + table.tobytes()
