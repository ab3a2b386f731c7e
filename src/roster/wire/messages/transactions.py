"""Requests of transactional producers to their coordinator, and of the coordinator to partitions (KIP-98, KIP-890)."""

from roster.wire.api import ApiKey
from roster.wire.codec.fields import array, boolean, int8, int16, int32, int64, string, uuid
from roster.wire.codec.table import Message, Struct
from roster.wire.messages.committed_offsets import TopicErrors


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


class ListTransactionsRequest(Message, key=ApiKey.LIST_TRANSACTIONS, versions="0-1", flexible="0+"):
    """List transactional ids; empty filters let all through. `duration_filter` in ms: open for longer than this."""

    state_filters: list[str] = array(string())
    producer_id_filters: list[int] = array(int64())
    duration_filter: int = int64("1+", default=-1)


class ListTransactionsResponse(Message, key=ApiKey.LIST_TRANSACTIONS, versions="0-1", flexible="0+"):
    """The transactional ids this broker coordinates."""

    class TransactionState(Struct):
        transactional_id: str = string()
        producer_id: int = int64()
        transaction_state: str = string()

    throttle_time_ms: int = int32(ignorable=True)
    error_code: int = int16()
    unknown_state_filters: list[str] = array(string())
    transaction_states: list[TransactionState] = array(TransactionState)


class InitProducerIdRequest(Message, key=ApiKey.INIT_PRODUCER_ID, versions="0-5", flexible="2+"):
    """Ask for a producer id; a null transactional id asks for idempotence only (KIP-98, KIP-360).

    Producer id and epoch -1 begin a new instance; the client's own ones ask for a new epoch after an error.
    """

    transactional_id: str | None = string(nullable="0+", default=None)
    transaction_timeout_ms: int = int32()
    producer_id: int = int64("3+", default=-1)
    producer_epoch: int = int16("3+", default=-1)


class InitProducerIdResponse(Message, key=ApiKey.INIT_PRODUCER_ID, versions="0-5", flexible="2+"):
    """The producer id and its epoch."""

    throttle_time_ms: int = int32(ignorable=True)
    error_code: int = int16()
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16()


class AddPartitionsToTxnRequest(Message, key=ApiKey.ADD_PARTITIONS_TO_TXN, versions="0-3", flexible="3+"):
    """Add partitions to a transaction before writing to them; later versions are for brokers."""

    class Topic(Struct):
        name: str = string()
        partitions: list[int] = array(int32())

    v3_and_below_transactional_id: str = string()
    v3_and_below_producer_id: int = int64()
    v3_and_below_producer_epoch: int = int16()
    v3_and_below_topics: list[Topic] = array(Topic)


class AddPartitionsToTxnResponse(Message, key=ApiKey.ADD_PARTITIONS_TO_TXN, versions="0-3", flexible="3+"):
    """One error per partition."""

    class TopicResult(Struct):
        class PartitionResult(Struct):
            partition_index: int = int32()
            partition_error_code: int = int16()

        name: str = string()
        results_by_partition: list[PartitionResult] = array(PartitionResult)

    PartitionResult = TopicResult.PartitionResult

    throttle_time_ms: int = int32(ignorable=True)
    results_by_topic_v3_and_below: list[TopicResult] = array(TopicResult)


class AddOffsetsToTxnRequest(Message, key=ApiKey.ADD_OFFSETS_TO_TXN, versions="0-4", flexible="3+"):
    """Add the partition of `__consumer_offsets` that has a group to a transaction."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = string()


class AddOffsetsToTxnResponse(Message, key=ApiKey.ADD_OFFSETS_TO_TXN, versions="0-4", flexible="3+"):
    """The outcome."""

    throttle_time_ms: int = int32(ignorable=True)
    error_code: int = int16()


class EndTxnRequest(Message, key=ApiKey.END_TXN, versions="0-5", flexible="3+"):
    """Commit or abort a transaction; from v5 every end gives the producer a new epoch (KIP-890)."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()


class EndTxnResponse(Message, key=ApiKey.END_TXN, versions="0-5", flexible="3+"):
    """The outcome, and from v5 producer id and epoch of the next transaction."""

    throttle_time_ms: int = int32(ignorable=True)
    error_code: int = int16()
    producer_id: int = int64("5+", default=-1, ignorable=True)
    producer_epoch: int = int16("5+", default=-1, ignorable=True)


class WriteTxnMarkersRequest(Message, key=ApiKey.WRITE_TXN_MARKERS, versions="1-2", flexible="1+"):
    """Write the markers that end transactions; from brokers, and from tools that abort a hanging one (KIP-664)."""

    class Marker(Struct):
        """The marker of one producer; `transaction_result` True commits. From v2 on with its version."""

        class Topic(Struct):
            name: str = string()
            partition_indexes: list[int] = array(int32())

        producer_id: int = int64()
        producer_epoch: int = int16()
        transaction_result: bool = boolean()
        topics: list[Topic] = array(Topic)
        coordinator_epoch: int = int32()
        transaction_version: int = int8("2+", ignorable=True)

    markers: list[Marker] = array(Marker)


class WriteTxnMarkersResponse(Message, key=ApiKey.WRITE_TXN_MARKERS, versions="1-2", flexible="1+"):
    """One error per partition of each marker."""

    class Marker(Struct):
        producer_id: int = int64()
        topics: list[TopicErrors] = array(TopicErrors)

    Topic = TopicErrors
    Partition = TopicErrors.Partition

    markers: list[Marker] = array(Marker)


class TxnOffsetCommitRequest(Message, key=ApiKey.TXN_OFFSET_COMMIT, versions="0-6", flexible="3+"):
    """Store offsets that count once the transaction commits.

    v3 and up name the member and its generation (KIP-447), v6 names topics by id (KIP-1319).
    """

    class Topic(Struct):
        class Partition(Struct):
            """The next offset to read, with whatever text the client attaches."""

            partition_index: int = int32()
            committed_offset: int = int64()
            committed_leader_epoch: int = int32("2+", default=-1, ignorable=True)
            committed_metadata: str | None = string(nullable="0+")

        name: str = string("0-5", ignorable=True)
        topic_id: bytes = uuid("6+", ignorable=True)
        partitions: list[Partition] = array(Partition)

    Partition = Topic.Partition

    transactional_id: str = string()
    group_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    generation_id: int = int32("3+", default=-1)
    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    topics: list[Topic] = array(Topic)


class TxnOffsetCommitResponse(Message, key=ApiKey.TXN_OFFSET_COMMIT, versions="0-6", flexible="3+"):
    """One error per partition."""

    class Topic(Struct):
        name: str = string("0-5", ignorable=True)
        topic_id: bytes = uuid("6+", ignorable=True)
        partitions: list[TopicErrors.Partition] = array(TopicErrors.Partition)

    throttle_time_ms: int = int32(ignorable=True)
    topics: list[Topic] = array(Topic)
