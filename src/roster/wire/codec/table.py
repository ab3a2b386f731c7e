"""`Message` and `Struct`: classes whose body is a table of fields.

A class body of `name: type = kind(...)` rows becomes a mutable, slotted, keyword-only dataclass whose fields all have
defaults; the codec finds the rows in `__table__`. Structures are nested where they occur, and the message has a short
name for each: `FetchResponse.Partition` is `FetchResponse.Topic.Partition` (annotations need the long one).
"""

import dataclasses
from typing import Any, ClassVar, cast, dataclass_transform

from roster.wire.api import ApiKey
from roster.wire.codec.fields import MAX_VERSION, Field, Versions


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """Schema of a class: fields in wire order, its versions, and its versions in the flexible encoding."""

    name: str
    fields: tuple[tuple[str, Field], ...]
    key: ApiKey | None
    versions: Versions
    flexible: Versions


@dataclass_transform(kw_only_default=True)
class TableType(type):
    """Turns a class body of `Field` rows into a dataclass with slots."""

    def __new__(
        mcls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        key: ApiKey | None = None,
        versions: str | None = None,
        flexible: str | None = None,
    ) -> "TableType":
        """Build the class; `versions` defaults to every version (structures live in those of their message)."""
        if "__slots__" in namespace:  # dataclass() calls this again for the slotted class
            return super().__new__(mcls, name, bases, namespace)
        rows = tuple((field, row) for field, row in namespace.items() if isinstance(row, Field))
        for field, row in rows:
            namespace[field] = _default(row)
        namespace["__table__"] = Table(
            namespace["__qualname__"],
            rows,
            key,
            Versions(0, MAX_VERSION) if versions is None else Versions.parse(versions),
            Versions.parse(flexible),
        )
        cls = super().__new__(mcls, name, bases, namespace)
        # `_Value` has the other methods: generating them for each class would double the import time of the messages.
        return cast("TableType", dataclasses.dataclass(slots=True, kw_only=True, eq=False, repr=False)(cls))


def _default(row: Field) -> object:
    if row.default == () and row.kind == "array":
        return dataclasses.field(default_factory=list)
    if row.default == () and row.kind == "struct":
        return dataclasses.field(default_factory=cast("type", row.struct))
    return dataclasses.field(default=row.default)


class _Value:
    """The methods of a dataclass except `__init__`, for every table of fields."""

    __slots__ = ()
    __table__: ClassVar[Table]
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name, _ in self.__table__.fields)

    def __repr__(self) -> str:
        values = (f"{name}={getattr(self, name)!r}" for name, _ in self.__table__.fields)
        return f"{type(self).__qualname__}({', '.join(values)})"


class Struct(_Value, metaclass=TableType):
    """A structure within a message, with the message's versions and encoding."""

    __table__: ClassVar[Table]


class Message(_Value, metaclass=TableType):
    """A whole request, response or record, encoded by `roster.wire.encode` in one of its versions."""

    __table__: ClassVar[Table]


def struct_of(field: Field) -> type[Struct]:
    """Return the class of a nested structure."""
    if field.struct is None:
        raise TypeError(f"{field.kind} has no fields")
    return cast("type[Struct]", field.struct)
