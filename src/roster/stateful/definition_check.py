"""Compares the definition of a group's state, read from the ends of its changelogs, with the pipeline's."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from roster._errors import RosterError
from roster.model import TopicPartition
from roster.pipeline.batch import Split
from roster.pipeline.tasks.reader import ReaderConfig, read_splits
from roster.state.definition import STATE_KEY, UNSAID, Noted, OtherDefinitionError
from roster.state.evolution import check, registry_after
from roster.state.processor.variables import REGISTRY_KEY
from roster.stateful.tasks.operator_steps import declared_by
from roster.stateful.tasks.task import refused_state_error

if TYPE_CHECKING:
    from roster.stateful.changelogs import Changelogs, Logs
    from roster.stateful.tasks.subtopology import SubtopologyPlan

log = logging.getLogger("roster.pipeline")

_FIRST = 64
"""Offsets before the end of a changelog that the first look reads; each next one reads 16 times as many."""
_MORE = 16

_DEFINING = pa.array([STATE_KEY, REGISTRY_KEY], pa.binary())

Defining = dict[bytes, bytes]
"""The entries of a store that define the others."""


class DefinitionCheck:
    """Checks the changelogs of a pipeline before the group is joined, and before the first batch."""

    def __init__(
        self, config: ReaderConfig, logs: Logs, plans: Collection[SubtopologyPlan], changelogs: Changelogs
    ) -> None:
        self._config = replace(
            config, isolation_level="read_committed", fail_on_data_loss=True, include_headers=False, dead_letters=None
        )
        self._logs = logs
        nodes = [(plan.definitions[node.store], node) for plan in plans for node in plan.nodes]
        self._kept = {changelog.topic: kept for changelog, kept in zip(changelogs, nodes, strict=True)}
        self._all = [changelog[task] for changelog in changelogs for task in changelog.tasks]
        self._logged = set[str]()
        self.is_first = False
        """True if this release is the first one to change the state, as of the last check."""
        self.to_change = set[TopicPartition]()
        """Changelogs whose stores have another definition, as of the last check."""

    def check(self) -> None:
        """Raise PipelineError unless all state has the pipeline's definition, or one that may change to it.

        Also ClientError and ReadError. Changes that are to be made are logged.
        """
        tried: set[tuple[str, bytes]] = set()
        to_change, own = set[TopicPartition](), set[str]()
        for partition, defining in sorted(self._defining_entries().items()):
            definition, node = self._kept[partition.topic]
            try:
                if STATE_KEY not in defining:
                    raise OtherDefinitionError(UNSAID)
                registry = defining.get(REGISTRY_KEY)
                changes = check(definition, Noted.decode(defining[STATE_KEY]), registry)
                if changes:
                    to_change.add(partition)
                else:
                    own.add(partition.topic)
                for change in changes:
                    self._log_once(f"{node.store!r} of the group {self._config.group!r} changes in place: {change}")
                if registry is not None and (partition.topic, registry) not in tried:
                    tried.add((partition.topic, registry))
                    declared_by(node.operator, registry_after(definition, registry))
            except RosterError as error:
                raise refused_state_error(node.store, self._config.group, partition.partition, error) from None
        self.to_change = to_change
        self.is_first = bool(to_change) and own.isdisjoint(log.topic for log in to_change)

    def _log_once(self, line: str) -> None:
        """Log a line once."""
        if line not in self._logged:
            self._logged.add(line)
            log.info("%s", line)

    def _defining_entries(self) -> dict[TopicPartition, Defining]:
        """Return the defining entries at the end of each partition with records; {} if there are none."""
        begins, ends = self._logs.beginning_offsets(self._all), self._logs.stable_offsets(self._all)
        starts = {log: ends[log] for log in self._all if ends[log] > begins[log]}
        entries, size = dict[TopicPartition, Defining](), _FIRST
        while starts:
            starts = {log: max(begins[log], ends[log] - size) for log in starts}
            read = self._read({log: (start, ends[log]) for log, start in starts.items()})
            entries |= read
            starts = {
                log: start for log, start in starts.items() if start > begins[log] and not _is_complete(read.get(log))
            }
            size *= _MORE
        return entries

    def _read(self, spans: Mapping[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, Defining]:
        """Return the defining entries in these offset ranges, for changelogs with committed records there."""
        entries: dict[TopicPartition, Defining] = {}
        for batch in read_splits(self._config, [Split(*log, *span) for log, span in spans.items()]):
            table = pa.Table.from_batches([batch]).select(["topic", "partition", "key", "value"])
            for log in table.group_by(["topic", "partition"]).aggregate([]).to_pylist():
                entries.setdefault(TopicPartition(**log), {})
            for row in table.filter(pc.is_in(table["key"], _DEFINING)).to_pylist():
                entries[TopicPartition(row["topic"], row["partition"])][row["key"]] = row["value"]
        return entries


def _is_complete(defining: Defining | None) -> bool:
    """Return True unless a store's defining entries may be earlier in the log, before aborted or partial ones."""
    if defining is None:
        return False
    try:
        state = defining.get(STATE_KEY)
        return state is None or REGISTRY_KEY in defining or not Noted.decode(state).definition.has_variables
    except OtherDefinitionError:
        return True  # which is refused as it is
