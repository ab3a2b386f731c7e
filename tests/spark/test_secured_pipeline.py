"""Pipelines end to end on a secured Apache Kafka with ACLs, and where their secrets are not."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from roster.cli.demo.environment import flights
from roster.cli.demo.jobs import flights_in_file, flights_in_output
from roster.cli.demo.oracle import read_flights
from roster.cli.root import run
from roster.client import Admin
from roster.spark import KafkaSink, ParquetSink, PipelineError
from tests.cli.test_secured_commands import properties
from tests.real.realparts.cluster import unique
from tests.real.realparts.secured import STRANGER, STRANGER_PASSWORD, USER, USER_PASSWORD
from tests.spark.programs import APPS, start
from tests.waiting import until

if TYPE_CHECKING:
    from tests.real.realparts.secured import SecuredKafka

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

RECORDS = 1_000
KEY_PASSWORD = "pa55"


def environment(tmp_path: Path) -> tuple[dict[str, str], Path]:
    """A Spark that writes its event log."""
    events, conf = tmp_path / "events", tmp_path / "conf"
    events.mkdir()
    conf.mkdir()
    defaults = f"spark.eventLog.enabled true\nspark.eventLog.dir file://{events}\nspark.eventLog.compress false\n"
    (conf / "spark-defaults.conf").write_text(defaults)
    return {**os.environ, "SPARK_CONF_DIR": str(conf)}, events


def secrets(kafka: SecuredKafka) -> list[str]:
    key = Path(kafka.certificates["client-encrypted-key"]).read_text().splitlines()[3]
    return [USER_PASSWORD, KEY_PASSWORD, key]


@pytest.mark.gate
def test_pipelines_leave_no_secret_in_logs_plans_reprs_and_the_event_log(
    secured_kafka: SecuredKafka, tmp_path: Path
) -> None:
    source, target = secured_kafka.create_topic("shop", 2, RECORDS), secured_kafka.create_topic("shop", 1)
    config = properties(
        tmp_path / "client.properties",
        secured_kafka,
        ssl_certificate_location=secured_kafka.certificates["client"],
        ssl_key_location=secured_kafka.certificates["client-encrypted-key"],
        ssl_key_password=KEY_PASSWORD,
    )
    env, events = environment(tmp_path)
    app, out = APPS / "secured.py", tmp_path / "out"
    done = subprocess.run(
        [sys.executable, str(app), config, source, target, str(out)],
        env=env,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    sink = ParquetSink(out)
    sink.open(None)
    assert sum(sink.positions().values()) == 2 * RECORDS
    rows = pq.read_table(out, columns=["partition", "offset"]).to_pylist()
    assert sorted((row["partition"], row["offset"]) for row in rows) == [
        (partition, offset) for partition in range(2) for offset in range(RECORDS)
    ]
    assert sum(secured_kafka.ends(target).values()) == 2 * RECORDS
    written = [done.stdout, done.stderr, *(file.read_text() for file in events.rglob("*") if file.is_file())]
    assert any("SparkListenerSQLExecutionStart" in text for text in written)
    assert "== Physical Plan ==" in done.stdout
    assert USER in done.stdout
    for secret in secrets(secured_kafka):
        assert [text[: text.index(secret)][-300:] for text in written if secret in text] == []


@pytest.mark.gate
def test_the_demos_job_runs_with_other_options_only(secured_kafka: SecuredKafka, tmp_path: Path) -> None:
    """Its application, its file and its plain computation, on SASL_SSL with SCRAM and ACLs."""
    from zipfile import ZipFile

    with ZipFile(flights().path) as archive, archive.open("flights.csv") as whole:
        lines = [whole.readline() for _ in range(5_001)]
    path = tmp_path / "flights.csv"
    path.write_bytes(b"".join(lines))
    assert len(list(csv.reader(path.open()))) == 5_001
    topic = unique("shop")
    config = properties(tmp_path / "client.properties", secured_kafka)
    load = ["load", str(path), "--topic", topic, "--partitions", "3", "--key", "carrier,tailnum", "--null", "NA"]
    assert run([*load, "--config", config]) == 0
    env, events = environment(tmp_path)
    command = [sys.executable, "-m", "roster.cli.demo.application", "--name", "A", "--job", "flights", topic, topic]
    command += ["--bootstrap", secured_kafka.address("SECURE"), "--config", config, "--directory", str(tmp_path)]
    log = tmp_path / "application.log"
    with log.open("wb") as written:
        application = start(command, env=env, stdout=written, stderr=written)
    try:
        with Admin(secured_kafka.address("SECURE"), security=secured_kafka.scram()) as admin:

            def is_done() -> bool:
                assert application.poll() is None, log.read_text()[-3000:]
                return sum(found.offset for found in admin.group_offsets(topic).values()) == 5_000

            until(is_done, 300)
    finally:
        application.send_signal(signal.SIGTERM)
        application.wait(60)
    assert flights_in_output(tmp_path / "output") == flights_in_file(read_flights(path))
    texts = [log.read_text(), *(file.read_text() for file in events.rglob("*") if file.is_file())]
    assert [text for text in texts if USER_PASSWORD in text] == []


@pytest.mark.gate
def test_a_kafka_sink_says_what_is_missing(secured_kafka: SecuredKafka) -> None:
    topic, address = secured_kafka.create_topic("shop"), secured_kafka.address("SECURE")
    cases = [
        (secured_kafka.scram("wrong"), topic, "check sasl.username, sasl.password.*Check security"),
        (secured_kafka.scram(STRANGER_PASSWORD, STRANGER), topic, "may not write to .* Grant it WRITE on the topic"),
        (secured_kafka.scram(), unique("shop"), "there is no topic"),
        (None, topic, "speaks TLS; set security.protocol"),
    ]
    for given, name, said in cases:
        with pytest.raises(PipelineError, match=said) as caught:
            KafkaSink(address, name, security=given).open(None, "g")  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
    KafkaSink(address, topic, security=secured_kafka.scram()).open(None, "g")  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match=r"KafkaSink: options: 'sasl\.username' would secure some"):
        KafkaSink(address, topic, options={"sasl.username": "x"})
