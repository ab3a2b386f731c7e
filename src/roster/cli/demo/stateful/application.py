"""One of the stateful demo's applications, a process of its own: `python -m roster.cli.demo.stateful.application …`.

Its Spark session has a pipeline for each job. JSON lines on stdout say that Spark is up, what each batch did, and twice
a second which tasks run here and how far the copies of others are behind.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from functools import partial
from typing import TYPE_CHECKING

from roster.cli.demo.application import open_session, tell
from roster.cli.demo.state import client_id
from roster.cli.demo.stateful.jobs import JOBS, Job
from roster.cli.demo.stateful.state import SESSION_TIMEOUT_S
from roster.client import ClientError
from roster.spark import Pipeline, PipelineError, State

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from roster.spark import Progress

_EVERY_S = 0.5


def main() -> int:
    """Run until SIGTERM."""
    parser = argparse.ArgumentParser()
    for name in ("--name", "--bootstrap", "--state-dir"):
        parser.add_argument(name, required=True)
    parser.add_argument("--server", action="append", required=True, help="Where queries are answered, for each job.")
    options = parser.parse_args()
    pipelines: dict[str, Pipeline] = {}
    try:
        spark = open_session(options.name)
        tell({"spark": "up"})
        for job, server in zip(JOBS, options.server, strict=True):
            pipelines[job.group] = started(spark, job, options.name, options.bootstrap, options.state_dir, server)
        while not any(pipeline.wait(_EVERY_S / len(JOBS)) for pipeline in pipelines.values()):
            for job in JOBS:
                tell_copies(pipelines[job.group], job)
    except (PipelineError, ClientError) as error:
        sys.stderr.write(f"{options.name}: {error}\n")
        return 1
    finally:
        for pipeline in pipelines.values():
            pipeline.stop()
        for pipeline in pipelines.values():
            pipeline.wait()
    return 0


def started(spark: SparkSession, job: Job, name: str, bootstrap: str, state_dir: str, server: str) -> Pipeline:
    """Start the pipeline of a job."""
    pipeline = Pipeline(
        spark,
        bootstrap,
        job.group,
        job.topic,
        state=State(dir=state_dir, standbys=1, application_server=server),
        consumer={
            "client.id": client_id(name),
            "session.timeout.ms": round(SESSION_TIMEOUT_S * 1000),
            "heartbeat.interval.ms": 1_000,
            "max.poll.interval.ms": 30_000,
            "request.timeout.ms": 10_000,
        },
        on_progress=partial(say, job.group),
        trigger_interval_ms=1_000,
    )
    return job.pipeline(pipeline, bootstrap).start()


def say(group: str, progress: Progress) -> None:
    """Tell the demo what a batch did."""
    tell({"group": group, "rows": progress.rows, "restored": progress.restored, "late": progress.late})


def tell_copies(pipeline: Pipeline, job: Job) -> None:
    """Tell the demo how far the copies here are behind."""
    with contextlib.suppress(PipelineError):  # it starts or stops
        store = pipeline.store(job.store)
        own, behind = store.tasks, store.behind
        copies = {task.partition("_")[2]: gap for task, gap in behind.items() if task not in own}
        tell({"group": job.group, "copies": copies})


if __name__ == "__main__":
    sys.exit(main())
