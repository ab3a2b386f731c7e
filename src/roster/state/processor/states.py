"""Value, list and map of the current key; methods have PySpark's names, which user code calls."""

# ruff: noqa: N802, N803
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

from roster.state.processor.overlay import Overlay
from roster.state.processor.variables import Variable
from roster.state.store import StateError

_LENGTH = Struct("<I")


@dataclass(slots=True)
class Current:
    """The current key, and the processing time in ms; both change between calls of user code."""

    key: bytes | None = None
    now: int = 0

    def address(self, variable: Variable) -> bytes:
        """Return the store key of a variable's value. Raises StateError without a current key."""
        if self.key is None:
            raise StateError(f"state variable {variable.name!r}: there is no key in init() and close()")
        return variable.prefix + self.key


class _State:
    def __init__(self, variable: Variable, overlay: Overlay, current: Current) -> None:
        self._variable, self._overlay, self._current = variable, overlay, current

    def clear(self) -> None:
        """Remove the value, or all rows."""
        self._overlay.put(self._current.address(self._variable), None)

    def _row(self, data: bytes | None) -> tuple[object, ...] | None:
        """Return the one row of an entry, None if it is missing or has expired."""
        if data is None:
            return None
        row, _, expiry = self._variable.decode(data, 1, data[0])
        return row if expiry is None or expiry > self._current.now else None

    def _encoded(self, values: Sequence[object]) -> bytes:
        ttl = self._variable.ttl
        return self._variable.encode(values, 0 if ttl is None else self._current.now + ttl)


class ValueState(_State):
    """One row for each key."""

    def exists(self) -> bool:
        """Return True if the key has a value."""
        return self.get() is not None

    def get(self) -> tuple[object, ...] | None:
        """Return the value, None if there is none."""
        return self._row(self._overlay.get(self._current.address(self._variable)))

    def update(self, newValue: Sequence[object]) -> None:
        """Set the value. Raises StateError if it does not fit the schema."""
        address = self._current.address(self._variable)
        self._overlay.put(address, self._variable.version + self._encoded(newValue))


class ListState(_State):
    """A list of rows for each key, kept as one entry: an append writes all of it."""

    def exists(self) -> bool:
        """Return True if the list has a row."""
        return next(self.get(), None) is not None

    def get(self) -> Iterator[tuple[object, ...]]:
        """Return the rows in the order of appending."""
        data = self._overlay.get(self._current.address(self._variable))
        return iter([row for row, expiry in self._rows(data) if expiry is None or expiry > self._current.now])

    def put(self, newState: Sequence[Sequence[object]]) -> None:
        """Replace all rows."""
        self._write(b"", newState)

    def appendValue(self, newState: Sequence[object]) -> None:
        """Append a row."""
        self.appendList([newState])

    def appendList(self, newState: Sequence[Sequence[object]]) -> None:
        """Append rows."""
        data = self._overlay.get(self._current.address(self._variable)) or b""
        if data and data[:1] != self._variable.version:
            data = self._rewritten(data)
        self._write(data[1:], newState)

    def unexpired(self, data: bytes) -> bytes | None:
        """Return the bytes of a list without expired rows, None if all have expired."""
        if all(expiry is None or expiry > self._current.now for _, expiry in self._rows(data)):
            return data
        kept = self._rewritten(data)
        return kept if len(kept) > 1 else None

    def _rows(self, data: bytes | None) -> Iterator[tuple[tuple[object, ...], int | None]]:
        start = 1
        while data is not None and start < len(data):
            row, _, expiry = self._variable.decode(data, start + _LENGTH.size, data[0])
            yield row, expiry
            start += _LENGTH.size + int(_LENGTH.unpack_from(data, start)[0])

    def _rewritten(self, data: bytes) -> bytes:
        """Return a list in the present schema, without expired rows."""
        parts = [self._variable.version]
        for row, expiry in self._rows(data):
            if expiry is None or expiry > self._current.now:
                # A row written without an expiry never expires, whatever the time to live is now.
                parts.append(_sized(self._variable.encode(row, NEVER if expiry is None else expiry)))
        return b"".join(parts)

    def _write(self, before: bytes, rows: Sequence[Sequence[object]]) -> None:
        data = b"".join([self._variable.version, before, *(_sized(self._encoded(row)) for row in rows)])
        self._overlay.put(self._current.address(self._variable), data if len(data) > 1 else None)


NEVER = (1 << 63) - 1
"""Expiry of a row that was written without one."""


def _sized(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


class MapState(_State):
    """Rows by a key of their own for each key: an entry each."""

    def exists(self) -> bool:
        """Return True if the map has a row."""
        return next(self.iterator(), None) is not None

    def getValue(self, key: Sequence[object]) -> Any:
        """Return the row of a key, None if there is none."""
        row = self._row(self._overlay.get(self._address(key)))
        make, names = self._variable.make_struct, self._variable.codec.names
        return row if row is None or make is None else make(names, row)

    def containsKey(self, key: Sequence[object]) -> bool:
        """Return True if the map has this key."""
        return self._row(self._overlay.get(self._address(key))) is not None

    def updateValue(self, key: Sequence[object], value: Sequence[object]) -> None:
        """Set the row of a key."""
        self._overlay.put(self._address(key), self._variable.version + self._encoded(value), self._scope())

    def iterator(self) -> Iterator[tuple[tuple[object, ...], tuple[object, ...]]]:
        """Return keys and rows."""
        scope = self._scope()
        rows = ((key, self._row(data)) for key, data in self._overlay.within(scope))
        codec: Any = self._variable.map_key
        return iter([(codec.decode(key, len(scope)), row) for key, row in rows if row is not None])

    def keys(self) -> Iterator[tuple[object, ...]]:
        """Return the keys."""
        return iter([key for key, _ in self.iterator()])

    def values(self) -> Iterator[tuple[object, ...]]:
        """Return the rows."""
        return iter([row for _, row in self.iterator()])

    def removeKey(self, key: Sequence[object]) -> None:
        """Remove the row of a key."""
        self._overlay.put(self._address(key), None, self._scope())

    def clear(self) -> None:
        """Remove all rows."""
        scope = self._scope()
        for key, _ in self._overlay.within(scope):
            self._overlay.put(key, None, scope)

    def _scope(self) -> bytes:
        return self._current.address(self._variable)

    def _address(self, key: Sequence[object]) -> bytes:
        assert self._variable.map_key is not None
        try:
            return self._scope() + self._variable.map_key.encode(key)
        except StateError as error:
            raise StateError(f"state variable {self._variable.name!r}: the map's key: {error}") from None
