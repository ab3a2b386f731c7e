"""The values of one line of JSON, each read by its path; what is wrong is said by its field."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


class InputError(ValueError):
    """What is wrong with a line; `field` is its path, as in members.c1.generation, "" for the line as a whole."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field


def parse_line(line: bytes) -> Any:
    """The JSON document of a line. Raises InputError; names that stand twice in one object are refused too."""
    try:
        return json.loads(line, object_pairs_hook=_once, parse_constant=_no_number)
    except InputError:
        raise
    except UnicodeDecodeError as error:
        raise InputError("", f"not UTF-8: {error.reason} at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise InputError("", f"not JSON: {error.msg} at column {error.colno}") from error
    except (RecursionError, ValueError) as error:
        raise InputError("", f"not JSON that can be read: {error}") from error


def read_object(
    value: Any, path: str, known: Collection[str] | None = None, needed: Sequence[str] = ()
) -> dict[str, Any]:
    """An object; `known` are the fields it may have, `needed` those it must."""
    if not isinstance(value, dict):
        raise InputError(path, f"must be an object, not {shown(value)}")
    for name in needed:
        if name not in value:
            raise InputError(path_to(path, name), "is missing")
    if known is not None:
        for name in value:
            if name not in known:
                raise InputError(path_to(path, name), f"unknown field; known are {', '.join(sorted(known))}")
    return value


def read_list(value: Any, path: str) -> list[Any]:
    """A list."""
    if not isinstance(value, list):
        raise InputError(path, f"must be a list, not {shown(value)}")
    return value


def read_whole(value: Any, path: str) -> int:
    """A whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(path, f"must be a whole number, not {shown(value)}")
    return value


def read_number(value: Any, path: str, least: int, most: int) -> int:
    """A whole number within bounds, both included."""
    number = read_whole(value, path)
    if not least <= number <= most:
        raise InputError(path, f"must be from {least} to {most}, not {number}")
    return number


def read_name(value: Any, path: str) -> str:
    """A string that can be written as UTF-8."""
    if not isinstance(value, str):
        raise InputError(path, f"must be a string, not {shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(path, f"{value!a} is half a character: a lone surrogate") from error
    return value


def read_optional_name(value: Any, path: str) -> str | None:
    """The same, or null."""
    return None if value is None else read_name(value, path)


def read_hex(value: Any, path: str) -> bytes | None:
    """Bytes as hex digits, or null."""
    if value is None:
        return None
    try:
        return bytes.fromhex(read_name(value, path))
    except ValueError as error:
        raise InputError(path, f"must be bytes in hex, not {shown(value)}") from error


def path_to(path: str, name: str) -> str:
    """The path of a field of the object at `path`."""
    return f"{path}.{name}" if path else name


def shown(value: Any) -> str:
    """A value as the line has it, shortened."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(twice, "stands twice in one object")
    return found


def _no_number(text: str) -> Any:
    raise InputError("", f"not JSON: {text} is no number")
