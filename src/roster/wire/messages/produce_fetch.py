"""Records in and out, and where they are."""

from roster.wire.api import ApiKey
from roster.wire.codec.fields import array, int8, int16, int32, int64, record_set, string, struct, uuid
from roster.wire.codec.table import Message, Struct


class ProduceRequest(Message, key=ApiKey.PRODUCE, versions="3-13", flexible="9+"):
    """Append record batches. `acks`: 0 none (and no response), 1 leader, -1 all in sync."""

    class Topic(Struct):
        """One topic, from v13 by id."""

        class Partition(Struct):
            index: int = int32()
            records: bytes | memoryview | None = record_set()

        name: str = string("0-12", ignorable=True)
        topic_id: bytes = uuid("13+", ignorable=True)
        partition_data: list[Partition] = array(Partition)

    Partition = Topic.Partition

    transactional_id: str | None = string(nullable="0+", default=None)
    acks: int = int16()
    timeout_ms: int = int32()
    topic_data: list[Topic] = array(Topic)


class ProduceResponse(Message, key=ApiKey.PRODUCE, versions="3-13", flexible="9+"):
    """Base offsets of the written batches, or errors."""

    class Topic(Struct):
        """One topic, from v13 by id."""

        class Partition(Struct):
            """The first offset given to the batch; `log_append_time_ms` -1 if records keep the producer's time."""

            class RecordError(Struct):
                """One record that was refused (KIP-467)."""

                batch_index: int = int32()
                batch_index_error_message: str | None = string(nullable="0+", default=None)

            index: int = int32()
            error_code: int = int16()
            base_offset: int = int64()
            log_append_time_ms: int = int64(default=-1, ignorable=True)
            log_start_offset: int = int64("5+", default=-1, ignorable=True)
            record_errors: list[RecordError] = array(RecordError, "8+", ignorable=True)
            error_message: str | None = string("8+", nullable="8+", default=None, ignorable=True)

        name: str = string("0-12", ignorable=True)
        topic_id: bytes = uuid("13+", ignorable=True)
        partition_responses: list[Partition] = array(Partition)

    Partition = Topic.Partition

    responses: list[Topic] = array(Topic)
    throttle_time_ms: int = int32(ignorable=True)


class FetchRequest(Message, key=ApiKey.FETCH, versions="4-18", flexible="12+"):
    """Read batches from offsets on, waiting up to `max_wait_ms` for `min_bytes`. Session epoch -1: no fetch session
    (KIP-227).
    """

    class Topic(Struct):
        """One topic, from v13 by id."""

        class Partition(Struct):
            partition: int = int32()
            current_leader_epoch: int = int32("9+", default=-1, ignorable=True)
            fetch_offset: int = int64()
            last_fetched_epoch: int = int32("12+", default=-1)
            log_start_offset: int = int64("5+", default=-1, ignorable=True)
            partition_max_bytes: int = int32()

        topic: str = string("0-12", ignorable=True)
        topic_id: bytes = uuid("13+", ignorable=True)
        partitions: list[Partition] = array(Partition)

    class ForgottenTopic(Struct):
        """Partitions to take out of the fetch session."""

        topic: str = string("7-12", ignorable=True)
        topic_id: bytes = uuid("13+", ignorable=True)
        partitions: list[int] = array(int32())

    Partition = Topic.Partition

    replica_id: int = int32("0-14", default=-1)
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(default=2**31 - 1, ignorable=True)
    isolation_level: int = int8(ignorable=True)
    session_id: int = int32("7+", ignorable=True)
    session_epoch: int = int32("7+", default=-1, ignorable=True)
    topics: list[Topic] = array(Topic)
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, "7+")
    rack_id: str = string("11+", ignorable=True)


class FetchResponse(Message, key=ApiKey.FETCH, versions="4-18", flexible="12+"):
    """Batches per partition."""

    class Topic(Struct):
        """One topic, from v13 by id."""

        class Partition(Struct):
            """Batches of one partition; the last one may be cut off, and the first may start before the offset
            asked for.
            """

            class EpochEndOffset(Struct):
                """Offset at which the log diverges from the fetcher's (KIP-595)."""

                epoch: int = int32(default=-1)
                end_offset: int = int64(default=-1)

            class AbortedTransaction(Struct):
                """Records of this producer from this offset on were aborted."""

                producer_id: int = int64()
                first_offset: int = int64()

            partition_index: int = int32()
            error_code: int = int16()
            high_watermark: int = int64()
            last_stable_offset: int = int64(default=-1, ignorable=True)
            log_start_offset: int = int64("5+", default=-1, ignorable=True)
            diverging_epoch: EpochEndOffset = struct(EpochEndOffset, "12+", tag=0)
            aborted_transactions: list[AbortedTransaction] | None = array(
                AbortedTransaction, nullable="0+", ignorable=True
            )
            preferred_read_replica: int = int32("11+", default=-1)
            records: bytes | memoryview | None = record_set()

        topic: str = string("0-12", ignorable=True)
        topic_id: bytes = uuid("13+", ignorable=True)
        partitions: list[Partition] = array(Partition)

    Partition = Topic.Partition
    AbortedTransaction = Topic.Partition.AbortedTransaction

    throttle_time_ms: int = int32(ignorable=True)
    error_code: int = int16("7+", ignorable=True)
    session_id: int = int32("7+")
    responses: list[Topic] = array(Topic)


class ListOffsetsRequest(Message, key=ApiKey.LIST_OFFSETS, versions="1-10", flexible="6+"):
    """Offsets by time. Replica id -1 is a consumer."""

    class Topic(Struct):
        class Partition(Struct):
            """Timestamp in ms, or -1 latest, -2 earliest, -3 the record with the largest timestamp."""

            partition_index: int = int32()
            current_leader_epoch: int = int32("4+", default=-1, ignorable=True)
            timestamp: int = int64()

        name: str = string()
        partitions: list[Partition] = array(Partition)

    Partition = Topic.Partition

    replica_id: int = int32(default=-1)
    isolation_level: int = int8("2+")
    topics: list[Topic] = array(Topic)
    timeout_ms: int = int32("10+", ignorable=True)


class ListOffsetsResponse(Message, key=ApiKey.LIST_OFFSETS, versions="1-10", flexible="6+"):
    """One offset per partition."""

    class Topic(Struct):
        class Partition(Struct):
            partition_index: int = int32()
            error_code: int = int16()
            timestamp: int = int64(default=-1)
            offset: int = int64(default=-1)
            leader_epoch: int = int32("4+", default=-1)

        name: str = string()
        partitions: list[Partition] = array(Partition)

    Partition = Topic.Partition

    throttle_time_ms: int = int32("2+", ignorable=True)
    topics: list[Topic] = array(Topic)
