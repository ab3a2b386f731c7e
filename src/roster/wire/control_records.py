"""Control batches: the markers that end a transaction in a partition (Kafka's documentation, "Control Batches")."""

from enum import IntEnum
from struct import Struct as Packing
from typing import NamedTuple

from roster.wire.codec.varint import Buffer
from roster.wire.errors import WireError
from roster.wire.records import Record, build_batch, read_batch

_KEY = Packing(">hh")
_VALUE = Packing(">hi")
_VERSION = 0


class ControlType(IntEnum):
    """Kinds of control records that end a transaction."""

    ABORT = 0
    COMMIT = 1


class EndTxnMarker(NamedTuple):
    """The end of a producer's transaction; `coordinator_epoch` fences coordinators that were replaced."""

    control_type: ControlType
    coordinator_epoch: int


def build_marker(
    marker: EndTxnMarker, *, producer_id: int, producer_epoch: int, timestamp: int, base_offset: int = 0
) -> bytes:
    """Return the control batch of a marker; `timestamp` in wall-clock ms."""
    key = _KEY.pack(_VERSION, marker.control_type)
    value = _VALUE.pack(_VERSION, marker.coordinator_epoch)
    return build_batch(
        [Record(timestamp=timestamp, key=key, value=value)],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def read_marker(batch: Buffer) -> EndTxnMarker | None:
    """Decode the marker of a control batch, None for another type of control record. Raises WireError if malformed."""
    key, value = read_batch(batch)[0][2:4]
    if key is None or len(key) < _KEY.size:
        raise WireError(f"control record: key of {0 if key is None else len(key)} bytes, at least {_KEY.size} belong")
    _, kind = _KEY.unpack_from(key)
    if kind not in tuple(ControlType):
        return None
    if value is None or len(value) < _VALUE.size:
        raise WireError(f"control record: value of {0 if value is None else len(value)} bytes, {_VALUE.size} belong")
    return EndTxnMarker(ControlType(kind), _VALUE.unpack_from(value)[1])
