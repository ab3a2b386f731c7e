"""Looking at transactions and producers (KIP-664)."""

from __future__ import annotations

from roster.wire.api import ApiKey
from roster.wire.codec.fields import array, int16, int32, int64, string
from roster.wire.codec.table import Message, Struct


class DescribeProducersRequest(Message, key=ApiKey.DESCRIBE_PRODUCERS, versions="0", flexible="0+"):
    """Ask the leaders of partitions for the producers they remember."""

    class Topic(Struct):
        name: str = string()
        partition_indexes: list[int] = array(int32())

    topics: list[Topic] = array(Topic)


class DescribeProducersResponse(Message, key=ApiKey.DESCRIBE_PRODUCERS, versions="0", flexible="0+"):
    """The producers of each partition."""

    class Topic(Struct):
        class Partition(Struct):
            class Producer(Struct):
                """A producer; `current_txn_start_offset` is -1 without an open transaction. Time in wall-clock ms."""

                producer_id: int = int64()
                producer_epoch: int = int32()
                last_sequence: int = int32(default=-1)
                last_timestamp: int = int64(default=-1)
                coordinator_epoch: int = int32()
                current_txn_start_offset: int = int64(default=-1)

            partition_index: int = int32()
            error_code: int = int16()
            error_message: str | None = string(nullable="0+", default=None)
            active_producers: list[Producer] = array(Producer)

        name: str = string()
        partitions: list[Partition] = array(Partition)

    Partition = Topic.Partition
    Producer = Topic.Partition.Producer

    throttle_time_ms: int = int32(ignorable=True)
    topics: list[Topic] = array(Topic)


class DescribeTransactionsRequest(Message, key=ApiKey.DESCRIBE_TRANSACTIONS, versions="0", flexible="0+"):
    """Describe transactional ids."""

    transactional_ids: list[str] = array(string())


class DescribeTransactionsResponse(Message, key=ApiKey.DESCRIBE_TRANSACTIONS, versions="0", flexible="0+"):
    """One description per transactional id."""

    class TransactionState(Struct):
        """State, producer and partitions of one transactional id; the start is wall-clock ms, -1 if none is open."""

        class Topic(Struct):
            topic: str = string()
            partitions: list[int] = array(int32())

        error_code: int = int16()
        transactional_id: str = string()
        transaction_state: str = string()
        transaction_timeout_ms: int = int32()
        transaction_start_time_ms: int = int64()
        producer_id: int = int64()
        producer_epoch: int = int16()
        topics: list[Topic] = array(Topic)

    Topic = TransactionState.Topic

    throttle_time_ms: int = int32(ignorable=True)
    transaction_states: list[TransactionState] = array(TransactionState)


class ListTransactionsRequest(Message, key=ApiKey.LIST_TRANSACTIONS, versions="0-2", flexible="0+"):
    """List transactional ids; empty filters let all through. `duration_filter` in ms: open for longer than this."""

    state_filters: list[str] = array(string())
    producer_id_filters: list[int] = array(int64())
    duration_filter: int = int64("1+", default=-1)
    transactional_id_pattern: str | None = string("2+", nullable="2+", default=None)


class ListTransactionsResponse(Message, key=ApiKey.LIST_TRANSACTIONS, versions="0-2", flexible="0+"):
    """The transactional ids this broker coordinates."""

    class TransactionState(Struct):
        transactional_id: str = string()
        producer_id: int = int64()
        transaction_state: str = string()

    throttle_time_ms: int = int32(ignorable=True)
    error_code: int = int16()
    unknown_state_filters: list[str] = array(string())
    transaction_states: list[TransactionState] = array(TransactionState)
