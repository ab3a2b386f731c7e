"""Durations: a timedelta, or an interval in Spark's words, such as "1 hour 30 minutes"."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TypeAlias

from roster.state.store import StateError

Duration: TypeAlias = timedelta | str
"""A timedelta, or its text: "10 minutes"."""

_UNITS = ("weeks", "days", "hours", "minutes", "seconds", "milliseconds", "microseconds")
_PART = rf"(\d{{1,15}}(?:\.\d{{1,9}})?)\s*({'|'.join(f'{unit}?' for unit in _UNITS)})"
_TEXT = re.compile(rf"\s*(?:interval\s+)?{_PART}(?:\s+{_PART})*\s*", re.IGNORECASE)


def as_timedelta(name: str, value: object) -> timedelta:
    """Return a duration; `name` is the argument's. Raises StateError for anything else."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, str) and _TEXT.fullmatch(value):
        parts = [(float(number), unit.lower()) for number, unit in re.findall(_PART, value, re.IGNORECASE)]
        try:
            return sum((timedelta(**{unit.removesuffix("s") + "s": number}) for number, unit in parts), timedelta())
        except OverflowError:
            pass
    units = f"{', '.join(_UNITS[:-1])} or {_UNITS[-1]}"
    raise StateError(f"{name}={value!r} is not a duration: use timedelta(hours=1) or '1 hour', in {units}")
