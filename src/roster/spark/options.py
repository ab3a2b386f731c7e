"""A pipeline's options, checked before anything is started."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

from confluent_kafka import Consumer, KafkaException

from roster.assignors import Assignor, choose
from roster.model import AddressError, TopicPartition, parse_addresses
from roster.spark.errors import PipelineError

StartingOffsets: TypeAlias = str | datetime | Mapping[Any, Any]
"""`"earliest"`, `"latest"`, a moment (the first record at or after it), or a map by partition, written
`{TopicPartition: offset}` or as Spark does `{"topic": {0: 23, 1: "latest"}}` with -2 and -1 for earliest and latest;
partitions left out of a map start at earliest."""

EARLIEST, LATEST = -2, -1
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class Options:
    """What `Pipeline` takes, checked. Times are milliseconds."""

    bootstrap: str
    group: str
    topics: tuple[str, ...] | re.Pattern[str]
    starting_offsets: str | int | Mapping[TopicPartition, int] = "earliest"
    """`earliest`, `latest`, a timestamp in ms, or explicit offsets (`EARLIEST` and `LATEST` allowed)."""
    max_offsets_per_batch: int | None = 1_000_000
    min_offsets_per_task: int = 1_000
    tasks: int | None = None
    include_headers: bool = False
    isolation_level: str = "read_uncommitted"
    fail_on_data_loss: bool = True
    poll_interval_ms: int = 200
    trigger_interval_ms: int = 0
    read_timeout_ms: int = 60_000
    start_timeout_ms: int = 60_000
    assignors: tuple[str | Assignor, ...] = ("cooperative-sticky",)
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    rebalance_timeout_ms: int = 300_000
    request_timeout_ms: int = 30_000
    metadata_max_age_ms: int = 300_000
    client_id: str = "roster"
    group_instance_id: str | None = None
    rack_id: str | None = None
    capacity: int | None = None
    """How many plain members the application counts for; None: as many as the tasks Spark runs at once."""
    reader_options: Mapping[str, str | int | bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise PipelineError(f"{value!r} is not a whole number of at least {least}", field=name)
        if not isinstance(self.group, str):
            raise PipelineError(f"{self.group!r} is not a name", field="group", fix="Pass group='my-group'")
        if not self.group:
            raise PipelineError("the group needs a name", field="group", fix="Pass group='my-group'")
        if self.isolation_level not in {"read_uncommitted", "read_committed"}:
            raise PipelineError(
                f"{self.isolation_level!r} is not known",
                field="isolation_level",
                fix="Use 'read_uncommitted' or 'read_committed'",
            )
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise PipelineError(
                f"{self.heartbeat_interval_ms} is not shorter than session_timeout_ms ({self.session_timeout_ms})",
                field="heartbeat_interval_ms",
                fix="A third of the session timeout is usual",
            )
        try:
            choose(self.assignors)
        except ValueError as error:
            raise PipelineError(str(error), field="assignors") from None
        for name in _RESERVED.intersection(self.reader_options):
            raise PipelineError(f"{name!r} is set by the pipeline itself", field="reader_options", fix="Leave it out")
        if self.reader_options:
            try:
                Consumer({"group.id": self.group, **self.reader_options}).close()
            except KafkaException as error:
                raise PipelineError(error.args[0].str(), field="reader_options") from None


_LEAST = {
    "max_offsets_per_batch": 1,
    "min_offsets_per_task": 1,
    "tasks": 1,
    "poll_interval_ms": 1,
    "trigger_interval_ms": 0,
    "read_timeout_ms": 1,
    "start_timeout_ms": 1,
    "session_timeout_ms": 1,
    "heartbeat_interval_ms": 1,
    "rebalance_timeout_ms": 1,
    "request_timeout_ms": 1,
    "metadata_max_age_ms": 1,
    "capacity": 1,
}
_RESERVED = {
    "bootstrap.servers",
    "group.id",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.partition.eof",
    "auto.offset.reset",
    "isolation.level",
}


def parse_bootstrap(bootstrap: str | Sequence[str]) -> str:
    """`host:port[,host:port]`, or a list of them, as one string."""
    try:
        return ",".join(map(str, parse_addresses(bootstrap)))
    except AddressError as error:
        raise PipelineError(error.problem, field="bootstrap", fix=error.fix[0].upper() + error.fix[1:]) from error


def parse_topics(topics: str | Sequence[str] | re.Pattern[str]) -> tuple[str, ...] | re.Pattern[str]:
    """Topic names, or a pattern (`re.Pattern` or `"pattern:REGEX"`) that whole names must match."""
    if isinstance(topics, re.Pattern):
        return topics
    if isinstance(topics, str) and topics.startswith("pattern:"):
        try:
            return re.compile(topics.removeprefix("pattern:"))
        except re.error as error:
            raise PipelineError(f"{topics!r} is not a regular expression: {error}", field="topics") from None
    topics = [topics] if isinstance(topics, str) or not isinstance(topics, Iterable) else list(topics)
    for topic in topics:
        if not isinstance(topic, str) or not _TOPIC.fullmatch(topic):
            raise PipelineError(
                f"{topic!r} is not a topic name",
                field="topics",
                fix="Use letters, digits, dot, dash and underscore, or 'pattern:REGEX'",
            )
    if not topics:
        raise PipelineError("no topic named", field="topics", fix="Pass topics=['name'] or 'pattern:REGEX'")
    return tuple(dict.fromkeys(topics))


def parse_starting_offsets(value: StartingOffsets) -> str | int | dict[TopicPartition, int]:
    """See `StartingOffsets`; a moment becomes milliseconds since the epoch."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise PipelineError(
                f"{value.isoformat()} has no time zone",
                field="starting_offsets",
                fix="For example datetime(2026, 1, 1, tzinfo=UTC)",
            )
        return int(value.timestamp() * 1000)
    if isinstance(value, Mapping):
        explicit: dict[TopicPartition, int] = {}
        for key, entry in value.items():
            if isinstance(key, TopicPartition):
                explicit[key] = _offset(key, entry)
            elif isinstance(key, str) and isinstance(entry, Mapping):
                for number, offset in entry.items():
                    if not str(number).isdecimal():
                        raise PipelineError(f"{key}: {number!r} is not a partition number", field="starting_offsets")
                    partition = TopicPartition(key, int(number))
                    explicit[partition] = _offset(partition, offset)
            else:
                raise PipelineError(
                    f"{key!r}: {entry!r} is not understood",
                    field="starting_offsets",
                    fix="Use {TopicPartition('t', 0): 5} or {'t': {0: 5}}",
                )
        return explicit
    if value not in ("earliest", "latest"):
        raise PipelineError(
            f"{value!r} is not understood",
            field="starting_offsets",
            fix="Use 'earliest', 'latest', a datetime, or offsets by partition",
        )
    return value


def _offset(partition: TopicPartition, value: object) -> int:
    named = {"earliest": EARLIEST, "latest": LATEST}
    offset = named.get(value, value) if isinstance(value, str) else value
    if not isinstance(offset, int) or isinstance(offset, bool) or offset < EARLIEST:
        raise PipelineError(f"{partition}: {value!r} is not an offset", field="starting_offsets")
    return offset
