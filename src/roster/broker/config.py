"""Settings of a broker."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from roster._json import JsonObject
from roster.broker.errors import BrokerStartError
from roster.broker.security.config import BrokerSecurity
from roster.coordinator.config import CoordinatorConfig
from roster.model import Address, AddressError, parse_address
from roster.model.options import INT32_MAX, INT64_MAX, declared, option, problem_of
from roster.transactions.config import TransactionConfig

MAX_PARTITIONS_PER_TOPIC = 100_000
UNLIMITED = INT32_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """How one partition's log is kept on disk."""

    segment_bytes: int = option(
        256 * 1024 * 1024,
        "size beyond which a log segment ends",
        unit="bytes",
        least=14,
        kafka="segment.bytes",
        is_flag=True,
    )
    segment_ms: int = option(
        7 * 86_400_000,
        "a batch this much newer than the segment's first one begins a new segment",
        unit="ms",
        least=1,
        most=INT64_MAX,
        kafka="segment.ms",
    )
    retention_ms: int = option(
        -1,
        "segments whose newest record is older go; -1 keeps them; topics may differ",
        unit="ms",
        least=-1,
        most=INT64_MAX,
        kafka="retention.ms",
        is_flag=True,
    )
    retention_bytes: int = option(
        -1,
        "oldest segments go while a partition keeps at least this; -1 keeps all; topics may differ",
        unit="bytes",
        least=-1,
        most=INT64_MAX,
        kafka="retention.bytes",
        is_flag=True,
    )
    index_interval_bytes: int = 16 * 1024
    """One sparse index entry per this many bytes; also what a lookup may have to read."""
    max_message_bytes: int = option(
        1_048_588, "largest record batch accepted", unit="bytes", least=1, kafka="max.message.bytes", is_flag=True
    )
    message_timestamp_after_max_ms: int = 3_600_000
    """A record with a time this far ahead of the broker's is refused (`message.timestamp.after.max.ms`)."""
    message_timestamp_before_max_ms: int = INT64_MAX
    """A record with a time this far behind the broker's is refused (`message.timestamp.before.max.ms`)."""
    producer_expiration_ms: int = 86_400_000
    """An idempotent producer that wrote nothing for this long is forgotten."""
    compact_min_bytes: int = 4 * 1024 * 1024
    """A compacted log smaller than this is left alone."""
    min_cleanable_dirty_ratio: float = 0.5
    """A compacted log is rewritten once this share of it is new (`min.cleanable.dirty.ratio`)."""
    delete_retention_ms: int = 86_400_000
    """How long a rewritten log keeps the fact that a key was deleted (Kafka's `delete.retention.ms`)."""
    max_compaction_lag_ms: int = INT64_MAX
    """A record this old makes its log due for compaction, however small or clean (`max.compaction.lag.ms`)."""
    min_compaction_lag_ms: int = 0
    """Records younger than this are not compacted (`min.compaction.lag.ms`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """A broker's settings; times are milliseconds, sizes bytes."""

    data_dir: Path
    host: str = "127.0.0.1"
    port: int = option(
        9092, "port to listen on; 0 lets the system choose, `Broker.address` has it", least=0, most=65535
    )
    advertised_host: str | None = None
    """Host that Metadata advertises to clients; by default the one the broker listens on."""
    advertised_port: int | None = None
    node_id: int = option(1, "id of the broker in the metadata", least=0, kafka="node.id")
    default_partitions: int = option(
        1,
        "partitions of a topic created without a number",
        least=1,
        most=MAX_PARTITIONS_PER_TOPIC,
        kafka="num.partitions",
        flag="partitions",
    )
    auto_create_topics: bool = option(
        False,
        "create a topic when a client asks for one that does not exist",
        kafka="auto.create.topics.enable",
        is_flag=True,
    )
    max_request_bytes: int = option(
        100 * 1024 * 1024,
        "largest request; a larger one is refused before anything is allocated",
        unit="bytes",
        least=1,
        kafka="socket.request.max.bytes",
        flag="socket-request-max-bytes",
    )
    max_buffered_bytes: int = option(
        512 * 1024 * 1024,
        "all large requests being received, and likewise all responses not sent yet",
        unit="bytes",
        least=1,
        is_flag=True,
    )
    max_fetch_bytes: int = option(
        55 * 1024 * 1024,
        "largest Fetch response, whatever the client asks for",
        unit="bytes",
        least=1,
        kafka="fetch.max.bytes",
    )
    max_unanswered: int = option(
        32, "Produce requests of one connection that wait for the disk at the same time", least=1, flag="max-in-flight"
    )
    idle_timeout_ms: int = option(
        600_000,
        "a connection that neither sends nor reads for this long is closed",
        unit="ms",
        least=1,
        most=INT64_MAX,
        kafka="connections.max.idle.ms",
        flag="connections-max-idle-ms",
    )
    connection_setup_timeout_ms: int = option(
        30_000, "time for TLS handshake, login and first request", unit="ms", least=1, is_flag=True
    )
    receive_timeout_ms: int = option(60_000, "time for each 64 KiB of a request", unit="ms", least=1, is_flag=True)
    send_timeout_ms: int = option(
        300_000, "time for a client to read each 64 KiB of a response", unit="ms", least=1, is_flag=True
    )
    """As long as Kafka's `max.poll.interval.ms`: a Java consumer without a group reads only when it polls."""
    max_connections: int = option(
        UNLIMITED,
        "connections at the same time; the limit of open files counts, too",
        least=1,
        kafka="max.connections",
        is_flag=True,
    )
    max_connections_per_ip: int = option(
        UNLIMITED,
        "connections from one address at the same time",
        least=1,
        kafka="max.connections.per.ip",
        is_flag=True,
    )
    sync_threads: int = option(4, "threads that sync logs to the disk", least=1)
    retention_check_interval_ms: int = option(
        300_000,
        "time between two checks of all logs for expired segments and overdue compaction",
        unit="ms",
        least=1,
        most=INT64_MAX,
        kafka="log.retention.check.interval.ms",
    )
    log: LogConfig = field(default_factory=LogConfig)
    coordinator: CoordinatorConfig = field(default_factory=CoordinatorConfig)
    """The group coordinator's settings; `partitions` counts only until `__consumer_offsets` exists."""

    security: BrokerSecurity = field(default_factory=BrokerSecurity)
    """TLS, logins and ACLs."""
    transactions: TransactionConfig = field(default_factory=TransactionConfig)
    """The transaction coordinator's settings; `partitions` counts only until `__transaction_state` exists."""

    @property
    def setup_seconds(self) -> float:
        """How long setting a connection up may take."""
        return min(self.connection_setup_timeout_ms, self.idle_timeout_ms) / 1000

    @property
    def receive_seconds(self) -> float:
        """How long a part of a request may take."""
        return min(self.receive_timeout_ms, self.idle_timeout_ms) / 1000

    @property
    def send_seconds(self) -> float:
        """How long a client may take to read a part of a response."""
        return min(self.send_timeout_ms, self.idle_timeout_ms) / 1000

    def __post_init__(self) -> None:
        if problem := problem_of(self) or problem_of(self.log):
            raise BrokerStartError(problem)

    def with_settings(self, settings: Mapping[str, object]) -> "BrokerConfig":
        """Return the configuration with fields of its own or of its parts replaced; all names differ.

        Raises:
            KeyError: no part has a field of that name.
        """
        by_part: dict[str, JsonObject] = {part: {} for part in SETTING_NAMES}
        for name, value in settings.items():
            part = next((part for part, names in SETTING_NAMES.items() if name in names), None)
            if part is None:
                raise KeyError(name)
            by_part[part][name] = value
        config = replace(self, **by_part.pop(""))
        return replace(config, **{part: replace(getattr(config, part), **own) for part, own in by_part.items() if own})


PARTS: dict[str, type] = {
    "": BrokerConfig,
    "security": BrokerSecurity,
    "log": LogConfig,
    "coordinator": CoordinatorConfig,
    "transactions": TransactionConfig,
}
"""Classes of a broker's settings, by the field of BrokerConfig that has one."""
SETTING_NAMES = {part: {field.name for field in fields(kind)} for part, kind in PARTS.items()}
OPTIONS = {option.flag: option for kind in PARTS.values() for option in declared(kind).values() if option.flag}
"""Settings that are options of `roster broker`, by the name of the option."""


def parse_listen(text: str, option: str = "--listen") -> Address:
    """Parse a listen address, port 0 for any free one; raise BrokerStartError naming the option if it is malformed."""
    try:
        return parse_address(text, listening=True)
    except AddressError as error:
        raise BrokerStartError(f"{option}: {error}") from error
