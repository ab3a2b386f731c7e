"""Reads entries of one task's state for a query, and makes rows of the entries of several tasks.

Queries name keys as `encode_keys` writes them. The entries of a key depend on the kind of store: one value, the values
of several variables, or the rows of two sides. So each host turns a span of keys into spans of entries.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa

from roster._json import JsonObject
from roster.state.keys import encode_keys
from roster.state.store import Readable, StateError

Row = dict[str, Any]


class QueryError(StateError):
    """A query that this kind of store cannot answer: `field` names the argument, `fix` the remedy."""

    def __init__(self, field: str, problem: str, fix: str) -> None:
        super().__init__(f"{field}: {problem}. {fix}")
        self.field, self.problem, self.fix = field, problem, fix


class Span(NamedTuple):
    """Keys from `start` up to before `stop`, the first `limit` entries of each task.

    is_key: the key `start` alone. part: the variable or the side of a join that entries are of; None for all.
    """

    start: bytes = b""
    stop: bytes | None = None
    limit: int | None = None
    is_key: bool = False
    part: str | None = None

    def under(self, prefix: bytes) -> tuple[bytes, bytes | None]:
        """Return the range of the entries named prefix + key + anything: start, and exclusive end."""
        if self.is_key:
            return prefix + self.start, behind(prefix + self.start)
        return prefix + self.start, behind(prefix) if self.stop is None else prefix + self.stop


class Read(NamedTuple):
    """Entries of one task, and its list of variables if the store has one."""

    entries: Sequence[tuple[bytes, bytes]] = ()
    registry: bytes | None = None


class Placed(NamedTuple):
    """An entry of several tasks' ones: its key as `encode_keys` writes it, and the number of its task's `Read`."""

    key: bytes
    number: int
    name: bytes
    value: bytes


class Entries(ABC):
    """Reads the entries of one kind of store."""

    part: ClassVar[str | None] = None
    """Name of the store's parts in a query, `variable` or `side`; None if it has none."""

    def __init__(self, keys: pa.Schema) -> None:
        self.keys = keys

    def key_of(self, texts: Sequence[str]) -> bytes:
        """Return a key's bytes from the texts of its columns. Raises StateError if they do not fit."""
        if len(texts) != len(self.keys):
            raise StateError(f"a key has {len(self.keys)} columns: {', '.join(self.keys.names)}")
        (key,) = encode_keys(pa.table(parsed(texts, self.keys), self.keys.names), self.keys.names).to_pylist()
        return bytes(key)

    def part_of(self, variable: str | None, side: str | None) -> str | None:
        """Return the variable or side, whichever is given. Raises QueryError if such a store cannot have it."""
        chosen = {"variable": variable, "side": side}
        for name, value in chosen.items():
            if value is not None and name != self.part:
                fix = "Leave it out" if self.part is None else f"Use {self.part}"
                raise QueryError(name, f"the store has no {name}s", fix)
        part = None if self.part is None else chosen[self.part]
        self.check_part(part)
        return part

    def check_part(self, part: str | None) -> None:
        """Raise QueryError for a part that no store of this kind has."""
        return

    def check(self, reads: Sequence[Read], part: str | None, *, is_one: bool = False) -> None:
        """Raise QueryError for a part that these stores do not have.

        is_one: also if a key may have several rows by the kind of store or part.
        """
        self.check_part(part)

    def described(self, reads: Sequence[Read]) -> JsonObject:
        """Describe the columns beside the key where they differ within the store, for people."""
        return {}

    @abstractmethod
    def read(self, store: Readable, span: Span) -> Read:
        """Return the entries of a span, in the order of keys."""

    @abstractmethod
    def rows(self, reads: Sequence[Read], limit: int | None = None) -> list[Row]:
        """Return the rows of the first `limit` entries in the order of keys, without the store's internal entries."""

    @abstractmethod
    def schema(self, reads: Sequence[Read], part: str | None = None) -> pa.Schema:
        """Return the columns of rows of one part. Raises QueryError if there are several and none is named."""

    def table(self, reads: Sequence[Read], part: str | None = None) -> pa.Table:
        """Return the same rows as an Arrow table. Raises as `schema` does."""
        return pa.Table.from_pylist(self.rows(reads), self.schema(reads, part))


def in_order(
    reads: Sequence[Read], key_in: Callable[[bytes], tuple[bytes, bytes]], limit: int | None = None
) -> list[Placed]:
    """Return the first entries in the order of keys. `key_in` splits an entry's name into its key and the rest, which
    orders the entries of a key.
    """
    placed = []
    for number, read in enumerate(reads):
        for name, value in read.entries:
            key, rest = key_in(name)
            placed.append((key, number, rest, name, value))
    placed.sort()
    return [Placed(key, number, name, value) for key, number, _, name, value in placed[:limit]]


def first_of(
    entries: Iterable[tuple[bytes, bytes]], key_in: Callable[[bytes], tuple[bytes, bytes]], limit: int | None
) -> list[tuple[bytes, bytes]]:
    """Return the first entries of one task in the order of keys."""
    return [(entry.name, entry.value) for entry in in_order([Read(list(entries))], key_in, limit)]


def kinds_of(columns: pa.Schema) -> dict[str, str]:
    """Return the types of columns as text."""
    return {field.name: str(field.type) for field in columns}


def behind(prefix: bytes) -> bytes | None:
    """Return the least key after all keys with the prefix; None if there is none."""
    plain = prefix.rstrip(b"\xff")
    return plain[:-1] + bytes([plain[-1] + 1]) if plain else None


def parsed(texts: Sequence[str], columns: pa.Schema) -> list[pa.Array]:
    """Return an array of one value for each text, of the first columns' types. Raises StateError if they do not fit."""
    try:
        return [pa.array([text], pa.string()).cast(field.type) for text, field in zip(texts, columns, strict=False)]
    except (pa.ArrowException, UnicodeError) as error:
        raise StateError(f"the key does not fit its columns {columns.names}: {error}") from None
