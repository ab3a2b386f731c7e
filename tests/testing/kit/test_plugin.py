"""The pytest plugin in a project of its own, and the pages that show it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "test-your-application.md"
NAME = "roster.pytest_plugin"


def run(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    off = ("cacheprovider", "randomly", "asyncio", "xdist", "cov", "timeout", "hypothesispytest")
    plain = [f"-pno:{name}" for name in off]
    plugin = [] if has_entry_point() else ["-p", NAME]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", *plain, *plugin, *options, str(directory)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=directory, env=env)


def has_entry_point() -> bool:
    from importlib.metadata import entry_points

    return any(each.value == NAME for each in entry_points(group="pytest11"))


def test_pytest_finds_the_plugin():
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    assert points == {NAME: NAME}  # its module's own name, so that -p and the entry point are the same plugin


@pytest.mark.process
@pytest.mark.gate
def test_fixtures_settings_and_scopes(tmp_path):
    (tmp_path / "conftest.py").write_text("""
import pytest
@pytest.fixture(scope="session")
def roster_broker_settings():
    return {"default_partitions": 3, "partitions": 2}
""")
    (tmp_path / "test_it.py").write_text("""
import pytest
seen = []
def test_settings_of_the_fixture(roster_broker, roster_session_broker):
    seen.append(roster_session_broker)
    assert roster_broker._config.default_partitions == roster_session_broker._config.default_partitions == 3
    assert roster_broker.bootstrap != roster_session_broker.bootstrap
@pytest.mark.roster_broker(default_partitions=5)
class TestMarked:
    def test_a_marker(self, roster_broker):
        assert roster_broker._config.default_partitions == 5
        assert roster_broker._config.coordinator.partitions == 2
    @pytest.mark.roster_broker(default_partitions=6)
    def test_the_nearer_marker(self, roster_broker, roster_session_broker):
        assert roster_broker._config.default_partitions == 6
        assert roster_session_broker is seen[0]
@pytest.mark.roster_broker(default_partition=5)
def test_wrong_name(roster_broker): pass
@pytest.mark.roster_broker(5)
def test_no_name(roster_broker): pass
@pytest.mark.roster_broker(auto_create_topics=True, partitions=2)
def test_a_process(roster_broker_process):
    from roster.client import Admin
    with Admin(roster_broker_process.bootstrap) as admin:
        admin.create_topic("t", 1)
        roster_broker_process.kill()
        roster_broker_process.start()
        assert admin.list_topics() == {"t": 1}
""")
    done = run(tmp_path)
    assert "4 passed, 2 errors" in done.stdout, done.stdout + done.stderr
    assert "no broker setting 'default_partition'; did you mean default_partitions" in done.stdout
    assert "takes settings by name" in done.stdout


@pytest.mark.process
def test_nothing_of_roster_is_imported_before_a_test_asks_for_it(tmp_path):
    (tmp_path / "test_it.py").write_text("""
import sys
def test_nothing():
    assert not {"numpy", "roster.broker", "roster.testing.embedded"} & set(sys.modules)
""")
    done = run(tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def shown(title: str) -> str:
    """The first block of Python under a title of the how-to page."""
    text = PAGE.read_text().partition(f"## {title}\n")[2]
    return re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]


@pytest.mark.process
@pytest.mark.parametrize("title", ["Test a consumer", "Test failures of single requests", "Test a crash of the broker"])
@pytest.mark.sampled(1)
def test_the_page_on_consumers(tmp_path, title):
    (tmp_path / "conftest.py").write_text("import tests.real.realparts.kafka_python  # mends a join it may lose\n")
    (tmp_path / "test_page.py").write_text(shown(title))
    done = run(tmp_path)
    assert " passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0, done.stdout


def most_statements(block: str) -> int:
    """Statements of the longest test function, signature included, however wide the page is."""
    functions = [part for part in ast.parse(block).body if isinstance(part, ast.FunctionDef)]
    return max(1 + len(part.body) for part in functions if part.name.startswith("test"))


def test_the_tests_on_the_page_have_ten_statements():
    assert most_statements(shown("Test a consumer")) <= 10
    assert most_statements(shown("Test a pipeline on Spark")) <= 10
