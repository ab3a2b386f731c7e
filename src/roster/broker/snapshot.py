"""A broker at one moment: connections, groups, transactions, logs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roster.broker.request_limits import in_slices
from roster.model import TopicPartition

if TYPE_CHECKING:
    from roster.broker.server import Broker


@dataclass(frozen=True, slots=True)
class LogFigures:
    """A partition's log: first and next offset, and bytes on the disk."""

    begin: int
    end: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A broker at one moment."""

    connections: int
    refused: int
    """Connections closed so far for what they sent, or because there was no room."""
    groups: Counter[str]
    """Groups by their state, as Kafka names it."""
    members: int
    transactional_ids: Counter[str]
    """Transactional ids by their state."""
    logs: dict[TopicPartition, LogFigures]
    unsent_bytes: int


async def snapshot_of(broker: Broker) -> Snapshot:
    """Look at a running broker, in its event loop; requests are answered in between."""
    services = broker.services
    coordinator, groups, members = services.group_coordinator.coordinator, Counter[str](), 0
    async for name in in_slices(coordinator.group_ids()):
        if (group := coordinator.group(name)) is not None:
            groups[group.state.value] += 1
            members += len(group.members)
    places = [(TopicPartition(topic.name, n), log) for topic in services.topics for n, log in enumerate(topic.logs)]
    return Snapshot(
        connections=broker.connections,
        refused=services.refusals.count,
        groups=groups,
        members=members,
        transactional_ids=services.transaction_coordinator.states(),
        logs={tp: LogFigures(log.log_start_offset, log.end_offset, log.size) async for tp, log in in_slices(places)},
        unsent_bytes=services.unsent_bytes,
    )
