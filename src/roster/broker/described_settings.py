"""Settings as DescribeConfigs shows them, with every place that a value could come from (Kafka's "synonyms").

Names are those of Kafka's topic and broker configuration. A setting of a topic goes back to one of the broker, and that
to its default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from roster.broker.config import BrokerConfig, LogConfig
from roster.broker.topic_config import TOPIC_SETTINGS, TYPE_INT, TYPE_LIST, TYPE_LONG, TYPE_STRING, default_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

SOURCE_TOPIC = 1
SOURCE_BROKER = 4
SOURCE_DEFAULT = 5
TYPE_BOOLEAN = 1
TYPE_SHORT = 4

_BROKER_NAMES = {
    "compression.type": "compression.type",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "min.insync.replicas": "min.insync.replicas",
    "segment.ms": "log.roll.ms",
}
"""Settings of the broker that topics go back to, where the name is not that of the topic's with `log.` before it."""
_FIELDS: Mapping[str, tuple[int, str]] = {
    "auto.create.topics.enable": (TYPE_BOOLEAN, "auto_create_topics"),
    "connections.max.idle.ms": (TYPE_LONG, "idle_timeout_ms"),
    "fetch.max.bytes": (TYPE_INT, "max_fetch_bytes"),
    "group.initial.rebalance.delay.ms": (TYPE_INT, "coordinator.initial_rebalance_delay_ms"),
    "group.max.session.timeout.ms": (TYPE_INT, "coordinator.max_session_timeout_ms"),
    "group.max.size": (TYPE_INT, "coordinator.max_group_size"),
    "group.min.session.timeout.ms": (TYPE_INT, "coordinator.min_session_timeout_ms"),
    "log.dirs": (TYPE_STRING, "data_dir"),
    "log.retention.check.interval.ms": (TYPE_LONG, "retention_check_interval_ms"),
    "max.connections": (TYPE_INT, "max_connections"),
    "max.connections.per.ip": (TYPE_INT, "max_connections_per_ip"),
    "max.incremental.fetch.session.cache.slots": (TYPE_INT, "fetch_session_slots"),
    "node.id": (TYPE_INT, "node_id"),
    "num.partitions": (TYPE_INT, "default_partitions"),
    "offset.metadata.max.bytes": (TYPE_INT, "coordinator.offset_metadata_max_bytes"),
    "offsets.topic.num.partitions": (TYPE_INT, "coordinator.partitions"),
    "socket.request.max.bytes": (TYPE_INT, "max_request_bytes"),
    "transaction.max.timeout.ms": (TYPE_INT, "transactions.max_timeout_ms"),
    "transaction.state.log.num.partitions": (TYPE_INT, "transactions.partitions"),
    "transactional.id.expiration.ms": (TYPE_INT, "transactions.expiration_ms"),
}
"""Settings of the broker that are a field of BrokerConfig, or of what it holds."""
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
        """Where that is from."""
        return self.origins[0].source


def topic_settings(log: LogConfig, own: Mapping[str, str]) -> list[Described]:
    """Return the settings of a topic with its own values on a broker with this log configuration."""
    described = []
    for each in _log_settings(log):
        origins = each.origins
        name = _TOPIC_NAMES[each.name]
        if name in own:
            origins = (Origin(name, own[name], SOURCE_TOPIC), *origins)
        described.append(Described(name, each.type, origins))
    return described


def broker_settings(config: BrokerConfig, advertised: str) -> list[Described]:
    """Return the settings of a broker that tells clients to connect to `advertised`."""
    initial = BrokerConfig(data_dir=config.data_dir)
    named = [
        Described(name, kind, _origins(name, _field(config, path), _field(initial, path)))
        for name, (kind, path) in _FIELDS.items()
    ]
    fixed = [Described(name, kind, (Origin(name, value, SOURCE_DEFAULT),)) for name, (kind, value) in _FIXED.items()]
    listener = Origin("advertised.listeners", advertised, SOURCE_BROKER)
    listening = Described(listener.name, TYPE_LIST, (listener,))
    return sorted([*named, *fixed, listening, *_log_settings(config.log)], key=lambda each: each.name)


def _log_settings(log: LogConfig) -> list[Described]:
    values, initial = default_settings(log), default_settings(LogConfig())
    return [
        Described(name, TOPIC_SETTINGS[topics].type, _origins(name, values[topics], initial[topics]))
        for name, topics in _TOPIC_NAMES.items()
    ]


def _origins(name: str, value: str, initial: str) -> tuple[Origin, ...]:
    default = Origin(name, initial, SOURCE_DEFAULT)
    return (default,) if value == initial else (Origin(name, value, SOURCE_BROKER), default)


def _field(config: object, path: str) -> str:
    for name in path.split("."):
        config = getattr(config, name)
    return str(config).lower() if isinstance(config, bool) else str(config)


_TOPIC_NAMES = {_BROKER_NAMES.get(name, f"log.{name}"): name for name in TOPIC_SETTINGS}
