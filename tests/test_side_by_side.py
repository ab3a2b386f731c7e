"""How the gate runs the parts of the tests, with parts of a few lines."""

from __future__ import annotations

import pytest

from tests.side_by_side import AGAIN, main

pytestmark = pytest.mark.process

TESTS = """
from pathlib import Path
import pytest

def test_good():
    pass

@pytest.mark.parametrize("number", range({count}))
def test_bad(number):
    times = Path(__file__).with_name(f"times-{{number}}")
    times.write_text((times.read_text() if times.exists() else "") + "x")
    assert len(times.read_text()) > {failures}
"""


@pytest.fixture
def gate(tmp_path, monkeypatch):
    """`gate(count, failures)` runs two parts, one of whose tests fail so many times; returns the exit code."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(count: int, failures: int, *marks: str, again: bool = True, processes: int = 0) -> int:
        (tmp_path / "test_it.py").write_text(TESTS.format(count=count, failures=failures))
        (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow")
        monkeypatch.setenv("ROSTER_TRY_AGAIN", "1" if again else "0")
        arguments = ["-q", "-p", "xdist", "-c", str(tmp_path / "pytest.ini"), str(tmp_path)]
        return main(list(marks) or ["slow", f"not slow={processes}"], arguments)

    return run


@pytest.mark.parametrize("processes", [0, 2])
def test_a_test_that_passes_alone_is_named_as_flaky(gate, capfd, processes):
    assert gate(count=2, failures=1, processes=processes) == 0
    out, _ = capfd.readouterr()
    assert "2 failed, 1 passed" in out
    *_, before, first, second, last = out.splitlines()
    assert last == "tests that needed a second try: 2"
    assert before.startswith("FLAKY: these failed above and passed alone")
    assert {first.partition("::")[2], second.partition("::")[2]} == {"test_bad[0]", "test_bad[1]"}


@pytest.mark.parametrize(
    ("count", "failures", "again", "tries"),
    [
        pytest.param(1, 2, True, 1, id="failed twice"),
        pytest.param(AGAIN + 1, 1, True, 0, id="too many failed"),
        pytest.param(1, 1, False, 0, id="not wanted"),
    ],
)
def test_a_failure_fails(gate, capfd, count, failures, again, tries):
    assert gate(count, failures, again=again) == 1
    out, _ = capfd.readouterr()
    assert "FLAKY" not in out
    assert out.splitlines()[-1] == f"tests that needed a second try: {tries}"


def test_all_passed_or_nothing_was_chosen(gate, capfd):
    assert gate(count=0, failures=0) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "tests that needed a second try: 0"
    assert gate(0, 0, "slow=2") == 1
