"""Metrics of a cluster's groups, looked up by a thread and kept, so that a scrape neither waits nor has gaps."""

import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from roster.client import Admin, ClientError
from roster.metrics.groups import GroupReader, GroupsSeen
from roster.metrics.lag import group_families, partition_families, state_families
from roster.metrics.positions import PositionReader

log = logging.getLogger(__name__)


class GroupExporter(Collector):
    """Groups of a cluster whose names match. `refresh` asks the cluster, `collect` shows what it found last.

    A group keeps its series while the cluster lists it, whether it has members or not. What cannot be asked keeps its
    last values; then `roster_exporter_last_update_timestamp_seconds` stands still.
    """

    def __init__(self, admin: Admin, reader: PositionReader, groups: re.Pattern[str]) -> None:
        self._reader, self._groups = reader, GroupReader(admin, reader, groups)
        self._seen, self._up, self._updated = GroupsSeen({}, {}, {}), False, 0.0
        self._errors: Counter[str] = Counter()

    def run(self, interval: float, stopped: threading.Event) -> None:
        """Look every `interval` seconds until stopped."""
        while not stopped.is_set():
            began = time.monotonic()
            self.refresh()
            stopped.wait(max(0.0, interval - (time.monotonic() - began)))

    def refresh(self) -> None:
        """Ask the cluster once; failures are counted and logged."""
        try:
            groups = self._groups.read()
        except ClientError as error:
            log.warning("the groups cannot be looked up: %s", error)
            self._errors["cluster"] += 1
            self._up = False
        else:
            kept = {group: positions for group, positions in self._seen.positions.items() if group in groups.states}
            self._seen = groups._replace(positions={**kept, **groups.positions})
            self._up, self._updated = True, time.time()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the last refresh."""
        groups = self._seen
        yield from partition_families(groups.positions)
        yield from group_families(groups.positions)
        yield from state_families(groups.states)
        yield GaugeMetricFamily("roster_exporter_up", "1 if the cluster answered the last refresh.", self._up)
        yield GaugeMetricFamily(
            "roster_exporter_last_update_timestamp_seconds", "When the values were looked up.", self._updated
        )
        yield GaugeMetricFamily(
            "roster_exporter_bad_partitions", "Partitions whose log cannot be asked.", len(self._reader.log_ends.bad)
        )
        errors = CounterMetricFamily("roster_exporter_errors", "Failed lookups.", labels=["what"])
        for what in ("cluster", "group"):
            errors.add_metric([what], self._errors[what] + (self._groups.errors if what == "group" else 0))
        yield errors
