"""Values of one line of JSON, each read by its path; an InputError names the field."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeVar

from roster._json import JsonObject
from roster.cli.strict_json import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

T = TypeVar("T")


def read_object(
    value: object, path: str, known: Collection[str] | None = None, needed: Sequence[str] = ()
) -> JsonObject:
    """Read an object; `known` are the fields it may have, `needed` those it must."""
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


def read_list(value: object, path: str, read: Callable[[object, str], T]) -> list[T]:
    """Read a list, each item by `read`."""
    if not isinstance(value, list):
        raise InputError(path, f"must be a list, not {shown(value)}")
    return [read(item, f"{path}[{i}]") for i, item in enumerate(value)]


def read_whole(value: object, path: str) -> int:
    """Read a whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(path, f"must be a whole number, not {shown(value)}")
    return value


def read_number(value: object, path: str, least: int, most: int) -> int:
    """Read a whole number within bounds, both included."""
    number = read_whole(value, path)
    if not least <= number <= most:
        raise InputError(path, f"must be from {least} to {most}, not {number}")
    return number


def read_name(value: object, path: str) -> str:
    """Read a string that can be written as UTF-8."""
    if not isinstance(value, str):
        raise InputError(path, f"must be a string, not {shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(path, f"{value!a} is half a character: a lone surrogate") from error
    return value


def read_names(value: object, path: str) -> list[str]:
    """Read a list of strings."""
    return read_list(value, path, read_name)


def read_optional_name(value: object, path: str) -> str | None:
    """Read a string, or null."""
    return None if value is None else read_name(value, path)


def read_hex(value: object, path: str) -> bytes | None:
    """Read bytes in hex digits, or null."""
    if value is None:
        return None
    try:
        return bytes.fromhex(read_name(value, path))
    except ValueError as error:
        raise InputError(path, f"must be bytes in hex, not {shown(value)}") from error


def path_to(path: str, name: str) -> str:
    """Return the path of a field of the object at `path`."""
    return f"{path}.{name}" if path else name


def shown(value: object) -> str:
    """Return a value as JSON, shortened."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
