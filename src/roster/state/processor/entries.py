"""Entries of a store with variables as rows, in the shape of Spark's state data source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any

import pyarrow as pa

from roster.state.keys import decode_keys, key_end
from roster.state.processor.overlay import end_of
from roster.state.processor.variables import FIRST, LAST, Variable, decode_registry

_LENGTH = Struct("<I")


class VariableEntries:
    """Reads the entries of values, lists and maps by the store's list of them.

    Rows have `variable`, `key` and, by the kind, `value`, `list_element`, or `user_map_key` and `user_map_value`; of a
    variable with a time to live also `expiration_timestamp` in ms since the epoch. What is over may still be there.
    """

    def __init__(self, keys: pa.Schema, registry: bytes | None) -> None:
        self._keys = keys
        names = {entry.number: (name, entry) for name, entry in decode_registry(registry).items()}
        self._variables = {
            number: Variable(name, entry, None, lambda fields, values: dict(zip(fields, values, strict=True)))
            for number, (name, entry) in names.items()
        }

    def spans(self, key: bytes) -> list[tuple[bytes, bytes]]:
        """Return the first key and the one behind the last of what each variable has for a key."""
        starts = [bytes([number]) + key for number in sorted(self._variables)]
        return [(start, end_of(start)) for start in starts]

    def rows(self, entries: Sequence[tuple[bytes, bytes]]) -> list[dict[str, Any]]:
        """Return the rows of entries; timers and what the store notes for itself are left out."""
        return [row for key, data in entries if FIRST <= key[0] <= LAST for row in self._rows(key, data)]

    def _rows(self, key: bytes, data: bytes) -> Iterator[dict[str, Any]]:
        variable = self._variables.get(key[0])
        if variable is None:
            return
        end = key_end(key, 1, self._keys.types)
        columns = decode_keys([key[1:end]], self._keys.types)
        of_key = {name: column[0].as_py() for name, column in zip(self._keys.names, columns, strict=True)}
        row: dict[str, Any] = {"variable": variable.name, "key": of_key}
        if variable.kind == "map" and variable.map_key is not None:
            row["user_map_key"] = dict(zip(variable.map_key.names, variable.map_key.decode(key, end), strict=True))
            yield row | self._value("user_map_value", variable, data, 1)
        elif variable.kind == "list":
            at = 1
            while at < len(data):
                yield row | self._value("list_element", variable, data, at + _LENGTH.size)
                at += _LENGTH.size + int(_LENGTH.unpack_from(data, at)[0])
        else:
            yield row | self._value("value", variable, data, 1)

    @staticmethod
    def _value(name: str, variable: Variable, data: bytes, at: int) -> dict[str, Any]:
        values, _, expiry = variable.decode(data, at, data[0])
        found: dict[str, Any] = {name: dict(zip(variable.codec.names, values, strict=True))}
        return found if expiry is None else found | {"expiration_timestamp": expiry}
