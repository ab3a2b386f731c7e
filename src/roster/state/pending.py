"""A batch's changes to a store, kept until it is known how its transaction ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from roster.state.store import Position, Value

_PRODUCER_ID, _PRODUCER_EPOCH, _POSITION = b"producer_id", b"producer_epoch", b"position"


@dataclass(frozen=True, slots=True)
class Pending:
    """Changes written under a producer's id and epoch, and the position the store has with them.

    Every transaction has an epoch of its own (KIP-890), so the two name one transaction. A value of None removes its
    key. Stored as an Arrow stream: a few milliseconds for 20,000 keys.
    """

    producer_id: int
    producer_epoch: int
    keys: Sequence[bytes]
    values: Sequence[Value]
    position: Position

    def encode(self) -> bytes:
        """Bytes of it."""
        schema = pa.schema(
            [("key", pa.binary()), ("value", pa.binary())],
            metadata={
                _PRODUCER_ID: str(self.producer_id),
                _PRODUCER_EPOCH: str(self.producer_epoch),
                _POSITION: self.position.encode(),
            },
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
        return cls(
            int(said[_PRODUCER_ID]),
            int(said[_PRODUCER_EPOCH]),
            table["key"].to_pylist(),
            table["value"].to_pylist(),
            Position.decode(said[_POSITION]),
        )
