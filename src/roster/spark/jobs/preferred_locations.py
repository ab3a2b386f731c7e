"""Preferred locations: a task runs on a host that has its store, as with the blocks of a file in Spark.

Each task reports the process id of its directory of stores; Spark says on which host a task ran. A preferred location
may be wrong at any time: a task that runs elsewhere restores its store there.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pyspark import RDD, SparkContext
from pyspark.serializers import CPickleSerializer

from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.pipeline.batch import Range, Split
from roster.pipeline.driver.offset_ranges import regrouped_by_task, whole

Item = TypeVar("Item")
_LOOK_SECONDS = 10.0
"""Seconds between two looks for executors: late ones must get tasks too."""


class Locations:
    """The hosts of stores and executors, named as Spark names them."""

    def __init__(self) -> None:
        self._stores: dict[TaskId, str] = {}
        self._hosts: dict[str, set[str]] = {}
        self._executors: frozenset[str] = frozenset()

    def knows(self, directories: Collection[str]) -> bool:
        """Return True if each of these directories is on a host that is known to have an executor."""
        return all(self._hosts.get(directory, set()) & self._executors for directory in directories)

    def ran(
        self, tasks: Sequence[Collection[TaskId]], directories: Mapping[int, str], hosts: Mapping[int, str]
    ) -> None:
        """Record where the stores are that each Spark task used.

        directories: by number of the Spark task. hosts: likewise, if Spark has reported them.
        """
        for number, directory in directories.items():
            self._stores.update(dict.fromkeys(tasks[number], directory))
            if number in hosts:
                self._hosts.setdefault(directory, set()).add(hosts[number])

    def executors(self, hosts: Collection[str]) -> None:
        """Record which hosts have executors now."""
        self._executors = frozenset(hosts)

    def choose_hosts(self, tasks: Collection[TaskId]) -> dict[TaskId, str]:
        """Return a host for each task: one that has its store, if that keeps no more than its share.

        The share is equal among hosts, of the tasks seen so far, so that no host stays idle; further and new tasks go
        to the hosts with the fewest. Without executors every task has the host "".
        """
        share = -(-len(self._stores.keys() | set(tasks)) // max(1, len(self._executors)))
        kept = Counter(dict.fromkeys(self._executors or {""}, 0))
        homes = {}
        for task in sorted(tasks, key=lambda each: (not self.hosts(each), each)):
            here = [host for host in self.hosts(task) if kept[host] < share]
            home = homes[task] = min(here or kept, key=lambda host: (kept[host], host))
            kept[home] += 1
            if not here and self._executors:
                self._moves(task, home)
        return homes

    def _moves(self, task: TaskId, host: str) -> None:
        """Record that a store is about to be restored on a host, in a directory not known yet."""
        self._stores[task] = f"on {host}"
        self._hosts[f"on {host}"] = {host}

    def hosts(self, task: TaskId) -> list[str]:
        """Return the hosts with executors that have a task's store."""
        return sorted(self._hosts.get(self._stores.get(task, ""), set()) & self._executors)


class Executors:
    """Asks Spark's status store, which names hosts as preferred locations do; from any thread."""

    def __init__(self, context: SparkContext) -> None:
        self._context: Any = context

    def hosts(self) -> set[str]:
        """Return the hosts that have executors."""
        executor_list = self._status_store().executorList(True)
        executors = [executor_list.apply(number) for number in range(executor_list.size())]
        return {executor.hostPort().rpartition(":")[0] for executor in executors if executor.id() != "driver"}

    def ran_on(self, job_group: str) -> dict[int, str]:
        """Return the host of each task in a job group's last job, if Spark's listeners have reported it."""
        tracker, store = self._context.statusTracker(), self._status_store()
        job = tracker.getJobInfo(max(tracker.getJobIdsForGroup(job_group), default=-1))
        stage = tracker.getStageInfo(max(job.stageIds)) if job is not None else None
        if stage is None:
            return {}
        tasks = store.taskList(stage.stageId, stage.currentAttemptId, stage.numTasks)
        stage_tasks = [tasks.apply(number) for number in range(tasks.size())]
        return {task.index(): task.host() for task in stage_tasks}

    def placed(self, items: Sequence[Item], hosts: Iterable[Collection[str]]) -> RDD[Item]:
        """Return items as an RDD, each in a partition of its own that prefers these hosts."""
        context, pickled = self._context, CPickleSerializer()
        sequence = context._jvm.PythonUtils.toSeq
        pairs = [
            context._jvm.scala.Tuple2(bytearray(pickled.dumps(item)), sequence([*preferred]))  # type: ignore[no-untyped-call]
            for item, preferred in zip(items, hosts, strict=True)
        ]
        of_bytes = context._jvm.scala.reflect.ClassTag.apply(context._jvm.java.lang.Class.forName("[B"))
        return RDD(context._jsc.sc().makeRDD(sequence(pairs), of_bytes).toJavaRDD(), context, pickled)

    def _status_store(self) -> Any:
        return self._context._jsc.sc().statusStore()


class Cluster:
    """The executors of a session that is not local."""

    def __init__(self, context: SparkContext) -> None:
        self._executors = Executors(context)
        self._locations = Locations()
        self._looked = float("-inf")

    def dealt(self, tasks: Sequence[Sequence[Split]], task_of: Callable[[Split], TaskId]) -> list[list[Split]]:
        """Deal the splits of whole partitions to about as many tasks again, each with splits of one host."""
        self._update_hosts()
        splits = [split for task in tasks for split in task]
        homes = self._locations.choose_hosts({task_of(split) for split in splits})
        total, dealt = max(1, sum(split.end - split.start for split in splits)), []
        for home in sorted(set(homes.values())):
            ranges = {
                TopicPartition(split.topic, split.partition): Range(split.start, split.end)
                for split in splits
                if homes[task_of(split)] == home
            }
            size = sum(span.size for span in ranges.values())
            dealt += regrouped_by_task(whole(ranges, round(len(tasks) * size / total)), task_of)
        return dealt

    def _update_hosts(self) -> None:
        if time.monotonic() >= self._looked + _LOOK_SECONDS:
            self._looked = time.monotonic()
            self._locations.executors(self._executors.hosts())

    def hosts(self, task: TaskId) -> tuple[str, ...]:
        """Return the hosts with executors that have a task's store; from any thread."""
        return tuple(self._locations.hosts(task))

    def placed(self, items: Sequence[Item], tasks: Sequence[Collection[TaskId]]) -> RDD[Item]:
        """Return items as an RDD, each in a partition of its own that prefers the hosts of its task's stores."""
        return self._executors.placed(items, [self._preferred(task) for task in tasks])

    def _preferred(self, task: Collection[TaskId]) -> list[str]:
        return self._locations.hosts(min(task)) if task else []

    def ran(self, job_group: str, tasks: Sequence[Collection[TaskId]], directories: Mapping[int, str]) -> None:
        """Record in which directories the tasks of a job found their stores."""
        is_known = self._locations.knows(directories.values())
        self._locations.ran(tasks, directories, {} if is_known else self._executors.ran_on(job_group))
