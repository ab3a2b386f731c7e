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
    "uint16": ("H", 2),
    "float64": ("d", 8),
    "uuid": ("16s", 16),
}
"""Kinds of constant size: their `struct` format and size in bytes."""


@dataclass(frozen=True, slots=True)
class Versions:
    """A closed range of versions, both ends included; `high < low` is the empty range."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> "Versions":
        """Parse the protocol guide's notation: "3+", "0-5", "2" or "none"."""
        if text == "none":
            return NEVER
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


NEVER = Versions(0, -1)


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
    ignorable: bool = False
    tag: int = -1
    tagged: Versions = NEVER
    element: "Field | None" = None
    struct: type | None = None

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
    tagged: str | None = None,
    element: Field | None = None,
    struct: type | None = None,
) -> Any:
    if tag is not None and tagged is None:
        tagged = versions
    return Field(
        kind,
        Versions.parse(versions),
        NEVER if nullable is None else Versions.parse(nullable),
        default,
        ignorable,
        -1 if tag is None else tag,
        NEVER if tagged is None else Versions.parse(tagged),
        element,
        struct,
    )


def boolean(versions: str = "0+", *, default: bool = False, ignorable: bool = False, tag: int | None = None) -> bool:
    """One byte, true unless zero."""
    return cast("bool", _field("bool", versions, default, ignorable=ignorable, tag=tag))


class _IntegerKind:
    """Declares integers of one size."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __call__(
        self, versions: str = "0+", *, default: int = 0, ignorable: bool = False, tag: int | None = None
    ) -> int:
        return cast("int", _field(self._kind, versions, default, ignorable=ignorable, tag=tag))


int8, int16, uint16, int32, int64 = map(_IntegerKind, ("int8", "int16", "uint16", "int32", "int64"))


def float64(versions: str = "0+", *, default: float = 0.0, ignorable: bool = False, tag: int | None = None) -> float:
    """Eight bytes, IEEE 754."""
    return cast("float", _field("float64", versions, default, ignorable=ignorable, tag=tag))


def uuid(versions: str = "0+", *, ignorable: bool = False, tag: int | None = None) -> bytes:
    """Sixteen bytes, as they are; all zero means none."""
    return cast("bytes", _field("uuid", versions, ZERO_UUID, ignorable=ignorable, tag=tag))


@overload
def string(
    versions: str = ..., *, nullable: None = None, default: str = ..., ignorable: bool = ..., tag: int | None = ...
) -> str: ...
@overload
def string(
    versions: str = ..., *, nullable: str, default: str | None = ..., ignorable: bool = ..., tag: int | None = ...
) -> str | None: ...
def string(
    versions: str = "0+",
    *,
    nullable: str | None = None,
    default: str | None = "",
    ignorable: bool = False,
    tag: int | None = None,
) -> str | None:
    """UTF-8 text of at most 32767 bytes."""
    return cast("str", _field("string", versions, default, nullable=nullable, ignorable=ignorable, tag=tag))


@overload
def bytes_(versions: str = ..., *, nullable: None = None, ignorable: bool = ...) -> bytes: ...
@overload
def bytes_(
    versions: str = ..., *, nullable: str, default: bytes | None = ..., ignorable: bool = ...
) -> bytes | None: ...
def bytes_(
    versions: str = "0+", *, nullable: str | None = None, default: bytes | None = b"", ignorable: bool = False
) -> bytes | None:
    """Opaque bytes, copied out of the frame."""
    return cast("bytes", _field("bytes", versions, default, nullable=nullable, ignorable=ignorable))


def record_set(versions: str = "0+", *, nullable: str | None = None) -> bytes | memoryview | None:
    """Record batches, as a view into the frame; the default is None."""
    return cast("bytes", _field("records", versions, None, nullable=nullable))


@overload
def array(
    element: type[T], versions: str = ..., *, nullable: None = None, ignorable: bool = ..., tag: int | None = ...
) -> list[T]: ...
@overload
def array(
    element: type[T],
    versions: str = ...,
    *,
    nullable: str,
    default: list[T] | None = ...,
    ignorable: bool = ...,
    tag: int | None = ...,
) -> list[T] | None: ...
@overload
def array(
    element: T, versions: str = ..., *, nullable: None = None, ignorable: bool = ..., tag: int | None = ...
) -> list[T]: ...
@overload
def array(
    element: T,
    versions: str = ...,
    *,
    nullable: str,
    default: list[T] | None = ...,
    ignorable: bool = ...,
    tag: int | None = ...,
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


@overload
def struct(cls: type[T], versions: str = ..., *, ignorable: bool = ..., tag: int | None = ...) -> T: ...
@overload
def struct(cls: type[T], versions: str = ..., *, nullable: str, ignorable: bool = ...) -> T | None: ...
def struct(
    cls: type[T], versions: str = "0+", *, nullable: str | None = None, ignorable: bool = False, tag: int | None = None
) -> T | None:
    """A nested structure; the default is None if it is nullable, else a structure with the defaults of its fields."""
    default = () if nullable is None else None
    return cast("T", _field("struct", versions, default, nullable=nullable, ignorable=ignorable, tag=tag, struct=cls))
