"""DescribeLogDirs."""

from __future__ import annotations

from roster.wire.api import ApiKey
from roster.wire.codec.fields import array, boolean, int16, int32, int64, string
from roster.wire.codec.table import Message, Struct


class DescribeLogDirsRequest(Message, key=ApiKey.DESCRIBE_LOG_DIRS, versions="1-5", flexible="2+"):
    """Ask how large partitions are on disk; `topics` None asks for all."""

    class Topic(Struct):
        topic: str = string()
        partitions: list[int] = array(int32())

    topics: list[Topic] | None = array(Topic, nullable="0+")


class DescribeLogDirsResponse(Message, key=ApiKey.DESCRIBE_LOG_DIRS, versions="1-5", flexible="2+"):
    """The log directories of a broker; sizes are bytes."""

    class Result(Struct):
        """One directory, and the volume it is on; -1 bytes are unknown."""

        class Topic(Struct):
            class Partition(Struct):
                """The size of a partition's log; `offset_lag` is what it has to fetch from the leader."""

                partition_index: int = int32()
                partition_size: int = int64()
                offset_lag: int = int64()
                is_future_key: bool = boolean()

            name: str = string()
            partitions: list[Partition] = array(Partition)

        error_code: int = int16()
        log_dir: str = string()
        topics: list[Topic] = array(Topic)
        total_bytes: int = int64("4+", default=-1, ignorable=True)
        usable_bytes: int = int64("4+", default=-1, ignorable=True)
        is_cordoned: bool = boolean("5+", ignorable=True)

    Topic = Result.Topic
    Partition = Result.Topic.Partition

    throttle_time_ms: int = int32()
    error_code: int = int16("3+", ignorable=True)
    results: list[Result] = array(Result)
