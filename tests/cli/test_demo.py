"""The demo itself, with a small file, and that whatever ends it nothing of it stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from roster.cli.demo.sharing import SHARED_S
from tests.cli.demo_processes import has_java, left_behind, read_until
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]
RECORDS = 3000
MOMENTS = ("C 4", "B is killed")


@pytest.fixture
def start(tmp_path):
    """Starts the demo on a small file, with a temporary directory by which everything it starts can be known."""
    (tmp_path / "tmp").mkdir()
    lines = ["shop,item"] + [f"shop {n % 37},{n}" for n in range(RECORDS)]
    (tmp_path / "file.csv").write_text("\n".join(lines))
    started = []

    def begin() -> subprocess.Popen:
        command = [sys.executable, "-c", "from roster.cli import main; main()", "demo", "--rate", "150"]
        started.append(
            subprocess.Popen(
                [*command, "--input", str(tmp_path / "file.csv"), "--key", "shop"],
                env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        return started[0]

    yield begin
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_small_file_counts_once_through_deaths_and_restarts(start, tmp_path):
    demo = start()
    output, _ = demo.communicate()
    assert output.splitlines()[-1] == f"demo: {RECORDS} records in, {RECORDS} counted once, 0 lost, 0 double", output
    assert demo.returncode == 0
    for words in ("B is killed with -9", "the broker is killed with -9", "the broker answers again", "C joins"):
        assert words in output
    at = {words: float(line.split(" s ")[0]) for line in output.splitlines() for words in MOMENTS if words in line}
    assert at["B is killed"] - at["C 4"] >= SHARED_S - 0.2  # two rounded times
    until(lambda: not left_behind(tmp_path), what=lambda: left_behind(tmp_path))
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.gate
def test_a_signal_ends_everything_and_removes_the_directory(start, tmp_path):
    demo = start()
    read_until(demo, "application B starts")
    until(lambda: has_java(tmp_path), what=lambda: left_behind(tmp_path))
    demo.send_signal(signal.SIGTERM)
    output, _ = demo.communicate(timeout=180)
    assert demo.returncode == 130
    assert "Traceback" not in output
    until(lambda: not left_behind(tmp_path), what=lambda: left_behind(tmp_path))
    assert not list((tmp_path / "tmp").glob("roster-demo-*"))


@pytest.mark.skipif(sys.platform != "linux", reason="the parent_death is the kernel's")
@pytest.mark.gate
def test_a_demo_killed_with_9_takes_its_children_along(start, tmp_path):
    demo = start()
    read_until(demo, "application B starts")
    until(lambda: has_java(tmp_path), what=lambda: left_behind(tmp_path))
    demo.kill()
    demo.wait()
    until(lambda: not left_behind(tmp_path), what=lambda: left_behind(tmp_path))
