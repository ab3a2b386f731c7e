"""A run as Spark's own pages, listeners and metrics know a streaming query.

What is posted here goes to the Structured Streaming tab, to the event log and to each `StreamingQueryListener`. Spark
has no public way to do so: whatever its release lacks is left out.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, cast

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from roster._json import JsonObject
from roster.pipeline.batch import Progress, spark_names, utc

log = logging.getLogger(__name__)

_QUERIES = uuid.UUID("5d0f4b5e-6f0c-5f0e-9d52-2f1f6c1d7a10")
"""Namespace of the ids of queries: like Spark's they outlast a run, here because a group has always the same."""
_PAUSE = 1.0
"""Seconds in which batches gather after some were told: telling of them together takes half the CPU."""
_END_SECONDS = 10.0  # for what is still to be told when a run ends
_LEFT_OUT = (Py4JError, AttributeError, TypeError, OSError)
"""What py4j raises where Spark has no such class or method, or its JVM is gone."""
FAILED = "STREAM_FAILED"
"""The condition of Spark's exception for a query that an error has ended."""
_METRICS = ("batches", "records", "late", "deadLetters", "lag")

_totals: dict[tuple[str, str], dict[str, Any]] = {}
"""The accumulators of an application's group: Spark's metrics system takes each name once."""


class Observed:
    """Metrics of `observe`; as it is here, of a query without any."""

    def begin(self) -> None:
        """Forget what was observed in the warm-up."""

    def rows(self, batch: int) -> Mapping[str, Any]:
        """Return the metrics of a batch by the name of the observation, as the JVM's rows."""
        return {}


NOTHING_OBSERVED = Observed()


def query_id(group: str) -> uuid.UUID:
    """Return the id of the query that the runs of a group are."""
    return uuid.uuid5(_QUERIES, group)


def text_of(error: BaseException) -> str:
    """Return the error that ended a query as Spark's listeners and exceptions have it."""
    return f"{type(error).__name__}: {error}"


def query_progress(progress: Progress, ids: Mapping[str, str], sink: str) -> JsonObject:
    """Return a batch as Spark's `StreamingQueryProgress` has it in JSON. ids: of the query and the run."""
    return {**ids, **spark_names(progress), "sink": {"description": sink, "numOutputRows": -1, "metrics": {}}}


class QueryEvents:
    """Tells Spark of one run, from a thread of its own: a batch never waits for it."""

    def __init__(self, spark: SparkSession, group: str, sink: str, run_id: uuid.UUID, observed: Observed) -> None:
        self._spark, self._group, self._sink, self._observed = spark, group, sink, observed
        self._ids = {"id": str(query_id(group)), "runId": str(run_id)}
        self.heard: queue.SimpleQueue[Progress | None] = queue.SimpleQueue()
        """Batches to tell of, and None behind the last one."""
        self._ending = threading.Event()
        self._error: str | None = None
        self._thread = threading.Thread(target=self._work, name=f"roster-events-{group}", daemon=True)
        self._thread.start()

    def close(self, error: str | None) -> None:
        """Tell of the end, with the error that ended the run; wait a while until all is told."""
        self._error = error
        self._ending.set()
        self.heard.put(None)
        self._thread.join(_END_SECONDS)

    def _work(self) -> None:
        try:
            self._tell()
        except _LEFT_OUT as error:
            log.debug("Spark is not told of %s: %s", self._group, error)
            while not self._ending.is_set() and self.heard.get() is not None:
                pass  # of those that come, neither

    def _tell(self) -> None:
        streams: Any = cast("Any", self._spark)._jsparkSession.streams()
        listener = "org.apache.spark.sql.streaming.StreamingQueryListener$"
        ids = [self._java("java.util.UUID").fromString(query_id) for query_id in self._ids.values()]
        parse = getattr(self._java("org.apache.spark.util.JsonProtocol$"), "MODULE$").sparkEventFromJson
        started = self._java(f"{listener}QueryStartedEvent")
        streams.postListenerEvent(started(*ids, self._group, utc(time.time() * 1000)))
        keeps = self._is_kept()
        totals, count = self._registered(), dict.fromkeys(_METRICS, 0)
        while batches := self._gathered():
            if keeps or len(streams.listListeners()):
                for progress in batches:
                    document = query_progress(progress, self._ids, self._sink)
                    event = parse(json.dumps({"Event": f"{listener}QueryProgressEvent", "progress": document}))
                    for name, row in self._observed.rows(progress.batch).items():
                        event.progress().observedMetrics().put(name, row)
                    streams.postListenerEvent(event)
            for progress in batches:
                _add(count, progress)
            _write(totals, count)
            self._ending.wait(_PAUSE)
        error = self._java("scala.Option").apply(self._error)
        streams.postListenerEvent(self._java(f"{listener}QueryTerminatedEvent")(*ids, error))

    def _gathered(self) -> list[Progress]:
        """Wait for a batch; return it and those that are there by then, none once the run has ended."""
        batches = []
        while (progress := self.heard.get()) is not None:
            batches.append(progress)
            if self.heard.empty():
                return batches
        if batches:
            self.heard.put(None)
        return batches

    def _java(self, name: str) -> Any:
        """Return a class of the JVM."""
        node: Any = self._spark._jvm
        for part in name.split("."):
            node = getattr(node, part)
        return node

    def _is_kept(self) -> bool:
        """Return True if Spark shows or writes events, whether or not anybody listens."""
        conf = self._spark.sparkContext.getConf()
        return conf.get("spark.ui.enabled", "true") == "true" or conf.get("spark.eventLog.enabled", "false") == "true"

    def _registered(self) -> dict[str, Any]:
        """Return the accumulators that Spark's metrics system shows; none if it cannot."""
        context = self._spark.sparkContext
        key = (str(context.applicationId), self._group)
        if key not in _totals:
            _totals[key] = {}
            with contextlib.suppress(*_LEFT_OUT):
                scala: Any = context._jsc.sc()
                accumulators = {name: scala.longAccumulator(f"roster.{self._group}.{name}") for name in _METRICS}
                source = getattr(self._java("org.apache.spark.metrics.source.LongAccumulatorSource$"), "MODULE$")
                java_map = self._java("java.util.HashMap")()
                for name, accumulator in accumulators.items():
                    java_map.put(f"roster.{self._group}.{name}", accumulator)
                source.register(scala, self._java("org.apache.spark.api.python.PythonUtils").toScalaMap(java_map))
                _totals[key] = accumulators
        return _totals[key]


@contextlib.contextmanager
def telling_spark(
    spark: SparkSession, group: str, sink: str, run_id: uuid.UUID, observed: Observed = NOTHING_OBSERVED
) -> Iterator[QueryEvents]:
    """Tell Spark of a run from here to the end of the block."""
    events = QueryEvents(spark, group, sink, run_id, observed)
    try:
        yield events
    except BaseException as error:
        events.close(text_of(error))
        raise
    else:
        events.close(None)


def end_waits(spark: SparkSession, error: BaseException | None) -> None:
    """End `spark.streams.awaitAnyTermination` as the end of a query of Spark's does, with the error that ended it."""
    with contextlib.suppress(*_LEFT_OUT):
        jvm, manager = cast("Any", spark)._jvm, cast("Any", spark)._jsparkSession.streams()
        last = manager.getClass().getDeclaredField("lastTerminatedQueryException")
        last.setAccessible(True)
        failure = None
        if error is not None:
            nothing = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(jvm.java.util.HashMap())
            failed = jvm.org.apache.spark.sql.streaming.StreamingQueryException
            failure = failed(text_of(error), None, FAILED, nothing)
        if failure is not None or last.get(manager) is None:
            last.set(manager, jvm.scala.Option.apply(failure))


def _add(count: dict[str, int], progress: Progress) -> None:
    count["batches"] += 1
    count["records"] += progress.rows
    count["late"] += progress.late
    count["deadLetters"] += progress.dead_letters
    count["lag"] = progress.total_lag


def _write(totals: Mapping[str, Any], count: dict[str, int]) -> None:
    """Add what was counted to the totals, and count from 0 again; the lag is set."""
    for name, total in totals.items():
        if name == "lag":
            total.setValue(count[name])
        elif count[name]:
            total.add(count[name])
            count[name] = 0
