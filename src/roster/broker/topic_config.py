"""The topic settings this broker knows; their names, types and meaning are Kafka's (topic configuration reference)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from roster._json import JsonObject
from roster.broker.config import LogConfig
from roster.broker.errors import RefusedError
from roster.wire import ErrorCode
from roster.wire.compression import Compression

INT32 = (1 << 31) - 1
INT64 = (1 << 63) - 1
TYPE_BOOLEAN = 1
TYPE_STRING = 2
TYPE_INT = 3
TYPE_LONG = 5
TYPE_DOUBLE = 6
TYPE_LIST = 7


_CODECS = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}
"""Values of `compression.type` but `producer`."""


class InvalidConfigError(RefusedError):
    """A topic setting that this broker does not know or cannot honour."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_CONFIG, message)


@dataclass(frozen=True, slots=True)
class _Setting:
    default: str
    type: int
    allowed: tuple[str, ...] = ()
    low: int | None = 0
    """None: any number."""
    high: int = INT32

    @property
    def values(self) -> str:
        """The values that it may have, for people."""
        return ", ".join(self.allowed) or f"{'any number' if self.low is None else f'from {self.low}'} to {self.high}"


TOPIC_SETTINGS: Mapping[str, _Setting] = {
    "cleanup.policy": _Setting("delete", TYPE_LIST, ("delete", "compact")),
    "compression.type": _Setting("producer", TYPE_STRING, ("producer", *_CODECS)),
    "delete.retention.ms": _Setting("86400000", TYPE_LONG, high=INT64),
    "file.delete.delay.ms": _Setting("0", TYPE_LONG, ("0",)),
    "flush.messages": _Setting(str(INT64), TYPE_LONG, low=1, high=INT64),
    "flush.ms": _Setting(str(INT64), TYPE_LONG, high=INT64),
    "local.retention.bytes": _Setting("-2", TYPE_LONG, ("-2",)),
    "local.retention.ms": _Setting("-2", TYPE_LONG, ("-2",)),
    "max.compaction.lag.ms": _Setting(str(INT64), TYPE_LONG, low=1, high=INT64),
    "max.message.bytes": _Setting("1048588", TYPE_INT, low=0),
    "message.timestamp.after.max.ms": _Setting("3600000", TYPE_LONG, high=INT64),
    "message.timestamp.before.max.ms": _Setting(str(INT64), TYPE_LONG, high=INT64),
    "message.timestamp.type": _Setting("CreateTime", TYPE_STRING, ("CreateTime",)),
    "min.cleanable.dirty.ratio": _Setting("0.5", TYPE_DOUBLE, high=1),
    "min.compaction.lag.ms": _Setting("0", TYPE_LONG, high=INT64),
    "min.insync.replicas": _Setting("1", TYPE_INT, ("1",)),
    "preallocate": _Setting("false", TYPE_BOOLEAN, ("false",)),
    "retention.bytes": _Setting("-1", TYPE_LONG, low=None, high=INT64),
    "retention.ms": _Setting("-1", TYPE_LONG, low=-1, high=INT64),
    "segment.bytes": _Setting("268435456", TYPE_INT, low=14),
    "segment.jitter.ms": _Setting("0", TYPE_LONG, ("0",)),
    "segment.ms": _Setting("604800000", TYPE_LONG, low=1, high=INT64),
    "unclean.leader.election.enable": _Setting("false", TYPE_BOOLEAN, ("false",)),
}
"""Settings of a topic. Records are kept by one broker under their producers' times, so some have one value only.

Every batch is synced before it is answered or read: at least as often as any `flush.messages` and `flush.ms` ask.
"""

_LOG_FIELDS = {
    name: name.replace(".", "_")
    for name in (
        "delete.retention.ms",
        "max.compaction.lag.ms",
        "max.message.bytes",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.ms",
    )
}
"""Settings that are fields of LogConfig."""
_LAGS = "min.compaction.lag.ms", "max.compaction.lag.ms"
_BLANKS = "".join(map(chr, range(33)))
"""Characters that Java trims."""
_NUMBER = re.compile("[+-]?[0-9]{1,19}")
_RATIO = re.compile(r"[0-9]{1,9}(\.[0-9]{1,19})?")


def default_settings(config: LogConfig) -> dict[str, str]:
    """Every setting with the value it has when the topic does not say otherwise."""
    values = {name: setting.default for name, setting in TOPIC_SETTINGS.items()}
    return {**values, **{name: str(getattr(config, field)) for name, field in _LOG_FIELDS.items()}}


def check_settings(settings: Mapping[str, str | None]) -> dict[str, str]:
    """Return the settings if this broker can honour them all; raise InvalidConfigError naming the first it cannot."""
    checked = {}
    for name, value in settings.items():
        setting = TOPIC_SETTINGS.get(name)
        if setting is None:
            raise InvalidConfigError(f"unknown topic setting {name!r}")
        if value is None:
            raise InvalidConfigError(f"{name} has no value")
        value = value.strip(_BLANKS)  # noqa: PLW2901 - as Kafka reads it
        if setting.allowed:
            items = items_of(value) if setting.type == TYPE_LIST else [value]
            if not set(items) <= set(setting.allowed):
                raise InvalidConfigError(f"{name}={value!r}: this broker supports only {_choices(setting)}")
        else:
            low = -setting.high - 1 if setting.low is None else setting.low
            form = _RATIO if setting.type == TYPE_DOUBLE else _NUMBER
            if not form.fullmatch(value) or not low <= _number(setting, value) <= setting.high:
                raise InvalidConfigError(f"{name}={value!r} is not a number from {low} to {setting.high}")
            value = value.removeprefix("+")  # noqa: PLW2901 - likewise
        checked[name] = value
    least, most = (int(checked.get(name, TOPIC_SETTINGS[name].default)) for name in _LAGS)
    if least > most:
        raise InvalidConfigError(f"{_LAGS[0]}={least} is above {_LAGS[1]}={most}")
    return checked


def _number(setting: _Setting, value: str) -> float:
    return float(value) if setting.type == TYPE_DOUBLE else int(value)


def items_of(value: str) -> list[str]:
    """The items of a setting that is a list."""
    return [item.strip() for item in value.split(",")]


def _choices(setting: _Setting) -> str:
    return " or ".join((*setting.allowed, ",".join(setting.allowed)) if setting.type == TYPE_LIST else setting.allowed)


def cleanup_policies(settings: Mapping[str, str]) -> list[str]:
    """How old records of a topic with these settings go: `delete`, `compact`, or both."""
    return items_of(settings.get("cleanup.policy", TOPIC_SETTINGS["cleanup.policy"].default))


def topic_codec(settings: Mapping[str, str]) -> Compression | None:
    """Compression that batches of a topic with these settings are kept in; None: as their producers sent them."""
    return _CODECS.get(settings.get("compression.type", "producer"))


def log_config(base: LogConfig, settings: Mapping[str, str]) -> LogConfig:
    """The broker's log settings with a topic's own on top; nothing expires without the policy `delete`."""
    named = {name: field for name, field in _LOG_FIELDS.items() if name in settings}
    own: JsonObject = {field: _number(TOPIC_SETTINGS[name], settings[name]) for name, field in named.items()}
    if "delete" not in cleanup_policies(settings):
        own |= {"retention_ms": -1, "retention_bytes": -1}
    return replace(base, **own)
