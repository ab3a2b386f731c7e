"""One of the demo's PySpark applications, a process of its own: `python -m roster.cli.demo.application --name A …`.

It is all a user writes: a session, a function, a sink. Each finished batch is one JSON line on stdout.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
from typing import TYPE_CHECKING

from roster.cli.demo.work import WORK
from roster.client import ClientError
from roster.spark import ParquetSink, Pipeline, PipelineError, session

if TYPE_CHECKING:
    from roster.spark import Progress


def main() -> int:
    """Run until SIGTERM."""
    parser = argparse.ArgumentParser()
    for name in ("--name", "--bootstrap", "--group", "--topic", "--output"):
        parser.add_argument(name, required=True)
    parser.add_argument("--work", choices=sorted(WORK), required=True)
    options = parser.parse_args()
    function, schema = WORK[options.work]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    try:
        # A socket's path has about 100 bytes, 42 of them Spark's, and the demo's temporary directory may be deep.
        sockets = len(os.fsencode(tempfile.gettempdir())) < 60
        spark = session(
            f"roster-demo-{options.name}",
            "local[1]",
            spark_driver_memory="512m",
            spark_python_unix_domain_socket_enabled=sockets,
        )
        spark.sparkContext.setLogLevel("ERROR")
        pipeline = Pipeline(
            spark,
            options.bootstrap,
            options.group,
            [options.topic],
            client_id=f"demo-{options.name}",
            on_progress=say,
            # A death is noticed within the session timeout; 6 s is the least a Kafka broker allows by default.
            session_timeout_ms=8_000,
            heartbeat_interval_ms=1_000,
            rebalance_timeout_ms=30_000,
            request_timeout_ms=10_000,
            trigger_interval_ms=1_000,
        )
        pipeline.map_arrow(function, schema).write(ParquetSink(options.output)).run()
        spark.stop()
    except (PipelineError, ClientError) as error:
        sys.stderr.write(f"{options.name}: {error}\n")
        return 1
    return 0


def say(progress: Progress) -> None:
    """Tell the demo what a batch did."""
    line = {"rows": progress.rows, "generation": progress.generation, "duration_ms": progress.duration_ms}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
