"""Settings as DescribeConfigs shows them, with every place that a value could come from (Kafka's "synonyms").

Names are those of Kafka's topic and broker configuration. A setting of a topic goes back to one of the broker, and that
to its default.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from roster.broker.config import PARTS, BrokerConfig, LogConfig
from roster.broker.topic_config import TOPIC_SETTINGS, TYPE_BOOLEAN, TYPE_INT, TYPE_LIST, TYPE_LONG, default_settings
from roster.model.options import INT64_MAX, Option, declared

SOURCE_TOPIC = 1
SOURCE_BROKER = 4
SOURCE_DEFAULT = 5
TYPE_SHORT = 4

_BROKER_NAMES = {
    "compression.type": "compression.type",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "min.insync.replicas": "min.insync.replicas",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.ms": "log.roll.ms",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}
"""Settings of the broker that topics go back to, where the name is not that of the topic's with `log.` before it."""


def _type(option: Option) -> int:
    if option.kind == "bool":
        return TYPE_BOOLEAN
    return TYPE_LONG if option.most == INT64_MAX else TYPE_INT


_FIELDS: Mapping[str, tuple[int, str, str]] = {
    "log.dirs": (TYPE_LIST, "", "data_dir"),
    **{
        option.kafka: (_type(option), part, name)
        for part in ("", "coordinator", "transactions")
        for name, option in declared(PARTS[part]).items()
        if option.kafka
    },
}
"""Settings of the broker that are a field of BrokerConfig, or of a part of it: type, part, field."""
_FIXED: Mapping[str, tuple[int, str]] = {
    "default.replication.factor": (TYPE_INT, "1"),
    "offsets.topic.replication.factor": (TYPE_SHORT, "1"),
    "transaction.state.log.min.isr": (TYPE_INT, "1"),
    "transaction.state.log.replication.factor": (TYPE_SHORT, "1"),
}
"""Settings of the broker that have one value, since it is alone."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A place that has a value for a setting."""

    name: str
    value: str
    source: int


@dataclass(frozen=True, slots=True)
class Described:
    """A setting, its type as DescribeConfigs numbers it, and where its value comes from: the first of `origins`."""

    name: str
    type: int
    origins: tuple[Origin, ...]

    @property
    def value(self) -> str:
        """The value that counts."""
        return self.origins[0].value

    @property
    def source(self) -> int:
        """The origin of the value."""
        return self.origins[0].source


def topic_settings(log: LogConfig, own: Mapping[str, str]) -> list[Described]:
    """Return the settings of a topic with its own values on a broker with this log configuration."""
    described = []
    for setting in _log_settings(log):
        origins = setting.origins
        name = _TOPIC_NAMES[setting.name]
        if name in own:
            origins = (Origin(name, own[name], SOURCE_TOPIC), *origins)
        described.append(Described(name, setting.type, origins))
    return described


def broker_settings(config: BrokerConfig, advertised: str) -> list[Described]:
    """Return the settings of a broker that tells clients to connect to `advertised`."""
    initial = BrokerConfig(data_dir=config.data_dir)
    named = [
        Described(name, kind, _origins(name, _value(config, part, field), _value(initial, part, field)))
        for name, (kind, part, field) in _FIELDS.items()
    ]
    fixed = [Described(name, kind, (Origin(name, value, SOURCE_DEFAULT),)) for name, (kind, value) in _FIXED.items()]
    listener = Origin("advertised.listeners", advertised, SOURCE_BROKER)
    listening = Described(listener.name, TYPE_LIST, (listener,))
    return sorted([*named, *fixed, listening, *_log_settings(config.log)], key=lambda setting: setting.name)


def _log_settings(log: LogConfig) -> list[Described]:
    values, initial = default_settings(log), default_settings(LogConfig())
    return [
        Described(name, TOPIC_SETTINGS[topics].type, _origins(name, values[topics], initial[topics]))
        for name, topics in _TOPIC_NAMES.items()
    ]


def _origins(name: str, value: str, initial: str) -> tuple[Origin, ...]:
    default = Origin(name, initial, SOURCE_DEFAULT)
    return (default,) if value == initial else (Origin(name, value, SOURCE_BROKER), default)


def _value(config: BrokerConfig, part: str, field: str) -> str:
    value = getattr(getattr(config, part) if part else config, field)
    return str(value).lower() if isinstance(value, bool) else str(value)


_TOPIC_NAMES = {_BROKER_NAMES.get(name, f"log.{name}"): name for name in TOPIC_SETTINGS}
