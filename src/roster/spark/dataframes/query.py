"""A running query: a pipeline by the names of Spark's `StreamingQuery`."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.listener import StreamingQueryProgress

from roster.client import Admin, ClientError
from roster.model import TopicPartition
from roster.model.topology import repartition_topic
from roster.pipeline.batch import Progress
from roster.pipeline.driver.offset_ranges import Targets
from roster.pipeline.driver.signals import stopping
from roster.pipeline.errors import PipelineError
from roster.pipeline.options import Options
from roster.spark.dataframes.observed import ObservedMetrics
from roster.spark.dataframes.source_options import in_words_of_options
from roster.spark.declarations import Declared
from roster.spark.jobs.query_events import FAILED, end_waits, query_id, query_progress, text_of
from roster.spark.pipeline import Pipeline

_LOOK_SECONDS = 0.05
"""Time between two looks at what the group has committed."""
_UNSPENT = ("getBatch", "latestOffset", "walCommit")
"""Phases of Spark's batches that are none here."""
_WAITING = ("new", "starting", "waiting for executors", "warming up", "waiting for the earlier release", "joining")


class StreamQuery:
    """A query that runs as a member of a consumer group; made by `StreamWriter.start`."""

    def __init__(
        self,
        pipeline: Pipeline,
        recent: deque[Progress],
        observed: ObservedMetrics,
        group: str,
        name: str | None,
        sink: str,
        explained: Callable[[bool], str],
    ) -> None:
        """pipeline: started. recent: its last batches. observed: their metrics.

        explained: returns the text of `explain`, extended or not.
        """
        self._pipeline, self._recent, self._observed = pipeline, recent, observed
        self._group, self._name, self._sink, self._explained = group, name, sink, explained
        threading.Thread(target=self._end_waits, name=f"roster-end-{group}", daemon=True).start()

    def _end_waits(self) -> None:
        with contextlib.suppress(Exception):
            self._pipeline.wait()
        end_waits(self._pipeline._spark, self._error)

    @property
    def _error(self) -> BaseException | None:
        error = self._pipeline.exception
        return in_words_of_options(error) if isinstance(error, PipelineError) else error

    @property
    def id(self) -> str:
        """The same for all runs in the group."""
        return str(query_id(self._group))

    @property
    def runId(self) -> str:
        """Another for each start."""
        return str(self._pipeline.run_id)

    @property
    def name(self) -> str | None:
        """The name given by `queryName`."""
        return self._name

    @property
    def isActive(self) -> bool:
        """True until the query has ended."""
        return self._pipeline.is_active

    @property
    def status(self) -> dict[str, Any]:
        """What the query does now, by the keys message, isDataAvailable and isTriggerActive."""
        status, last = self._pipeline.status, self._pipeline.last_progress
        is_behind = self.isActive and last is not None and last.total_lag > 0
        is_working = self.isActive and status not in _WAITING
        return {"message": status, "isDataAvailable": is_behind, "isTriggerActive": is_working}

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        """Progress of the last batch; None before the first."""
        return self._as_in_spark(self._recent[-1]) if self._recent else None

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        """Progress of the last 100 batches."""
        return [self._as_in_spark(progress) for progress in list(self._recent)]

    def _as_in_spark(self, progress: Progress) -> StreamingQueryProgress:
        ids = {"id": self.id, "runId": self.runId}
        own = {"name": self._name, "observedMetrics": self._observed.values(progress.batch)}
        document = query_progress(progress, ids, self._sink) | own
        document["durationMs"] = dict.fromkeys(_UNSPENT, 0) | document["durationMs"]
        made = StreamingQueryProgress.fromJson(document)
        for source in document["sources"]:  # text in the object, objects in its JSON
            source.update({name: json.loads(source[name]) for name in ("startOffset", "endOffset", "latestOffset")})
        return made

    def exception(self) -> StreamingQueryException | None:
        """Return what ended the query, with the error itself as its `__cause__`; None if it runs or was stopped."""
        if (error := self._error) is None:
            return None
        ended = StreamingQueryException(text_of(error), errorClass=FAILED)
        ended.__cause__ = error
        return ended

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait for the end, up to `timeout` seconds; raise `exception` if an error ended the query.

        With a timeout return whether it has ended. Meanwhile SIGINT and SIGTERM of a program finish the batch, commit,
        leave the group and end the query.
        """
        with contextlib.nullcontext() if hasattr(sys, "ps1") else stopping(self._pipeline._stop):
            has_ended = self._has_ended(timeout)
        return None if timeout is None else has_ended

    def processAllAvailable(self) -> None:
        """Wait until the group has committed all records that its topics have now, and the rows that these lead to.

        Other applications of the group process their part. Returns early if the query is stopped, and raises
        `exception` if an error ends it.
        """
        options = self._pipeline._options
        timeout = options.settings.request_timeout_ms
        with Admin(options.bootstrap, request_timeout_ms=timeout, security=options.security) as admin:
            available = Available(admin, options, self._pipeline._declared)
            while not self._has_ended(0) and not available.is_committed():
                self._has_ended(_LOOK_SECONDS)
        passes = self._pipeline._passes
        while passes == self._pipeline._passes and not self._has_ended(_LOOK_SECONDS):
            pass  # until what this application has committed is in `lastProgress`

    def _has_ended(self, timeout: float | None) -> bool:
        """Wait as `Pipeline.wait` does; raise `exception` if an error ended the query."""
        try:
            return self._pipeline.wait(timeout)
        except BaseException as error:
            if error is self._pipeline.exception and (ended := self.exception()):
                raise ended from ended.__cause__
            raise

    def stop(self) -> None:
        """End the query after the batch under way, and wait until it has left the group."""
        self._pipeline.stop()
        with contextlib.suppress(Exception):  # `exception` has it, as in Spark
            self._pipeline.wait()

    def explain(self, extended: bool = False) -> None:
        """Print which part of the program runs where."""
        print(self._explained(extended))  # noqa: T201 - as in Spark

    def __repr__(self) -> str:
        return f"<StreamQuery {self._name or self._group!r} [{self._pipeline.status}]>"


class Available:
    """The records that a group's topics have when it is first asked."""

    def __init__(self, admin: Admin, options: Options, declared: Declared) -> None:
        self._admin, self._options = admin, options
        repartitioned = [subtopology.by.name for subtopology in declared.subtopologies if subtopology.by is not None]
        self._own = [repartition_topic(options.group, name) for name in repartitioned]
        self._targets = Targets(options.topics, admin.end_offsets)
        self._ends: Mapping[TopicPartition, int] | None = None

    def is_committed(self) -> bool:
        """Return True once the group has committed them; False while brokers do not answer. Raises ClientError."""
        try:
            return self._is_committed()
        except ClientError as error:
            if not error.retriable:
                raise
            return False

    def _is_committed(self) -> bool:
        topics, counts = self._options.topics, self._admin.list_topics()
        if self._ends is None:
            read = topics if isinstance(topics, tuple) else [name for name in counts if topics.fullmatch(name)]
            is_stable = self._options.isolation_level == "read_committed"
            ends_of = self._admin.stable_offsets if is_stable else self._admin.end_offsets
            self._ends = ends_of(_partitions(read, counts))
        committed = self._admin.group_offsets(self._options.group, stable=False)
        positions = {partition: at.offset for partition, at in committed.items()}
        if any(positions.get(partition, 0) < end for partition, end in self._ends.items()):
            return False
        return self._targets.are_reached({own: positions.get(own, 0) for own in _partitions(self._own, counts)})


def _partitions(topics: Sequence[str], counts: Mapping[str, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for topic in topics for number in range(counts.get(topic, 0))]
