"""One of the demo's PySpark applications, a process of its own: `python -m roster.cli.demo.application --name A …`.

It is all a user writes: a session, a function, a sink. One JSON line on stdout says that Spark is up and the pipeline
has warmed up, and one each finished batch what it did.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from roster.cli.demo.jobs import JOBS
from roster.cli.demo.state import SESSION_TIMEOUT_S, client_id
from roster.client import ClientError
from roster.security import SettingError, load_properties
from roster.spark import ParquetSink, Pipeline, PipelineError, session
from roster.spark.driver.member_protocol import Membership, group_member
from roster.spark.options import Options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from roster.spark import Progress


def main() -> int:
    """Run until SIGTERM."""
    parser = argparse.ArgumentParser()
    for name in ("--name", "--bootstrap", "--group", "--topic", "--output"):
        parser.add_argument(name, required=True)
    parser.add_argument("--job", choices=sorted(JOBS), required=True)
    parser.add_argument("--config", help="Properties file with security settings, for a cluster of your own.")
    parser.add_argument("--join-when", type=Path, help="Once warmed up, wait for this file before joining the group.")
    options = parser.parse_args()
    function, schema = JOBS[options.job]
    try:
        spark = open_session(options.name)

        def join(chosen: Options) -> Membership:
            """Make the member, which a pipeline does once it has warmed up."""
            tell({"spark": "up"})
            while options.join_when is not None and not options.join_when.exists() and pipeline.status != "stopping":
                time.sleep(0.1)
            return group_member(chosen)

        pipeline = Pipeline(
            spark,
            options.bootstrap,
            options.group,
            [options.topic],
            consumer={
                "client.id": client_id(options.name),
                "session.timeout.ms": round(SESSION_TIMEOUT_S * 1000),
                "heartbeat.interval.ms": 1_000,
                "max.poll.interval.ms": 30_000,
                "request.timeout.ms": 10_000,
            },
            security=load_properties(options.config).security if options.config is not None else None,
            on_progress=say,
            trigger_interval_ms=1_000,
        )
        pipeline._membership = join
        pipeline.map_arrow(function, schema).write(ParquetSink(options.output)).run()
        spark.stop()
    except (PipelineError, ClientError, SettingError) as error:
        sys.stderr.write(f"{options.name}: {error}\n")
        return 1
    return 0


def open_session(name: str) -> SparkSession:
    """Start the Spark of an application, with one core, and its log. Raises PipelineError."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    # A socket's path has about 100 bytes, 42 of them Spark's, and the demo's temporary directory may be deep.
    sockets = len(os.fsencode(tempfile.gettempdir())) < 60
    spark = session(
        f"roster-demo-{name}",
        "local[1]",
        spark_driver_memory="512m",
        spark_python_unix_domain_socket_enabled=sockets,
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def say(progress: Progress) -> None:
    """Tell the demo what a batch did."""
    tell({"rows": progress.rows, "generation": progress.generation, "duration_ms": progress.duration_ms})


def tell(line: dict[str, object]) -> None:
    """One JSON line for the demo."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
