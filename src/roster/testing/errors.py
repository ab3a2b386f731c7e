"""Errors of the test kit."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from roster._errors import RosterError


class KitArgumentError(RosterError, ValueError):
    """A wrong argument; the message names it and what is possible instead."""


class KitTimeoutError(RosterError, TimeoutError):
    """What a test waited for did not happen; the message says what was seen instead."""


def unknown(kind: str, given: object, known: Iterable[str]) -> KitArgumentError:
    """Return the error for a name that is not one of `known`, with near matches."""
    names = sorted(known)
    lower = {name.lower(): name for name in names}
    near = difflib.get_close_matches(str(given).lower(), lower, 3, 0.5)
    hint = f"did you mean {' or '.join(lower[name] for name in near)}?" if near else f"one of {', '.join(names)}"
    return KitArgumentError(f"no {kind} {given!r}; {hint}")
