"""Records of `__transaction_state`: encoded from the state of a transactional id, and replayed to restore it."""

from collections.abc import Iterable

from roster.model import TopicPartition
from roster.transactions.metadata import Metadata, Transaction
from roster.transactions.states import AT_REST, TransactionState
from roster.wire import WireError
from roster.wire.transactions_topic import TransactionLogValue, decode_key, decode_value, encode_key, encode_value


def record(transactional_id: str, metadata: Metadata) -> tuple[bytes, bytes]:
    """Encode the state of a transactional id."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(metadata.partitions):
        topics.setdefault(topic, []).append(partition)
    partitions = [TransactionLogValue.Topic(topic=topic, partition_ids=ids) for topic, ids in topics.items()]
    value = TransactionLogValue(
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=metadata.state,
        transaction_partitions=None if metadata.state is TransactionState.EMPTY else partitions,
        transaction_last_update_timestamp_ms=metadata.updated_ms,
        transaction_start_timestamp_ms=metadata.started_ms,
        previous_producer_id=metadata.previous_producer_id,
        next_producer_id=metadata.next_producer_id,
        client_transaction_version=metadata.client_version,
    )
    return encode_key(transactional_id), encode_value(value)


def tombstone(transactional_id: str) -> tuple[bytes, None]:
    """Encode the deletion of an expired transactional id."""
    return encode_key(transactional_id), None


def replay(partition: int, log: Iterable[tuple[bytes, bytes | None]]) -> tuple[dict[str, Transaction], int]:
    """Return a partition's transactional ids, from its records in log order, and the number of unreadable records."""
    transactions: dict[str, Transaction] = {}
    unreadable = 0
    for key, value in log:
        try:
            transactional_id = decode_key(key)
            if transactional_id is None:
                continue
            if value is None:
                transactions.pop(transactional_id, None)
            else:
                transactions[transactional_id] = Transaction(transactional_id, partition, _metadata(value))
        except WireError:
            unreadable += 1
    return transactions, unreadable


def _metadata(data: bytes) -> Metadata:
    value = decode_value(data)
    try:
        state = TransactionState(value.transaction_status)
    except ValueError:
        raise WireError(f"record value: transaction_status {value.transaction_status}") from None
    topics = value.transaction_partitions or ()
    partitions = frozenset(
        TopicPartition(topic.topic, partition) for topic in topics for partition in topic.partition_ids
    )
    return Metadata(
        state=state,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        timeout_ms=value.transaction_timeout_ms,
        partitions=frozenset() if state in AT_REST else partitions,
        started_ms=value.transaction_start_timestamp_ms,
        updated_ms=value.transaction_last_update_timestamp_ms,
        client_version=value.client_transaction_version,
    )
