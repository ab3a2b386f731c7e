"""What is read of a store, what is written to it, and its errors: keys and values as bytes, one position for all."""

from __future__ import annotations

import errno
import json
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from roster._errors import RosterError

if TYPE_CHECKING:
    import pyarrow as pa

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a full disk; LMDB reports a short write as EIO."""

Value: TypeAlias = bytes | None
"""A value; None for a missing key. Writing None removes the key, as a tombstone does in the changelog."""

Keys: TypeAlias = "Sequence[bytes] | pa.Array"
"""Keys one by one, or as a large binary column."""


class StateError(RosterError):
    """A store refused an operation; the message names the store and the remedy."""


class StoreMissingError(StateError):
    """The path has no readable store."""


class StoreInUseError(StateError):
    """Another process writes this store."""


class StoreFullError(StateError):
    """The disk or a quota has no room for a write; the store is unchanged."""


def disk_error(path: Path, error: Exception) -> StateError:
    """Return the store's error for one of its disk: StoreFullError if the disk is full."""
    if any(os.strerror(number) in str(error) for number in _FULL):
        return StoreFullError(f"store {path} on host {platform.node()}: no room on the disk, or it fails ({error})")
    return StateError(f"store {path} on host {platform.node()}: {error}")


class StoreDamagedError(StateError):
    """The files are damaged, for a `reason`; the writer replaces them and restores the store from its changelog."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"store {path}: {reason}; delete {path}, it is restored from the changelog")
        self.reason = reason


class ValueDamagedError(StateError):
    """The operator cannot read a value though its checksum is right; the changelog may have a sound one."""

    def __init__(self) -> None:
        super().__init__("a value of the state is none that this operator writes")


class OtherRowsError(StateError):
    """Rows of other columns are read: none of them is at fault."""


class PendingError(StateError):
    """A batch is pending though none may be, or another one than named."""


@dataclass(frozen=True, slots=True)
class Position:
    """A store's position: next offset of its changelog partition, and of each input topic in the task's partition."""

    changelog: int = 0
    inputs: Mapping[str, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Bytes of it, for the store's own metadata."""
        return json.dumps([self.changelog, dict(self.inputs)]).encode()

    @classmethod
    def decode(cls, data: bytes) -> Position:
        """Read the bytes of `encode`."""
        changelog, inputs = json.loads(data)
        return cls(changelog, inputs)


class Readable(Protocol):
    """A store, each of whose reads is consistent, or a snapshot of one."""

    def multi_get(self, keys: Keys) -> Sequence[Value]:
        """Return the value of each key; a column of keys may be answered by a column."""

    def scan(
        self, start: bytes = b"", stop: bytes | None = None, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """Return entries from `start` up to before `stop`, in the order of keys, at most `limit`."""


class Snapshot(Readable, Protocol):
    """A consistent view of values and position."""

    @property
    def position(self) -> Position:
        """The position that the values belong to."""


class NoState:
    """The snapshot of a store without entries."""

    position = Position()

    def multi_get(self, keys: Keys) -> Sequence[Value]:
        """Return None for each key."""
        return [None] * len(keys)

    def scan(
        self, start: bytes = b"", stop: bytes | None = None, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """Return no entries."""
        return []


class Written(Protocol):
    """What takes the changes of a changelog."""

    sorted_bytes: int
    """About how many bytes of changes it sorts at once: each batch of `load` should have as many."""
    entries_at_once: int
    """Most changes in one transaction of `load`."""

    def position(self) -> Position:
        """Return the position; `Position()` of a new store."""

    def commit(self, keys: Sequence[bytes], values: Sequence[Value], position: Position) -> None:
        """Write values and position together: all or nothing, whenever the process dies."""

    def load(
        self, batches: Iterable[tuple[Sequence[bytes], Sequence[Value]]], position: Position | Callable[[], Position]
    ) -> None:
        """Write many batches in one transaction, fastest if keys ascend and follow all existing ones.

        position: if a function, called when the last batch is written.
        """
