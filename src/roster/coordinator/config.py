"""Settings of the group coordinator, with Apache Kafka's defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from roster.model.options import INT32_MAX, INT64_MAX, Option, problem_of

DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig:
    """Limits and delays; times are in ms. Raises ValueError for an invalid setting."""

    partitions: Annotated[
        int,
        Option(
            help="partitions of `__consumer_offsets`; a group lives in the one its id hashes to",
            least=1,
            kafka="offsets.topic.num.partitions",
        ),
    ] = 50
    min_session_timeout_ms: Annotated[
        int,
        Option(
            help="shortest session timeout that a member may ask for",
            unit="ms",
            least=1,
            kafka="group.min.session.timeout.ms",
            flag="min-session-timeout-ms",
        ),
    ] = 6_000
    max_session_timeout_ms: Annotated[
        int,
        Option(
            help="longest session timeout that a member may ask for",
            unit="ms",
            least=1,
            kafka="group.max.session.timeout.ms",
            flag="max-session-timeout-ms",
        ),
    ] = 1_800_000
    initial_rebalance_delay_ms: Annotated[
        int,
        Option(
            help="time that the first rebalance of a group waits for more members",
            unit="ms",
            least=0,
            kafka="group.initial.rebalance.delay.ms",
            flag="initial-rebalance-delay-ms",
        ),
    ] = 3_000
    new_member_join_timeout_ms: Annotated[
        int, Option(help="time that a new member waits in a rebalance before it is removed", unit="ms", least=0)
    ] = 300_000
    max_group_size: Annotated[
        int, Option(help="members of a group", least=1, kafka="group.max.size", flag="group-max-size")
    ] = INT32_MAX
    max_pending_members: Annotated[
        int, Option(help="member ids of a group given out and not used yet", least=1, flag="group-max-pending-members")
    ] = 10_000
    max_member_metadata_bytes: Annotated[
        int,
        Option(help="metadata of all protocols of a member", unit="bytes", least=1, flag="member-max-metadata-bytes"),
    ] = 4 * 1024 * 1024
    max_group_metadata_bytes: Annotated[
        int,
        Option(
            help="metadata of all members of a group, and of their assignments",
            unit="bytes",
            least=1,
            flag="group-max-metadata-bytes",
        ),
    ] = 32 * 1024 * 1024
    offset_metadata_max_bytes: Annotated[
        int, Option(help="metadata of a committed offset", unit="bytes", least=0, kafka="offset.metadata.max.bytes")
    ] = 4_096
    offsets_retention_ms: Annotated[int, Option(help="time that offsets of an empty group are kept", unit="ms")] = (
        7 * DAY_MS
    )
    offsets_retention_check_interval_ms: Annotated[
        int,
        Option(
            help="time between two checks for expired offsets",
            unit="ms",
            least=1,
            most=INT64_MAX,
            kafka="offsets.retention.check.interval.ms",
        ),
    ] = 600_000

    def __post_init__(self) -> None:
        if problem := problem_of(self):
            raise ValueError(problem)
        if not self.min_session_timeout_ms <= self.max_session_timeout_ms:
            raise ValueError(
                f"min_session_timeout_ms must not be above max_session_timeout_ms: {self.min_session_timeout_ms} and "
                f"{self.max_session_timeout_ms}"
            )
