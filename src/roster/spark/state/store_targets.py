"""What the driver knows of its tasks' state: where their changelogs end, and which attempt was committed last."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.spark.batch import Batch, Owner, Range
from roster.spark.errors import SinkFencedError
from roster.spark.state.changelogs import Changelogs
from roster.spark.state.tasks.processing import Turn

log = logging.getLogger(__name__)

_PAUSE = 0.005
_MOST_PAUSE = 0.1


class Logs(Protocol):
    """Offsets of logs, as `roster.client.Admin` has them."""

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log start offsets."""

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log end offsets."""

    def stable_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the last stable offsets."""


class Staged(NamedTuple):
    """Changes that a store has aside or has applied: the attempt's token, and the changelog offset where they begin."""

    token: str
    at: int


class Turns:
    """The tasks of one application; all methods but `cancel` are for the pipeline's thread."""

    def __init__(self, logs: Logs, changelogs: Changelogs, patience: float) -> None:
        """`patience` is for how many seconds a batch waits for transactions of others to end."""
        self._logs, self._changelogs, self._patience = logs, changelogs, patience
        self._staged: dict[TopicPartition, Staged] = {}
        self._ends: dict[TopicPartition, int] = {}
        """Changelog offsets at which the batch prepared last begins."""
        self._begins: dict[TopicPartition, int] = {}
        self._next: dict[TopicPartition, int] = {}
        """Next offsets of the sources behind what is staged."""
        self._cancelled = threading.Event()

    def prepare(self, batch: Batch) -> dict[TaskId, tuple[Turn, ...]]:
        """Return the turn of each store of the tasks of a batch.

        Raises SinkFencedError if a changelog is held up by a transaction for too long or the batch is cancelled,
        PipelineError for a partition that the changelog does not have, and ClientError.
        """
        self._cancelled.clear()
        sources = self._changelogs.sources_in(batch.ranges)
        self._changelogs.check_grown(sources)
        logs_of = {task: self._changelogs.logs_of(task) for task in self._changelogs.tasks_of(sources)}
        logs = [log for each in logs_of.values() for log in each]
        unknown = [log for log in logs if log not in self._begins]
        self._begins.update(self._logs.beginning_offsets(unknown) if unknown else {})
        ends = self._ends = self._stable_ends(logs)
        inputs: dict[TaskId | None, dict[str, int]] = {}
        for source in sources:
            inputs.setdefault(self._changelogs.reader_of(source), {})[source.topic] = batch.ranges[source].start
        return {
            task: tuple(Turn(log, self._begins[log], ends[log], inputs[task], self._token(log)) for log in of_task)
            for task, of_task in logs_of.items()
        }

    def last(self, tasks: Collection[TaskId]) -> dict[TaskId, tuple[Turn, ...]]:
        """Return turns without records in which what was committed last is applied, of those of these tasks that have
        it aside. Raises as `prepare` does.
        """
        wanted = set(tasks)
        at = {source: at for source, at in self._next.items() if self._changelogs.reader_of(source) in wanted}
        ranges = {source: Range(end, end) for source, end in at.items()}
        return self.prepare(Batch(0, Owner("", -1, ""), ranges)) if ranges else {}

    def _token(self, log: TopicPartition) -> str | None:
        staged = self._staged.get(log)
        return None if staged is None else staged.token

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

    def committed(self, tokens: Mapping[TaskId, str], batch: Batch) -> None:
        """Note the attempts that a transaction has made count; of tasks without one forget those before."""
        self._forget_staged(batch.ranges)
        for source in self._changelogs.sources_in(batch.ranges):
            if self._changelogs.reader_of(source) in tokens:
                self._next[source] = batch.ranges[source].end
        for task, token in tokens.items():
            self._staged |= {log: Staged(token, self._ends.get(log, 0)) for log in self._changelogs.logs_of(task)}

    def staged(self, log: TopicPartition) -> Staged | None:
        """Return the changes of a store that were committed last, None if they are not known; from any thread."""
        return self._staged.get(log)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Trust no store of these tasks beyond its changelog position: their state may have moved on elsewhere."""
        for task in self._changelogs.tasks_of(partitions):
            for log in self._changelogs.logs_of(task):
                self._begins.pop(log, None)
        self._forget_staged(partitions)

    def _forget_staged(self, partitions: Collection[TopicPartition]) -> None:
        for task in self._changelogs.tasks_of(partitions):
            for log in self._changelogs.logs_of(task):
                self._staged.pop(log, None)
        for source in self._changelogs.sources_in(partitions):
            self._next.pop(source, None)
