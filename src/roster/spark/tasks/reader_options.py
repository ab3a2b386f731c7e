"""Consumer settings by the names of Kafka's clients, as far as the reader inside the tasks has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roster.records.ranges import Settings
from roster.spark.tasks.client_settings import INT32, Table, number, one_of, parse_settings

SET_ELSEWHERE = {
    "bootstrap.servers": "bootstrap",
    "metadata.broker.list": "bootstrap",
    "group.id": "group",
    "group.instance.id": "group_instance_id",
    "isolation.level": "isolation_level",
    "session.timeout.ms": "session_timeout_ms",
    "heartbeat.interval.ms": "heartbeat_interval_ms",
    "partition.assignment.strategy": "assignors",
    "auto.offset.reset": "starting_offsets",
    "max.poll.interval.ms": "rebalance_timeout_ms",
    "max.poll.records": "max_offsets_per_batch",
    "request.timeout.ms": "request_timeout_ms",
    "socket.timeout.ms": "request_timeout_ms",
    "metadata.max.age.ms": "metadata_max_age_ms",
    "enable.auto.commit": "",
    "auto.commit.interval.ms": "",
    "enable.auto.offset.store": "",
    "enable.partition.eof": "",
    "group.protocol": "",
    "group.remote.assignor": "",
}
"""Settings that the pipeline decides, with its own option if there is one."""
_SETTINGS: Table = {
    "client.id": ("client_id", str),
    "client.rack": ("rack", str),
    "fetch.max.wait.ms": ("max_wait_ms", number(0, 300_000)),
    "fetch.wait.max.ms": ("max_wait_ms", number(0, 300_000)),
    "fetch.max.bytes": ("response_bytes", number(1, 1 << 30)),
    "max.partition.fetch.bytes": ("partition_bytes", number(1, 1 << 30)),
    "fetch.message.max.bytes": ("partition_bytes", number(1, 1 << 30)),
    "check.crcs": (None, one_of("true", because="damaged records would count as read")),
    # What has no meaning where a task reads whole ranges, one request at a time to each broker.
    "fetch.min.bytes": (None, number(0, INT32)),
    "receive.buffer.bytes": (None, number(-1, INT32)),
    "socket.receive.buffer.bytes": (None, number(0, INT32)),
    "queued.max.messages.kbytes": (None, number(1, INT32)),
    "queued.min.messages": (None, number(1, INT32)),
}
"""Names of Java's client and of librdkafka, the reader's field (None: no effect), and what checks a value."""


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """Checked settings of the reader inside the tasks; those not named here are its own defaults."""

    client_id: str = ""
    """Name in the brokers' logs; "": the group's."""
    fetch: Mapping[str, Any] | None = None
    """Fields of `roster.records.ranges.Settings`."""

    def settings(self, isolation_level: str, *, fail_on_data_loss: bool) -> Settings:
        """Return how a task reads."""
        return Settings(
            is_committed=isolation_level == "read_committed", fail_on_data_loss=fail_on_data_loss, **(self.fetch or {})
        )


def parse_reader_options(options: Mapping[str, str | int | bool]) -> ReaderOptions:
    """Return checked settings. Raise PipelineError for one that is unknown or contradicts the pipeline."""
    found = parse_settings(options, _SETTINGS, "reader_options", SET_ELSEWHERE)
    return ReaderOptions(found.pop("client_id", ""), found)
