"""Errors of the test kit."""

import difflib
from collections.abc import Iterable

from roster._errors import RosterError


class KitArgumentError(RosterError, ValueError):
    """An invalid argument; the message names it and the possible values."""


class KitTimeoutError(RosterError, TimeoutError):
    """The awaited state was not reached in time; the message has the present state."""


def unknown(kind: str, given: object, known: Iterable[str]) -> KitArgumentError:
    """Return the error for a name that is not in `known`, with similar names."""
    names = sorted(known)
    lower = {name.lower(): name for name in names}
    near = difflib.get_close_matches(str(given).lower(), lower, 3, 0.5)
    hint = f"did you mean {' or '.join(lower[name] for name in near)}?" if near else f"one of {', '.join(names)}"
    return KitArgumentError(f"no {kind} {given!r}; {hint}")
