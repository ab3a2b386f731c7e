"""JSON as the standard has it: Python's reader also takes NaN and the infinities, which other readers refuse."""

from __future__ import annotations

import json
from typing import Any


class ConstantError(ValueError):
    """A value is NaN, Infinity or -Infinity; `field` is its path, as in a.b[1], "" for the document itself."""

    def __init__(self, field: str, constant: str) -> None:
        super().__init__(f"{field}: {constant} is not JSON; use null" if field else f"{constant} is not JSON; use null")
        self.field = field


def parse(text: bytes) -> Any:
    """The value of a UTF-8 document. Raises ConstantError, another ValueError or RecursionError."""
    decoded = text.decode()
    try:
        return _STRICT.decode(decoded)
    except _FoundConstantError as found:
        raise ConstantError(*_first_constant(_MARKING.decode(decoded))) from found


class _FoundConstantError(ValueError):
    pass


def _refuse(constant: str) -> Any:
    raise _FoundConstantError(constant)


class _Constant(str):
    __slots__ = ()


class _Fields(list[tuple[str, Any]]):
    """An object with every field it has, names that stand twice too."""


_STRICT = json.JSONDecoder(parse_constant=_refuse)
_MARKING = json.JSONDecoder(parse_constant=_Constant, object_pairs_hook=_Fields)


def _first_constant(document: Any) -> tuple[str, str]:
    """(path, constant) of the first one in a marked document; with a stack, since documents may be deep."""
    stack: list[tuple[str, Any]] = [("", document)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, _Constant):
            return path, str(value)
        if isinstance(value, _Fields):
            stack += [(f"{path}.{name}" if path else name, each) for name, each in reversed(value)]
        elif isinstance(value, list):
            stack += [(f"{path}[{index}]", each) for index, each in reversed(list(enumerate(value)))]
    raise AssertionError("a constant was read and is gone")
