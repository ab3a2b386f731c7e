"""A Spark session set up the way a pipeline wants it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from roster.spark.errors import PipelineError

ADVISED = {
    # Nagle and delayed ACK cost about 42 ms per Python stage over TCP (SPARK-51688).
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.shuffle.partitions": "8",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
OLDEST_JAVA = 17


def session(app_name: str, master: str = "local[*]", **conf: object) -> SparkSession:
    """The driver's Spark session with the settings a pipeline is fastest with; `conf` wins over them.

    Names in `conf` are Spark's with `_` for dots (`spark_ui_enabled=True`); pass `**{"spark.x.y_z": ...}` for a name
    with underscores of its own. Raises `PipelineError` when Java is missing or too old.
    """
    check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    settings = {**ADVISED, **{_conf_name(name): _text(value) for name, value in conf.items()}}
    if master.startswith("local"):
        # One attempt per task is local mode's default: a single failed read would end the pipeline.
        master = re.sub(r"^local(?:\[(\d+|\*)\])?$", lambda m: f"local[{m[1] or 1},4]", master)
        settings.setdefault("spark.driver.bindAddress", "127.0.0.1")
        settings.setdefault("spark.driver.host", "127.0.0.1")
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except PySparkException as error:
        raise PipelineError(
            f"Spark did not start: {error}",
            field="master",
            fix="Check that Java starts (`java -version`) and that the master answers",
        ) from error


def check_java() -> str:
    """The `java` that Spark will start; raises `PipelineError` if there is none or it is older than 17."""
    home = os.environ.get("JAVA_HOME")
    install = f"Install Java {OLDEST_JAVA} or newer (for example Debian's openjdk-{OLDEST_JAVA}-jre-headless)"
    if home:
        java = str(Path(home) / "bin" / "java")
        if not os.access(java, os.X_OK):
            raise PipelineError(
                f"{home} has no bin/java",
                field="JAVA_HOME",
                fix=f"Unset it or point it at a Java {OLDEST_JAVA} or newer",
            )
    else:
        found = shutil.which("java")
        if found is None:
            raise PipelineError("Spark needs Java, and there is neither JAVA_HOME nor `java` on the PATH", fix=install)
        java = found
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        raise PipelineError(f"{java} does not start: {error}", fix=install) from None
    match = re.search(r'version "(\d+)(?:\.(\d+))?', answer.stderr + answer.stdout)
    major = int(match[1]) if match else OLDEST_JAVA
    if match and major == 1:
        major = int(match[2] or 0)  # Java 8 calls itself 1.8
    if major < OLDEST_JAVA:
        raise PipelineError(f"{java} is Java {major}, Spark needs {OLDEST_JAVA}", field="JAVA_HOME", fix=install)
    return java


def _conf_name(name: str) -> str:
    return name if "." in name else name.replace("_", ".")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
