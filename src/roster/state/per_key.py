"""A function called for each key of a batch with its rows and its value, for state that no aggregate describes.

The store is read once for all keys of the batch and the changes are handed back together, so the function's own work is
what costs time. Rows are plain tuples: building a class's object for each row takes longer than most functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from roster.state.aggregate import Update
from roster.state.keys import encode_keys
from roster.state.store import Snapshot, StateError, Store, Value


class ValueState:
    """The value of one key, as bytes; as in Spark's ValueState."""

    __slots__ = ("_changed", "_value")

    def __init__(self, value: Value) -> None:
        self._value = value
        self._changed = False

    def exists(self) -> bool:
        """True if the key has a value."""
        return self._value is not None

    def get(self) -> Value:
        """Return the value, None if the key has none."""
        return self._value

    def update(self, value: bytes) -> None:
        """Set the value."""
        self._value, self._changed = value, True

    def clear(self) -> None:
        """Remove the value."""
        self._value, self._changed = None, True

    @property
    def changed(self) -> bool:
        """True if it was set or removed."""
        return self._changed


KeyFunction: TypeAlias = Callable[[tuple[Any, ...], list[tuple[Any, ...]], ValueState], Iterable[Sequence[Any]]]
"""Called with the values of the key columns, the key's rows in their order, and its state; returns rows to emit."""


def update_keys(
    table: pa.Table, store: Store | Snapshot, keys: Sequence[str], function: KeyFunction, output: pa.Schema
) -> Update:
    """Call a function for each key of a batch. Nothing is written: the changes are the caller's to commit.

    output: columns of the rows that the function returns. A row has all columns of the table, in their order. What the
    function raises is raised as it is; StateError for rows that do not fit `output`.
    """
    encoded = encode_keys(table, keys).combine_chunks().dictionary_encode()
    order, bounds = _by_key(encoded)
    key_list = encoded.dictionary.to_pylist()
    sorted_table = table.take(order)
    rows = list(zip(*(column.to_pylist() for column in sorted_table.columns), strict=True))
    key_rows = list(zip(*(sorted_table[name].take(bounds[:-1]).to_pylist() for name in keys), strict=True))
    states = list(map(ValueState, store.multi_get(key_list)))
    results: list[Sequence[Any]] = []
    for at, (key, state) in enumerate(zip(key_rows, states, strict=True)):
        results.extend(function(key, rows[bounds[at] : bounds[at + 1]], state))
    changed = [(key, state.get()) for key, state in zip(key_list, states, strict=True) if state.changed]
    columns = [pa.array(column, pa.binary()) for column in (zip(*changed, strict=True) if changed else ((), ()))]
    return Update(_table(results, output), pa.table(columns, ["key", "value"]))


def _by_key(encoded: Any) -> tuple[Any, Any]:
    """Return the rows by key, each key's in their own order, and where each key begins and the last one ends."""
    places = encoded.indices.to_numpy()
    counts = np.bincount(places, minlength=len(encoded.dictionary))
    return np.argsort(places, kind="stable"), np.concatenate(([0], np.cumsum(counts)))


def _table(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.Table:
    width = len(schema)
    if wrong := next((row for row in rows if len(row) != width), None):
        raise StateError(f"the function returned a row of {len(wrong)} values, output has {width} columns: {wrong!r}")
    columns = zip(*rows, strict=True) if rows else [()] * width
    try:
        return pa.table(
            [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
        )
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise StateError(f"the function returned a value that does not fit output: {error}") from error
