"""What metrics cost: a batch on the pipeline's thread, and a scrape of many partitions over HTTP."""

from __future__ import annotations

import argparse
import contextlib
import time
import urllib.request
from collections.abc import Callable, Collection, Sequence
from typing import Any

from roster.client import Ownership
from roster.http.server import HttpServer
from roster.metrics.page import metrics_page
from roster.metrics.positions import GroupPositions
from roster.model import Address, GroupPosition, TopicPartition
from roster.spark.batch import Progress, Range
from roster.spark.metrics import PipelineMetrics
from roster.spark.options import Options

PHASES = {"plan": 2, "work": 700, "transaction": 20}


class Positions:
    """Positions without a cluster."""

    def read(self, groups: Sequence[str], only: Collection[TopicPartition]) -> dict[str, GroupPositions]:
        """Return the same positions for all partitions."""
        return {each: GroupPositions(dict.fromkeys(only, GroupPosition(1, 5, 0)), {}) for each in groups}


def run(*, quick: bool = False) -> None:
    """Print CPU times of this process."""
    for partitions in (10, 100, 1_000):
        reader: Any = Positions()
        options = Options(None, "h:1", "g", ("t",))  # type: ignore[arg-type]
        metrics = PipelineMetrics(options, [], lambda: "running", reader)
        places = [TopicPartition("t", number) for number in range(partitions)]
        metrics.owns(Ownership(1, "m", frozenset(places)))
        progress = Progress("g", "m", 1, 0, 0, 722, 10, {places[0]: Range(0, 10)}, {}, 1, PHASES)
        batch = _cpu_seconds(
            lambda metrics=metrics, progress=progress: metrics.progress(progress), 1_000 if quick else 10_000
        )
        with contextlib.closing(HttpServer(Address("127.0.0.1", 0), [metrics_page(metrics.registry)])) as server:
            url = f"http://127.0.0.1:{server.port}/metrics"
            scrape = _cpu_seconds(lambda url=url: urllib.request.urlopen(url).read(), 20 if quick else 200)
        print(f"{partitions:5} partitions: {batch * 1e6:6.1f} µs a batch, {scrape * 1e3:6.2f} ms a scrape")


def _cpu_seconds(function: Callable[[], object], rounds: int) -> float:
    """CPU seconds of a call, the client of a scrape included."""
    begin = time.process_time()
    for _ in range(rounds):
        function()
    return (time.process_time() - begin) / rounds


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    run()
