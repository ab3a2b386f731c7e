"""Lets Spark start with a third of the CPU, in the tests' process and in the programs that it starts.

Classes of the JVM come from an archive (class data sharing), which is made once for each Java and PySpark, in
.cache/spark. The optimizing compiler is off. A JVM that the archive does not fit starts without it. Python workers are
forks of a daemon that has loaded what they import: python_daemon/loaded_daemon.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path

CACHE = Path(__file__).parents[2] / ".cache" / "spark"
OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -Xlog:all=error:stderr"
"""A JVM would print to stdout that an archive does not fit."""
DAEMON = Path(__file__).with_name("python_daemon") / "loaded_daemon.py"
VARIABLES = ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS")
TRAINING = """
import sys
from roster.spark import session
spark = session("training", "local[1]", spark_sql_shuffle_partitions=1)
rows = spark.range(100).selectExpr("id % 7 as k", "cast(id as string) as value")
rows.groupBy("k").count().join(rows, "k").write.parquet(sys.argv[1])
spark.read.parquet(sys.argv[1]).mapInArrow(lambda batches: batches, "k long, count long, value string").collect()
spark.stop()
"""
"""Loads the classes that most sessions need."""


def start_quickly() -> None:
    """Set the options in this process's environment, which is that of the programs it starts, too."""
    options = OPTIONS
    with contextlib.suppress(OSError):
        options += f" -XX:SharedArchiveFile={_archive()}"
    options += f" -Dspark.python.daemon.module={DAEMON.stem}"
    path = os.pathsep.join([str(DAEMON.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ.update(dict.fromkeys(VARIABLES, options) | {"PYTHONPATH": path})


def _archive() -> Path:
    """Return the archive; make it if there is none. Raises OSError without Java."""
    java = subprocess.run(["java", "-version"], capture_output=True, check=True, timeout=60).stderr
    spark = importlib.util.find_spec("pyspark")
    key = hashlib.sha256(f"{java!r} {spark and spark.origin} {version('pyspark')} {OPTIONS} {TRAINING}".encode())
    ready = CACHE / f"{key.hexdigest()[:16]}.jsa"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock, tempfile.TemporaryDirectory(dir=CACHE) as directory:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if ready.exists():
            return ready
        made = Path(directory) / "classes.jsa"
        environment = dict.fromkeys(VARIABLES[:1], f"{OPTIONS} -XX:ArchiveClassesAtExit={made}")
        command = [sys.executable, "-c", TRAINING, f"{directory}/rows"]
        ended = subprocess.run(
            command, env=os.environ | environment, capture_output=True, text=True, timeout=900, check=False
        )
        if ended.returncode:
            warnings.warn(f"Spark's classes are not archived: {ended.stderr[-500:]}", stacklevel=1)
        return made.rename(ready)
