"""The executors of a session that is not local: their hosts, and jobs whose tasks prefer some of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeVar

from pyspark import RDD, SparkContext
from pyspark.serializers import CPickleSerializer

Item = TypeVar("Item")


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
