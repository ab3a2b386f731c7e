"""`roster exporter` as a process, and its mistakes in one line."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

from roster.cli.root import run
from roster.client import Admin, OffsetAndMetadata
from roster.model import TopicPartition
from tests.real.realparts.cluster import Cluster, unique
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "0123456789abcdef"


def test_it_serves_the_groups_that_match_and_asks_for_the_token(roster_broker: Cluster, tmp_path: Path) -> None:
    group, topic = unique("shown"), roster_broker.create_topic(partitions=1, records=3)
    settings = tmp_path / "http.properties"
    settings.write_text(f"token={TOKEN}\n")
    with Admin(roster_broker.bootstrap) as admin:
        for name in (group, f"not-{group}"):
            admin.commit_group_offsets(name, {TopicPartition(topic, 0): OffsetAndMetadata(1)})
    command = [sys.executable, "-m", "roster", "exporter", "--bootstrap", roster_broker.bootstrap, "--groups", group]
    command += ["--listen", "127.0.0.1:0", "--interval", "0.1", "--http-config", str(settings)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as exporter:
        try:
            assert exporter.stderr is not None
            found = re.fullmatch(r"metrics at (http://127.0.0.1:\d+/metrics)\n", exporter.stderr.readline())
            assert found
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(found[1], timeout=60)
            request = urllib.request.Request(found[1], headers={"Authorization": f"Bearer {TOKEN}"})

            def lines() -> list[str]:
                with urllib.request.urlopen(request, timeout=60) as response:
                    text: str = response.read().decode()
                return [line for line in text.splitlines() if line.startswith("kafka_consumergroup_group_lag{")]

            labels = f'group="{group}",partition="0",topic="{topic}"'
            assert until(lines, 60) == [f"kafka_consumergroup_group_lag{{{labels}}} 2.0"]
        finally:
            exporter.send_signal(signal.SIGTERM)
            assert exporter.wait(60) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--groups", "("], "'(' is not a regular expression"),
        (["--listen", "nowhere"], "'nowhere' is not host:port"),
        (["--interval", "0"], "--interval"),
        (["--http-config", "/no/such/file"], "--http-config: /no/such/file cannot be read (No such file or directory)"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["exporter", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_wrong_setting_of_http_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "http.properties"
    settings.write_text("token=short\n")
    assert run(["exporter", "--http-config", str(settings)]) == 2
    assert "--http-config: token" in capsys.readouterr().err
