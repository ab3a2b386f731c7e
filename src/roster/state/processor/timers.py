"""Timers of each key, in milliseconds: a list by key, and an index by time that finds those that are due."""

from __future__ import annotations

from roster.state.event_time import ordered_time
from roster.state.processor.overlay import Overlay
from roster.state.store import StateError

BY_KEY, BY_TIME = b"\x01", b"\x02"
_SIGN = 1 << 63
_NOTED = b"\x00"
"""Value of an entry whose content is its key; an empty value could be mistaken for a removal."""


class Timers:
    """Registers and deletes timers in the changes of a batch."""

    def __init__(self, overlay: Overlay) -> None:
        self._overlay = overlay

    def of(self, key: bytes) -> list[int]:
        """Return the timers of a key, ascending."""
        return [_number(data) for data in _split(self._overlay.get(BY_KEY + key))]

    def register(self, key: bytes, time_ms: int) -> None:
        """Set a timer; one that is set already stays. Raises StateError unless it is a whole number."""
        encoded = _encoded(time_ms)
        times = _split(self._overlay.get(BY_KEY + key))
        if encoded not in times:
            self._write(key, [*times, encoded])
            self._overlay.put(BY_TIME + encoded + key, _NOTED, BY_TIME)

    def delete(self, key: bytes, time_ms: int) -> None:
        """Remove a timer, if it is set."""
        encoded = _encoded(time_ms)
        times = _split(self._overlay.get(BY_KEY + key))
        if encoded in times:
            times.remove(encoded)
            self._write(key, times)
            self._overlay.put(BY_TIME + encoded + key, None, BY_TIME)

    def due(self, upto: int) -> list[tuple[bytes, int]]:
        """Return keys and times of the timers up to this time, in the order of time."""
        entries = self._overlay.within(BY_TIME, BY_TIME + _encoded(upto + 1))
        return [(key[9:], _number(key[1:9])) for key, _ in entries]

    def first(self) -> int | None:
        """Return the time of the next timer of any key, None if there is none."""
        key = self._overlay.first(BY_TIME)
        return None if key is None else _number(key[1:9])

    def _write(self, key: bytes, times: list[bytes]) -> None:
        self._overlay.put(BY_KEY + key, b"".join(sorted(times)) or None)


def _encoded(time_ms: int) -> bytes:
    try:
        return ordered_time(int(time_ms))
    except (TypeError, ValueError, OverflowError):
        raise StateError(f"{time_ms!r} is not a time in milliseconds") from None


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big") - _SIGN


def _split(data: bytes | None) -> list[bytes]:
    return [] if data is None else [data[start : start + 8] for start in range(0, len(data), 8)]
