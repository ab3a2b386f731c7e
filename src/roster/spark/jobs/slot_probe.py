"""Probe for a task slot: a small job that ends when an executor has run it, and reports that executor's Python.

With a task for each slot it makes Spark's workers ready, too.
"""

from __future__ import annotations

import importlib
import platform
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyspark import InheritableThread, SparkContext

from roster import __version__
from roster.pipeline.errors import PipelineError, reason_of

_PARTS = {
    "roster": "Roster",
    "google_crc32c": "google-crc32c",
    "llvmlite": "llvmlite",
    "pyarrow": "pyarrow",
    "pandas": "pandas",
    "typing_extensions": "typing-extensions",
}
_FIX = (
    "Give executors and driver one environment: set PYSPARK_PYTHON before the session is made "
    f"(the driver runs {sys.executable}), or ship it with spark.archives"
)


class SlotProbe:
    """A job of small tasks, in a thread of its own."""

    def __init__(self, context: SparkContext, group: str, tasks: int = 1) -> None:
        self._context, self._tasks = context, tasks
        self._job_group = f"roster-{group}-slot-{uuid.uuid4().hex[:8]}"
        self._description = f"{group}: waits for executors"
        self._found: Mapping[str, object] = {}
        self._error: Exception | None = None
        self._thread = InheritableThread(target=self._run, name=f"roster-slot-{group}", daemon=True)

    def start(self) -> None:
        """Submit the job."""
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for the job to end; return False if it has not."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """Cancel the job."""
        self._context.cancelJobGroup(self._job_group)

    @property
    def running(self) -> bool:
        """True while an executor runs the task."""
        return task_counts(self._context, self._job_group)[1] > 0

    def check(self) -> None:
        """Raise PipelineError if the executors' Python cannot run a pipeline's tasks."""
        if self._error is not None:
            raise PipelineError(f"executors cannot run Python: {reason_of(self._error)}", field="spark", fix=_FIX)
        check_worker(self._found)

    def _run(self) -> None:
        try:
            self._context.setJobGroup(self._job_group, self._description, interruptOnCancel=True)
            tasks = self._context.parallelize(range(self._tasks), self._tasks)
            self._found = tasks.mapPartitions(worker_report()).collect()[0]
        except Exception as error:
            self._error = error


def worker_report() -> Callable[[Iterable[int]], Iterable[dict[str, object]]]:
    """Return a task that yields what `check_worker` looks at, and loads what a pipeline's tasks need."""
    names = list(_PARTS)

    # A nested function is pickled by value, so a worker without Roster can load it if it uses nothing of this module.
    def report(numbers: Iterable[int]) -> Iterable[dict[str, object]]:
        list(numbers)  # Spark ends a worker that has not read its input to the end
        missing = {}
        for name in names:
            try:
                importlib.import_module(name)
            except Exception as error:
                missing[name] = f"{type(error).__name__}: {error}"
        if not missing:
            import roster.stateful.tasks.task  # noqa: F401, PLC0415 - only where Roster is there
        version = getattr(sys.modules.get("roster"), "__version__", "")
        yield {
            "python": sys.executable,
            "python_version": platform.python_version(),
            "host": platform.node(),
            "missing": missing,
            "roster_version": version,
        }

    return report


def check_worker(found: Mapping[str, Any]) -> None:
    """Raise PipelineError if a worker lacks a package or has another version of Roster than the driver."""
    missing: Mapping[str, str] = found["missing"]
    where = f"executors run {found['python']} (Python {found['python_version']}, host {found['host']})"
    if missing:
        lacking = " and no ".join(_PARTS[name] for name in missing)
        others = [text for text in missing.values() if not text.startswith("ModuleNotFoundError")]
        detail = f" ({'; '.join(others)})" if others else ""
        raise PipelineError(f"{where}, which has no {lacking}{detail}", field="spark", fix=_FIX)
    if found["roster_version"] != __version__:
        raise PipelineError(
            f"{where}, which has Roster {found['roster_version']}, the driver has {__version__}",
            field="spark",
            fix=_FIX,
        )


def task_counts(context: SparkContext, job_group: str) -> tuple[int, int]:
    """Return a job group's finished tasks, jobs and stages as one count, and its number of running tasks."""
    tracker = context.statusTracker()
    finished = running = 0
    for job_id in tracker.getJobIdsForGroup(job_group):
        finished += 1
        job = tracker.getJobInfo(job_id)
        for stage_id in job.stageIds if job is not None else ():
            stage = tracker.getStageInfo(int(stage_id))
            if stage is not None:
                finished += stage.numCompletedTasks
                running += stage.numActiveTasks
    return finished, running
