"""What metrics cost: a batch, a scrape of many partitions, a broker's request, a batch that Spark is told of, and a
pipeline of 20 batches a second that is scraped and looked at beside one that is not: six minutes.

    python -m benchmarks metrics
    python -m benchmarks.metrics [--rounds 6] [--seconds 20]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.applications import cpu_of, tree
from benchmarks.latency import passed
from roster.client import Admin, Ownership
from roster.client.member_statistics import MemberStatistics
from roster.http.server import HttpServer
from roster.metrics.page import metrics_page
from roster.metrics.positions import GroupPositions
from roster.model import Address, GroupPosition, TopicPartition
from roster.model.durations import Durations
from roster.spark import KafkaSink, Pipeline, session
from roster.spark.batch import Progress, Range
from roster.spark.jobs.query_events import telling_spark
from roster.spark.metrics import PipelineMetrics
from roster.spark.options import Options
from roster.testing.broker import BrokerProcess
from tests.librdkafka import idempotent_producer
from tests.real.realparts.apache import free_ports

PHASES = {"plan": 2, "work": 700, "transaction": 20}
VIEWER = """import sys, threading, time
from urllib.request import urlopen
address, group, pause = sys.argv[1:]
def scrape():
    time.sleep(float(pause))
    urlopen(f"{address}/metrics").read()
threading.Thread(target=scrape, daemon=True).start()
for line in urlopen(f"{address}/page/live?group={group}"):
    pass
"""
"""Looks at the page of a group, as a browser does, and scrapes once."""


class Positions:
    """Positions without a cluster."""

    def read(self, groups: Sequence[str], only: Collection[TopicPartition]) -> dict[str, GroupPositions]:
        """Return the same positions for all partitions."""
        return {each: GroupPositions(dict.fromkeys(only, GroupPosition(1, 5, 0)), {}) for each in groups}


def run(*, quick: bool = False, rounds: int = 6, seconds: float = 20.0) -> None:
    """Print CPU times."""
    for partitions in (10, 100, 1_000):
        reader: Any = Positions()
        options = Options(None, "h:1", "g", ("t",))  # type: ignore[arg-type]
        metrics = PipelineMetrics(options, [], lambda: "running", reader, MemberStatistics())
        places = [TopicPartition("t", number) for number in range(partitions)]
        metrics.owns(Ownership(1, "m", frozenset(places)))
        progress = _progress(0)
        batch = _cpu_seconds(
            lambda metrics=metrics, progress=progress: metrics.progress(progress), 1_000 if quick else 10_000
        )
        with contextlib.closing(HttpServer(Address("127.0.0.1", 0), [metrics_page(metrics.registry)])) as server:
            url = f"http://127.0.0.1:{server.port}/metrics"
            scrape = _cpu_seconds(lambda url=url: urllib.request.urlopen(url).read(), 20 if quick else 200)
        print(f"{partitions:5} partitions: {batch * 1e6:6.1f} µs a batch, {scrape * 1e3:6.2f} ms a scrape")
    durations = Durations()
    counted = _cpu_seconds(lambda: durations.add(time.perf_counter() - 1.0), 100_000)
    print(f"a request of roster broker: {counted * 1e6:.2f} µs more with --http")
    _told(100 if quick else 400)
    _paired(1 if quick else rounds, 3.0 if quick else seconds)


def _progress(number: int) -> Progress:
    places = [TopicPartition("t", each) for each in range(4)]
    ranges, lag = dict.fromkeys(places, Range(0, 36)), dict.fromkeys(places, 5)
    return Progress("g", "m", 1, number, int(time.time() * 1000), 45, 722, ranges, lag, 2, PHASES)


def _cpu_seconds(function: Callable[[], object], rounds: int) -> float:
    """CPU seconds of a call, the client of a scrape included."""
    begin = time.process_time()
    for _ in range(rounds):
        function()
    return (time.process_time() - begin) / rounds


def _all_cpu() -> float:
    """CPU seconds of this process, its JVM and its workers, without the viewer and the broker."""
    found = 0.0
    for pid in tree(os.getpid()):
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_text()
            found += 0.0 if VIEWER in command or "broker" in command.split("\0") else cpu_of(pid)
    return found


def _told(events: int) -> None:
    """Print what it costs to tell Spark of batches, 20 a second, with its UI on."""
    spark = session("told", "local[1]", **{"spark.ui.enabled": True, "spark.ui.port": 0})
    with telling_spark(spark, "g", "KafkaSink") as told:
        for each in range(4_000):  # none of one generation, so that each has an event
            told.progress(replace(_progress(each), generation=each))
    begin = _all_cpu()
    for _ in range(events):
        time.sleep(0.05)
    idle, begin = _all_cpu() - begin, _all_cpu()
    with telling_spark(spark, "g", "KafkaSink") as told:
        for each in range(events):
            told.progress(_progress(each))
            time.sleep(0.05)
    spent = (_all_cpu() - begin - idle) / events
    print(f"a batch that Spark is told of: {spent * 1e6:.0f} µs, {spent * 20:.2%} of a core at 20 a second")
    spark.stop()


def _paired(rounds: int, seconds: float) -> None:
    """Print what a pipeline costs that serves metrics and the page, beside one that does not, in turns."""
    with contextlib.ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        broker = opened.enter_context(BrokerProcess(folder / "data"))
        admin = opened.enter_context(Admin(broker.bootstrap))
        for topic in ("t", "out"):
            admin.create_topic(topic, 4)
        producer = idempotent_producer(broker.bootstrap, {"linger.ms": 20})
        for number in range(60_000):
            producer.produce("t", b"%d" % number, partition=number % 4)
        producer.flush()
        spark = session("paired", "local[2]")
        opened.callback(spark.stop)
        _pipeline(spark, broker.bootstrap, "warm", seconds, is_seen=True)
        cores: dict[bool, list[float]] = {False: [], True: []}
        batches: dict[bool, list[float]] = {False: [], True: []}
        for number in range(rounds):
            for is_seen in (False, True) if number % 2 else (True, False):
                spent, taken = _pipeline(spark, broker.bootstrap, f"g{number}{is_seen}", seconds, is_seen=is_seen)
                cores[is_seen].append(spent)
                batches[is_seen] += taken
        for is_seen, name in ((False, "without"), (True, "scraped and looked at")):
            middle, p99 = statistics.median(batches[is_seen]), statistics.quantiles(batches[is_seen], n=100)[98]
            core = statistics.mean(cores[is_seen])
            print(f"{name:22} {core:6.2%} of a core, batches of {middle:.2f} ms, p99 {p99:.2f} ms")
        more = [with_ - without for with_, without in zip(cores[True], cores[False], strict=True)]
        tail = [statistics.quantiles(batches[is_seen], n=100)[98] for is_seen in (True, False)]
        print(f"more, of a core: {statistics.mean(more):+.2%}; pairs {' '.join(f'{each:+.2%}' for each in more)}")
        print(f"more at p99: {tail[0] - tail[1]:+.2f} ms of {len(batches[True])} batches")


def _pipeline(
    spark: Any, bootstrap: str, group: str, seconds: float, *, is_seen: bool
) -> tuple[float, Sequence[float]]:
    """Return the part of a core, and the milliseconds of each batch, from reading to the group's commit."""
    address, taken = f"127.0.0.1:{free_ports(1)[0]}", list[float]()
    pipeline = (
        Pipeline(
            *(spark, bootstrap, group, "t"),
            max_offsets_per_batch=40,
            trigger_interval_ms=50,
            on_progress=lambda progress: taken.append(progress.duration_ms),
            http=address if is_seen else None,
            log=False,
        )
        .map_arrow(passed, "key binary, value binary")
        .write(KafkaSink(bootstrap, "out"))
    )
    pipeline.start()
    while len(taken) < 40:
        time.sleep(0.05)
    with _seeing(address, group, seconds) if is_seen else contextlib.nullcontext():
        time.sleep(1)
        taken.clear()
        begin, began = _all_cpu(), time.monotonic()
        time.sleep(seconds)
        spent, elapsed = _all_cpu() - begin, time.monotonic() - began
        found = taken.copy()
    pipeline.stop()
    pipeline.wait()
    return spent / elapsed, found


@contextlib.contextmanager
def _seeing(address: str, group: str, seconds: float) -> Iterator[None]:
    """Look at the page of a group, and scrape once in the middle of the time that is measured."""
    process = subprocess.Popen([sys.executable, "-c", VIEWER, f"http://{address}", group, str(1 + seconds / 2)])
    try:
        yield
        assert process.poll() is None, "the viewer was sent away"
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=20.0)
    run(**vars(parser.parse_args()))
