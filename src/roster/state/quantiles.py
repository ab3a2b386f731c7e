"""A summary of a key's values for percentiles: some of the values, with bounds of their ranks.

The summary of Greenwald and Khanna: of N values, each rank has a kept value that is at most N / accuracy away. Fewer
values than the accuracy are all kept. Nothing is drawn at random, and values are summed up in pieces of one length, so
the bytes depend on the order of the values only, and not on batches. Its bytes:

    8 bytes   entries of the summary
    24 bytes for each entry   a value, and the least and the greatest rank that it can have
    8 bytes for each value that is not summed up yet
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from roster.state.store import ValueDamagedError

NOTHING = bytes(8)
"""A summary without values; values, 8 bytes for each, may follow."""

_ENTRY = np.dtype([("value", "<f8"), ("low", "<i8"), ("high", "<i8")])
_LEAST_PIECE = 128
_Entries: TypeAlias = npt.NDArray[np.void]


def merged(parts: Sequence[bytes], accuracy: int) -> bytes:
    """Return one summary of several, in the order of their values."""
    entries, rests = np.zeros(0, _ENTRY), []
    for part in parts:
        more, rest = _read(part)
        known, entries = entries, _both(entries, more)
        entries = _compressed(entries, accuracy) if len(known) and len(more) else entries
        rests.append(rest)
    rest, piece = np.concatenate(rests) if rests else np.zeros(0), max(accuracy, _LEAST_PIECE)
    whole = len(rest) // piece * piece
    for start in range(0, whole, piece):
        entries = _compressed(_both(entries, _exact(rest[start : start + piece])), accuracy)
    return len(entries).to_bytes(8, "little") + entries.tobytes() + rest[whole:].astype("<f8").tobytes()


def at(data: bytes, percentages: Sequence[float]) -> list[float] | None:
    """Return the value at each percentage, from 0 to 1; None without values."""
    entries, rest = _read(data) if data else (np.zeros(0, _ENTRY), np.zeros(0))
    entries = _both(entries, _exact(rest))
    if not len(entries):
        return None
    count = int(entries["high"][-1])
    values = []
    for percentage in percentages:
        rank = max(math.ceil(percentage * count), 1)
        away = np.maximum(rank - entries["low"], entries["high"] - rank)
        values.append(float(entries["value"][np.argmin(away)]))
    return values


def _read(data: bytes) -> tuple[_Entries, npt.NDArray[np.float64]]:
    end = 8 + int.from_bytes(data[:8], "little") * _ENTRY.itemsize
    if len(data) < end or len(data) % 8:
        raise ValueDamagedError
    return np.frombuffer(data[8:end], _ENTRY), np.frombuffer(data[end:], "<f8")


def _exact(values: npt.NDArray[np.float64]) -> _Entries:
    entries = np.zeros(len(values), _ENTRY)
    entries["value"] = np.sort(values)
    entries["low"] = entries["high"] = np.arange(1, len(values) + 1)
    return entries


def _both(one: _Entries, other: _Entries) -> _Entries:
    """Return the summary of the values of both; equal values of the first come first."""
    if not len(one) or not len(other):
        return one if len(one) else other
    parts = []
    for mine, others, is_first in ((one, other, True), (other, one, False)):
        before = np.searchsorted(others["value"], mine["value"], "left" if is_first else "right")
        moved = mine.copy()
        moved["low"] += np.append(0, others["low"])[before]
        moved["high"] += np.append(others["high"] - 1, others["high"][-1])[before]
        parts.append(moved)
    entries = np.concatenate(parts)
    return entries[np.argsort(entries["value"], kind="stable")]


def _compressed(entries: _Entries, accuracy: int) -> _Entries:
    """Leave out entries as long as the ranks of neighbours are within twice the error."""
    low, high = entries["low"].tolist(), entries["high"].tolist()
    room, last = 2 * high[-1] // accuracy if high else 0, len(entries) - 1
    if room < 2:
        return entries
    kept = [0]
    while kept[-1] < last:
        kept.append(max(bisect.bisect_right(high, low[kept[-1]] + room, kept[-1]) - 1, kept[-1] + 1))
    return entries[kept]
