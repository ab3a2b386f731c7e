"""Metrics of a broker in this process."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from roster.broker import Broker
from roster.broker.hooks import Measures
from roster.broker.request_limits import in_slices
from roster.metrics.families import MOST_PARTITIONS, counter, gauge, histogram
from roster.model import TopicPartition
from roster.wire import ApiKey


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
    """Connections closed so far for what they sent, or because the broker was full."""
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


log = logging.getLogger(__name__)

_LOOK_SECONDS = 5.0
_BY_PARTITION = ("topic", "partition")


class BrokerMetrics(Collector):
    """Shows what a running broker has counted, and looks at it when it is scraped, on another thread than its own."""

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        """Loop: the broker's. A broker without `Hooks.measures` has counted nothing."""
        self._broker, self._loop = broker, loop
        self._measures = broker.measures or Measures()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; only what was counted if the broker has no time or has ended."""
        yield from _counted(self._measures)
        snapshot = self._snapshot()
        yield gauge("roster_broker_up", "1 if the broker could be looked at.", (), {(): snapshot is not None})
        if snapshot is not None:
            yield from _looked_up(snapshot)

    def _snapshot(self) -> Snapshot | None:
        work = snapshot_of(self._broker)
        try:
            looking = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # the loop is closed
            work.close()
            return None
        try:
            return looking.result(_LOOK_SECONDS)
        except (TimeoutError, CancelledError, RuntimeError) as error:
            looking.cancel()
            log.info("the broker cannot be looked at: %s", error or type(error).__name__)
            return None


def _counted(measures: Measures) -> Iterator[Metric]:
    requests = {(ApiKey(key).label,): durations for key, durations in list(measures.requests.items())}
    text = "Time from a request to its response, by its API; Fetch, JoinGroup and SyncGroup wait for others in it."
    yield histogram("roster_broker_request_seconds", text, ("api",), requests)
    yield histogram("roster_broker_sync_seconds", "Time of a round of fsync.", (), {(): measures.syncs})
    ended = {(outcome,): measures.transactions[outcome == "committed"] for outcome in ("committed", "aborted")}
    yield counter("roster_broker_transactions_ended", "Transactions that ended.", ("outcome",), ended)


def _looked_up(snapshot: Snapshot) -> Iterator[Metric]:
    yield gauge("roster_broker_connections", "Open connections.", (), {(): snapshot.connections})
    refused = {(): snapshot.refused}
    yield counter("roster_broker_refused_connections", "Connections closed by the broker.", (), refused)
    unsent = {(): snapshot.unsent_bytes}
    yield gauge("roster_broker_unsent_bytes", "Bytes of responses that clients have not taken yet.", (), unsent)
    groups = {(state,): count for state, count in snapshot.groups.items()}
    yield gauge("roster_broker_groups", "Groups by their state.", ("state",), groups)
    yield gauge("roster_broker_group_members", "Members of all groups.", (), {(): snapshot.members})
    ids = {(state,): count for state, count in snapshot.transactional_ids.items()}
    yield gauge("roster_broker_transactional_ids", "Transactional ids by their state.", ("state",), ids)
    yield gauge("roster_broker_partitions", "Partitions.", (), {(): len(snapshot.logs)})
    total = {(): sum(log.bytes for log in snapshot.logs.values())}
    yield gauge("roster_broker_data_bytes", "Size of all logs on the disk.", (), total)
    if len(snapshot.logs) > MOST_PARTITIONS:
        return
    figures: tuple[tuple[str, str, Callable[..., int]], ...] = (
        ("roster_broker_log_bytes", "Size of a partition's log on the disk.", lambda log: log.bytes),
        ("roster_broker_log_start_offset", "First offset of a partition's log.", lambda log: log.begin),
        ("roster_broker_log_end_offset", "Next offset of a partition's log.", lambda log: log.end),
    )
    for name, text, figure_of in figures:
        yield gauge(name, text, _BY_PARTITION, {tuple(tp): figure_of(log) for tp, log in snapshot.logs.items()})
