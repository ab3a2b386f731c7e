"""`roster console` as a process: the page, the token, one line for a mistake."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from roster.cli.root import run
from tests.cli.serving import serving
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.real.realparts.cluster import Cluster


def test_it_shows_the_groups_that_match_to_whoever_has_the_token(roster_broker: Cluster, tmp_path: Path) -> None:
    with serving("console", "groups at ", roster_broker, tmp_path) as served:
        assert b'src="/page/page.js"' in served.get()

        def groups() -> dict[str, Any]:
            found: dict[str, Any] = json.loads(served.get("page/groups"))["groups"]
            return found

        assert {name: row["lag"] for name, row in until(groups, 60).items()} == {served.group: 2}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--groups", "("], 2, "'(' is not a regular expression"),
        (["--interval", "0"], 2, "--interval"),
        (["--interval", "1e300"], 2, "--interval"),
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
