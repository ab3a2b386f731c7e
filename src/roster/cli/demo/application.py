"""One of the demo's PySpark applications, a process of its own: `python -m roster.cli.demo.application --name A …`.

Its Spark session has a pipeline for each job. JSON lines on stdout say that Spark is up, what each batch did, and twice
a second how far the standby copies here are behind.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from roster.cli.demo.jobs import AIRCRAFT, CARRIERS, FLIGHTS, KEYS, Job
from roster.cli.demo.state import SESSION_TIMEOUT_S, client_id
from roster.cli.output import print_json_line
from roster.client import ClientError
from roster.security import SettingError, load_properties
from roster.spark import Pipeline, PipelineError, State, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from roster.spark import Progress

JOBS = {job.name: job for job in (FLIGHTS, KEYS, AIRCRAFT, CARRIERS)}
_EVERY_S = 0.5


def main() -> int:
    """Run until SIGTERM."""
    parser = argparse.ArgumentParser()
    for name in ("--name", "--bootstrap"):
        parser.add_argument(name, required=True)
    parser.add_argument("--directory", type=Path, required=True, help="Where output and state are.")
    parser.add_argument("--job", nargs=3, action="append", required=True, metavar=("NAME", "GROUP", "TOPIC"))
    parser.add_argument("--server", action="append", default=[], help="Where queries are answered, for each job.")
    parser.add_argument("--config", help="Properties file with security settings, for a cluster of your own.")
    parser.add_argument("--join-when", type=Path, help="Once Spark is up, wait for this file before joining.")
    options = parser.parse_args()
    jobs = [replace(JOBS[name], group=group, topic=topic) for name, group, topic in options.job]
    servers = options.server or [None] * len(jobs)
    pipelines: list[tuple[Job, Pipeline]] = []
    try:
        spark = open_session(options.name)
        print_json_line({"spark": "up"})
        while options.join_when is not None and not options.join_when.exists():
            time.sleep(0.1)
        for job, server in zip(jobs, servers, strict=True):
            pipelines.append((job, started(spark, job, options, server)))
        while not any(pipeline.wait(_EVERY_S / len(jobs)) for _, pipeline in pipelines):
            for job, pipeline in pipelines:
                tell_copies(pipeline, job)
    except (PipelineError, ClientError, SettingError) as error:
        sys.stderr.write(f"{options.name}: {error}\n")
        return 1
    finally:
        for _, pipeline in pipelines:
            pipeline.stop()
        for _, pipeline in pipelines:
            pipeline.wait()
    return 0


def open_session(name: str) -> SparkSession:
    """Start the Spark of an application, with one core, and its log. Raises PipelineError."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    # A JVM that lives for a minute is faster without the optimizing compiler and with the simplest collector.
    options = ("-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", os.environ.get("SPARK_SUBMIT_OPTS", ""))
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join(filter(None, options))
    # A socket's path has about 100 bytes, 42 of them Spark's, and the demo's temporary directory may be deep.
    sockets = len(os.fsencode(tempfile.gettempdir())) < 60
    spark = session(
        f"roster-demo-{name}", "local[1]", spark_driver_memory="512m", spark_python_unix_domain_socket_enabled=sockets
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def started(spark: SparkSession, job: Job, options: argparse.Namespace, server: str | None) -> Pipeline:
    """Start the pipeline of a job; with a store it keeps copies of the other applications' state."""
    state = State(dir=str(options.directory / f"state-{options.name}"), standbys=1, application_server=server)
    pipeline = Pipeline(
        spark,
        options.bootstrap,
        job.group,
        [job.topic],
        state=state if job.store else None,
        consumer={
            "client.id": client_id(options.name),
            "session.timeout.ms": round(SESSION_TIMEOUT_S * 1000),
            "heartbeat.interval.ms": 1_000,
            "max.poll.interval.ms": 30_000,
            "request.timeout.ms": 10_000,
        },
        security=load_properties(options.config).security if options.config is not None else None,
        on_progress=partial(say, job.group),
        trigger_interval_ms=1_000,
    )
    return job.build(pipeline, options.bootstrap, options.directory / "output").start()


def say(group: str, progress: Progress) -> None:
    """Report a batch's progress to the demo."""
    figures = ("rows", "generation", "restored", "late")
    print_json_line({"group": group, **{name: getattr(progress, name) for name in figures}})


def tell_copies(pipeline: Pipeline, job: Job) -> None:
    """Report the gaps of the copies here to the demo."""
    if not job.store:
        return
    with contextlib.suppress(PipelineError):  # it starts or stops
        store = pipeline.store(job.store)
        own, behind = store.tasks, store.behind
        copies = {task.partition("_")[2]: gap for task, gap in behind.items() if task not in own}
        print_json_line({"group": job.group, "copies": copies})


if __name__ == "__main__":
    sys.exit(main())
