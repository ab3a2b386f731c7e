"""Settings of a pipeline's member and of the reader in its tasks, by their names in Kafka's consumer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from roster.member.options import MemberSettings
from roster.model.options import declared, option
from roster.pipeline.tasks.client_settings import Table, number, parse_settings
from roster.records.fetch_decisions import Settings

ConsumerSettings = TypedDict(
    "ConsumerSettings",
    {
        "session.timeout.ms": int,
        "heartbeat.interval.ms": int,
        "max.poll.interval.ms": int,
        "request.timeout.ms": int,
        "metadata.max.age.ms": int,
        "group.instance.id": str,
        "client.rack": str,
        "client.id": str,
        "fetch.max.wait.ms": int,
        "fetch.max.bytes": int,
        "max.partition.fetch.bytes": int,
    },
    total=False,
)
"""What `Pipeline(consumer=…)` takes. Numbers may be text at run time, as in a file of properties."""

SET_ELSEWHERE = {
    "bootstrap.servers": "bootstrap",
    "metadata.broker.list": "bootstrap",
    "group.id": "group",
    "isolation.level": "isolation_level",
    "partition.assignment.strategy": "assignors",
    "auto.offset.reset": "starting_offsets",
    "max.poll.records": "max_offsets_per_batch",
    "check.crcs": "",
    "enable.auto.commit": "",
    "auto.commit.interval.ms": "",
    "enable.auto.offset.store": "",
    "enable.partition.eof": "",
    "group.protocol": "",
    "group.remote.assignor": "",
}
"""Settings that the pipeline itself decides, with its option for it, if any."""

_FETCH = Settings()


@dataclass(frozen=True, kw_only=True)
class Consumer(MemberSettings):
    """Checked settings of a pipeline's consumer."""

    client_id: str | None = option(
        None, "name in the brokers' logs and of the member; None: the Spark application's", kafka="client.id"
    )
    max_wait_ms: int = option(
        _FETCH.max_wait_ms,
        "time after which a broker answers a task that it has no records for",
        unit="ms",
        least=0,
        most=300_000,
        kafka="fetch.max.wait.ms",
    )
    response_bytes: int = option(
        _FETCH.response_bytes,
        "size of a broker's response to a task",
        unit="bytes",
        least=1,
        most=1 << 30,
        kafka="fetch.max.bytes",
    )
    partition_bytes: int = option(
        _FETCH.partition_bytes,
        "a partition's part of a response; a first larger batch is read all the same",
        unit="bytes",
        least=1,
        most=1 << 30,
        kafka="max.partition.fetch.bytes",
    )

    @property
    def read_timeout_ms(self) -> int:
        """Time a task waits for the next record of a range before it fails."""
        return 2 * self.request_timeout_ms

    @property
    def fetch(self) -> Settings:
        """Fetch settings of the reader in a task."""
        return Settings(
            max_wait_ms=self.max_wait_ms,
            rack=self.rack_id or "",
            response_bytes=self.response_bytes,
            partition_bytes=self.partition_bytes,
        )


CONSUMER_SETTINGS = {
    option.kafka: replace(option, kafka="")
    for option in declared(Consumer).values()
    if option.kafka and option.kafka not in SET_ELSEWHERE
}
"""Settings by their names in Kafka's clients; `name` is the field of `Consumer`."""

_TABLE: Table = {
    name: (option.name, str if option.least is None else number(option.least, option.most))
    for name, option in CONSUMER_SETTINGS.items()
}


def parse_consumer(settings: Mapping[str, Any]) -> Consumer:
    """Return checked settings. Raise PipelineError for one that is unknown or contradicts the pipeline's options."""
    return Consumer(**parse_settings(settings, _TABLE, "consumer", SET_ELSEWHERE))
