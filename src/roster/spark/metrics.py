"""Metrics of a pipeline: what its run reports, counted, and the lag of the partitions that it owns."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter as Counts
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from roster.client import Admin, ClientError
from roster.client.member_statistics import MemberStatistics
from roster.member.causes import Cause
from roster.member.types import FailureKind
from roster.metrics.families import counter, gauge, histogram
from roster.metrics.lag import partition_families
from roster.metrics.positions import GroupPositions, PositionReader
from roster.metrics.record_times import RecordTimes
from roster.pipeline.batch import Progress, StoreProgress
from roster.pipeline.options import Options
from roster.spark.queries.pages import Served

log = logging.getLogger(__name__)

_REQUEST_TIMEOUT_MS = 5_000
_LOOK_INTERVAL = 1.0
"""Least seconds between two looks at the cluster, however many scrape."""
_GROUP = ("group",)
_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 150)


class PipelineMetrics(Collector):
    """Counts what the run reports to it, on the pipeline's thread, and looks up lag when it is scraped."""

    def __init__(
        self,
        options: Options,
        served: Sequence[Served],
        status: Callable[[], str],
        reader: PositionReader,
        member: MemberStatistics,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`status` returns what the pipeline does, `now` wall-clock seconds."""
        self._group, self._served, self._status, self._reader, self._now = options.group, served, status, reader, now
        self._member = member
        self._stores: dict[str, Mapping[str, StoreProgress]] = {}
        self._lock, self._looked = threading.Lock(), float("-inf")
        self._positions: dict[str, GroupPositions] = {}
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._records = self._counter("roster_pipeline_records", "Records read in committed batches.")
        self._late = self._counter("roster_pipeline_late", "Rows left out because their window was closed.")
        self._dead_letters = self._counter("roster_pipeline_dead_letters", "Records sent to the dead-letter topic.")
        self._restored = self._counter("roster_state_restored_records", "Changelog records applied before batches.")
        self._restore_seconds = Counter(
            "roster_state_restore_seconds",
            "Time that tasks took to apply their changelogs before batches.",
            (*_GROUP, "store"),
            registry=self.registry,
        )
        batches = Counter(
            "roster_pipeline_batches", "Batches by how they ended.", (*_GROUP, "outcome"), registry=self.registry
        )
        self._committed = batches.labels(self._group, "committed")
        self._abandoned = batches.labels(self._group, "abandoned")
        self._seconds = Histogram(
            "roster_pipeline_batch_seconds",
            "Time of committed batches by phase.",
            (*_GROUP, "phase"),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._last_batch = Gauge(
            "roster_pipeline_last_batch_timestamp_seconds",
            "When the last batch was committed; 0 before.",
            _GROUP,
            registry=self.registry,
        ).labels(self._group)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, _GROUP, registry=self.registry).labels(self._group)

    def progress(self, progress: Progress) -> None:
        """Count a committed batch."""
        self._committed.inc()
        self._records.inc(progress.rows)
        self._late.inc(progress.late)
        self._dead_letters.inc(progress.dead_letters)
        self._restored.inc(progress.restored + progress.standby_records)
        for phase, spent in {**progress.phases, "total": progress.duration_ms}.items():
            self._seconds.labels(self._group, phase).observe(spent / 1000)
        self._last_batch.set(self._now())
        self._stores = dict(progress.stores)
        for name, tasks in progress.stores.items():
            seconds = sum(store.restore_ms for store in tasks.values()) / 1000
            self._restore_seconds.labels(self._group, name).inc(seconds)

    def abandoned(self) -> None:
        """Count a batch that was cancelled or fenced."""
        self._abandoned.inc()

    def collect(self) -> Iterator[Metric]:
        """Yield what is looked up when it is scraped: lag, and what the member and the stores are like now."""
        yield from partition_families(self._looked_up())
        group, owned = self._group, self._member.ownership
        status = {(group, self._status()): 1}
        yield gauge("roster_pipeline_status", "1 for what the pipeline does.", [*_GROUP, "status"], status)
        generation = {(group,): owned.generation}
        yield gauge("roster_member_generation", "Generation of the group; -1 outside of it.", _GROUP, generation)
        owns = {(group,): len(owned.partitions)}
        yield gauge("roster_member_assigned_partitions", "Partitions that the member owns.", _GROUP, owns)
        yield from self._member_families()
        yield from self._store_families()
        yield gauge(
            "roster_state_changelog_gap",
            "Changelog offsets that a copy of a store lacks: standby copies, and own ones that are restored.",
            [*_GROUP, "store", "task"],
            {(group, served.name, task): gap for served in self._served for task, gap in served.view.behind.items()},
        )

    def _member_families(self) -> Iterator[Metric]:
        """Yield what the member has been through."""
        group, member, prefix = self._group, self._member, "roster_member"
        rebalances = {(group, cause.value): member.rebalances[cause] for cause in Cause}
        yield counter(f"{prefix}_rebalances", "Generations joined, by cause.", [*_GROUP, "cause"], rebalances)
        seconds = {(group,): member.rebalance_seconds}
        yield counter(f"{prefix}_rebalance_seconds", "From joining again to the assignment.", _GROUP, seconds)
        moved = {(group,): member.moved_partitions}
        yield counter(f"{prefix}_moved_partitions", "Partitions assigned that were not before.", _GROUP, moved)
        lost = {(group,): member.lost_partitions}
        yield counter(f"{prefix}_lost_partitions", "Partitions lost without being handed over.", _GROUP, lost)
        failures = {(group, kind.value): member.commit_failures[kind.value] for kind in FailureKind}
        yield counter(f"{prefix}_commit_failures", "Commits not written.", [*_GROUP, "reason"], failures)
        late = {(group,): member.heartbeat_lateness}
        yield histogram(f"{prefix}_heartbeat_lateness_seconds", "How late heartbeats are sent.", _GROUP, late)

    def _store_families(self) -> Iterator[Metric]:
        """Yield what the stores were like in the last batches."""
        stores = {(self._group, name, task): store for name, by in self._stores.items() for task, store in by.items()}
        labels, entries = [*_GROUP, "store", "task"], {task: store.entries for task, store in stores.items()}
        yield gauge("roster_state_entries", "Entries of a task's store.", labels, entries)
        sizes = {task: store.bytes for task, store in stores.items()}
        yield gauge("roster_state_bytes", "Their size on the disk.", labels, sizes)
        files = {task: store.file_bytes for task, store in stores.items()}
        text = "Size of a task's store's files, all mapped: a process has at most so much of them in memory."
        yield gauge("roster_state_file_bytes", text, labels, files)
        times = {t: store.stream_time_ms / 1000 for t, store in stores.items() if store.stream_time_ms is not None}
        yield gauge("roster_state_stream_time_seconds", "Stream time of a task.", labels, times)
        held_seconds = {task: store.held_ms / 1000 for task, store in stores.items() if store.held_by is not None}
        text = "How far a task's stream time is behind that of its furthest source."
        yield gauge("roster_state_time_held_seconds", text, labels, held_seconds)
        by = Counts((self._group, *store.held_by.rsplit("-", 1)) for store in stores.values() if store.held_by)
        text = "Stores of tasks whose stream time the partition holds back."
        yield gauge("roster_state_time_held_by", text, [*_GROUP, "topic", "partition"], by)

    def _looked_up(self) -> dict[str, GroupPositions]:
        """Return the positions of owned partitions; the last ones if no broker answers."""
        with self._lock:
            owned = self._member.ownership.partitions
            if not owned:
                return {}
            if time.monotonic() - self._looked >= _LOOK_INTERVAL:
                try:
                    self._positions = {**self._positions, **self._reader.read([self._group], owned)}
                except ClientError as error:
                    log.info("lag is not known: %s", error)
                self._looked = time.monotonic()
            return {
                group: GroupPositions(
                    {tp: at for tp, at in each.positions.items() if tp in owned},
                    {tp: age for tp, age in each.seconds.items() if tp in owned},
                )
                for group, each in self._positions.items()
            }


@contextlib.contextmanager
def position_reader(options: Options) -> Iterator[PositionReader]:
    """Open a reader of the group's positions; it connects when it is first used."""
    servers, security = options.bootstrap, options.security
    client_id = f"{options.settings.client_id or 'roster'}-metrics"
    with Admin(servers, client_id=client_id, request_timeout_ms=_REQUEST_TIMEOUT_MS, security=security) as admin:
        yield PositionReader(admin, RecordTimes(servers, client_id, security))
