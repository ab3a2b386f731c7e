"""Settings of the transaction coordinator, with Apache Kafka's defaults."""

from __future__ import annotations

from dataclasses import dataclass

_DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """Limits and delays; times are milliseconds. Raises ValueError for a setting that makes no sense.

    Named after Kafka's settings: `max_timeout_ms` is `transaction.max.timeout.ms`, `expiration_ms` is
    `transactional.id.expiration.ms`, `partitions` is `transaction.state.log.num.partitions`.
    """

    partitions: int = 50
    """Partitions of `__transaction_state`; a transactional id lives in the one it hashes to."""
    offsets_partitions: int = 50
    """Partitions of `__consumer_offsets`, for the offsets of a group in a transaction."""
    max_timeout_ms: int = 900_000
    expiration_ms: int = 7 * _DAY_MS
    expiration_check_interval_ms: int = 3_600_000

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
