"""`session()` under spark-submit and without, and SIGTERM before a pipeline runs; each in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from tests.spark.programs import start
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.spark_topics import Topics

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PROGRAM = """
import json, sys, threading
from roster.spark import Pipeline, PipelineError, session
spark = session("named-in-code", "local[2]", spark_sql_shuffle_partitions=2, spark_x_y="code")
conf, context = spark.sparkContext.getConf(), spark.sparkContext
runtime = context._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
compiler = [word.partition("=")[2] for word in runtime.getInputArguments() if "Tier4InvocationThreshold" in word]
names = ["spark.sql.shuffle.partitions", "spark.x.y", "spark.ui.enabled", "spark.python.unix.domain.socket.enabled"]
plans = [conf.get("spark.sql.ui.explainMode", "not set")]
print(json.dumps([context.master, context.appName, *map(conf.get, names), *plans, *compiler]))
"""
STOPPED = """
stopped, reading = threading.Event(), threading.Event()

def busy(df, batch):
    reading.set()
    assert stopped.wait(100)
    df.collect()

def pipeline(group, function):
    return Pipeline(spark, sys.argv[1], group, [sys.argv[2]]).foreach_batch(function)

seen = threading.Event()
idle = pipeline("idle", lambda df, batch: seen.set()).start()
working = pipeline("working", busy).start()
assert seen.wait(100) and reading.wait(100)
spark.stop()
stopped.set()
for each in (idle, working, pipeline("late", busy).start):
    try:
        each.wait(100) if each in (idle, working) else each()
    except PipelineError as error:
        print(error.field, error.problem, error.__cause__, sep="; ")
"""


def answer(command: list[str], **environment: str) -> tuple[list[str], list[str], str]:
    """Run a program; the settings that it prints, its other lines, and all that is said."""
    ended = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=300, env={**os.environ, **environment}
    )
    lines = ended.stdout.splitlines()
    (line,) = [line for line in lines if line.startswith("[")]
    # spark-submit turns its program's stderr into stdout
    return json.loads(line), [each for each in lines if each != line], ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def without_submit(topics: Topics, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str], str]:
    """The answer of a program with a defaults file, which stops the session under pipelines."""
    folder = tmp_path_factory.mktemp("defaults")
    lines = ["spark.x.y file", "spark.ui.enabled true", "spark.master local[7]"]
    lines.append("spark.driver.extraJavaOptions -XX:Tier4InvocationThreshold=7000")
    (folder / "spark-defaults.conf").write_text("\n".join(lines))
    command = [sys.executable, "-c", PROGRAM + STOPPED, topics.bootstrap, topics.create(1, 1)]
    return answer(command, SPARK_CONF_DIR=str(folder))


def test_without_spark_submit_code_wins_over_the_defaults_file_and_that_over_advice(
    without_submit: tuple[list[str], list[str], str],
) -> None:
    found, _, _ = without_submit
    assert found[:6] == ["local[2,4]", "named-in-code", "2", "code", "true", "true"]
    assert found[6] == "not set", "the file turns the page on that shows plans"
    # Java takes the last: the user's.
    assert found[7:] == ["500000", "7000"]


@pytest.mark.gate
def test_a_session_that_is_stopped_under_pipelines_is_one_sentence_of_each(
    without_submit: tuple[list[str], list[str], str],
) -> None:
    _, printed, _ = without_submit
    while_running = "spark; the Spark session was stopped while the pipeline ran; the batch under way is not committed"
    assert printed == [f"{while_running}; None"] * 2 + ["spark; the Spark session is stopped; None"]


@pytest.mark.gate
def test_what_spark_submit_was_given_stays(tmp_path: Path) -> None:
    program = tmp_path / "who.py"
    program.write_text(f"{PROGRAM}spark.stop()\n")
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    options = ["--master", "local[1]", "--name", "mine", "--conf", "spark.sql.shuffle.partitions=64"]
    options += ["--conf", "spark.ui.enabled=true"]
    found, _, said = answer([str(submit), *options, str(program)], PYSPARK_PYTHON=sys.executable)
    assert found == ["local[1]", "mine", "64", "code", "true", "true", "not set"]
    assert "spark.sql.shuffle.partitions=64 of spark-submit is kept, not 2" in said
    assert "spark.master=local[1] of spark-submit is kept, not local[2,4]" in said


@pytest.mark.gate
def test_spark_forgets_ended_jobs_that_no_page_shows(spark: SparkSession) -> None:
    context: Any = spark.sparkContext
    for _ in range(130):
        spark.range(1).collect()
    store = context._jsc.sc().statusStore()
    until(lambda: store.jobsList(None).size() <= 100, 60)
    store = spark._jsparkSession.sharedState().statusStore()  # type: ignore[attr-defined]
    until(lambda: store.executionsCount() <= 100, 60)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
@pytest.mark.sampled(1)
def test_a_signal_before_spark_is_up_ends_cleanly(number: signal.Signals, code: int) -> None:
    """The handler is there before the JVM is started, which takes a while."""
    program = (
        "import roster.spark.spark_session as s\n"
        "real = s._settings\n"
        "def announce(*given):\n    print('starting', flush=True)\n    return real(*given)\n"
        "s._settings = announce\n"
        "try:\n    s.session('x', 'local[1]')\nfinally:\n    print('cleaned up', flush=True)\n"
    )
    process = start([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "starting\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=200)
    assert (process.returncode, out) == (code, "cleaned up\n")
    assert "Traceback" not in err
    assert f"stopped by {number.name}" in err
