"""What `make explore` says of rounds that are cut at the end of the time."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from tests.explore import explore, passes, steps
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.gate]


def round_of(folder: Path) -> list[str]:
    """Return the command that runs `test_round.py` of a folder, without this project's settings."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider"]
    return [*command, "--rootdir", str(folder), "-c", "/dev/null", str(folder / "test_round.py")]


@pytest.mark.parametrize("outcome", ["fails", "passes"])
def test_a_round_that_is_cut_has_failed_if_a_test_of_it_has(tmp_path: Path, outcome: str) -> None:
    """The round is one test that ends and another one that goes on until it is cut."""
    (tmp_path / "test_round.py").write_text(
        f"def test_first(): assert {outcome == 'passes'}\n"
        f"def test_second():\n    import pathlib, time\n"
        f"    pathlib.Path({str(tmp_path / 'begun')!r}).touch()\n    time.sleep(600)\n"
    )

    class Begun:
        """A moment that has come once the second test runs."""

        def __sub__(self, now: float) -> float:
            until((tmp_path / "begun").exists, 60)
            return 0.0

    assert passes(round_of(tmp_path), 1, Begun()) is (outcome == "passes")  # type: ignore[arg-type]


def test_a_signal_to_it_alone_ends_the_step_too(tmp_path: Path) -> None:
    (tmp_path / "test_round.py").write_text(
        "def test_first():\n    import pathlib, time\n"
        f"    begun = pathlib.Path({str(tmp_path / 'begun')!r})\n    begun.touch()\n"
        "    try:\n        time.sleep(600)\n    finally:\n        begun.unlink()\n"
    )
    program = f"from tests import explore as of\nof.steps = lambda _: [{round_of(tmp_path)!r}] * 3\nof.explore(['9'])"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL) as running:
        until((tmp_path / "begun").exists, 60)
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 128 + signal.SIGTERM
    assert not (tmp_path / "begun").exists()


def test_a_short_run_has_time_for_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now, begun = 0.0, []

    def cut(command: list[str], seed: int, until: float) -> bool:
        """A step that takes all the time it gets."""
        nonlocal now
        begun.append((command, until - now))
        now = until
        return True

    monkeypatch.setattr("tests.explore.passes", cut)
    monkeypatch.setattr("tests.explore.monotonic", lambda: now)
    assert CliRunner().invoke(explore, ["9", "--seed", "1"]).exit_code == 0
    assert begun == [(command, 180.0) for command in steps(1)]
