"""A member of a consumer group that runs tasks with state."""

import logging
import re
import time
from collections.abc import Mapping, Sequence
from uuid import uuid4

from roster.client.admin import Admin
from roster.client.errors import ClientError, OptionError
from roster.client.group_member import GroupMember
from roster.client.options import ClientSettings, TaskMemberOptions
from roster.member.events import Publish, RebalanceRequested
from roster.member.member import Member
from roster.member.task_assignor import HeldTasks, TaskAssignor
from roster.member.task_options import TaskOptions
from roster.model.options import taking, values
from roster.model.tasks import StorePosition, TaskId, task_gap
from roster.model.topics import TopicPartition

log = logging.getLogger("roster.member")

_PAUSE = 0.2
"""Seconds between two attempts to work out gaps."""


class TaskMember(GroupMember):
    """A `GroupMember` that runs tasks: partitions of a pipeline's sub-topologies, with stores.

    It owns the source partitions of its active tasks, so `ownership`, `wait`, `release`, `commit` and `confirm` work as
    in any member. It also has standby tasks: copies of stores that it keeps up to date, and that take over when the
    owner dies. An active task moves to a member whose copy has caught up; until then it stays, and the copy is restored
    as a standby task.
    """

    @taking(TaskMemberOptions)
    def __init__(self, options: TaskMemberOptions) -> None:
        """Check the options; `start` connects. `capacity` is the number of threads or cores to fill with tasks.

        Raises:
            OptionError: an option has an invalid value; `option` is its name.
        """
        tasks = options.tasks
        if not isinstance(tasks, TaskOptions):
            raise OptionError("tasks", f"must be TaskOptions, not {type(tasks).__name__}")
        self._assignor = TaskAssignor(tasks, (options.process_id or uuid4()).bytes)
        self._gaps = options.gaps
        self._on_tasks = options.on_tasks
        self._tasks = self._tasks_reported = HeldTasks()
        self._assignments_held = 0
        settings = values(ClientSettings, options)
        super().__init__(options.bootstrap, options.group, sorted(tasks.topics), assignors=self._assignor, **settings)

    def start(self, timeout: float = 60.0) -> None:
        """Compute the gaps of the stores on this host, then join as `GroupMember.start` does.

        Errors of `gaps` that may pass are waited for as brokers are.
        """
        until = time.monotonic() + timeout
        while not self._closed:
            try:
                self._assignor.report(self._gaps())
                break
            except ClientError as error:
                if not error.retriable or time.monotonic() >= until:
                    raise
                log.info("gaps of stores are not known yet: %s", error)
                time.sleep(_PAUSE)
        super().start(max(until - time.monotonic(), _PAUSE))

    def subscribe(self, topics: Sequence[str] | re.Pattern[str]) -> None:
        """Raise OptionError: the sub-topologies determine the topics."""
        raise OptionError("topics", "a TaskMember reads the topics of its sub-topologies: start one with others")

    def tasks(self) -> HeldTasks:
        """Return this member's tasks, consistent with `ownership`."""
        with self._changed:
            return self._tasks

    def report_gaps(self, gaps: Mapping[TaskId, int]) -> None:
        """Report how many records each store on this host is behind the log's end, whether its task runs here or not.

        The member rejoins as soon as a copy has caught up, so report after every batch. A task that is left out has no
        store here. Running tasks may be left out, unless their stores are still being restored. Raises ValueError for a
        gap below 0, ClosedError when the member is not running.
        """
        self._running().post(self._report_gaps, self._assignor.with_state(gaps))

    def _report_gaps(self, gaps: Mapping[TaskId, int]) -> None:
        reason = self._assignor.report(gaps, self._tasks.active | self._tasks.revoking)
        with self._changed:
            self._hold()
        if reason is not None:
            self._feed(RebalanceRequested(reason))

    def _publish(self, news: Publish) -> None:
        with self._changed:
            super()._publish(news)
            self._hold()

    def _stepped(self, member: Member) -> None:
        """Record new standby tasks too: they do not change the ownership."""
        if self._assignments_held != self._assignor.assignments:
            with self._changed:
                self._hold()
        if self._tasks != self._tasks_reported and self._on_tasks is not None:
            try:
                self._on_tasks(self._tasks)
            except Exception:
                log.exception("on_tasks raised")
        self._tasks_reported = self._tasks
        super()._stepped(member)

    def _hold(self) -> None:
        """Take the tasks of the present ownership."""
        before, self._tasks = self._tasks, self._assignor.held(self._ownership.partitions, self._ownership.revoking)
        self._assignments_held = self._assignor.assignments
        if self._tasks != before:
            self._changed.notify_all()


def task_gaps(admin: Admin, stores: Mapping[TaskId, Mapping[TopicPartition, int | None]]) -> dict[TaskId, int]:
    """Return the gap of each task: the sum of log end - restored offset over its stores.

    The log ends at its last stable offset, as records of open transactions cannot be restored yet.

    admin: the cluster. stores: for each task, {changelog partition: restored offset} of its stores, None for a missing
    store. Raises ClientErrors of the cluster.
    """
    partitions = sorted({partition for gaps in stores.values() for partition in gaps})
    begins, ends = admin.beginning_offsets(partitions), admin.stable_offsets(partitions)
    return {
        task: task_gap(
            StorePosition(begins[partition], ends[partition], restored) for partition, restored in gaps.items()
        )
        for task, gaps in stores.items()
    }
