"""The target of each store before a batch: the changelog's end, and the last committed attempt."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping
from types import MappingProxyType

from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.pipeline.batch import Batch, Owner, Range
from roster.pipeline.driver.runner_protocol import Committed, TaskCommit
from roster.pipeline.errors import SinkFencedError
from roster.stateful.changelogs import Changelogs, Logs
from roster.stateful.tasks.catch_up import StoreTarget

log = logging.getLogger("roster.spark")

_PAUSE = 0.005
_MOST_PAUSE = 0.1


class StoreTargets:
    """The targets of one application's tasks; call all methods but `cancel` on the pipeline's thread."""

    def __init__(self, logs: Logs, changelogs: Changelogs, patience: float, committed: Committed | None = None) -> None:
        """`patience` is how many seconds a batch waits for others' transactions to end."""
        self._logs, self._changelogs, self._patience = logs, changelogs, patience
        self._committed = committed or Committed()
        self._ends: dict[TopicPartition, int] = {}
        """Changelog offsets at which the batch prepared last begins."""
        self._begins: dict[TopicPartition, int] = {}
        self._cancelled = threading.Event()

    def prepare(self, batch: Batch) -> dict[TaskId, tuple[StoreTarget, ...]]:
        """Return the target of each store of the tasks of a batch.

        Raises SinkFencedError if a transaction holds up a changelog for too long or the batch is cancelled,
        PipelineError for a partition that the changelog lacks, and ClientError.
        """
        self._cancelled.clear()
        inputs: dict[TaskId, dict[str, int]] = {}
        for source, span in batch.ranges.items():
            if (reader := self._changelogs.readers.get(source)) is None:
                self._changelogs.check_grown([source])
            else:
                inputs.setdefault(reader, {})[source.topic] = span.start
        logs_of = {task: self._changelogs.logs[task] for task in inputs}
        logs = [log for of_task in logs_of.values() for log in of_task]
        if unknown := [log for log in logs if log not in self._begins]:
            self._begins |= self._logs.beginning_offsets(unknown)
        last = {task: commit for task in logs_of if (commit := self._committed.tasks.get(task)) is not None}
        ends = self._ends = {log: end for commit in last.values() for log, end in commit.ends.items()}
        if unknown := [log for log in logs if log not in ends]:
            ends |= self._stable_ends(unknown)
        tokens = {task: commit.token for task, commit in last.items()}
        return {
            task: tuple(
                StoreTarget(log, self._begins[log], ends[log], inputs[task], tokens.get(task)) for log in of_task
            )
            for task, of_task in logs_of.items()
        }

    def last(self, tasks: Collection[TaskId]) -> dict[TaskId, tuple[StoreTarget, ...]]:
        """Return targets without records that apply pending committed attempts of these tasks; raises as `prepare`."""
        last = self._committed.tasks
        for task, commit in last.items():
            last[task] = commit._replace(ends={})  # markers may be on their way
        inputs = [item for task in last.keys() & set(tasks) for item in last[task].inputs.items()]
        ranges = {source: Range(offset, offset) for source, offset in inputs}
        return self.prepare(Batch(0, Owner("", -1, ""), ranges)) if ranges else {}

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
    ) -> list[TaskId]:
        """Record the commit of each task; forget it for tasks of the batch without a token, and return them.

        ends: of the logs that the batch has written to, where they are known: while the application owns the task
        no other client's records count there, so that the next batch need not ask.
        """
        inputs: dict[TaskId, dict[TopicPartition, int]] = {}
        for source, span in batch.ranges.items():
            if (reader := self._changelogs.readers.get(source)) is not None:
                inputs.setdefault(reader, {})[source] = span.end
        commits, unknown = self._committed.tasks, list[TaskId]()
        for task, of_task in inputs.items():
            if task not in tokens:
                commits.pop(task, None)
                unknown.append(task)
                continue
            logs = self._changelogs.logs[task]
            begins = {log: self._ends.get(log, 0) for log in logs}
            earlier = commits[task].inputs if task in commits else {}
            known_ends = {log: ends[log] for log in logs if log in ends}
            commits[task] = TaskCommit(tokens[task], begins, known_ends, {**earlier, **of_task})
        return unknown

    def last_commit(self, task: TaskId) -> TaskCommit | None:
        """Return the last commit of a task, None if unknown; from any thread."""
        return self._committed.tasks.get(task)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Trust stores of these tasks only up to their changelog position: other owners may have changed the state."""
        for task in self._changelogs.tasks_of(partitions):
            self._committed.tasks.pop(task, None)
            for log in self._changelogs.logs[task]:
                self._begins.pop(log, None)
