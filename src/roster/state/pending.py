"""A batch's changes to a store, kept until it is known how its transaction ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from roster.state.store import Position, Value

_TOKEN, _POSITION = b"token", b"position"


@dataclass(frozen=True, slots=True)
class Pending:
    """Changes of one attempt at a batch, and the position the store has with them if they are committed.

    token: names the attempt, and no other one ever. A value of None removes its key. Stored as an Arrow stream: a few
    milliseconds for 20,000 keys.
    """

    token: str
    keys: Sequence[bytes]
    values: Sequence[Value]
    position: Position

    def encode(self) -> bytes:
        """Bytes of it."""
        schema = pa.schema(
            [("key", pa.binary()), ("value", pa.binary())],
            metadata={_TOKEN: self.token, _POSITION: self.position.encode()},
        )
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            columns = [pa.array(column, pa.binary()) for column in (self.keys, self.values)]
            writer.write_batch(pa.record_batch(columns, schema=schema))
        data: bytes = sink.getvalue().to_pybytes()
        return data

    @classmethod
    def decode(cls, data: bytes) -> Pending:
        """Read the bytes of `encode`."""
        table: Any = pa.ipc.open_stream(data).read_all()
        said = table.schema.metadata
        keys, values = table["key"].to_pylist(), table["value"].to_pylist()
        return cls(said[_TOKEN].decode(), keys, values, Position.decode(said[_POSITION]))
