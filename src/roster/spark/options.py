"""A pipeline's options, checked before anything is started."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, TypeAlias

from roster._json import loads
from roster.assignors import Assignor
from roster.client import DEFAULT_ASSIGNORS
from roster.member.config import ConfigError, MemberConfig
from roster.model import AddressError, OffsetSpec, TopicPartition, parse_address, parse_addresses
from roster.model.options import INT32_MAX, INT64_MAX, shown
from roster.model.topics import NAME_RULE, is_legal_name
from roster.security import PLAINTEXT, Security, SettingError, parse_security
from roster.spark.errors import PipelineError
from roster.spark.pipeline_options import PIPELINE_OPTIONS, SMALL_BATCHES
from roster.spark.tasks.reader_options import parse_reader_options

StartingOffsets: TypeAlias = str | datetime | Mapping[Any, Any]
"""`"earliest"`, `"latest"`, a moment (the first record at or after it), or a map by partition, written
`{TopicPartition: offset}` or as Spark does `{"topic": {0: 23, 1: "latest"}}` with -2 and -1 for earliest and latest,
also as JSON text; partitions left out of a map start at earliest."""

_OF_THE_MEMBER = {each.name for each in fields(MemberConfig)} & PIPELINE_OPTIONS.keys() - {"group", "capacity"}
"""Options that the member checks; `capacity` may be None here."""

_NUMBER = re.compile(r"[0-9]{1,10}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Options:
    """Checked options of a `Pipeline`. Times are milliseconds. Raises PipelineError that names the wrong option."""

    bootstrap: str
    group: str
    topics: tuple[str, ...] | re.Pattern[str]
    starting_offsets: str | int | Mapping[TopicPartition, int] = "earliest"
    """`earliest`, `latest`, a timestamp in ms, or offsets by partition (-2 earliest, -1 latest)."""
    max_offsets_per_batch: int | None = 1_000_000
    target_batch_ms: int = 10_000
    min_offsets_per_task: int = 1_000
    tasks: int | None = None
    include_headers: bool = False
    isolation_level: str = "read_uncommitted"
    fail_on_data_loss: bool = True
    small_batches: str = "auto"
    poll_interval_ms: int = 200
    trigger_interval_ms: int | None = None
    """None: the sink's `default_trigger_interval_ms`, which a full batch does not wait for."""
    read_timeout_ms: int = 60_000
    start_timeout_ms: int = 60_000
    max_batch_ms: int = 300_000
    assignors: tuple[str | Assignor, ...] = DEFAULT_ASSIGNORS
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 1_000
    rebalance_timeout_ms: int = 300_000
    request_timeout_ms: int = 30_000
    metadata_max_age_ms: int = 300_000
    client_id: str | None = None
    """None: the Spark application's name."""
    group_instance_id: str | None = None
    rack_id: str | None = None
    capacity: int | None = None
    """Number of plain members that the application counts for; None: the tasks that Spark runs at once."""
    dead_letter_topic: str | None = None
    state_dir: str | None = None
    standbys: int = 0
    acceptable_lag: int = 10_000
    max_warmups: int = 2
    application_server: str | None = None
    state_cleanup_delay_ms: int = 600_000
    max_state_bytes: int | None = None
    security: Security = PLAINTEXT
    reader_options: Mapping[str, str | int | bool] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for name, option in PIPELINE_OPTIONS.items():
            if option.least is not None and (problem := option.problem(getattr(self, name))):
                raise PipelineError(problem, field=name)
        if not isinstance(self.group, str):
            raise PipelineError(f"{self.group!r} is not a name", field="group", fix="Pass group='my-group'")
        if self.isolation_level not in {"read_uncommitted", "read_committed"}:
            raise PipelineError(
                f"{self.isolation_level!r} is not known",
                field="isolation_level",
                fix="Use 'read_uncommitted' or 'read_committed'",
            )
        if self.small_batches not in SMALL_BATCHES:
            raise PipelineError(
                f"{self.small_batches!r} is not known",
                field="small_batches",
                fix=f"Use {', '.join(map(repr, SMALL_BATCHES[:-1]))} or {SMALL_BATCHES[-1]!r}",
            )
        member = {name: getattr(self, name) for name in _OF_THE_MEMBER}
        selection = self.topics if isinstance(self.topics, re.Pattern) else frozenset(self.topics)
        try:
            MemberConfig(group=self.group, selection=selection, **member)
        except ConfigError as error:
            raise PipelineError(str(error), field=error.option) from None
        self._check_dead_letter_topic()
        if self.state_dir is not None and (not isinstance(self.state_dir, str) or not self.state_dir.startswith("/")):
            raise PipelineError(
                f"{shown(self.state_dir)} is no absolute path", field="state_dir", fix="For example '/var/lib/roster'"
            )
        self._check_application_server()
        parse_reader_options(self.reader_options)

    def _check_application_server(self) -> None:
        address = self.application_server
        if address is None:
            return
        try:
            host = parse_address(address).host if isinstance(address, str) else ""
        except AddressError as error:
            raise PipelineError(
                error.problem, field="application_server", fix=error.fix[0].upper() + error.fix[1:]
            ) from None
        if host in ("", "0.0.0.0", "::", "*"):  # noqa: S104 - refused here
            raise PipelineError(
                f"{shown(address)} is no address that other applications could ask",
                field="application_server",
                fix="Name one host of this machine, for example '127.0.0.1:8080'",
            )

    def _check_dead_letter_topic(self) -> None:
        topic = self.dead_letter_topic
        if topic is None:
            return
        if not isinstance(topic, str) or not is_legal_name(topic):
            raise PipelineError(f"{topic!r} is not a topic name", field="dead_letter_topic", fix=f"Use {NAME_RULE}")
        if self.topics.fullmatch(topic) if isinstance(self.topics, re.Pattern) else topic in self.topics:
            raise PipelineError(
                f"the pipeline reads {topic!r} itself", field="dead_letter_topic", fix="Name a topic of its own"
            )


def as_columns(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return one column's name or several as a tuple."""
    return (names,) if isinstance(names, str) else tuple(names)


def parse_bootstrap(bootstrap: str | Sequence[str]) -> str:
    """Return addresses as `host:port[,host:port]`. Raise PipelineError for one that is not valid."""
    try:
        return ",".join(map(str, parse_addresses(bootstrap)))
    except AddressError as error:
        raise PipelineError(error.problem, field="bootstrap", fix=error.fix[0].upper() + error.fix[1:]) from error


def check_security(given: Security | Mapping[str, object] | None) -> Security:
    """Return security settings, checked. Raise PipelineError that names a setting that is wrong."""
    try:
        return parse_security(given)
    except SettingError as error:
        problem, fix = f"{error.key}: {error.problem}", error.fix[0].upper() + error.fix[1:]
        raise PipelineError(problem, field="security", fix=fix) from None


def parse_topics(topics: str | Sequence[str] | re.Pattern[str]) -> tuple[str, ...] | re.Pattern[str]:
    """Return topic names, or a pattern (`re.Pattern` or `"pattern:REGEX"`) that whole names must match.

    Raises PipelineError for what is neither.
    """
    if isinstance(topics, re.Pattern):
        return topics
    if isinstance(topics, str) and topics.startswith("pattern:"):
        try:
            return re.compile(topics.removeprefix("pattern:"))
        except re.error as error:
            raise PipelineError(f"{topics!r} is not a regular expression: {error}", field="topics") from None
    topics = [topics] if isinstance(topics, str) or not isinstance(topics, Iterable) else list(topics)
    for topic in topics:
        if not isinstance(topic, str) or not is_legal_name(topic):
            several = [name.strip() for name in topic.split(",")] if isinstance(topic, str) else []
            is_list = len(several) > 1 and all(map(is_legal_name, several))
            fix = f"Give a list: {several}" if is_list else f"Use {NAME_RULE}; or 'pattern:REGEX'"
            raise PipelineError(f"{topic!r} is not a topic name", field="topics", fix=fix)
    if not topics:
        raise PipelineError("no topic named", field="topics", fix="Pass topics=['name'] or 'pattern:REGEX'")
    return tuple(dict.fromkeys(topics))


def parse_starting_offsets(value: StartingOffsets) -> str | int | dict[TopicPartition, int]:
    """Check starting offsets; return a moment as milliseconds since the epoch. Raise PipelineError for other values."""
    if isinstance(value, datetime):
        return _milliseconds(value)
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = _from_json(value)
    if isinstance(value, Mapping):
        return _explicit_offsets(value)
    if value not in ("earliest", "latest"):
        raise PipelineError(
            f"{shown(value)} is not understood",
            field="starting_offsets",
            fix="Use 'earliest', 'latest', a datetime, or offsets by partition",
        )
    return value


def _milliseconds(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise PipelineError(
            f"{moment.isoformat()} has no time zone",
            field="starting_offsets",
            fix="For example datetime(2026, 1, 1, tzinfo=UTC)",
        )
    # Kafka takes -1 and -2 for the end and the beginning.
    return max(int(moment.timestamp() * 1000), 0)


def _explicit_offsets(given: Mapping[Any, Any]) -> dict[TopicPartition, int]:
    """Return offsets by partition, from `{TopicPartition: offset}`, `{topic: {number: offset}}` or a mixture."""
    explicit: dict[TopicPartition, int] = {}
    for key, entry in given.items():
        if isinstance(key, TopicPartition):
            explicit[key] = _offset(key, entry)
        elif isinstance(key, str) and isinstance(entry, Mapping):
            for number, offset in entry.items():
                partition = TopicPartition(key, _partition_number(key, number))
                explicit[partition] = _offset(partition, offset)
        else:
            raise PipelineError(
                f"{shown(key)}: {shown(entry)} is not understood",
                field="starting_offsets",
                fix="Use {TopicPartition('t', 0): 5} or {'t': {0: 5}}",
            )
    return explicit


def _partition_number(topic: str, number: object) -> int:
    if not _NUMBER.fullmatch(str(number)) or int(str(number)) > INT32_MAX:
        raise PipelineError(f"{topic}: {shown(number)} is not a partition number", field="starting_offsets")
    return int(str(number))


def _offset(partition: TopicPartition, value: object) -> int:
    named = {spec.name.lower(): int(spec) for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)}
    offset = named.get(value, value) if isinstance(value, str) else value
    if not isinstance(offset, int) or isinstance(offset, bool) or not OffsetSpec.EARLIEST <= offset <= INT64_MAX:
        raise PipelineError(f"{partition}: {shown(value)} is not an offset", field="starting_offsets")
    return offset


def _from_json(text: str) -> Mapping[Any, Any]:
    try:
        found = loads(text)
    except ValueError as error:
        raise PipelineError(
            f"{shown(text)} is not JSON: {error}",
            field="starting_offsets",
            fix="""For example '{"orders": {"0": 23, "1": -1}}'""",
        ) from None
    return found  # type: ignore[no-any-return]
