"""Settings of the group coordinator, with Apache Kafka's defaults."""

from __future__ import annotations

from dataclasses import dataclass

INT32_MAX = 2**31 - 1
DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig:
    """Limits and delays; times are milliseconds. Raises ValueError for a setting that makes no sense.

    Named after Kafka's broker settings without their `group.` and `_ms` decoration, so `initial_rebalance_delay_ms` is
    `group.initial.rebalance.delay.ms`. Kafka has no bounds like these: `max_pending_members`, the member ids handed out
    but not yet used by one group; `max_member_metadata_bytes`, the metadata of all protocols of one member;
    `max_group_metadata_bytes`, that of all members of a group, and the assignments of one generation.
    """

    partitions: int = 50
    """Partitions of `__consumer_offsets`; a group lives in the one its id hashes to."""
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    new_member_join_timeout_ms: int = 300_000
    max_group_size: int = INT32_MAX
    max_pending_members: int = 10_000
    max_member_metadata_bytes: int = 4 * 1024 * 1024
    max_group_metadata_bytes: int = 32 * 1024 * 1024
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * DAY_MS
    offsets_retention_check_interval_ms: int = 600_000

    def __post_init__(self) -> None:
        for name in (
            "partitions",
            "max_group_size",
            "max_pending_members",
            "max_member_metadata_bytes",
            "max_group_metadata_bytes",
            "offsets_retention_check_interval_ms",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("initial_rebalance_delay_ms", "new_member_join_timeout_ms", "offset_metadata_max_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, but is {getattr(self, name)}")
        if not 0 < self.min_session_timeout_ms <= self.max_session_timeout_ms:
            raise ValueError(
                f"session timeouts must satisfy 0 < min <= max, not {self.min_session_timeout_ms} and "
                f"{self.max_session_timeout_ms}"
            )
