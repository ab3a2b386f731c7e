"""Lets Spark start with a third of the CPU, in the tests' process and in the programs that it starts.

Classes of the JVM come from an archive (class data sharing), which is made once for each Java and PySpark, in
.cache/spark. The optimizing compiler is off. A JVM that the archive does not fit starts without it. Python workers are
forks of a daemon that has loaded what they import: python_daemon/loaded_daemon.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import warnings
from pathlib import Path

from roster.pipeline.errors import PipelineError
from roster.spark.spark_session import QUIET, archive_path, make_archive

CACHE = Path(__file__).parents[2] / ".cache" / "spark"
OPTIONS = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {QUIET}"
DAEMON = Path(__file__).with_name("python_daemon") / "loaded_daemon.py"
VARIABLES = ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS", "SPARK_DAEMON_JAVA_OPTS")
"""Of drivers, of the JVM that puts their command line together, of a standalone cluster's master and workers."""


def start_quickly() -> None:
    """Set the options in this process's environment, which is that of the programs it starts, too."""
    options = OPTIONS
    with contextlib.suppress(OSError):
        options += f" -XX:SharedArchiveFile={_archive()}"
    of_executors = f'"-Dspark.executor.extraJavaOptions={options}"'
    path = os.pathsep.join([str(DAEMON.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ.update(dict.fromkeys(VARIABLES, options) | {"PYTHONPATH": path})
    os.environ["SPARK_SUBMIT_OPTS"] += f" -Dspark.python.daemon.module={DAEMON.stem} {of_executors}"


def _archive() -> Path:
    """Return the archive; make it if there is none. Raises OSError without Java."""
    CACHE.mkdir(parents=True, exist_ok=True)
    java = shutil.which("java")
    if java is None:
        raise FileNotFoundError("java")
    ready = archive_path(java, OPTIONS, CACHE)
    assert ready is not None
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            try:
                make_archive(ready, OPTIONS)
            except PipelineError as error:
                warnings.warn(str(error), stacklevel=1)
    return ready
