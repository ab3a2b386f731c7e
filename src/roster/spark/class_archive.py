"""Classes of Spark's JVM in an archive (class data sharing): a session that finds one starts with half the CPU.

One archive for each Java, PySpark and set of options, beside the compiled loops. A JVM that it does not fit starts
without it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from roster.pipeline.errors import PipelineError
from roster.records.native import cache_folder

QUIET = "-Xlog:disable -Xlog:all=error:stderr"
"""A JVM would print to its standard output that an archive does not fit."""
_SECONDS = 900
_TRAINING = """
import sys
from roster.spark import session
spark = session("training", "local[1]", spark_sql_shuffle_partitions=1)
rows = spark.range(100).selectExpr("id % 7 as k", "cast(id as string) as value")
rows.groupBy("k").count().join(rows, "k").write.parquet(sys.argv[1])
spark.read.parquet(sys.argv[1]).mapInArrow(lambda batches: batches, "k long, count long, value string").collect()
spark.stop()
"""
"""Loads the classes that most sessions need."""


def archive_path(java: str, options: str = "", folder: Path | None = None) -> Path | None:
    """Return where the archive for a `java` and its options is, or would be; None without a home directory."""
    folder = cache_folder() if folder is None else folder
    if folder is None:
        return None
    program = Path(java).resolve()
    made_for = f"{program} {program.stat().st_mtime_ns} {pyspark.__version__} {pyspark.__file__} {options} {_TRAINING}"
    return folder / f"spark-{hashlib.sha256(made_for.encode()).hexdigest()[:32]}.jsa"


def options_of(archive: Path | None) -> str:
    """Return the options of a JVM that uses an archive; none if it is not there."""
    return f"{QUIET} -XX:SharedArchiveFile={archive}" if archive is not None and archive.exists() else ""


def make_archive(path: Path, options: str = "") -> None:
    """Run a training session, and put the classes it loaded in `path`, about 180 MB. Raises PipelineError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        archive = Path(directory) / "classes.jsa"
        java_options = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {options} {QUIET} -XX:ArchiveClassesAtExit={archive}"
        ended = subprocess.run(  # noqa: S603
            [sys.executable, "-c", _TRAINING, f"{directory}/rows"],
            # An archive that the session would find in the usual folder cannot be the base of another one.
            env=os.environ | {"SPARK_SUBMIT_OPTS": java_options.strip(), "XDG_CACHE_HOME": directory},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        if ended.returncode or not archive.exists():
            last = (ended.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise PipelineError(f"Spark's classes were not archived: {last}")
        archive.replace(path)
