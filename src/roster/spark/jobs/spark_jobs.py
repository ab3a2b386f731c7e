"""A pipeline's jobs in a Spark session: one job group after another, which can be cancelled and counted."""

from __future__ import annotations

import contextlib
import importlib
import logging
import platform
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from py4j.protocol import Py4JError
from pyspark import InheritableThread, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from roster import __version__
from roster.pipeline.errors import FunctionError, MissingSchemasError, PipelineError, SinkFencedError, reason_of
from roster.pipeline.tasks.reader import ReadError
from roster.records.produce import WriteError
from roster.state.store import StateError, StoreFullError

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


log = logging.getLogger(__name__)

T = TypeVar("T")

_AGE = 0.1
"""Seconds for which an answer of the JVM is used."""
_JOB_PROPERTIES = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


class SparkJobs:
    """Runs one pipeline's jobs, those of each batch in a job group of their own."""

    def __init__(self, spark: SparkSession, group: str) -> None:
        self.spark, self.group = spark, group
        self.context: SparkContext = spark.sparkContext
        self._cores, self._counted_at = 0, float("-inf")
        self._prefix = f"roster-{group}-{uuid.uuid4().hex[:8]}"
        self._cancels: list[Callable[[], None]] = []
        self.job_group: str | None = None
        """The job group under way."""

    @property
    def cores(self) -> int:
        """Number of tasks that run at once: Spark's default parallelism, which asking for costs a small batch much."""
        if time.monotonic() > self._counted_at + _AGE:
            self._cores, self._counted_at = self.context.defaultParallelism, time.monotonic()
        return self._cores

    @property
    def is_local(self) -> bool:
        """True if executors, and so stores, are on the driver's host."""
        return (self.context.master or "").startswith("local")

    @contextlib.contextmanager
    def under(self, suffix: str, description: str) -> Iterator[None]:
        """Run the calling thread's jobs in a job group of their own, which `cancel` cancels."""
        context = self.context
        before = {name: context.getLocalProperty(name) for name in _JOB_PROPERTIES}
        job_group = f"{self._prefix}-{suffix}"
        context.setJobGroup(job_group, f"{self.group}: {description}", interruptOnCancel=True)
        self.job_group = job_group
        try:
            yield
        finally:
            self.job_group = None
            with contextlib.suppress(PySparkException, Py4JError, OSError):
                for name, value in before.items():
                    context.setLocalProperty(name, value)  # type: ignore[arg-type]

    def collect(self, count: int, work: Callable[[Iterable[int]], Iterable[T]]) -> list[T]:
        """Run a job of so many tasks, each with its number; return what they yield."""
        return self.context.parallelize(range(count), count).mapPartitions(work).collect()

    def on_each_host(self, work: Callable[[], T]) -> list[T]:
        """Run `work` at least once on every executor host; return the results, [] if the job fails."""
        if self.is_local:
            return [work()]
        with self.under("stores", "cleans stores"):
            try:
                return self.context.parallelize(range(self.cores), self.cores).map(lambda _: work()).collect()
            except (PySparkException, Py4JError) as error:
                log.warning("stores cannot be looked after: %s", str(error).partition("\n")[0])
                return []

    def check(self) -> None:
        """Raise PipelineError if the session was stopped."""
        check_session(self.spark)

    def when_cancelled(self, cancel: Callable[[], None]) -> None:
        """Have `cancel` call this too, from any thread."""
        self._cancels.append(cancel)

    def cancel(self) -> None:
        """Cancel the jobs under way, and with them their Python workers; from any thread."""
        for cancel in self._cancels:
            cancel()
        job_group = self.job_group
        if job_group is not None:
            self.context.cancelJobGroup(job_group)

    def activity(self) -> object:
        """Return the number of jobs, stages and tasks under way that ended; None between two job groups."""
        job_group = self.job_group
        return None if job_group is None else task_counts(self.context, job_group)[0]


def check_session(spark: SparkSession) -> None:
    """Raise PipelineError unless the session is a running classic one."""
    context: object = getattr(spark, "_sc", None)
    if context is None:
        raise PipelineError(
            f"{type(spark).__module__}.{type(spark).__name__} is not a classic Spark session",
            field="spark",
            fix="Use roster.spark.session(...) or SparkSession.builder with a master, not Spark Connect; where there "
            "is nothing else, run this program beside it, in a container with a session of its own",
        )
    if is_stopped(spark):
        raise PipelineError(
            "the Spark session is stopped", field="spark", fix="Start one with roster.spark.session(...)"
        )


def is_stopped(spark: SparkSession) -> bool:
    """Return True if a classic session was stopped, or its JVM is gone."""
    context: Any = getattr(spark, "_sc", None)
    if context is None:
        return False
    try:
        return context._jsc is None or bool(context._jsc.sc().isStopped())
    except (Py4JError, OSError, AttributeError):  # AttributeError: it is being stopped right now
        return True


_ERRORS: Mapping[type[Exception], Callable[[str], PipelineError | ReadError | WriteError]] = {
    FunctionError: FunctionError.of,
    MissingSchemasError: FunctionError.of,
    SinkFencedError: SinkFencedError,
    ReadError: ReadError,
    WriteError: WriteError,
}
"""What makes an error of the text behind its class's name."""
_STORE_ERRORS = f"{StateError.__module__}."


def full_name(kind: type[Exception]) -> str:
    """Return the name by which a traceback calls an error."""
    return f"{kind.__module__}.{kind.__qualname__}"


_BY_NAME = {full_name(kind): make for kind, make in _ERRORS.items()}
_OWN_ERROR = re.compile(rf"\b({'|'.join(map(re.escape, _BY_NAME))}|{re.escape(_STORE_ERRORS)}\w+): (.*)")


def task_error(error: Exception) -> PipelineError | ReadError | StateError | WriteError | None:
    """Find the task's own error in Spark's, which wraps it in a hundred lines."""
    match = _OWN_ERROR.search(str(error))
    if match is None:
        return None
    name, text = match[1], match[2].strip()
    if name == full_name(StoreFullError):
        return PipelineError(text, field="State.dir", fix="Free some, or name another disk")
    return StateError(text) if name.startswith(_STORE_ERRORS) else _BY_NAME[name](text)
