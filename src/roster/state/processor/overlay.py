"""A snapshot of a store with the changes of the current batch applied."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from roster.state.store import Snapshot, Value

_UNKNOWN: Any = object()


def end_of(prefix: bytes) -> bytes:
    """Return the least key after all keys with `prefix`, which must not be all 0xff."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1])


class Overlay:
    """Reads a store's snapshot with the changes applied; nothing is written to the store."""

    def __init__(self, store: Snapshot) -> None:
        self._store = store
        self._read: dict[bytes, Value] = {}
        self._changed: dict[bytes, Value] = {}
        self._ranges: defaultdict[bytes, dict[bytes, Value]] = defaultdict(dict)
        self._before: list[tuple[dict[bytes, Value], bytes, Any]] = []
        """What changes since `mark` replaced, in their order."""
        self._is_marked = False

    def get(self, key: bytes) -> Value:
        """Return the value of a key."""
        value: Value = self._changed.get(key, _UNKNOWN)
        if value is _UNKNOWN:
            value = self._read.get(key, _UNKNOWN)
            if value is _UNKNOWN:
                (value,) = self._store.multi_get([key])
                self._read[key] = value
        return value

    def read_ahead(self, keys: Sequence[bytes]) -> None:
        """Read the values of these keys at once, which is faster than one by one."""
        self._read.update(zip(keys, self._store.multi_get(keys), strict=True))

    def put(self, key: bytes, value: Value, scope: bytes | None = None) -> None:
        """Set the value of a key, None to remove it. `scope`: the prefix by which `within` finds it."""
        for entries in [self._changed] if scope is None else [self._changed, self._ranges[scope]]:
            if self._is_marked:
                self._before.append((entries, key, entries.get(key, _UNKNOWN)))
            entries[key] = value

    def mark(self) -> None:
        """Begin changes that `undo` may take back."""
        self._is_marked, self._before = True, []

    def undo(self) -> None:
        """Take back all changes since the last `mark`."""
        for entries, key, value in reversed(self._before):
            if value is _UNKNOWN:
                del entries[key]
            else:
                entries[key] = value
        self._before = []

    def within(self, scope: bytes, stop: bytes | None = None) -> list[tuple[bytes, bytes]]:
        """Return the entries whose keys begin with `scope`, up to before `stop`, in the order of keys."""
        end = end_of(scope) if stop is None else stop
        stored = self._store.scan(scope, end)
        changed = self._ranges.get(scope)
        if not changed:
            return stored
        entries = dict(stored) | {key: value for key, value in changed.items() if key < end}
        return sorted((key, value) for key, value in entries.items() if value is not None)

    def first(self, scope: bytes) -> bytes | None:
        """Return the least key that begins with `scope`, None if there is none."""
        changed = self._ranges.get(scope, {})
        removed = sum(value is None for value in changed.values())
        stored = self._store.scan(scope, end_of(scope), removed + 1)
        kept = [key for key, _ in stored if changed.get(key, _UNKNOWN) is not None]
        return min([*kept, *(key for key, value in changed.items() if value is not None)], default=None)

    def stored(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return at most `limit` entries of the store, from `start` up to before `stop`, without the changes."""
        return self._store.scan(start, stop, limit)

    def is_changed(self, key: bytes) -> bool:
        """Return True if the key was set or removed."""
        return key in self._changed

    def changes(self) -> pa.Table:
        """Return keys and values that differ from the store's, a row each."""
        unread = [key for key, value in self._changed.items() if value is None and key not in self._read]
        if unread:
            self.read_ahead(unread)
        read = self._read
        changed = {key: value for key, value in self._changed.items() if read.get(key, _UNKNOWN) != value}
        return pa.table([pa.array(changed, pa.binary()), pa.array(changed.values(), pa.binary())], ["key", "value"])
