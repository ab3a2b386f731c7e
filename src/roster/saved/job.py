"""One Spark task for each partition of some logs, with a look at the progress while they run."""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias, TypeVar

from py4j.protocol import Py4JError
from pyspark import Accumulator, InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from roster.client import Admin
from roster.pipeline.errors import PipelineError, reason_of
from roster.pipeline.options import check_security, parse_bootstrap
from roster.pipeline.tasks.reader import ByTask, ReaderConfig, ReadError
from roster.records.native import compiled
from roster.security import Security

T = TypeVar("T")
Sessions: TypeAlias = SparkSession | Callable[[], SparkSession]
"""A session, or what starts one for the first job that this process does not do itself."""
SMALL_RECORDS, SMALL_BYTES = 500_000, 64 << 20
"""What this process does itself: so many records of logs, or bytes of files."""
_LOOK = 1.0


def session_of(spark: Sessions) -> SparkSession:
    """Return the session, which is started if need be."""
    return spark if isinstance(spark, SparkSession) else spark()


def reader_config(
    bootstrap: str | Sequence[str], group: str, client_id: str, security: Security | Mapping[str, object] | None
) -> ReaderConfig:
    """Return what tasks need to read the group's own topics. Raises PipelineError for a wrong argument."""
    return ReaderConfig(
        bootstrap=parse_bootstrap(bootstrap),
        group=group,
        isolation_level="read_committed",
        client_id=client_id,
        security=check_security(security),
        compiled=compiled(),
    )


def admin_of(config: ReaderConfig) -> Admin:
    """Return a client of the cluster that the tasks read from."""
    return Admin(config.bootstrap, client_id=config.client_id, security=config.security)


class StateProgress(NamedTuple):
    """Progress of an export or an import: log partitions that are done, of how many, and their records."""

    done: int
    partitions: int
    records: int


def _run_here(
    what: str,
    count: int,
    task_of: Callable[[Any], Callable[..., Iterator[T]]],
    on_progress: Callable[[StateProgress], None] | None,
    split: Any,
) -> list[T]:
    done, results, moved = dict[object, int](), list[T](), dict[int, list[Any]]()
    task = task_of(SimpleNamespace(add=done.update))
    for number, chunk in split or ():
        moved.setdefault(number, []).append((number, chunk))
    try:
        for number in range(count):
            results += task([number]) if split is None else task(number, moved.get(number, []))
    except ReadError as error:
        raise PipelineError(f"{what} failed: {error}") from None
    if on_progress is not None:
        on_progress(StateProgress(len(done), count, sum(done.values())))
    return results


def run_job(
    spark: Sessions,
    what: str,
    count: int,
    task_of: Callable[[Accumulator[dict[object, int]]], Callable[..., Iterator[T]]],
    on_progress: Callable[[StateProgress], None] | None,
    split: Any = None,
    *,
    is_small: bool = False,
) -> list[T]:
    """Run `count` tasks by their numbers, and return their results in this order.

    task_of: makes the function of the tasks, which adds {number: records} to the accumulator. split: an RDD of
    (number of a task, what it gets); the function is then called with a number and an iterator of such pairs. is_small:
    this process runs them without a session; `split` has pairs then. Raises PipelineError if a task fails.
    """
    if not count:
        return []
    if is_small and not isinstance(spark, SparkSession):
        return _run_here(what, count, task_of, on_progress, split)
    context = session_of(spark).sparkContext
    done = context.accumulator({}, ByTask())
    task, tag = task_of(done), f"roster-{uuid.uuid4().hex}"
    done_job = Future[list[T]]()

    def job() -> None:
        try:
            context.addJobTag(tag)
            context.setJobDescription(what)
            if split is None:
                results: Any = context.parallelize(range(count), count).mapPartitions(task)
            else:
                results = split.partitionBy(count, int).mapPartitionsWithIndex(task)
            done_job.set_result(results.collect())
        except BaseException as error:
            done_job.set_exception(error)

    thread = InheritableThread(target=job)
    thread.start()
    reported: StateProgress | None = None
    try:
        while thread.is_alive():
            thread.join(_LOOK)
            progress = StateProgress(len(done.value), count, sum(done.value.values()))
            if on_progress is not None and progress != reported:
                on_progress(progress)
                reported = progress
    except BaseException:
        context.cancelJobsWithTag(tag)
        thread.join()
        raise
    try:
        return done_job.result()
    except (PySparkException, Py4JError) as error:
        raise PipelineError(f"{what} failed: {reason_of(error)}") from None
