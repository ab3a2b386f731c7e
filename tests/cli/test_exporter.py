"""`roster exporter` as a process, and its mistakes in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from roster.cli.group_pages import exporter
from roster.cli.root import run
from tests.cli.serving import serving
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.real.realparts.cluster import Cluster


def test_it_serves_the_groups_that_match_and_asks_for_the_token(roster_broker: Cluster, tmp_path: Path) -> None:
    with serving("exporter", "metrics at ", roster_broker, tmp_path) as served:

        def lines() -> list[str]:
            text = served.get().decode()
            return [line for line in text.splitlines() if line.startswith("kafka_consumergroup_group_lag{")]

        labels = f'group="{served.group}",partition="0",topic="{served.topic}"'
        assert until(lines, 60) == [f"kafka_consumergroup_group_lag{{{labels}}} 2.0"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--groups", "("], "'(' is not a regular expression"),
        (["--listen", "nowhere"], "'nowhere' is not host:port"),
        (["--interval", "0"], "--interval"),
        (["--interval", "1e300"], "--interval"),
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


def test_all_groups_are_those_with_a_line_feed_in_their_name_too() -> None:
    (groups,) = (option for option in exporter.params if option.name == "pattern")
    pattern = exporter.make_context("exporter", ["--bootstrap", "localhost:9092"]).params["pattern"]
    assert groups.default == ".*"
    assert pattern.fullmatch("two\nlines")
