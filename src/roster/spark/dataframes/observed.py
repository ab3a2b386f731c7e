"""Metrics of `observe`: what each batch's rows come to, for `lastProgress` and listeners."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JError
from typing_extensions import override

from roster.pipeline.errors import PipelineError
from roster.spark.column_expressions import Java
from roster.spark.dataframes.plan import FIELD, OBSERVED, Plan
from roster.spark.jobs.query_events import Observed

KEPT = 100
"""Batches in `recentProgress`, as by default in Spark."""


class ObservedMetrics(Observed):
    """Metrics of a frame's last batches. Spark fills an observation when a job with its node has ended.

    Raises PipelineError if Spark is too old to give them.
    """

    def __init__(self, frame: Plan) -> None:
        session: Any = frame.df.sparkSession
        nodes = [node.java for node in frame.root.all() if node.kind == OBSERVED]
        self._nodes = {str(node.name()): int(node.dataframeId()) for node in nodes}
        self._manager: Any = session._jsparkSession.observationManager() if nodes else None
        self._batches: dict[int, Mapping[str, Java]] = {}
        self._open: dict[str, Java] = {}
        try:
            self.begin()
        except Py4JError:
            problem = "observe: PySpark 4.0 gives metrics to its own queries only"
            raise PipelineError(problem, field=FIELD, fix="Use a newer one, or leave observe out") from None

    @override
    def begin(self) -> None:
        self._open = {name: self._manager.getOrNewObservation(name, number) for name, number in self._nodes.items()}

    def settle(self, batch: int) -> None:
        """Keep what was observed since the batch before as this batch's, and observe the next one."""
        if self._nodes:
            completed = {name: metrics for name, metrics in self._open.items() if metrics.future().isCompleted()}
            self._batches[batch] = {name: metrics.getRow() for name, metrics in completed.items()}
            while len(self._batches) > KEPT:
                del self._batches[next(iter(self._batches))]
            self.begin()

    @override
    def rows(self, batch: int) -> Mapping[str, Java]:
        return self._batches.get(batch, {})

    def values(self, batch: int) -> dict[str, Any]:
        """Return the metrics of a batch as JSON has them."""
        return {name: json.loads(row.json()) for name, row in self.rows(batch).items()}
