"""JSON as the standard has it: no NaN, no infinities, and where asked no name twice in one object.

Python's reader alone takes all of these. msgspec would too refuse them, but it reads values of known types, and its
errors about them do not say under which key of an object a value lies.
"""

import json
from typing import Any, NoReturn


class InputError(ValueError):
    """Bad input; `field` is its path, as in members.c1.generation, or "" for the document as a whole."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field


def parse(text: bytes, *, unique_names: bool = False) -> Any:
    """Return the value of a UTF-8 document.

    Raises InputError for what is not UTF-8 or not JSON, NaN, infinities, depth, and (if `unique_names`) a name twice in
    an object.
    """
    try:
        return (_STRICT_UNIQUE if unique_names else _STRICT).decode(text.decode())
    except InputError:
        raise
    except UnicodeDecodeError as error:
        raise InputError("", f"not UTF-8: {error.reason} at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise InputError("", f"not JSON: {error.msg} at column {error.colno}") from error
    except (RecursionError, ValueError) as error:
        raise InputError("", f"not JSON that can be read: {error}") from error


def _refuse(constant: str) -> NoReturn:
    raise InputError("", f"{constant} is not JSON, use null")


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    names = dict(pairs)
    if len(names) != len(pairs):
        twice = next(name for at, (name, _) in enumerate(pairs) if name in dict(pairs[:at]))
        raise InputError("", f"the name {twice!r} stands twice in one object")
    return names


_STRICT = json.JSONDecoder(parse_constant=_refuse)
_STRICT_UNIQUE = json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=_once)
