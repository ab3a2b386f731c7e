"""A running query: a pipeline by the names of Spark's `StreamingQuery`."""

from __future__ import annotations

import contextlib
import sys
import threading
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryProgress

from roster.pipeline.batch import Progress
from roster.pipeline.driver.signals import stopping
from roster.spark.dataframes.observed import ObservedMetrics
from roster.spark.jobs.query_events import end_waits, query_id, query_progress
from roster.spark.pipeline import Pipeline

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
        end_waits(self._pipeline._spark, self._pipeline.exception)

    @property
    def id(self) -> uuid.UUID:
        """The same for all runs in the group."""
        return query_id(self._group)

    @property
    def runId(self) -> uuid.UUID:  # noqa: N802 - Spark's names, here and below
        """Another for each start."""
        return self._pipeline.run_id

    @property
    def name(self) -> str | None:
        """The name given by `queryName`."""
        return self._name

    @property
    def isActive(self) -> bool:  # noqa: N802
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
    def lastProgress(self) -> StreamingQueryProgress | None:  # noqa: N802
        """Progress of the last batch; None before the first."""
        return self._as_in_spark(self._recent[-1]) if self._recent else None

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:  # noqa: N802
        """Progress of the last 100 batches."""
        return [self._as_in_spark(progress) for progress in list(self._recent)]

    def _as_in_spark(self, progress: Progress) -> StreamingQueryProgress:
        ids = {"id": str(self.id), "runId": str(self.runId)}
        own = {"name": self._name, "observedMetrics": self._observed.values(progress.batch)}
        return StreamingQueryProgress.fromJson(query_progress(progress, ids, self._sink) | own)

    def exception(self) -> BaseException | None:
        """Return the error that ended the query; None if it runs or ended without one."""
        return self._pipeline.exception

    def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802
        """Wait for the end, up to `timeout` seconds; raise what ended the query.

        With a timeout return whether it has ended. Meanwhile SIGINT and SIGTERM of a program finish the batch, commit,
        leave the group and end the query.
        """
        with contextlib.nullcontext() if hasattr(sys, "ps1") else stopping(self._pipeline._stop):
            has_ended = self._pipeline.wait(timeout)
        return None if timeout is None else has_ended

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
