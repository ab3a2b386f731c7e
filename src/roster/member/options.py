"""Options of a group member, for every class that has one: `MemberConfig`, `GroupMember`, `Pipeline`."""

from __future__ import annotations

from roster.model.offsets import AutoOffsetReset
from roster.model.options import Option, by_name

DEFAULT_ASSIGNORS = ("cooperative-sticky", "range")
"""As Java's consumer has them, in the other order: a group of such members uses cooperative-sticky, and a neighbour
that knows only `range` and `roundrobin` (the defaults of librdkafka, kafka-python, aiokafka) makes it range."""

GROUP_OPTIONS = by_name(
    [
        Option(
            "assignors",
            "names or `Assignor`s",
            "assignors that the group may use, most wanted first, by name or as an `Assignor` with options",
            DEFAULT_ASSIGNORS,
            kafka="partition.assignment.strategy",
        ),
        Option(
            "session_timeout_ms",
            "int",
            "time without a heartbeat after which the coordinator removes the member",
            45_000,
            unit="ms",
            least=1,
            kafka="session.timeout.ms",
        ),
        Option(
            "heartbeat_interval_ms",
            "int",
            "time between heartbeats, and so until a member learns of a rebalance; less than the session "
            "timeout, usually a third of it or less; after a rebalance they come every 100 ms at first",
            1_000,
            unit="ms",
            least=1,
            kafka="heartbeat.interval.ms",
        ),
        Option(
            "rebalance_timeout_ms",
            "int",
            "time the group waits for this member to release the partitions it must give up",
            300_000,
            unit="ms",
            least=1,
            kafka="max.poll.interval.ms",
        ),
        Option(
            "request_timeout_ms",
            "int",
            "time to wait for a response of a broker",
            30_000,
            unit="ms",
            least=1,
            kafka="request.timeout.ms",
        ),
        Option(
            "metadata_max_age_ms",
            "int",
            "time between looks for new topics and partitions",
            300_000,
            unit="ms",
            least=1,
            kafka="metadata.max.age.ms",
        ),
        Option(
            "client_id",
            "str",
            "name in the brokers' logs and in `roster groups describe`",
            "roster",
            kafka="client.id",
        ),
        Option(
            "group_instance_id",
            "str",
            "makes the member a static one; unique in the group",
            None,
            kafka="group.instance.id",
        ),
        Option("rack_id", "str", "the rack it stands in, for assignors that place by racks", None, kafka="client.rack"),
        Option("capacity", "int", "plain members that it counts for where the assignor looks at lag", 1, least=1),
        Option(
            "auto_offset_reset",
            "str",
            'lag of a partition where nothing is committed: none with `"latest"`, the whole log with `"earliest"`, '
            '`"none"` or `"by_duration:PT1H"`; the member itself resets nothing',
            AutoOffsetReset.LATEST.value,
            kafka="auto.offset.reset",
        ),
    ]
)
