"""Declarations of the fields in message tables: type, versions, and default.

Each function is the right-hand side of a field in a `Message` or `Struct` body. For the type checker it returns the
field's default value; at run time it returns a `Field`, the row of the table that `roster.wire.codec` compiles.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast, overload

T = TypeVar("T")

MAX_VERSION = 32767
"""Upper end of an open version range such as "3+": the largest int16."""

MAX_STRING_BYTES = 32767
"""Longest string in UTF-8: the classic encoding has an int16 length, Kafka has the same limit in the compact one."""

ZERO_UUID = bytes(16)
"""The topic id that means "none"."""

FIXED = {
    "bool": ("?", 1),
    "int8": ("b", 1),
    "int16": ("h", 2),
    "int32": ("i", 4),
    "int64": ("q", 8),
    "uuid": ("16s", 16),
}
"""Kinds of constant size: their `struct` format and size in bytes."""


@dataclass(frozen=True, slots=True)
class Versions:
    """A closed range of versions, both ends included; `high < low` is the empty range."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str | None) -> "Versions":
        """Parse the protocol guide's notation: "3+", "0-5" or "2"; None stands for no version."""
        if text is None:
            return cls(0, -1)
        if text.endswith("+"):
            return cls(int(text[:-1]), MAX_VERSION)
        low, _, high = text.partition("-")
        return cls(int(low), int(high or low))

    def __contains__(self, version: int) -> bool:
        return self.low <= version <= self.high

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.low, self.high + 1))

    def __str__(self) -> str:
        return f"{self.low}-{self.high}"


@dataclass(frozen=True, slots=True)
class Field:
    """One row of a table.

    `kind` is a key of `FIXED`, or "string", "bytes", "records", "array" or "struct". `element`: the elements of an
    array.
    `struct`: the class of a nested structure. `tagged`: the versions in which the field is tagged.
    """

    kind: str
    versions: Versions
    nullable: Versions
    default: object
    ignorable: bool
    tag: int
    tagged: Versions
    element: "Field | None"
    struct: type | None

    @property
    def item(self) -> "Field":
        """The `element` of an array."""
        if self.element is None:
            raise TypeError(f"{self.kind} has no elements")
        return self.element


def _field(
    kind: str,
    versions: str,
    default: object,
    *,
    nullable: str | None = None,
    ignorable: bool = False,
    tag: int | None = None,
    element: Field | None = None,
    struct: type | None = None,
) -> Any:
    return Field(
        kind,
        Versions.parse(versions),
        Versions.parse(nullable),
        default,
        ignorable,
        -1 if tag is None else tag,
        Versions.parse(None if tag is None else versions),
        element,
        struct,
    )


def boolean(versions: str = "0+", *, default: bool = False, ignorable: bool = False) -> bool:
    """One byte, true unless zero."""
    return cast("bool", _field("bool", versions, default, ignorable=ignorable))


class _IntegerKind:
    """Declares integers of one size."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __call__(
        self, versions: str = "0+", *, default: int = 0, ignorable: bool = False, tag: int | None = None
    ) -> int:
        return cast("int", _field(self._kind, versions, default, ignorable=ignorable, tag=tag))


int8, int16, int32, int64 = map(_IntegerKind, ("int8", "int16", "int32", "int64"))


def uuid(versions: str = "0+", *, ignorable: bool = False, tag: int | None = None) -> bytes:
    """Sixteen bytes, as they are; all zero means none."""
    return cast("bytes", _field("uuid", versions, ZERO_UUID, ignorable=ignorable, tag=tag))


@overload
def string(versions: str = ..., *, nullable: None = None, default: str = ..., ignorable: bool = ...) -> str: ...
@overload
def string(versions: str = ..., *, nullable: str, default: str | None = ..., ignorable: bool = ...) -> str | None: ...
def string(
    versions: str = "0+", *, nullable: str | None = None, default: str | None = "", ignorable: bool = False
) -> str | None:
    """UTF-8 text of at most 32767 bytes."""
    return cast("str", _field("string", versions, default, nullable=nullable, ignorable=ignorable))


@overload
def bytes_(*, nullable: None = None) -> bytes: ...
@overload
def bytes_(*, nullable: str, default: bytes | None = ...) -> bytes | None: ...
def bytes_(*, nullable: str | None = None, default: bytes | None = b"") -> bytes | None:
    """Opaque bytes, copied out of the frame."""
    return cast("bytes", _field("bytes", "0+", default, nullable=nullable))


def record_set() -> bytes | memoryview | None:
    """Record batches, as a view into the frame; the default is None."""
    return cast("bytes", _field("records", "0+", None, nullable="0+"))


@overload
def array(
    element: type[T], versions: str = ..., *, nullable: None = None, ignorable: bool = ..., tag: int | None = ...
) -> list[T]: ...
@overload
def array(
    element: type[T], versions: str = ..., *, nullable: str, default: list[T] | None = ..., ignorable: bool = ...
) -> list[T] | None: ...
@overload
def array(
    element: T, versions: str = ..., *, nullable: None = None, ignorable: bool = ..., tag: int | None = ...
) -> list[T]: ...
@overload
def array(
    element: T, versions: str = ..., *, nullable: str, default: list[T] | None = ..., ignorable: bool = ...
) -> list[T] | None: ...
def array(
    element: object,
    versions: str = "0+",
    *,
    nullable: str | None = None,
    default: object = (),
    ignorable: bool = False,
    tag: int | None = None,
) -> object:
    """A list of structures, `array(Partition)`, or simple values, `array(int32())`; default `()` is the empty list."""
    row = element if isinstance(element, Field) else _field("struct", "0+", None, struct=cast("type", element))
    return _field("array", versions, default, nullable=nullable, ignorable=ignorable, tag=tag, element=row)


def struct(cls: type[T], versions: str = "0+", *, tag: int | None = None) -> T:
    """A nested structure; the default has the defaults of its fields."""
    return cast("T", _field("struct", versions, (), tag=tag, struct=cls))
