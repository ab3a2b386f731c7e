"""Keys and values of the `__transaction_state` topic: one record per change of a transactional id.

As in `__consumer_offsets`, an int16 at the beginning determines the table. Source: Kafka's transaction coordinator
record schemas; values are written in version 1, whose tagged fields have the epoch bump of KIP-890.
"""

from struct import Struct as Packing

from roster.wire.codec.codec import encode
from roster.wire.codec.fields import array, int8, int16, int32, int64, string
from roster.wire.codec.table import Message, Struct
from roster.wire.codec.varint import Buffer
from roster.wire.offsets_topic import decode_exactly, read_version

_PREFIX = Packing(">h")
_KEY_VERSION = 0
_VALUE_VERSION = 1


class TransactionLogKey(Message, versions="0"):
    """Key: the transactional id."""

    transactional_id: str = string()


class TransactionLogValue(Message, versions="0-1", flexible="1+"):
    """State of a transactional id; times in ms (wall clock), partitions None outside a transaction.

    `previous_producer_id`: the client's id before its epochs ran out. `next_producer_id`: the id that it gets when the
    transaction is complete. `client_transaction_version`: transactions version of the EndTxn.
    """

    class Topic(Struct):
        """Partitions of one topic that are in the transaction."""

        topic: str = string()
        partition_ids: list[int] = array(int32())

    producer_id: int = int64()
    producer_epoch: int = int16()
    transaction_timeout_ms: int = int32()
    transaction_status: int = int8()
    transaction_partitions: list[Topic] | None = array(Topic, nullable="0+")
    transaction_last_update_timestamp_ms: int = int64()
    transaction_start_timestamp_ms: int = int64()
    previous_producer_id: int = int64("1+", default=-1, ignorable=True, tag=0)
    next_producer_id: int = int64("1+", default=-1, ignorable=True, tag=1)
    client_transaction_version: int = int16("1+", ignorable=True, tag=2)
    next_producer_epoch: int = int16("1+", default=-1, ignorable=True, tag=3)


def encode_key(transactional_id: str) -> bytes:
    """Return the key of a transactional id."""
    return _PREFIX.pack(_KEY_VERSION) + encode(TransactionLogKey(transactional_id=transactional_id), _KEY_VERSION)


def decode_key(data: Buffer) -> str | None:
    """Decode the transactional id of a key; None for an unknown type of key."""
    version = read_version(data, "record key: version")
    if version != _KEY_VERSION:
        return None
    return decode_exactly(TransactionLogKey, version, data).transactional_id


def encode_value(value: TransactionLogValue, version: int = _VALUE_VERSION) -> bytes:
    """Encode a value, with its version in front."""
    return _PREFIX.pack(version) + encode(value, version)


def decode_value(data: Buffer) -> TransactionLogValue:
    """Decode a value; a tombstone must be handled before."""
    return decode_exactly(TransactionLogValue, read_version(data, "record value: version"), data)
