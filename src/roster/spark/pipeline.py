"""The main door: a Spark application as an ordinary member of a Kafka consumer group."""

from __future__ import annotations

import contextlib
import inspect
import logging
import signal
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from pyspark import InheritableThread

from roster.assignors import Assignor, as_tuple
from roster.spark.errors import PipelineError
from roster.spark.execution import SparkRunner, check_session
from roster.spark.loop import Loop
from roster.spark.membership import group_member
from roster.spark.options import (
    Options,
    StartingOffsets,
    parse_bootstrap,
    parse_starting_offsets,
    parse_topics,
    refuse_foreign_names,
)
from roster.spark.reader import ReaderConfig
from roster.spark.sinks import ForeachBatch, Sink

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from roster.spark.batch import Batch, Progress
    from roster.spark.membership import Membership

log = logging.getLogger(__name__)


class Pipeline:
    """Reads a group's share of some topics in micro-batches and commits what was done to the group.

    >>> (Pipeline(spark, "127.0.0.1:9092", "counts", ["flights"])
    ...     .transform(lambda df: df.groupBy("key").count())
    ...     .write(ParquetSink("out"))
    ...     .run())

    Rows have the columns of Spark's Kafka source. Functions given to `map_arrow` run in the executors' Python workers,
    which need Roster importable (the same environment, or `spark.sparkContext.addPyFile`).
    """

    def __new__(cls, *_: object, **options: object) -> Self:
        """Refuses Spark's and Kafka's names for options with Roster's; the signature is that of `__init__`."""
        refuse_foreign_names(options, inspect.signature(cls.__init__).parameters)
        return super().__new__(cls)

    def __init__(
        self,
        spark: SparkSession,
        bootstrap: str | Sequence[str],
        group: str,
        topics: str | Sequence[str] | re.Pattern[str],
        *,
        starting_offsets: StartingOffsets = "earliest",
        max_offsets_per_batch: int | None = 1_000_000,
        min_offsets_per_task: int = 1_000,
        tasks: int | None = None,
        include_headers: bool = False,
        isolation_level: str = "read_uncommitted",
        fail_on_data_loss: bool = True,
        poll_interval_ms: int = 200,
        trigger_interval_ms: int | None = None,
        read_timeout_ms: int = 60_000,
        start_timeout_ms: int = 60_000,
        assignors: str | Assignor | Sequence[str | Assignor] = ("cooperative-sticky",),
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 3_000,
        rebalance_timeout_ms: int = 300_000,
        request_timeout_ms: int = 30_000,
        metadata_max_age_ms: int = 300_000,
        client_id: str = "roster",
        group_instance_id: str | None = None,
        rack_id: str | None = None,
        capacity: int | None = None,
        reader_options: Mapping[str, str | int | bool] | None = None,
        on_progress: Callable[[Progress], object] | None = None,
        membership: Callable[[Options], Membership] | None = None,
    ) -> None:
        """Checks the options; nothing is connected yet. PipelineError names the one that is wrong.

        `starting_offsets` is for partitions without a committed offset and unknown to the sink. `max_offsets_per_batch`
        is shared over the partitions by lag. `tasks` is how many tasks share a batch (default: Spark's parallelism),
        none gets much fewer than `min_offsets_per_task`. An idle pipeline looks for records every `poll_interval_ms`;
        batches start at least `trigger_interval_ms` apart. When that is None, it is the sink's default (10 s for files,
        else 0), for which neither a full batch nor `available_now` waits. `reader_options` are librdkafka settings for
        the tasks' consumers. `assignors` are those the group may use, most wanted first, by name or, with options, as
        an Assignor: `lag_cooperative_sticky(LagOptions(max_skew=0.5))` of `roster.assignors`. `capacity` is how many
        plain members this application counts for where the group's assignor looks at lag (default: the tasks that
        Spark runs at once). `on_progress` is called after each batch in the running thread. The rest is as in Kafka's
        consumer.
        `membership` makes the group member (default: `roster.client.GroupMember`).
        """
        self._options = Options(
            bootstrap=parse_bootstrap(bootstrap),
            group=group,
            topics=parse_topics(topics),
            starting_offsets=parse_starting_offsets(starting_offsets),
            max_offsets_per_batch=max_offsets_per_batch,
            min_offsets_per_task=min_offsets_per_task,
            tasks=tasks,
            include_headers=include_headers,
            isolation_level=isolation_level,
            fail_on_data_loss=fail_on_data_loss,
            poll_interval_ms=poll_interval_ms,
            trigger_interval_ms=trigger_interval_ms,
            read_timeout_ms=read_timeout_ms,
            start_timeout_ms=start_timeout_ms,
            assignors=as_tuple(assignors),
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=heartbeat_interval_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            request_timeout_ms=request_timeout_ms,
            metadata_max_age_ms=metadata_max_age_ms,
            client_id=client_id,
            group_instance_id=group_instance_id,
            rack_id=rack_id,
            capacity=capacity,
            reader_options=dict(reader_options or {}),
        )
        self._spark = spark
        self._on_progress = on_progress
        self._membership = membership or group_member
        self._function: Callable[[pa.RecordBatch], Any] | None = None
        self._schema: str | StructType | None = None
        self._transform: Callable[[DataFrame], DataFrame] | None = None
        self._sink: Sink | None = None
        self._loop: Loop | None = None
        self._running = threading.Lock()
        self._stopping = False
        self._thread: InheritableThread | None = None
        self._failure: BaseException | None = None

    def map_arrow(
        self,
        function: Callable[[pa.RecordBatch], pa.RecordBatch | Iterator[pa.RecordBatch]],
        schema: str | StructType,
    ) -> Self:
        """Apply `function` to each record batch inside the reading task, before the rows reach the JVM.

        It is the fastest place for work in Python: Arrow in, Arrow out, no crossing in between. `function` gives a
        record batch of the columns `schema` (Spark DDL or a StructType) or an iterator of them. It is pickled to the
        tasks with every batch, so it must not hold on to the session, open files or other state of the driver.
        """
        if self._function is not None:
            raise PipelineError("given twice", field="map_arrow", fix="Compose the two functions")
        _check_callable(function, "map_arrow")
        self._function, self._schema = function, schema
        return self

    def transform(self, function: Callable[[DataFrame], DataFrame]) -> Self:
        """Apply `function` to each batch's DataFrame; several are applied in the order given."""
        _check_callable(function, "transform")
        before = self._transform
        self._transform = function if before is None else lambda df: function(before(df))
        return self

    def write(self, sink: Sink) -> Self:
        """Send batches to `sink`."""
        if self._sink is not None:
            raise PipelineError("the pipeline has a sink already", field="write", fix="Use one sink per pipeline")
        if not isinstance(sink, Sink):
            raise PipelineError(f"{sink!r} is not a Sink", field="write", fix="For example ParquetSink('out')")
        self._sink = sink
        return self

    def foreach_batch(self, function: Callable[[DataFrame, Batch], object]) -> Self:
        """Call `function(df, batch)` with each batch; its offsets are committed when the function has returned.

        At least once: after a failure a batch may come again, with other neighbours. A function that stores
        `batch.ranges` in the same transaction as its results is exactly once if it skips what it has; a `Sink` of your
        own that answers `claim` does not even read it again.
        """
        _check_callable(function, "foreach_batch")
        return self.write(ForeachBatch(function))

    @property
    def last_progress(self) -> Progress | None:
        """The latest finished batch of the latest run."""
        return self._loop.last_progress if self._loop is not None else None

    def run(self, *, available_now: bool = False) -> None:
        """Join the group and work until `stop()`, or with `available_now` until what was there is done; then leave.

        In the main thread SIGINT and SIGTERM mean: finish the batch, commit, leave (a second one cancels the batch);
        the handlers of before are put back. Raises PipelineError or roster.client.ClientError when the pipeline cannot
        start or go on, and whatever a function, a task or the sink raised.
        """
        if self._sink is None:
            raise PipelineError(
                "the pipeline has no sink", field="write", fix="Call write(sink) or foreach_batch(function) first"
            )
        if not self._running.acquire(blocking=False):
            raise PipelineError("the pipeline is running already", field="run", fix="Make another Pipeline")
        try:
            self._run(self._sink, available_now=available_now)
        except PipelineError as error:
            # The frames between here and there say nothing about the user's mistake.
            raise error.with_traceback(None) from error.__cause__
        finally:
            self._stopping = False
            self._running.release()

    def start(self, *, available_now: bool = False) -> Self:
        """`run` in a thread of its own, so that one driver can have several pipelines; see `wait`."""
        if self._thread is not None and self._thread.is_alive():
            raise PipelineError("the pipeline is running already", field="start", fix="Make another Pipeline")
        self._failure = None

        def work() -> None:
            try:
                self.run(available_now=available_now)
            except BaseException as error:
                self._failure = error

        # InheritableThread: the jobs' properties belong to the thread in the JVM as well.
        self._thread = InheritableThread(target=work, name=f"roster-{self._options.group}", daemon=True)
        self._thread.start()
        return self

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a pipeline started with `start`; True once it has ended. Raises what `run` would have raised."""
        if self._thread is None:
            return True
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        if self._failure is not None:
            raise self._failure
        return True

    def stop(self, *, now: bool = False) -> None:
        """End after the batch in flight, or (`now`) cancel it; returns at once, from any thread."""
        self._stopping = True
        if self._loop is not None:
            self._loop.stop(now=now)

    def _run(self, sink: Sink, *, available_now: bool) -> None:
        options = self._options
        check_session(self._spark)
        config = ReaderConfig(
            bootstrap=options.bootstrap,
            group=options.group,
            isolation_level=options.isolation_level,
            fail_on_data_loss=options.fail_on_data_loss,
            read_timeout_ms=options.read_timeout_ms,
            include_headers=options.include_headers,
            options=options.reader_options,
        )
        runner = SparkRunner(self._spark, config, self._function, self._schema, self._transform)
        sink.open(self._spark, options.group)
        member = self._membership(replace(options, capacity=options.capacity or max(runner.cores, 1)))
        with _signals(self.stop), contextlib.ExitStack() as cleanup:
            cleanup.callback(sink.close)
            cleanup.callback(member.close)
            member.start(options.start_timeout_ms / 1000)
            self._loop = Loop(member, runner, sink, options, self._on_progress)
            if self._stopping:
                return
            self._loop.run(available_now=available_now)


def _check_callable(function: object, field: str) -> None:
    if not callable(function):
        raise PipelineError(f"{function!r} is not a function", field=field, fix="Pass a function or a lambda")


@contextlib.contextmanager
def _signals(stop: Callable[..., None]) -> Iterator[None]:
    """SIGINT and SIGTERM stop the pipeline, a second one at once; only in the main thread, and undone afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        seen += 1
        # A handler may interrupt any lock's holder, so the work is done by a thread.
        threading.Thread(target=stop, kwargs={"now": seen > 1}, daemon=True).start()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
