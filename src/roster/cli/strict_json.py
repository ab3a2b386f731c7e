"""JSON as the standard has it: no NaN, no infinities, and where asked no name twice in one object.

Python's reader alone takes all of these. msgspec would too refuse them, but its errors do not say under which key of an
object a value lies, and a user of `roster plan` has to find one member among hundreds.
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
        decoded = text.decode()
        try:
            return (_STRICT_UNIQUE if unique_names else _STRICT).decode(decoded)
        except _FoundError as found:
            raise _first_flaw(_MARKING.decode(decoded), unique_names) from found
    except InputError:
        raise
    except UnicodeDecodeError as error:
        raise InputError("", f"not UTF-8: {error.reason} at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise InputError("", f"not JSON: {error.msg} at column {error.colno}") from error
    except (RecursionError, ValueError) as error:
        raise InputError("", f"not JSON that can be read: {error}") from error


class _FoundError(Exception):
    """A flaw was met; the decoder does not know its path."""


class _Constant(str):
    __slots__ = ()


class _Fields(list[tuple[str, object]]):
    """An object with every field it has, names that stand twice too."""


def _refuse(constant: str) -> NoReturn:
    raise _FoundError(constant)


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    names = dict(pairs)
    if len(names) != len(pairs):
        raise _FoundError("name")
    return names


_STRICT = json.JSONDecoder(parse_constant=_refuse)
_STRICT_UNIQUE = json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=_once)
_MARKING = json.JSONDecoder(parse_constant=_Constant, object_pairs_hook=_Fields)


def _first_flaw(document: object, unique_names: bool) -> InputError:
    """Describe the first flaw of a marked document; with a stack, since documents may be deep."""
    stack: list[tuple[str, object]] = [("", document)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, _Constant):
            return InputError(path, f"{value} is not JSON, use null")
        if isinstance(value, _Fields):
            names = [name for name, _ in value]
            if unique_names and (twice := next((name for name in names if names.count(name) > 1), None)) is not None:
                return InputError(f"{path}.{twice}" if path else twice, "stands twice in one object")
            stack += [(f"{path}.{name}" if path else name, item) for name, item in reversed(value)]
        elif isinstance(value, list):
            stack += [(f"{path}[{index}]", item) for index, item in reversed(list(enumerate(value)))]
    raise AssertionError("a flaw was found and is gone")
