"""`roster console` as a process: the page, the token, one line for a mistake."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from roster.cli.root import run
from roster.client import Admin, OffsetAndMetadata
from roster.model import TopicPartition
from tests.real.realparts.cluster import Cluster, unique
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "0123456789abcdef"


def test_it_shows_the_groups_that_match_to_whoever_has_the_token(roster_broker: Cluster, tmp_path: Path) -> None:
    group, topic = unique("shown"), roster_broker.create_topic(partitions=1, records=3)
    settings = tmp_path / "http.properties"
    settings.write_text(f"token={TOKEN}\n")
    with Admin(roster_broker.bootstrap) as admin:
        for name in (group, f"not-{group}"):
            admin.commit_group_offsets(name, {TopicPartition(topic, 0): OffsetAndMetadata(1)})
    command = [sys.executable, "-m", "roster", "console", "--bootstrap", roster_broker.bootstrap, "--groups", group]
    command += ["--listen", "127.0.0.1:0", "--interval", "0.1", "--http-config", str(settings)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as console:
        try:
            assert console.stderr is not None
            found = re.fullmatch(r"groups at (http://127.0.0.1:\d+/)\n", console.stderr.readline())
            assert found
            with urllib.request.urlopen(found[1], timeout=60) as response:
                assert b'src="/page/page.js"' in response.read()
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(f"{found[1]}page/groups", timeout=60)
            headers = {"Authorization": f"Bearer {TOKEN}"}
            request = urllib.request.Request(f"{found[1]}page/groups", headers=headers)

            def groups() -> dict[str, Any]:
                with urllib.request.urlopen(request, timeout=60) as response:
                    found: dict[str, Any] = json.load(response)["groups"]
                return found

            assert {name: row["lag"] for name, row in until(groups, 60).items()} == {group: 2}
        finally:
            console.send_signal(signal.SIGTERM)
            assert console.wait(60) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--groups", "("], 2, "'(' is not a regular expression"),
        (["--interval", "0"], 2, "--interval"),
        (["--http-config", "/no/such/file"], 2, "--http-config: /no/such/file cannot be read"),
        (["--bootstrap", "127.0.0.1:1"], 1, "127.0.0.1:1"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["console", *arguments]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
