"""The initial state of a processor: rows by key, sent to the tasks once."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from roster.state.keys import encode_keys
from roster.state.store import StateError


class InitialState:
    """Rows that each key begins with. Raises StateError if the key's columns are missing or cannot be keys."""

    def __init__(self, table: pa.Table, keys: Sequence[str]) -> None:
        if missing := [name for name in keys if name not in table.column_names]:
            raise StateError(f"initial_state: no column {missing[0]!r} among {', '.join(table.column_names)}")
        encoded = encode_keys(table, keys).combine_chunks()
        order = pc.sort_indices(encoded)
        self._table = table.take(order).combine_chunks()
        self._spans: dict[bytes, tuple[int, int]] = {}
        for place, key in enumerate(encoded.take(order).to_pylist()):
            begin, _ = self._spans.get(key, (place, place))
            self._spans[key] = begin, place + 1

    def of(self, key: bytes | None) -> pa.Table:
        """Return the rows of a key."""
        begin, end = self._spans.get(key or b"", (0, 0))
        return self._table.slice(begin, end - begin)
