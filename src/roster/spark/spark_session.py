"""Spark session with settings that suit a pipeline.

Classes of its JVM lie in an archive (class data sharing): a session that finds one starts with half the CPU. There is
one archive for each Java, PySpark and set of options, beside the compiled loops. A JVM that it does not fit starts
without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from roster.pipeline.driver.reporting import enable_logging, level_of
from roster.pipeline.driver.signals import exit_on_sigterm, exiting_on_sigint, held_until_done
from roster.pipeline.errors import PipelineError, java_problem, reason_of
from roster.records.native import cache_folder

log = logging.getLogger("roster.pipeline")

ADVISED = {
    # Nagle and delayed ACK cost about 42 ms per Python stage over TCP (SPARK-51688).
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.shuffle.partitions": "8",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_FORGOTTEN = {
    "spark.ui.retainedJobs": "100",
    "spark.ui.retainedStages": "200",
    "spark.sql.ui.retainedExecutions": "100",
}
"""Spark remembers ended jobs for its pages, even without them: 60 KB each, a thousand by default."""
OLDEST_JAVA = 17
_INSTALL = f"Install Java {OLDEST_JAVA} or newer (for example Debian's openjdk-{OLDEST_JAVA}-jre-headless)"
_JAVA_OPTIONS = (
    "-XX:Tier4InvocationThreshold=500000 -XX:Tier4MinInvocationThreshold=60000 -XX:Tier4CompileThreshold=1500000 "
    "-XX:Tier4BackEdgeThreshold=1000000 -Xms256m -XX:MetaspaceSize=256m"
)
"""Java's optimizing compiler waits until methods are a hundred times as hot as usual, or loops ran a million times.
The driver's code for a batch is long and never hot: compiling it took half of the CPU of small batches. Loops over
rows, as in generated code, reach the limit within milliseconds. A heap that starts small or shrinks is collected
too often, as Spark itself fills half of it; 256 MB are less than any driver's maximal heap."""


def session(app_name: str, master: str | None = None, **conf: object) -> SparkSession:
    """Return the driver's Spark session; unset settings get values that make a pipeline fast.

    master: where Spark runs; by default what spark-defaults.conf says, else `local[*]`. Names in `conf` are Spark's
    with `_` for dots (`spark_ui_enabled=True`); pass `**{"spark.x.y_z": ...}` for a name with underscores of its own.

    Under `spark-submit` its own settings (master, name, `--conf`, spark-defaults.conf) win over `master` and `conf`
    here, with a line in the log; otherwise `conf` wins over spark-defaults.conf. In a running session only the settings
    in `conf` change. From now on SIGTERM in the main thread ends the process like `sys.exit(0)`, unless the application
    has set a handler.

    Raises `PipelineError` when Java is missing or too old, Spark does not start, or Spark Connect is asked for.
    """
    for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):  # PySpark sets the second, once it has a session
        if name in os.environ:
            raise PipelineError(
                "it asks for Spark Connect, and a pipeline needs a classic session in its own process",
                field=name,
                fix="Unset it for this program, or stop its session of Connect first",
            )
    enable_logging(level_of(None))
    exit_on_sigterm()
    java = java_program()
    wanted = {_conf_name(name): _text(value) for name, value in conf.items()}
    master_conf = {} if master is None else {"spark.master": _with_retries(master)}
    try:
        with exiting_on_sigint():
            if SparkContext._active_spark_context is None:
                threading.Thread(target=_load, name="roster-load", daemon=True).start()
                wanted = _settings(java, wanted | {"spark.app.name": app_name} | master_conf)
            builder = SparkSession.builder
            for name, value in wanted.items():
                builder = builder.config(name, value)
            return builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        log.debug("Spark did not start", exc_info=True)
        check_java()
        raise PipelineError(
            f"Spark did not start: {java_problem(error) if isinstance(error, Py4JError) else reason_of(error)}",
            field="master",
            fix=f"Check that Java starts (`java -version`) and that {master or 'the master'} answers",
        ) from None


def _load() -> None:
    """Import what a pipeline's run needs, while the JVM starts."""
    for name in ("roster.spark.assembly", "pandas", "pyspark.sql.pandas.types"):
        importlib.import_module(name)


def _start_worker(settings: dict[str, str]) -> None:
    importlib.import_module("roster.spark.jobs.workers").start_early(settings)


def _settings(java: str, wanted: dict[str, str]) -> dict[str, str]:
    """Return the settings for the builder: `wanted` and the advised ones, except settings that are already made."""
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        # Spark's default is `python3`: another Python if no environment is activated.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # Memory and class path must be set before the JVM runs; spark-submit's settings are known only afterwards.
    with _java_options(java), held_until_done():
        SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(wanted.items())))
    present = dict(SparkConf().getAll())
    if present.get("spark.app.name") == Path(sys.argv[0]).name:
        del present["spark.app.name"]  # spark-submit's default, without --name
    if not submitted:
        present.pop("spark.ui.showConsoleProgress", None)  # set by Spark's shell, which a plain driver counts as
    kept = {name for name in wanted if submitted and name in present}
    for name in sorted(kept):
        if wanted[name] != present[name]:
            log.warning("%s=%s of spark-submit is kept, not %s", name, present[name], wanted[name])
    settings = {name: value for name, value in wanted.items() if name not in kept}
    if "spark.master" not in present:
        settings.setdefault("spark.master", _with_retries("local[*]"))
    advised = dict(ADVISED)
    if (settings | present)["spark.master"].startswith("local"):
        advised |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    chosen = advised | present | settings
    if chosen["spark.ui.enabled"] == "false":
        advised |= _FORGOTTEN
    if chosen["spark.ui.enabled"] == "false" and chosen.get("spark.eventLog.enabled", "false") == "false":
        advised["spark.sql.ui.explainMode"] = "simple"  # made for each query, even if no page shows it
    settings = {name: value for name, value in advised.items() if name not in present} | settings
    threading.Thread(target=_start_worker, args=(present | settings,), name="roster-worker", daemon=True).start()
    return settings


@contextlib.contextmanager
def _java_options(java: str) -> Iterator[None]:
    """Start the JVM with `_JAVA_OPTIONS` and classes from an archive; the user's own options come later and win."""
    archived = options_of(archive_path(java))
    name = "SPARK_SUBMIT_OPTS"
    before = os.environ.get(name)
    os.environ[name] = " ".join(filter(None, [_JAVA_OPTIONS, archived, before]))
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _with_retries(master: str) -> str:
    """Allow four attempts per task: with one, local mode's default, a single failed read would end the pipeline."""
    return re.sub(r"^local(?:\[(\d+|\*)\])?$", lambda m: f"local[{m[1] or 1},4]", master)


def java_program() -> str:
    """Return the `java` that Spark will start. Raise PipelineError if there is none."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = str(Path(home) / "bin" / "java")
        if not os.access(java, os.X_OK):
            raise PipelineError(
                f"{home} has no bin/java",
                field="JAVA_HOME",
                fix=f"Unset it or point it at a Java {OLDEST_JAVA} or newer",
            )
        return java
    program = shutil.which("java")
    if program is None:
        raise PipelineError("Spark needs Java, and there is neither JAVA_HOME nor `java` on the PATH", fix=_INSTALL)
    return program


def check_java() -> None:
    """Raise PipelineError if the `java` that Spark will start is missing or older than 17."""
    java = java_program()
    place = "JAVA_HOME" if os.environ.get("JAVA_HOME") else "PATH"
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        raise PipelineError(f"{java} does not start: {error}", field=place, fix=_INSTALL) from None
    match = re.search(r'version "(\d+)(?:\.(\d+))?', answer.stderr + answer.stdout)
    major = int(match[1]) if match else OLDEST_JAVA
    if match and major == 1:
        major = int(match[2] or 0)  # Java 8 calls itself 1.8
    if major < OLDEST_JAVA:
        raise PipelineError(f"{java} is Java {major}, Spark needs {OLDEST_JAVA}", field=place, fix=_INSTALL)


def _conf_name(name: str) -> str:
    return name if "." in name else name.replace("_", ".")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


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
