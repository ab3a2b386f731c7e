"""Small batches are done by a worker that stays, with rows and errors of Spark's tasks; it may die, hang and grow."""

from __future__ import annotations

import json
import os
import random
import signal
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import SparkFiles, TaskContext

from roster.model import TopicPartition
from roster.pipeline.batch import Batch, Owner, Range, Split
from roster.pipeline.driver import offset_ranges
from roster.pipeline.options import Tuning
from roster.pipeline.spark_schemas import as_struct
from roster.pipeline.tasks.python_workers import SentOnce
from roster.pipeline.tasks.reader import ByTask, ReaderConfig, ReadError
from roster.spark import FunctionError, KafkaSink, ParquetSink, Pipeline, State
from roster.spark.jobs import runner, small_batches, worker_main, workers
from roster.spark.jobs.runner import ReadBatches, SparkRunner
from roster.spark.jobs.small_batches import CancelledError, SmallBatches
from roster.spark.jobs.spark_jobs import SparkJobs, full_name
from roster.spark.jobs.workers import LocalWorkers, WorkerError
from tests.clocks import patch_time
from tests.spark.spark_topics import committed_records
from tests.spark.tuned import tuned
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from roster.model.offsets import Arrival
    from roster.spark import Progress
    from tests.spark.spark_topics import Topics

MOST = Tuning().small_batch_offsets
FEW = [[Split("t", 0, 0, 5)], [Split("t", 1, 3, 8)]]


def batch(offsets: int) -> Batch:
    return Batch(1, Owner("g", 1, "m"), {TopicPartition("t", 0): Range(0, offsets)})


class Worker:
    """In place of the processes: answers, or raises."""

    def __init__(self) -> None:
        self.problem: Exception | None = None
        self.calls, self.ready, self.started = 0, 1, list[int]()
        self.arrivals: Sequence[Arrival] = ()

    def start(self, at_once: int = 1) -> None:
        self.started.append(at_once)

    def are_ready(self, count: int) -> bool:
        return count <= self.ready

    def run(self, _: object, arrivals: Sequence[Arrival], count: int) -> list[int]:
        assert self.are_ready(count)
        self.calls += 1
        self.arrivals = arrivals
        if self.problem is not None:
            raise self.problem
        return [1]


class Jobs:
    """In place of `SparkJobs`."""

    def __init__(self, master: str = "local[2]") -> None:
        self.context, self.is_local = self, master.startswith("local")
        self.master, self.environment, self.cores = master, dict[str, str](), 2
        self.cancels: list[Callable[[], None]] = []
        self.when_cancelled = self.cancels.append


def made(jobs: Jobs | None = None, most: int = 10) -> tuple[Any, Worker]:
    batches: Any = SmallBatches(jobs or Jobs(), most)  # type: ignore[arg-type]
    batches._workers = worker = Worker()
    return batches, worker


def test_the_worker_gets_a_small_batch_as_one_task_and_a_large_one_is_left_as_it_is() -> None:
    batches, _ = made()
    ranges = {TopicPartition("t", 0): Range(0, 5), TopicPartition("t", 1): Range(3, 8)}
    parts = [[Split("t", 0, 0, 2), Split("t", 1, 3, 8)], [Split("t", 0, 2, 5)]]
    assert batches.begin(Batch(1, Owner("g", 1, "m"), ranges), parts) == [[Split("t", 0, 0, 5), Split("t", 1, 3, 8)]]
    assert batches.takes([()])
    assert not batches.takes([(), ()]), "another task was added"
    assert batches.begin(batch(11), FEW) == FEW
    assert not batches.takes([()])


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(1, 12), st.integers(1, 8), st.booleans())
def test_merged_tasks_have_each_offset_once_and_each_partition_in_one_split(
    sizes: list[int], cores: int, most: int, is_whole: bool
) -> None:
    ranges = {TopicPartition("t", number): Range(5, 5 + size) for number, size in enumerate(sizes)}
    tasks = (offset_ranges.whole if is_whole else offset_ranges.tasks)(ranges, cores)
    found = small_batches.merged_tasks(tasks, most)
    assert len(found) == min(most, len(tasks))
    assert all(len({split.partition for split in task}) == len(task) > 0 for task in found)
    offsets = [(each.partition, at) for task in found for each in task for at in range(each.start, each.end)]
    assert sorted(offsets) == [(number, at) for number, size in enumerate(sizes) for at in range(5, 5 + size)]


def test_several_workers_have_larger_batches_as_soon_as_they_are_ready() -> None:
    batches, worker = made()
    assert batches.begin(batch(9), FEW) != FEW
    assert batches.takes([()])
    assert worker.started == [1], "nothing larger is to be expected"
    assert batches.begin(batch(20), FEW) == FEW
    assert not batches.takes(FEW), "the other one loads modules"
    assert worker.started == [1, 1, 2]
    assert batches.most_offsets == 10
    worker.ready = 2
    assert batches.most_offsets == 20
    assert batches.takes(FEW)
    assert not batches.takes(FEW, are_rows=True), "many rows would go through the driver"
    assert not batches.takes([()]), "more cores do it sooner"
    for limit in (20, 40, 80, 160, 320, 500, 500):
        assert batches.most_offsets == limit
        batches.begin(batch(limit), FEW)
        assert batches.takes(FEW)
        assert batches.results(None) == [1]
    assert batches.begin(batch(501), FEW) == FEW
    assert not batches.takes(FEW)
    batches.limits.fits = 30
    assert batches.most_offsets == 30, "more results than go through the driver"
    batches.begin(batch(5), FEW)
    assert batches.takes([(), ()]), "a copy of state is worked on beside the batch"


@pytest.mark.parametrize(("jobs", "most"), [(Jobs("spark://host:7077"), 10), (Jobs("local[2]"), 0)])
def test_on_a_cluster_and_without_a_limit_spark_does_all(jobs: Jobs, most: int) -> None:
    batches, _ = made(jobs, most)
    for offsets in (0, 1):  # without offsets a batch has timers that are due
        assert batches.begin(batch(offsets), FEW) == FEW
        assert not batches.takes([()])
    batches.begin(None, [()])
    assert not batches.takes([()])


def test_what_the_worker_cannot_do_is_left_to_spark_for_a_while() -> None:
    batches, worker = made()
    worker.problem = WorkerError("Traceback\nZeroDivisionError: division by zero\n")
    batches.begin(batch(1), FEW)
    assert batches.results(None) is None
    assert not batches.takes([()])
    worker.problem = None
    for _ in range(small_batches._LEFT_TO_SPARK):
        assert batches.begin(batch(1), FEW) == FEW
    batches.begin(batch(1), FEW)
    assert batches.results(None) == [1]
    assert worker.calls == 2


def test_several_workers_that_could_not_do_a_batch_get_no_others_as_large() -> None:
    batches, worker = made()
    worker.ready, worker.problem = 2, WorkerError("Traceback\nMemoryError: the rows of one task have more\n")
    for offsets, limit in ((480, 240), (200, 100), (90, 100)):
        batches.begin(batch(offsets), FEW)
        assert batches.results(None) is None
        assert batches.limits.largest == limit
        batches._left_to_spark = 0


@pytest.mark.parametrize(("master", "is_final"), [("local[2]", True), ("local[2,3]", False)])
def test_an_error_of_roster_fails_the_batch_unless_spark_would_retry(master: str, is_final: bool) -> None:
    batches, worker = made(Jobs(master))
    worker.problem = WorkerError(f"Traceback\n{full_name(ReadError)}: records are gone\n")
    batches.begin(batch(1), FEW)
    if is_final:
        with pytest.raises(ReadError, match="records are gone"):
            batches.results(None)
    else:
        assert batches.results(None) is None


def test_a_cancelled_batch_is_not_left_to_spark() -> None:
    jobs = Jobs()
    batches, worker = made(jobs)
    batches._workers.cancel = lambda: None
    batches.begin(batch(1), FEW)
    jobs.cancels[0]()
    with pytest.raises(CancelledError):
        batches.results(None)
    assert worker.calls == 0
    batches.begin(batch(1), FEW)
    worker.problem = WorkerError("the worker ended")
    batches._is_cancelled = True
    with pytest.raises(CancelledError):
        batches.results(None)
    batches.begin(batch(1), FEW)
    assert batches.takes([()])


class Host:
    """Time that passes while a worker has a batch: a fixed time and one for each record, on a host that may be slow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fixed: float, rate: float) -> None:
        self.fixed, self.rate, self.slow = fixed, rate, 1.0
        self.now = 0.0
        patch_time(monkeypatch, small_batches, monotonic=lambda: self.now)

    def run(self, batches: Any, offsets: int) -> bool:
        """Do a batch of so many offsets; return False if it is left to Spark."""
        batches.begin(batch(offsets), FEW)
        if not batches.takes([()]):
            return False
        took = self.seconds(offsets)

        def work(*_: object) -> list[int]:
            self.now += took
            return [1]

        batches._workers.run = work
        assert batches.results(None) == [1]
        return True

    def seconds(self, offsets: int) -> float:
        return self.slow * (self.fixed + offsets / self.rate)


def test_batches_of_slow_records_are_spark_s_until_they_are_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    batches, _ = made(most=1000)
    host = Host(monkeypatch, fixed=0.0, rate=100.0)
    assert host.run(batches, 1000)
    assert batches.limits.is_too_slow
    for offsets in (500, 250):
        assert host.run(batches, offsets)
    assert not host.run(batches, 201), "they would take more than two seconds"
    host.rate = 100_000.0
    for offsets in (3, 100, 200, 400, 800, 1000):
        assert host.run(batches, offsets), offsets


@pytest.mark.parametrize("fixed", [2.5, 3.0, 8.0, 60.0])
def test_batches_are_no_smaller_where_fewer_records_take_as_long(monkeypatch: pytest.MonkeyPatch, fixed: float) -> None:
    batches, _ = made(most=10_000)
    host, done = Host(monkeypatch, fixed, rate=20_000.0), 0
    for _ in range(100):
        limit = batches.most_offsets
        done += limit
        assert host.run(batches, limit)
    assert done / host.now >= 0.9 * 10_000 / host.seconds(10_000)


@pytest.mark.parametrize("fixed", [0.03, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("rate", [3_000.0, 50_000.0])
@pytest.mark.sampled(3)
def test_a_host_that_is_slow_for_minutes_keeps_most_of_its_rate(
    monkeypatch: pytest.MonkeyPatch, fixed: float, rate: float
) -> None:
    """As compared with the largest batches at all times, of a host that is up to 30 times slower, with uneven times."""
    for seed in range(5):
        chance, until, done, best = random.Random(seed), 0.0, 0, 0.0
        batches, _ = made(most=10_000)
        host = Host(monkeypatch, fixed, rate)
        while host.now < 3600:
            if host.now >= until:
                slowness, until = chance.choice([1, 1, 3, 10, 30]), host.now + chance.uniform(60, 300)
            host.slow, before = slowness * chance.lognormvariate(0, 0.2), host.now
            limit = batches.most_offsets
            done += limit
            assert host.run(batches, limit)
            host.slow = slowness
            best += (host.now - before) * 10_000 / host.seconds(10_000)
        assert done >= 0.8 * best, (seed, done / best)


def test_many_full_batches_in_a_row_and_long_ones_are_too_much_for_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    batches, _ = made(most=1000)
    for offsets in (*[1000] * (small_batches._MANY - 1), 999, *[1000] * small_batches._MANY):
        assert not batches.limits.is_too_slow
        assert batches.most_offsets == 1000
        batches.begin(batch(offsets), FEW)
    assert batches.limits.is_too_slow
    batches.begin(batch(999), FEW)
    assert not batches.limits.is_too_slow
    Host(monkeypatch, fixed=0.0, rate=100.0).run(batches, 999)
    assert (batches.limits.is_too_slow, batches.most_offsets) == (True, 499)
    batches._leave_to_spark("an error")
    assert batches.most_offsets is None
    assert made(most=0)[0].most_offsets is None


def test_rows_are_read_no_further_than_they_become_a_frame() -> None:
    """Sixty batches of 20 MB that a topic has in 44 kB would stay with the process."""
    schema, read = pa.schema([("value", pa.binary())]), list[int]()

    def batches(_: object) -> Iterator[pa.RecordBatch]:
        for number in range(60):
            read.append(number)
            yield pa.record_batch({"value": [bytes(400)]}, schema=schema)

    assert list(small_batches.RowsTask(batches, schema, 1000)(iter([0]))) == []
    assert read == [0, 1, 2]
    (rows,) = small_batches.RowsTask(batches, schema, 60_000)(iter([0]))
    assert len(pa.ipc.open_stream(rows).read_all()) == 60
    (nothing,) = small_batches.RowsTask(lambda _: iter(()), schema, 1000)(iter([0]))
    assert pa.ipc.open_stream(nothing).read_all().schema == schema


# -- the process -------------------------------------------------------------------------------------------------------


def pid(_: Iterator[int]) -> list[Any]:
    return [os.getpid()]


def fails(_: Iterator[int]) -> list[Any]:
    raise ValueError("three")


def ends(_: Iterator[int]) -> list[Any]:
    os._exit(3)


def exits(_: Iterator[int]) -> list[Any]:
    raise SystemExit(2)


def surroundings(_: Iterator[int]) -> list[Any]:
    import added_here  # type: ignore[import-not-found]

    context = TaskContext.get()
    assert context is not None
    return [added_here.VALUE, SparkFiles.get("file.txt"), context.partitionId(), os.environ["PYTHONHASHSEED"]]


KEPT: list[bytes] = []
"""Leaks in the worker."""


def grown(_: Iterator[int]) -> list[Any]:
    KEPT.append(b"x" * (64 << 20))
    return [os.getpid()]


@pytest.fixture
def worker(spark: SparkSession) -> Iterator[LocalWorkers]:
    made = LocalWorkers(spark.sparkContext)
    yield made
    made.close()


@pytest.mark.gate
def test_a_worker_stays_and_is_replaced_when_it_ends(spark: SparkSession, worker: LocalWorkers) -> None:
    (first,) = worker.run(pid)
    assert first != os.getpid()
    assert worker.run(pid) == [first]
    with pytest.raises(WorkerError, match="ValueError: three"):
        worker.run(fails)
    with pytest.raises(WorkerError, match="SystemExit: 2"):
        worker.run(exits)
    assert worker.run(pid) == [first], "an error does not end it"
    with pytest.raises(WorkerError, match="the worker ended"):
        worker.run(ends)
    (second,) = worker.run(pid)
    assert second != first
    os.kill(second, signal.SIGKILL)
    until(lambda: not worker._workers[0].is_alive, 10)
    assert worker.run(pid) != [second]
    value = spark.sparkContext.broadcast(5)
    with pytest.raises(WorkerError, match="broadcast"):
        worker.run(partial(lambda value, _: [value.value], value))
    assert len(worker.run(pid)) == 1


@pytest.mark.gate
def test_several_run_at_the_same_time_and_one_is_left_when_batches_are_small(
    worker: LocalWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = worker.run(pid)
    assert not worker.are_ready(2)
    worker.start(2)
    until(lambda: worker.are_ready(2), 60)
    (_, second) = worker.run(pid, count=2)
    assert {first, second} == {*worker.run(pid, count=2)}
    assert first != second
    with pytest.raises(WorkerError, match="three"):
        worker.run(fails, count=2)
    assert worker.are_ready(2), "an error does not end them"
    os.kill(second, signal.SIGKILL)
    with pytest.raises(WorkerError, match="the worker ended"):
        worker.run(pid, count=2)
    worker.start(2)
    until(lambda: worker.are_ready(2), 60)
    monkeypatch.setattr(workers, "SPARE_SECONDS", 0.0)
    assert worker.run(pid) == [first]
    assert len(worker._workers) == 1


@pytest.mark.gate
def test_the_next_pipeline_of_a_session_has_the_process_of_the_last(
    spark: SparkSession, worker: LocalWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = worker.run(pid)
    monkeypatch.setattr(workers, "_spare", [])
    worker.leave()
    following, beside = LocalWorkers.of(spark.sparkContext), LocalWorkers.of(spark.sparkContext)
    assert following.run(pid) == [first]
    assert beside is not following, "a process is one pipeline's"
    following.leave()
    with monkeypatch.context() as patch:
        patch.setenv("SETTING", "new")
        assert LocalWorkers.of(spark.sparkContext) is not following, "it does not know the setting"
    monkeypatch.setattr(workers, "SPARE_SECONDS", 0.0)
    again = LocalWorkers.of(spark.sparkContext)
    assert again.run(pid) == [first]
    again.leave()
    until(lambda: not Path(f"/proc/{first}").exists(), 10)
    assert workers._spare == []


@pytest.mark.gate
def test_the_first_pipeline_of_a_session_has_the_process_that_was_started_with_spark(
    spark: SparkSession, worker: LocalWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_early", [])  # the session's own may wait there
    settings = dict(spark.sparkContext.getConf().getAll())
    workers.start_early(settings)
    (early,) = workers._early
    assert worker.run(pid) == [early.popen.pid]
    workers.start_early(settings)
    (early,) = workers._early
    with monkeypatch.context() as patch:
        patch.setenv("SETTING", "new")
        worker.close()
        assert worker.run(pid) != [early.popen.pid], "it does not know the setting"
    assert early.popen.returncode is not None
    workers.start_early(settings | {"spark.master": "spark://host:7077"})
    assert workers._early == [], "a cluster has its own"
    monkeypatch.setattr(workers, "SPARE_SECONDS", 0.0)
    workers.start_early(settings)
    until(lambda: not workers._early, 10)


@pytest.mark.gate
def test_a_task_has_the_surroundings_of_spark_s_own(spark: SparkSession, worker: LocalWorkers, tmp_path: Path) -> None:
    (tmp_path / "added_here.py").write_text("VALUE = 7\n")
    (tmp_path / "file.txt").write_text("text")
    spark.sparkContext.addPyFile(str(tmp_path / "added_here.py"))
    spark.sparkContext.addFile(str(tmp_path / "file.txt"))
    count = spark.sparkContext.accumulator({}, ByTask())

    def counted(tasks: Iterator[int]) -> list[Any]:
        count.add({"task": 4})
        return surroundings(tasks)

    (by_spark,) = [spark.sparkContext.parallelize([0], 1).mapPartitions(surroundings).collect()]
    assert worker.run(counted) == by_spark
    assert count.value == {"task": 4}


@pytest.mark.gate
def test_a_worker_that_grows_is_replaced(worker: LocalWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_MORE_MEMORY", 32 << 20)
    monkeypatch.setattr(workers, "_SETTLED", 2)
    (first,) = worker.run(pid)
    assert worker.run(pid) == worker.run(pid) == [first]
    worker._workers[0]._settled //= 8
    assert worker.run(grown) == [first]
    assert worker.run(pid) != [first]


def test_a_task_that_hangs_ends_when_it_is_cancelled(worker: LocalWorkers, tmp_path: Path) -> None:
    import threading
    import time

    mark = tmp_path / "hangs"

    def hangs(_: Iterator[int]) -> list[Any]:
        mark.touch()
        time.sleep(600)
        return []

    def cancel() -> None:
        until(mark.exists, 60)
        worker.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(WorkerError, match="the worker ended"):
        worker.run(hangs)
    thread.join()
    worker.cancel()
    assert len(worker.run(pid)) == 1, "without a task there is nothing to cancel"


# -- pipelines ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("include_headers", [False, True])
@pytest.mark.sampled(1)
def test_worker_and_spark_s_tasks_read_the_same_rows(
    spark: SparkSession, topics: Topics, include_headers: bool
) -> None:
    topic = topics.create(3)
    topics.fill(topic, 3, 30, headers=[("h", b"1"), ("h", None)], timestamp=1_700_000_000_123)
    topics.fill(topic, 3, 30)
    config = ReaderConfig(bootstrap=topics.bootstrap, group="g", include_headers=include_headers)
    columns = as_struct(config.schema)
    jobs = SparkJobs(spark, "g")
    reading: Any = SparkRunner(jobs, ReadBatches(jobs, config, None), columns, small=MOST)
    ranges = {TopicPartition(topic, number): Range(number, 20) for number in range(3)}
    tasks = reading._small.begin(Batch(1, Owner("g", 1, "m"), ranges), [])
    frame = reading._frame(tasks)
    assert is_local(frame)
    assert sum(counts.records for counts in reading._counted.value.values()) == 57
    reading._small._is_here = False
    by_tasks = reading._frame(tasks)
    assert frame.schema == by_tasks.schema
    assert frame.rdd.getNumPartitions() == by_tasks.rdd.getNumPartitions() == 1
    assert [*map(tuple, frame.collect())] == [*map(tuple, by_tasks.collect())]
    reading.close()


class Probe:
    """In place of the job that makes Spark's workers ready: it has ended at the third look."""

    def __init__(self, *_: object) -> None:
        self.looks = 0

    def start(self) -> None:
        pass

    def wait(self, _: float) -> bool:
        self.looks += 1
        return self.looks > 2


@pytest.mark.gate
def test_what_waits_at_the_start_is_read_in_small_batches_until_spark_s_workers_are_ready(
    spark: SparkSession, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "SlotProbe", Probe)
    topic, out = topics.create(1, 200), topics.create(1)
    reports: list[tuple[int, bool]] = []
    jobs: list[int] = []
    collect = SparkJobs.collect
    monkeypatch.setattr(SparkJobs, "collect", lambda *given: [jobs.append(1), collect(*given)][1])

    def note(progress: Progress) -> None:
        reports.append((progress.rows, bool(jobs)))

    kind = tuned(small_batch_offsets=10)
    kind(spark, topics.bootstrap, f"g-{topic}", topic, on_progress=note, log=False).write(
        KafkaSink(topics.bootstrap, out)
    ).run(available_now=True)
    assert reports == [*[(10, False)] * (small_batches._MANY + 2), (80, True)]
    assert sum(topics.ends(out).values()) >= 200


def is_local(df: DataFrame) -> bool:
    plan: Any = df._jdf.queryExecution().logical()
    return "LocalRelation" in plan.toString()


@pytest.mark.gate
def test_frames_have_small_batches_in_the_plan_and_what_is_large_comes_from_tasks(
    spark: SparkSession, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, seen = topics.create(2, 10), dict[int, tuple[bool, int]]()
    reports: list[Progress] = []

    def look(df: DataFrame, batch: Batch) -> None:
        seen[batch.offsets] = is_local(df), df.count()

    def pipeline(change: Callable[[DataFrame], DataFrame]) -> Pipeline:
        made = Pipeline(spark, topics.bootstrap, group, topic, on_progress=reports.append, log=False)
        return made.transform(change).foreach_batch(look)

    group = f"g-{uuid.uuid4().hex[:8]}"
    pipeline(lambda df: df.where("offset > 0")).run(available_now=True)
    topics.fill(topic, 2, MOST + 2)
    pipeline(lambda df: df).run(available_now=True)
    monkeypatch.setattr(small_batches, "MOST_BYTES", 100)
    topics.fill(topic, 2, 20)
    pipeline(lambda df: df).run(available_now=True)
    assert seen == {10: (True, 8), MOST + 2: (False, MOST + 2), 20: (False, 20)}
    assert [report.rows for report in reports] == [10, MOST + 2, 20]


def where(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The process that does the rows. Raises at offset 3."""
    if 3 in rows.column("offset").to_pylist():
        raise ValueError("three")
    parents = pa.array([os.getppid()] * rows.num_rows, pa.int64())
    return pa.RecordBatch.from_arrays([rows.column("offset"), parents], ["offset", "parent"])


@pytest.mark.parametrize("most", [MOST, 0])
@pytest.mark.sampled(1)
def test_functions_and_writers_run_in_the_worker_and_their_errors_are_those_of_spark_s_tasks(
    spark: SparkSession, topics: Topics, tmp_path: Path, most: int
) -> None:
    topic = topics.create(2, 10)
    sink = ParquetSink(tmp_path / "out")
    options: dict[str, Any] = {"log": False, "dead_letter_topic": topics.create(1)}
    reports: list[Progress] = []
    kind = tuned(small_batch_offsets=most)
    kind(spark, topics.bootstrap, f"g-{topic}", topic, on_progress=reports.append, **options).filter(
        pc.field("offset") < 4
    ).map_arrow(where, "offset long, parent long").write(sink).run(available_now=True)
    rows = sink.read(spark).collect()
    assert sorted(row.offset for row in rows) == [0, 0, 1, 1, 2, 2]
    assert ({row.parent for row in rows} == {os.getpid()}) is (most > 0)
    assert [(report.rows, report.dead_letters) for report in reports] == [(10, 2)]
    failing = ParquetSink(tmp_path / "failing")
    pipeline = kind(spark, topics.bootstrap, f"failing-{topic}", topic, log=False)
    with pytest.raises(FunctionError, match=r"^map_arrow: ValueError: three \(.*\), given .*-0 offset 3"):
        pipeline.map_arrow(where, "offset long, parent long").write(failing).run(available_now=True)
    assert failing.positions() == {}
    assert not [*(tmp_path / "failing").rglob("*.parquet")]


def test_a_worker_that_dies_in_a_batch_leaves_it_to_spark(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topic, sink = topics.create(2, 10), ParquetSink(tmp_path / "out")
    driver = os.getpid()

    def dies(rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.num_rows and os.getppid() == driver:
            os._exit(1)
        return rows.select(["offset"])

    Pipeline(spark, topics.bootstrap, f"g-{topic}", topic, log=False).map_arrow(dies, "offset long").write(sink).run(
        available_now=True
    )
    assert sorted(row.offset for row in sink.read(spark).collect()) == sorted([*range(5)] * 2)


@pytest.mark.gate
def test_a_backlog_is_counted_once_by_several_workers_of_which_one_dies(
    spark: SparkSession, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, out, driver = topics.create(4, 2000), topics.create(1), os.getpid()
    start = LocalWorkers.start
    together: list[int] = []
    run = LocalWorkers.run

    def start_and_wait(self: LocalWorkers, at_once: int = 1) -> None:
        start(self, at_once)
        until(lambda: self.are_ready(at_once), 60)

    def noting(self: LocalWorkers, *given: Any) -> list[Any]:
        results = run(self, *given)
        together.append(given[2])
        return results

    def keyed(rows: pa.RecordBatch) -> pa.RecordBatch:
        if os.getppid() == driver and 301 in rows["offset"].to_pylist():
            os._exit(1)
        keys = pc.add(pc.multiply(rows["partition"], 8), pc.bit_wise_and(rows["offset"], 7))
        return pa.RecordBatch.from_arrays([keys], ["k"])

    monkeypatch.setattr(LocalWorkers, "start", start_and_wait)
    monkeypatch.setattr(LocalWorkers, "run", noting)
    monkeypatch.setattr(small_batches, "_LEFT_TO_SPARK", 2)
    reports: list[Progress] = []
    options: dict[str, Any] = {"log": False, "on_progress": reports.append, "state": State(dir=str(tmp_path))}
    kind = tuned(small_batch_offsets=20, min_offsets_per_task=10)
    kind(spark, topics.bootstrap, f"g-{topic}", topic, max_offsets_per_batch=200, **options).map_arrow(
        keyed, "k long"
    ).aggregate("k", {"n": "count(*)"}).write(KafkaSink(topics.bootstrap, out)).run(available_now=True)
    last = {int(key or b""): json.loads(value or b"")["n"] for _, key, value in committed_records(topics, out)}
    assert last == {8 * partition + k: len(range(k, 500, 8)) for partition in range(4) for k in range(8)}
    assert sum(report.rows for report in reports) == 2000
    assert together.count(2) >= 6


@pytest.mark.gate
def test_a_small_batch_of_bad_records_only_is_done_once(spark: SparkSession, topics: Topics) -> None:
    topic, letters = topics.create(1, 3), topics.create(1)
    seen: list[int] = []
    reports: list[Progress] = []
    options: dict[str, Any] = {"log": False, "dead_letter_topic": letters, "on_progress": reports.append}
    pipeline = Pipeline(spark, topics.bootstrap, f"g-{topic}", topic, **options)
    pipeline.json_columns("a struct<b: int>", mode="FAILFAST").foreach_batch(
        lambda df, batch: seen.append(df.count())
    ).run(available_now=True)
    assert seen == [0]
    assert [(report.rows, report.dead_letters) for report in reports] == [(3, 3)]
    assert sum(topics.ends(letters).values()) == 3


class Part(SentOnce):
    """Of several tasks."""

    def __init__(self) -> None:
        self.names: list[str] = []


def test_a_part_of_many_tasks_is_sent_once_and_made_anew_for_each() -> None:
    part, known = Part(), dict[int, SentOnce]()
    task, parts = workers._pickled([part, part, "first"], known)
    sent = {number: data for number, (_, data) in parts.items()}
    first = worker_main.Request("", (), 0, task, sent, True)
    answers = [answered(first)]
    known.update({number: each for number, (each, _) in parts.items()})
    task, parts = workers._pickled([part, "second"], known)
    assert not parts
    answers.append(answered(worker_main.Request("", (), 0, task, {}, False)))
    (one, same, _), (other, _) = answers
    assert one is same
    assert one is not other
    one.names.append("of the first task")
    assert other.names == []


def answered(request: worker_main.Request) -> Any:
    """What the process makes of a request's task."""
    worker_main._note_parts(request)
    return worker_main._Unpickler(request.task).load()
