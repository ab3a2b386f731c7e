"""Removes expired entries: reads hide them at once, a sweep deletes a few per batch."""

from __future__ import annotations

from roster.state.processor.overlay import Overlay, end_of
from roster.state.processor.states import Current, ListState
from roster.state.processor.variables import Variable, Variables

SWEPT_KEY = b"\xffswept"
"""Key of the sweep's progress: the time in ms before which no new round begins, and the next entry's key."""
_LEAST = 10_000
"""Least number of entries checked per batch."""


def sweep(overlay: Overlay, variables: Variables, current: Current, rows: int) -> None:
    """Check some entries with a time to live, and remove expired ones.

    A round through all of them begins when the shortest time to live has passed since the last one began. rows: number
    in the batch, as larger batches may add more entries.
    """
    mortal = sorted(
        (variable for variable in variables.declared.values() if variable.may_expire),
        key=lambda variable: variable.prefix,
    )
    if not mortal:
        return
    data = overlay.get(SWEPT_KEY)
    due, start = (0, b"") if data is None else (int.from_bytes(data[:8], "big"), data[8:])
    if not start:
        if due > current.now:
            return
        due = current.now + min([variable.ttl for variable in mortal if variable.ttl is not None], default=86_400_000)
    following = _check_from(overlay, mortal, current, start, max(_LEAST, 2 * rows))
    overlay.put(SWEPT_KEY, due.to_bytes(8, "big") + following)


def _check_from(overlay: Overlay, mortal: list[Variable], current: Current, start: bytes, most: int) -> bytes:
    """Check up to `most` entries from `start` on; return the key of the next one, empty at the end."""
    for variable in mortal:
        end = end_of(variable.prefix)
        if start >= end:
            continue
        entries = overlay.stored(max(start, variable.prefix), end, most)
        for key, data in entries:
            if not overlay.is_changed(key):
                _expire(overlay, variable, current, key, data)
        most -= len(entries)
        if most <= 0:
            return entries[-1][0] + b"\x00"
    return b""


def _expire(overlay: Overlay, variable: Variable, current: Current, key: bytes, data: bytes) -> None:
    if variable.kind == "list":
        kept = ListState(variable, overlay, current).unexpired(data)
        if kept != data:
            overlay.put(key, kept)
        return
    expiry = variable.decode(data, 1, data[0])[2]
    if expiry is not None and expiry <= current.now:
        overlay.put(key, None)
