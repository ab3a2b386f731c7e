"""Options of a group member, for every class that has one: `MemberConfig`, `GroupMember`, `Pipeline`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from roster.assignors import Assignor
from roster.model.offsets import AutoOffsetReset
from roster.model.options import Option, option

DEFAULT_ASSIGNORS = ("cooperative-sticky", "range")
"""The assignors of Java's consumer in reverse order, so that a group of such members uses cooperative-sticky. If
another client supports only `range` and `roundrobin` (defaults of librdkafka, kafka-python, aiokafka), the group uses
range."""

Assignors: TypeAlias = Annotated[
    str | Assignor | Sequence[str | Assignor],
    Option(
        kind="names or `Assignor`s",
        help="assignors that the group may use, most wanted first, by name or as an `Assignor` with options",
        kafka="partition.assignment.strategy",
    ),
]


@dataclass(frozen=True, kw_only=True)
class MemberSettings:
    """Settings that every member has. Times are in ms."""

    session_timeout_ms: int = option(
        45_000,
        "time without a heartbeat after which the coordinator removes the member",
        unit="ms",
        least=1,
        kafka="session.timeout.ms",
    )
    heartbeat_interval_ms: int = option(
        1_000,
        "time between heartbeats, and so until a member learns of a rebalance; less than the session timeout, "
        "usually a third of it or less; after a rebalance they come every 100 ms at first",
        unit="ms",
        least=1,
        kafka="heartbeat.interval.ms",
    )
    rebalance_timeout_ms: int = option(
        300_000,
        "time the group waits for this member to release the partitions it must give up: a pipeline, to "
        "finish its batch",
        unit="ms",
        least=1,
        kafka="max.poll.interval.ms",
    )
    request_timeout_ms: int = option(
        30_000, "time to wait for a response of a broker", unit="ms", least=1, kafka="request.timeout.ms"
    )
    metadata_max_age_ms: int = option(
        300_000, "time between looks for new topics and partitions", unit="ms", least=1, kafka="metadata.max.age.ms"
    )
    group_instance_id: str | None = option(
        None, "makes the member a static one; unique in the group", kafka="group.instance.id"
    )
    rack_id: str | None = option(None, "the rack it stands in, for assignors that place by racks", kafka="client.rack")
    capacity: int = option(
        1, "plain members that it counts for where the assignor looks at lag, or places tasks", least=1
    )
    auto_offset_reset: str = option(
        AutoOffsetReset.LATEST.value,
        'lag of a partition where nothing is committed: none with `"latest"`, the whole log with '
        '`"earliest"`, `"none"` or `"by_duration:PT1H"`; the member itself resets nothing',
        kafka="auto.offset.reset",
    )
