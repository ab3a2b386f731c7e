"""Pipeline: a Spark application as an ordinary member of a Kafka consumer group."""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from pyspark import InheritableThread
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's convention
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from typing_extensions import override

from roster.client import GroupMember
from roster.model.options import taking
from roster.pipeline.batch import Batch, Progress
from roster.pipeline.batch_sink import BatchSink, Sink, batch_sink
from roster.pipeline.driver.members import is_alone
from roster.pipeline.driver.reporting import Reporter, enable_logging, level_of
from roster.pipeline.driver.run import Run, client_id_of, until_reached
from roster.pipeline.driver.signals import stopping
from roster.pipeline.errors import FunctionError, PipelineError
from roster.pipeline.options import Options, Tuning, checked, refuse_foreign_names
from roster.pipeline.pipeline_options import PipelineOptions
from roster.spark.assembly import assembled, state_definitions
from roster.spark.http_server import serving
from roster.spark.jobs.query_events import Observed, telling_spark
from roster.spark.jobs.spark_jobs import check_session, is_stopped
from roster.spark.operations import Operations, check_callable
from roster.spark.queries.view import StateView, view_of

log = logging.getLogger(__name__)
_running: list[str] = []
"""Groups of the runs in this process."""


class ForeachBatch(BatchSink):
    """Calls a function with each batch's DataFrame; at least once, unless the function stores `batch.ranges` itself."""

    def __init__(self, function: Callable[[DataFrame, Batch], object]) -> None:
        self._function = function

    @override
    def warm_up(self, df: DataFrame) -> None:
        """Run an aggregate with a shuffle: the function may not be called, and most have one."""
        df.groupBy(F.spark_partition_id()).count().collect()

    @override
    def write(self, df: DataFrame, batch: Batch) -> None:
        self._function(df, batch)


class Pipeline(Operations):
    """Reads the partitions assigned to it in micro-batches, and commits each batch's offsets to the group.

    >>> (Pipeline(spark, "127.0.0.1:9092", "counts", ["flights"])
    ...     .transform(lambda df: df.groupBy("key").count())
    ...     .write(ParquetSink("out"))
    ...     .run())

    Rows have the columns of Spark's Kafka source. Functions given to `map_arrow` run in the executors' Python workers,
    which need Roster importable (the same environment, or `spark.sparkContext.addPyFile`).
    """

    _tuning = Tuning()
    _membership: Callable[[Options], GroupMember] | None = None
    """Factory of the group member, for tests."""

    @taking(PipelineOptions, refuse_foreign_names)
    def __init__(self, options: PipelineOptions) -> None:
        """Check the options. `run` or `start` makes the first connection.

        With the default assignors, pipelines among themselves use cooperative-sticky; with a neighbour that knows only
        `range` (the default of librdkafka, kafka-python and aiokafka) the group uses that, which costs the batch in
        flight. The logger `roster.pipeline` reports joining, progress (every 10 s at most), hand-overs and the end; on
        stderr if the application has configured no logging.

        Raises:
            PipelineError: an option is wrong; the message names it.

        """
        self._options = checked(options, self._tuning)
        topics = self._options.topics
        super().__init__(options.spark, topics if isinstance(topics, tuple) else ())
        self._on_progress = options.on_progress
        self._log_level = level_of(options.log)
        self._sink: Sink | None = None
        self._lock = threading.Lock()
        self._status = "new"
        self._active = self._stopping = False
        self._stop_reason = ""
        self._run_now: Run | None = None
        self._last_progress: Progress | None = None
        self._thread: InheritableThread | None = None
        self._failure: BaseException | None = None
        self._views: Mapping[str, StateView] = {}
        self._run_id = uuid.uuid4()
        self._observed = Observed()

    def write(self, sink: Sink) -> Self:
        """Send batches to `sink`. Raises PipelineError if it is not a Sink, or there is one already."""
        if self._sink is not None:
            raise PipelineError("the pipeline has a sink already", field="write", fix="Use one sink per pipeline")
        if not isinstance(sink, Sink):
            raise PipelineError(f"{sink!r} is not a Sink", field="write", fix="For example ParquetSink('out')")
        self._sink = sink
        return self

    def foreach_batch(self, function: Callable[[DataFrame, Batch], object]) -> Self:
        """Call `function(df, batch)` with each batch, and commit its offsets when the function has returned.

        At least once: after a failure records may come again, in a batch with other ranges. A function that stores
        `batch.ranges` in the same transaction as its results, and skips records stored before, is exactly once;
        `batch.after(df, positions)` helps with that. With a `Sink` of your own that implements `claim`, stored records
        are not read again.

        Each action on `df` reads the batch's records from Kafka again: with several, call `df.persist()` first and
        `df.unpersist()` at the end. Raises PipelineError if `function` is not callable, or there is a sink already.
        """
        check_callable(function, "foreach_batch")
        return self.write(ForeachBatch(function))

    @property
    def last_progress(self) -> Progress | None:
        """Progress of the latest finished batch of the latest run."""
        return self._run_now.last_progress if self._run_now is not None else self._last_progress

    @property
    def _passes(self) -> int:
        return 0 if self._run_now is None else self._run_now.passes

    @property
    def status(self) -> str:
        """Name of the phase the pipeline is in.

        `new`, `starting`, `waiting for executors`, `warming up`, `waiting for the earlier release`, `joining`,
        `running`, `paused` (another group writes the results), `stopping`, `stopped`, `failed`.
        """
        if self._active and self._stopping:
            return "stopping"
        return self._run_now.status if self._run_now is not None else self._status

    @property
    def run_id(self) -> uuid.UUID:
        """Id of the latest run, as Spark's listeners hear it."""
        return self._run_id

    @property
    def is_active(self) -> bool:
        """True from the start of a run to its end."""
        return self._active

    @property
    def exception(self) -> BaseException | None:
        """Exception that ended the latest run; None if it is running or ended without one."""
        return self._failure

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            is_of_spark = any(hasattr(kind, name) for kind in (DataFrame, DataStreamWriter, StreamingQuery))
            way = "; it is Spark's: read_stream and write_stream have it" if is_of_spark else ""
            raise AttributeError(f"a Pipeline has no {name!r}{way}", name=name, obj=self)

    def __repr__(self) -> str:
        options, last = self._options, self.last_progress
        topics = ",".join(options.topics) if isinstance(options.topics, tuple) else f"pattern:{options.topics.pattern}"
        parts = [f"group={options.group!r}", f"topics={topics!r}", f"sink={type(self._sink).__name__}"]
        if self._sink is None:
            parts.pop()
        if last is not None:
            parts.append(f"batch={last.batch} lag={last.total_lag}")
        if self._run_now is not None and self._run_now.results:
            parts.append(f"results={self._run_now.results!r}")
        if self._failure is not None:
            parts.append(f"exception={type(self._failure).__name__}")
        return f"<Pipeline {' '.join(parts)} [{self.status}]>"

    def run(self, *, available_now: bool = False) -> None:
        """Join the group and run batches until `stop()`, or with `available_now` up to the log ends; then leave.

        In the main thread SIGINT and SIGTERM finish the batch, commit and leave; a second one, a second later or more,
        cancels the batch. Afterwards the previous handlers are restored.

        Raises PipelineError or `roster.client.ClientError` if the pipeline cannot start or go on, FunctionError for a
        `map_arrow` function, and the errors of the transform, of tasks and of the sink.
        """
        self._activate("run")
        self._guarded(available_now=available_now)

    def start(self, *, available_now: bool = False) -> Self:
        """Call `run` in a thread of its own, so that one driver can have several pipelines; see `wait` and `exception`.

        Raises PipelineError if the pipeline is running, or the Spark session is stopped.
        """
        check_session(self._spark)
        self._activate("start")

        def work() -> None:
            # The exception is logged and kept in `exception`; `wait` raises it.
            with contextlib.suppress(BaseException):
                self._guarded(available_now=available_now)

        # InheritableThread: properties of jobs belong to the JVM's thread too.
        self._thread = InheritableThread(target=work, name=f"roster-{self._options.group}", daemon=True)
        self._thread.start()
        return self

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds for a pipeline started with `start`; return True once it has ended.

        Raises what `run` would have raised.
        """
        if self._thread is None:
            return True
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        if self._failure is not None:
            raise self._failure
        return True

    def store(self, name: str) -> StateView:
        """Return a view of the group's state, read by key, range or prefix.

        Other applications are asked for the tasks they run, at their `application_server`. On a cluster a read is a
        small Spark job on the hosts that have the stores, which waits for a free core.

        Raises PipelineError if the pipeline is not running, or has no store of this name.
        """
        return view_of(name, self._views, is_starting=self._active and self._run_now is None)

    def describe_state(self) -> dict[str, Any]:
        """Return what the entries of each store mean, by the store's name, as JSON values; without a connection.

        Raises PipelineError if options and operators contradict each other.
        """
        definitions = state_definitions(self._options, self._declared)
        return {name: definition.described() for name, definition in definitions.items()}

    def stop(self, *, now: bool = False) -> None:
        """End after the running batch, or with `now` cancel it. Returns at once, from any thread; see `wait`.

        Does nothing if the pipeline is not running.
        """
        self._stop("stop()", now)

    def _stop(self, reason: str, now: bool) -> None:
        with self._lock:
            if not self._active:
                return
            self._stop_reason = self._stop_reason or reason
            self._stopping = True
            run = self._run_now
        if run is not None:
            run.stop(now=now)

    def _activate(self, method: str) -> None:
        with self._lock:
            if self._active:
                problem = "still stopping" if self._stopping else "running already"
                fix = "Call wait() first" if self._stopping else "Make another Pipeline"
                raise PipelineError(f"the pipeline is {problem}", field=method, fix=fix)
            self._active, self._stopping, self._stop_reason = True, False, ""
            self._status, self._failure = "starting", None
            self._declared.has_run = True
            self._run_id = uuid.uuid4()

    def _guarded(self, *, available_now: bool) -> None:
        """Perform one run, and log how it ended."""
        enable_logging(self._log_level)
        group = self._options.group
        reporter = Reporter(
            group,
            enabled=self._log_level is not None,
            dead_letter_topic=self._options.dead_letter_topic,
            is_beside=lambda: _running.count(group) > 1,
        )
        try:
            _running.append(group)
            if _running.count(group) > 1:
                what = "another pipeline of this session runs in the group: they share its partitions"
                reporter.line(what, logging.WARNING)
            with stopping(self._stop):
                self._run(reporter, available_now=available_now)
        except BaseException as caught:
            error = self._explained(caught)
            self._status, self._failure = "failed", error
            reporter.ended("", error)
            if isinstance(error, PipelineError):
                # A user's mistake needs no traceback through Roster.
                raise error.with_traceback(None) from error.__cause__
            raise
        else:
            self._status = "stopped"
            reporter.ended(self._stop_reason)
        finally:
            _running.remove(group)
            with self._lock:
                self._last_progress, self._run_now, self._views = self.last_progress, None, {}
                self._active = False

    def _explained(self, error: BaseException) -> BaseException:
        """Return the error of a run; the errors of a stopped session become one sentence."""
        is_known = isinstance(error, FunctionError) or (
            self._run_now is None and getattr(error, "field", "") == "spark"
        )
        if is_known or not isinstance(error, Exception) or not is_stopped(self._spark):
            return error
        log.debug("the session was stopped", exc_info=error)
        return PipelineError(
            "the Spark session was stopped while the pipeline ran; the batch under way is not committed",
            field="spark",
            fix="Call stop() and wait() of the pipeline before spark.stop()",
        )

    def _run(self, reporter: Reporter, *, available_now: bool) -> None:
        sink = self._sink
        if sink is None:
            raise PipelineError(
                "the pipeline has no sink", field="write", fix="Call write(sink) or foreach_batch(function) first"
            )
        check_session(self._spark)
        client_id = self._options.settings.client_id or client_id_of(self._spark.sparkContext.appName or "")
        options = replace(self._options, consumer={**(self._options.consumer or {}), "client.id": client_id})
        assembly = until_reached(
            lambda: assembled(self._spark, options, self._declared, batch_sink(sink)),
            options.start_timeout_ms / 1000,
            lambda: self._stopping,
            reporter.waits_for_brokers,
        )
        if assembly is None:
            return
        options, self._views = assembly.options, {store.name: store.view for store in assembly.served}
        membership = self._membership or assembly.membership
        parts = assembly.between_batches, assembly.switching
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.closing(assembly))
            stack.enter_context(serving(options, assembly.served, lambda: self.status, reporter))
            kind = type(sink).__name__
            events = stack.enter_context(telling_spark(self._spark, options.group, kind, self._run_id, self._observed))
            assembly.runner.on_warm = self._observed.begin
            report = [events.heard.put] if self._on_progress is None else [self._on_progress, events.heard.put]
            is_local = (self._spark.sparkContext.master or "").startswith("local")
            alone = partial(is_alone, options) if is_local else lambda: False
            run = Run(options, assembly.runner, assembly.sink, membership, reporter, report, *parts, alone, is_local)
            with self._lock:
                self._run_now = run
                if self._stopping:
                    return
            run.work(available_now=available_now or assembly.refusal is not None)
            if assembly.refusal is not None and not self._stopping:
                raise assembly.refusal
