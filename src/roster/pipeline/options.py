"""A pipeline's options, checked before anything is started; errors for those of Spark and of Kafka's consumer."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from roster._json import loads
from roster.assignors import Assignor, as_tuple
from roster.http.access import Access, parse_access
from roster.member.config import ConfigError, MemberConfig
from roster.member.options import DEFAULT_ASSIGNORS, MemberSettings
from roster.member.task_options import TaskOptions
from roster.model import Address, AddressError, OffsetSpec, TopicPartition, parse_address, parse_addresses
from roster.model.options import INT32_MAX, INT64_MAX, declared, shown, values
from roster.model.topics import NAME_RULE, is_legal_name
from roster.pipeline.consumer_settings import CONSUMER_SETTINGS, Consumer, parse_consumer
from roster.pipeline.errors import PipelineError
from roster.pipeline.pipeline_options import PipelineOptions, StartingOffsets
from roster.pipeline.state_options import State
from roster.security import PLAINTEXT, Security, SettingError, parse_security
from roster.state.durations import as_timedelta
from roster.state.store import StateError

_NUMBER = re.compile(r"[0-9]{1,10}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Tuning:
    """Values found by measurement; tests and benchmarks change them.

    min_offsets_per_task: smallest part into which a range is split. poll_interval_ms: time between looks for new
    records while there are none. small_batch_offsets: most offsets of a batch that is not a Spark job.
    acceptable_lag, max_warmups: as in TaskOptions.
    """

    min_offsets_per_task: int = 1_000
    poll_interval_ms: int = 200
    small_batch_offsets: int = 10_000
    acceptable_lag: int = TaskOptions.acceptable_lag
    max_warmups: int = TaskOptions.max_warmups


@dataclass(frozen=True)
class Options(PipelineOptions):
    """Checked options of a `Pipeline`. Raises PipelineError that names the wrong option."""

    bootstrap: str
    topics: tuple[str, ...] | re.Pattern[str]
    _: KW_ONLY
    assignors: tuple[str | Assignor, ...] = DEFAULT_ASSIGNORS
    state: State = field(default_factory=State)
    security: Security = PLAINTEXT
    tuning: Tuning = Tuning()

    def __post_init__(self) -> None:
        for name, option in declared(PipelineOptions).items():
            if problem := option.problem(getattr(self, name)):
                raise PipelineError(problem, field=name)
        if not isinstance(self.group, str):
            raise PipelineError(f"{self.group!r} is not a name", field="group", fix="Pass group='my-group'")
        if not isinstance(self.state, State):
            problem = f"{shown(self.state)} is not a State"
            raise PipelineError(problem, field="state", fix="For example State(standbys=1)")
        selection = self.topics if isinstance(self.topics, re.Pattern) else frozenset(self.topics)
        settings = values(MemberSettings, self.settings)
        try:
            MemberConfig(group=self.group, selection=selection, assignors=self.assignors, **settings)
        except ConfigError as error:
            raise _named_as_in_kafka(error) from None
        self.start  # noqa: B018 - it is checked where it is parsed
        self.access  # noqa: B018 - likewise
        self._check_http()
        self._check_dead_letter_topic()
        self.idle_seconds  # noqa: B018 - likewise

    @cached_property
    def access(self) -> Access:
        """Who may use the HTTP server."""
        try:
            return parse_access(self.http_security)
        except SettingError as error:
            problem, fix = f"{error.key}: {error.problem}", error.fix[0].upper() + error.fix[1:]
            raise PipelineError(problem, field="http_security", fix=fix) from None

    @cached_property
    def idle_seconds(self) -> float | None:
        """Time after which a partition without records is idle, in seconds."""
        try:
            after = None if self.idle_after is None else as_timedelta("idle_after", self.idle_after).total_seconds()
        except StateError as error:
            raise PipelineError(str(error).removeprefix("idle_after="), field="idle_after") from None
        if after is not None and after <= 0:
            raise PipelineError(f"{shown(self.idle_after)} is not a time", field="idle_after", fix="Use '5 minutes'")
        return after

    @property
    def http_address(self) -> Address | None:
        """Address of the HTTP server, None if there is none."""
        address = self.state.application_server if self.http is None else self.http
        return None if address is None else parse_address(address)

    @cached_property
    def start(self) -> str | int | Mapping[TopicPartition, int]:
        """`earliest`, `latest`, a timestamp in ms, or offsets by partition (-2 earliest, -1 latest)."""
        return parse_starting_offsets(self.starting_offsets)

    @cached_property
    def settings(self) -> Consumer:
        """Settings of the member and of the reader inside the tasks."""
        return parse_consumer(self.consumer or {})

    def _check_http(self) -> None:
        try:
            address = self.http_address
        except AddressError as error:
            fix = error.fix[0].upper() + error.fix[1:]
            raise PipelineError(error.problem, field="http", fix=fix) from None
        if address is None and self.http_security is not None:
            raise PipelineError(
                "there is no HTTP server", field="http_security", fix="Set http='127.0.0.1:8080', or leave it out"
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


def checked(given: PipelineOptions, tuning: Tuning) -> Options:
    """Check a pipeline's options and return them. Raise PipelineError that names the wrong one."""
    return Options(
        **values(PipelineOptions, given)
        | {
            "bootstrap": parse_bootstrap(given.bootstrap),
            "topics": parse_topics(given.topics),
            "assignors": as_tuple(given.assignors),
            "state": State() if given.state is None else given.state,
            "security": check_security(given.security),
            "tuning": tuning,
        }
    )


def _named_as_in_kafka(error: ConfigError) -> PipelineError:
    """Return the error for a member's setting, under its name in Kafka's clients."""
    names = {option.name: name for name, option in CONSUMER_SETTINGS.items()}
    if error.option not in names:
        return PipelineError(str(error), field=error.option)
    text = re.sub(r"\w+", lambda word: names.get(word[0], word[0]), str(error))
    return PipelineError(f"{names[error.option]}: {text}", field="consumer")


def as_columns(names: str | Sequence[str], field: str = "keys") -> tuple[str, ...]:
    """Return one column's name or several as a tuple. Raises PipelineError for what is not a name."""
    columns = tuple(names) if isinstance(names, Collection) and not isinstance(names, str) else (names,)
    for column in columns:
        if not isinstance(column, str):
            fix = "Use names, such as 'shop'"
            fix += "; a window of time is window=Window('at', '1 hour')" if "window(" in str(column) else ""
            raise PipelineError(f"{column!r} is not the name of a column", field=field, fix=fix)
    return columns


def parse_bootstrap(bootstrap: str | Sequence[str]) -> str:
    """Return addresses as `host:port[,host:port]`. Raise PipelineError for an invalid one."""
    try:
        return ",".join(map(str, parse_addresses(bootstrap)))
    except AddressError as error:
        raise PipelineError(error.problem, field="bootstrap", fix=error.fix[0].upper() + error.fix[1:]) from error


def check_security(given: Security | Mapping[str, object] | None) -> Security:
    """Check security settings and return them. Raise PipelineError that names the wrong one."""
    try:
        return parse_security(given)
    except SettingError as error:
        problem, fix = f"{error.key}: {error.problem}", error.fix[0].upper() + error.fix[1:]
        raise PipelineError(problem, field="security", fix=fix) from None


def parse_topics(topics: str | Sequence[str] | re.Pattern[str]) -> tuple[str, ...] | re.Pattern[str]:
    """Return topic names, or a pattern (`re.Pattern` or `"pattern:REGEX"`) that whole names must match.

    Raises PipelineError for anything else.
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
        offsets: Mapping[Any, Any] = loads(text)
    except ValueError as error:
        raise PipelineError(
            f"{shown(text)} is not JSON: {error}",
            field="starting_offsets",
            fix="""For example '{"orders": {"0": 23, "1": -1}}'""",
        ) from None
    return offsets


def _plain(name: str) -> str:
    """Reduce a name to its letters, in lower case."""
    return re.sub(r"[^a-z]", "", name.lower())


_OPTIONS = {
    **{
        _plain(name).removeprefix("kafka"): option.name
        for option in declared(PipelineOptions).values()
        for name in (option.kafka, option.spark)
        if name
    },
    **{
        _plain(name): f'consumer={{"{key}": ...}}'
        for key, option in CONSUMER_SETTINGS.items()
        for name in (key, option.name)
    },
    **{
        _plain(name): f"state=State({option.name}=...)"
        for option in declared(State).values()
        for name in (option.kafka or option.name, option.name)
    },
    "autooffsetreset": "starting_offsets",
}
"""Options of Spark's Kafka source and of Kafka's consumer, reduced by `_plain`, with a pipeline's option for each."""


def refuse_foreign_names(given: Iterable[str], known: Collection[str]) -> None:
    """Raise PipelineError for an option that is not known, naming the one that is meant."""
    for name in given:
        if name in known:
            continue
        own = _OPTIONS.get(_plain(name)) or _OPTIONS.get(_plain(name).removeprefix("kafka"))
        if own is not None:
            fix = f"Use {own}"
        elif near := difflib.get_close_matches(name, sorted(known), 1):
            fix = f"Did you mean {near[0]}?"
        else:
            fix = "Settings of Kafka's consumers go into consumer={...}, and read_stream takes Spark's options"
        raise PipelineError("a pipeline has no option of this name", field=name, fix=fix)
