"""Settings of a broker."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from roster.broker.errors import BrokerStartError
from roster.broker.security.config import BrokerSecurity
from roster.coordinator.config import CoordinatorConfig
from roster.model import Address, AddressError, parse_address
from roster.transactions.config import TransactionConfig

MAX_PARTITIONS_PER_TOPIC = 100_000
UNLIMITED = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """How one partition's log is kept on disk."""

    segment_bytes: int = 256 * 1024 * 1024
    """Roll when a segment would exceed this size (Kafka's `segment.bytes`)."""
    segment_ms: int = 7 * 86_400_000
    """Roll when a batch is this much newer than the segment's first (Kafka's `segment.ms`)."""
    retention_ms: int = -1
    """Segments whose newest record is older than this are deleted (Kafka's `retention.ms`); -1 keeps them."""
    retention_bytes: int = -1
    """The oldest segments are deleted while at least this many bytes remain (`retention.bytes`); -1 keeps all."""
    index_interval_bytes: int = 16 * 1024
    """One sparse index entry per this many bytes; also what a lookup may have to read."""
    max_message_bytes: int = 1_048_588
    """The largest record batch a producer may send (Kafka's `max.message.bytes`)."""
    producer_expiration_ms: int = 86_400_000
    """An idempotent producer that wrote nothing for this long is forgotten."""
    compact_min_bytes: int = 4 * 1024 * 1024
    """A compacted log smaller than this is left alone."""
    compact_dirty_ratio: float = 0.5
    """A compacted log is rewritten once this share of its bytes was appended since the last rewriting."""
    delete_retention_ms: int = 86_400_000
    """How long a rewritten log keeps the fact that a key was deleted (Kafka's `delete.retention.ms`)."""
    max_compaction_lag_ms: int = 2**63 - 1
    """A record this old makes its log due for compaction, however small or clean (`max.compaction.lag.ms`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """A broker's settings; times are milliseconds, sizes bytes."""

    data_dir: Path
    host: str = "127.0.0.1"
    port: int = 9092
    """0 lets the system choose; `Broker.address` has the port."""
    advertised_host: str | None = None
    """Host that Metadata advertises to clients; by default the one the broker listens on."""
    advertised_port: int | None = None
    node_id: int = 1
    default_partitions: int = 1
    auto_create_topics: bool = False
    max_request_bytes: int = 100 * 1024 * 1024
    """A frame that claims more is refused before anything is allocated."""
    max_buffered_bytes: int = 512 * 1024 * 1024
    """All large frames being received, together: the connection that would exceed it is closed. Likewise all responses
    not sent yet: beyond it a Fetch gets one batch at a time."""
    max_fetch_bytes: int = 55 * 1024 * 1024
    """Ceiling of one Fetch response, whatever the client asks for."""
    max_unanswered: int = 32
    """Produce requests of one connection that may wait for the disk at the same time."""
    idle_timeout_ms: int = 600_000
    """A connection that neither sends nor reads for this long is closed."""
    connection_setup_timeout_ms: int = 30_000
    """A connection must have done its TLS handshake, its login and its first request by then."""
    receive_timeout_ms: int = 60_000
    """Each 64 KiB of a request must arrive within this time."""
    send_timeout_ms: int = 300_000
    """A client must read each 64 KiB of a response within this time. As long as Kafka's `max.poll.interval.ms`: a Java
    consumer without a group reads only when it polls."""
    max_connections: int = UNLIMITED
    """Kafka's `max.connections`; the number of files that the system lets the broker open limits it too."""
    max_connections_per_ip: int = UNLIMITED
    """Kafka's `max.connections.per.ip`."""
    sync_threads: int = 4
    retention_check_interval_ms: int = 300_000
    """Time between two checks of all logs for expired segments and overdue compaction."""
    fetch_session_slots: int = 1_000
    """Fetch sessions (KIP-227) kept at most; 0 for none (Kafka's `max.incremental.fetch.session.cache.slots`)."""
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
        if not 0 <= self.port <= 65_535:
            raise BrokerStartError(f"port {self.port} is not between 0 and 65535")
        for name in (
            "max_connections",
            "max_connections_per_ip",
            "connection_setup_timeout_ms",
            "receive_timeout_ms",
            "send_timeout_ms",
            "idle_timeout_ms",
        ):
            if getattr(self, name) < 1:
                raise BrokerStartError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 1 <= self.default_partitions <= MAX_PARTITIONS_PER_TOPIC:
            raise BrokerStartError(f"{self.default_partitions} partitions: must be 1 to {MAX_PARTITIONS_PER_TOPIC}")


def parse_listen(text: str, option: str = "--listen") -> Address:
    """Parse a listen address, port 0 for any free one; raise BrokerStartError naming the option if it is malformed."""
    try:
        return parse_address(text, listening=True)
    except AddressError as error:
        raise BrokerStartError(f"{option}: {error}") from error
