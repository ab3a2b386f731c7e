"""The target of each store before a batch: the changelog's end, and the last committed attempt."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.pipeline.batch import Batch, Owner, Range
from roster.pipeline.errors import SinkFencedError
from roster.stateful.changelogs import Changelogs, Logs
from roster.stateful.tasks.catch_up import StoreTarget

log = logging.getLogger("roster.spark")

_PAUSE = 0.005
_MOST_PAUSE = 0.1


class CommittedAttempt(NamedTuple):
    """An attempt whose changes a store has pending or applied: its token, and the changelog offset where they begin."""

    token: str
    at: int


class StoreTargets:
    """The targets of one application's tasks; call all methods but `cancel` on the pipeline's thread."""

    def __init__(self, logs: Logs, changelogs: Changelogs, patience: float) -> None:
        """`patience` is how many seconds a batch waits for others' transactions to end."""
        self._logs, self._changelogs, self._patience = logs, changelogs, patience
        self._attempts: dict[TopicPartition, CommittedAttempt] = {}
        self._ends: dict[TopicPartition, int] = {}
        """Changelog offsets at which the batch prepared last begins."""
        self._begins: dict[TopicPartition, int] = {}
        self._written: dict[TopicPartition, int] = {}
        """Changelog ends behind the batch that was committed last, which are as it left them."""
        self._next: dict[TopicPartition, int] = {}
        """Next offsets of the sources behind the committed attempts."""
        self._cancelled = threading.Event()

    def prepare(self, batch: Batch) -> dict[TaskId, tuple[StoreTarget, ...]]:
        """Return the target of each store of the tasks of a batch.

        Raises SinkFencedError if a transaction holds up a changelog for too long or the batch is cancelled,
        PipelineError for a partition that the changelog lacks, and ClientError.
        """
        self._cancelled.clear()
        sources = self._changelogs.sources_in(batch.ranges)
        self._changelogs.check_grown(sources)
        logs_of = {task: self._changelogs.logs_of(task) for task in self._changelogs.tasks_of(sources)}
        logs = [log for of_task in logs_of.values() for log in of_task]
        unknown = [log for log in logs if log not in self._begins]
        self._begins.update(self._logs.beginning_offsets(unknown) if unknown else {})
        to_look_up = [log for log in logs if log not in self._written]
        ends = self._ends = {log: self._written[log] for log in logs if log in self._written}
        ends.update(self._stable_ends(to_look_up) if to_look_up else {})
        inputs: dict[TaskId | None, dict[str, int]] = {}
        for source in sources:
            inputs.setdefault(self._changelogs.reader_of(source), {})[source.topic] = batch.ranges[source].start
        return {
            task: tuple(
                StoreTarget(log, self._begins[log], ends[log], inputs[task], self._token(log)) for log in of_task
            )
            for task, of_task in logs_of.items()
        }

    def last(self, tasks: Collection[TaskId]) -> dict[TaskId, tuple[StoreTarget, ...]]:
        """Return targets without records that apply pending committed attempts of these tasks; raises as `prepare`."""
        wanted = set(tasks)
        self._written.clear()  # markers may be on their way
        ranges = {
            source: Range(offset, offset)
            for source, offset in self._next.items()
            if self._changelogs.reader_of(source) in wanted
        }
        return self.prepare(Batch(0, Owner("", -1, ""), ranges)) if ranges else {}

    def _token(self, log: TopicPartition) -> str | None:
        attempt = self._attempts.get(log)
        return None if attempt is None else attempt.token

    def _stable_ends(self, logs: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log ends once every transaction before them is decided and its marker written."""
        ends = self._logs.end_offsets(logs)
        pause, until = _PAUSE, time.monotonic() + self._patience
        while True:
            stable = self._logs.stable_offsets(logs)
            if held := [p for p in logs if stable[p] < ends[p]]:
                if time.monotonic() >= until:
                    raise SinkFencedError(f"{held[0]}: a transaction is open from offset {stable[held[0]]} on")
                if self._cancelled.wait(pause):
                    raise SinkFencedError("the batch was cancelled while it waited for transactions to end")
                pause = min(2 * pause, _MOST_PAUSE)
                continue
            return ends

    def cancel(self) -> None:
        """End the waiting of `prepare`; from any thread."""
        self._cancelled.set()

    def committed(
        self, tokens: Mapping[TaskId, str], batch: Batch, ends: Mapping[TopicPartition, int] = MappingProxyType({})
    ) -> None:
        """Record the committed attempt of each task; forget it for tasks of the batch that have none.

        ends: of the logs that the batch has written to, where they are known: while the application owns the task
        no other client's records count there, so that the next batch need not ask.
        """
        self._forget_attempts(batch.ranges)
        for source in self._changelogs.sources_in(batch.ranges):
            if self._changelogs.reader_of(source) in tokens:
                self._next[source] = batch.ranges[source].end
        for task, token in tokens.items():
            for log in self._changelogs.logs_of(task):
                self._attempts[log] = CommittedAttempt(token, self._ends.get(log, 0))
                if log in ends:
                    self._written[log] = ends[log]

    def committed_attempt(self, log: TopicPartition) -> CommittedAttempt | None:
        """Return the attempt that a store committed last, None if unknown; from any thread."""
        return self._attempts.get(log)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Trust stores of these tasks only up to their changelog position: other owners may have changed the state."""
        for task in self._changelogs.tasks_of(partitions):
            for log in self._changelogs.logs_of(task):
                self._begins.pop(log, None)
        self._forget_attempts(partitions)

    def _forget_attempts(self, partitions: Collection[TopicPartition]) -> None:
        for task in self._changelogs.tasks_of(partitions):
            for log in self._changelogs.logs_of(task):
                self._attempts.pop(log, None)
                self._written.pop(log, None)
        for source in self._changelogs.sources_in(partitions):
            self._next.pop(source, None)
