"""Metrics of a broker in this process."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from functools import partial
from typing import NamedTuple

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from roster.broker import Broker
from roster.broker.hooks import Measures
from roster.broker.request_limits import in_slices
from roster.metrics.families import MOST_PARTITIONS, counter, gauge, histogram
from roster.model import TopicPartition
from roster.wire import ApiKey

log = logging.getLogger(__name__)

_LOOK_SECONDS = 5.0
_OF_LOGS = (
    ("roster_broker_log_bytes", "Size of a partition's log on the disk."),
    ("roster_broker_log_start_offset", "First offset of a partition's log."),
    ("roster_broker_log_end_offset", "Next offset of a partition's log."),
)


class Seen(NamedTuple):
    """A broker at one moment: its metrics, not made yet, and the figures of `_OF_LOGS` for each partition."""

    metrics: list[Callable[[], Metric]]
    logs: dict[TopicPartition, tuple[int, int, int]]


async def look_at(broker: Broker) -> Seen:
    """Look at a running broker, in its event loop; requests are answered in between."""
    services = broker.services
    coordinator, groups, members = services.group_coordinator.coordinator, Counter[tuple[str]](), 0
    async for name in in_slices(coordinator.group_ids()):
        if (group := coordinator.group(name)) is not None:
            groups[group.state.value,] += 1
            members += len(group.members)
    ids = {(state,): count for state, count in services.transaction_coordinator.states().items()}
    places = [(TopicPartition(topic.name, n), log) for topic in services.topics for n, log in enumerate(topic.logs)]
    logs = {tp: (log.size, log.log_start_offset, log.end_offset) async for tp, log in in_slices(places)}
    total, refused = sum(size for size, _, _ in logs.values()), services.refusals.count
    unsent, text = services.unsent_bytes, "Bytes of responses that clients have not taken yet."
    metrics: list[Callable[[], Metric]] = [
        partial(gauge, "roster_broker_connections", "Open connections.", (), {(): broker.connections}),
        partial(counter, "roster_broker_refused_connections", "Connections closed by the broker.", (), {(): refused}),
        partial(gauge, "roster_broker_unsent_bytes", text, (), {(): unsent}),
        partial(gauge, "roster_broker_groups", "Groups by their state.", ("state",), groups),
        partial(gauge, "roster_broker_group_members", "Members of all groups.", (), {(): members}),
        partial(gauge, "roster_broker_transactional_ids", "Transactional ids by their state.", ("state",), ids),
        partial(gauge, "roster_broker_partitions", "Partitions.", (), {(): len(logs)}),
        partial(gauge, "roster_broker_data_bytes", "Size of all logs on the disk.", (), {(): total}),
    ]
    return Seen(metrics, logs)


class BrokerMetrics(Collector):
    """Shows what a running broker has counted, and looks at it when it is scraped, on another thread than its own."""

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        """Loop: the broker's. A broker without `Hooks.measures` has counted nothing."""
        self._broker, self._loop = broker, loop
        self._measures = broker.measures or Measures()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; only what was counted if the broker has no time or has ended."""
        yield from _counted(self._measures)
        observed = self._observe()
        yield gauge("roster_broker_up", "1 if the broker could be looked at.", (), {(): observed is not None})
        if observed is None:
            return
        for make in observed.metrics:
            yield make()
        for number, (name, text) in enumerate(_OF_LOGS if len(observed.logs) <= MOST_PARTITIONS else ()):
            values = {tuple(tp): figures[number] for tp, figures in observed.logs.items()}
            yield gauge(name, text, ("topic", "partition"), values)

    def _observe(self) -> Seen | None:
        work = look_at(self._broker)
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
