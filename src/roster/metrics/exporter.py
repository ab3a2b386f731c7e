"""Metrics of a cluster's groups, looked up by a thread and kept, so that a scrape neither waits nor has gaps."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from roster.client import Admin, ClientError
from roster.metrics.lag import GroupState, group_families, partition_families, state_families
from roster.metrics.positions import GroupPositions, PositionReader

log = logging.getLogger(__name__)

SHARE = "share"
_DESCRIBED = ("", "classic", "consumer")


@dataclass(slots=True)
class _Seen:
    """What the last looks have found."""

    positions: dict[str, GroupPositions] = field(default_factory=dict)
    states: dict[str, GroupState] = field(default_factory=dict)
    up: bool = False
    updated: float = 0.0
    """Seconds since the epoch, 0.0 before the first whole look."""


class GroupExporter(Collector):
    """Groups of a cluster whose names match. `look` asks the cluster, `collect` shows what the last look has found.

    A group keeps its series while the cluster lists it, whether it has members or not. What cannot be asked keeps its
    last values; then `roster_exporter_last_update_timestamp_seconds` stands still.
    """

    def __init__(self, admin: Admin, reader: PositionReader, groups: re.Pattern[str]) -> None:
        self._admin, self._reader, self._pattern = admin, reader, groups
        self._seen = _Seen()
        self._errors: Counter[str] = Counter()
        self._looks, self._seconds = 0, 0.0

    def run(self, interval: float, stopped: threading.Event) -> None:
        """Look every `interval` seconds until stopped."""
        while not stopped.is_set():
            began = time.monotonic()
            self.look()
            stopped.wait(max(0.0, interval - (time.monotonic() - began)))

    def look(self) -> None:
        """Ask the cluster once; failures are counted and logged."""
        began = time.monotonic()
        try:
            self._seen = self._look()
        except ClientError as error:
            log.warning("the groups cannot be looked up: %s", error)
            self._errors["cluster"] += 1
            self._seen = _Seen(self._seen.positions, self._seen.states, up=False, updated=self._seen.updated)
        self._looks += 1
        self._seconds += time.monotonic() - began

    def _look(self) -> _Seen:
        listed = {each.group_id: each for each in self._admin.list_groups() if self._pattern.fullmatch(each.group_id)}
        states = {}
        for group, listing in listed.items():
            kind, state, members = listing.group_type or "classic", listing.state, None
            if listing.group_type in _DESCRIBED:
                try:
                    described = self._admin.describe_group(group)
                    kind, state, members = described.group_type, described.state, len(described.members)
                except ClientError as error:
                    log.warning("group %s cannot be described: %s", group, error)
                    self._errors["group"] += 1
            states[group] = GroupState(kind, state, members)
        # A share group has no committed offsets: its records are delivered one by one.
        found = self._reader.read([group for group in listed if states[group].kind != SHARE])
        kept = {group: each for group, each in self._seen.positions.items() if group in listed}
        return _Seen({**kept, **found}, states, up=True, updated=time.time())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the last look."""
        seen = self._seen
        yield from partition_families(seen.positions)
        yield from group_families(seen.positions)
        yield from state_families(seen.states)
        yield GaugeMetricFamily("roster_exporter_up", "1 if the cluster answered the last look.", seen.up)
        yield GaugeMetricFamily(
            "roster_exporter_last_update_timestamp_seconds", "When the values were looked up.", seen.updated
        )
        yield GaugeMetricFamily(
            "roster_exporter_bad_partitions", "Partitions whose log cannot be asked.", len(self._reader.log_ends.bad)
        )
        errors = CounterMetricFamily("roster_exporter_errors", "Failed lookups.", labels=["what"])
        for what in ("cluster", "group"):
            errors.add_metric([what], self._errors[what] + (self._reader.errors.total() if what == "group" else 0))
        yield errors
        yield CounterMetricFamily("roster_exporter_looks", "Looks at the cluster.", self._looks)
        yield CounterMetricFamily("roster_exporter_look_seconds", "Time that the looks took.", self._seconds)
