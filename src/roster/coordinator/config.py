"""Settings of the group coordinator, with Apache Kafka's defaults."""

from dataclasses import dataclass

from roster.model.options import INT32_MAX, INT64_MAX, option, problem_of

DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig:
    """Limits and delays; times are in ms. Raises ValueError for an invalid setting."""

    partitions: int = option(
        50,
        "partitions of `__consumer_offsets`; a group lives in the one its id hashes to",
        least=1,
        kafka="offsets.topic.num.partitions",
    )
    min_session_timeout_ms: int = option(
        6_000,
        "shortest session timeout that a member may ask for",
        unit="ms",
        least=1,
        kafka="group.min.session.timeout.ms",
        is_flag=True,
    )
    max_session_timeout_ms: int = option(
        1_800_000,
        "longest session timeout that a member may ask for",
        unit="ms",
        least=1,
        kafka="group.max.session.timeout.ms",
        is_flag=True,
    )
    initial_rebalance_delay_ms: int = option(
        3_000,
        "time that the first rebalance of a group waits for more members",
        unit="ms",
        least=0,
        kafka="group.initial.rebalance.delay.ms",
        is_flag=True,
    )
    new_member_join_timeout_ms: int = option(
        300_000, "time that a new member waits in a rebalance before it is removed", unit="ms", least=0
    )
    max_group_size: int = option(
        INT32_MAX, "members of a group", least=1, kafka="group.max.size", flag="group-max-size"
    )
    max_pending_members: int = option(
        10_000, "member ids of a group given out and not used yet", least=1, flag="group-max-pending-members"
    )
    max_member_metadata_bytes: int = option(
        4 * 1024 * 1024,
        "metadata of all protocols of a member",
        unit="bytes",
        least=1,
        flag="member-max-metadata-bytes",
    )
    max_group_metadata_bytes: int = option(
        32 * 1024 * 1024,
        "metadata of all members of a group, and of their assignments",
        unit="bytes",
        least=1,
        flag="group-max-metadata-bytes",
    )
    offset_metadata_max_bytes: int = option(
        4_096, "metadata of a committed offset", unit="bytes", least=0, kafka="offset.metadata.max.bytes"
    )
    offsets_retention_ms: int = option(7 * DAY_MS, "time that offsets of an empty group are kept", unit="ms")
    offsets_retention_check_interval_ms: int = option(
        600_000,
        "time between two checks for expired offsets",
        unit="ms",
        least=1,
        most=INT64_MAX,
        kafka="offsets.retention.check.interval.ms",
    )

    def __post_init__(self) -> None:
        if problem := problem_of(self):
            raise ValueError(problem)
        if not self.min_session_timeout_ms <= self.max_session_timeout_ms:
            raise ValueError(
                f"min_session_timeout_ms must not be above max_session_timeout_ms: {self.min_session_timeout_ms} and "
                f"{self.max_session_timeout_ms}"
            )
