"""Which tests `--since` runs for what has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import since
from tests.since import TESTS, Since

FILES = sorted(TESTS.rglob("test_*.py"))


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch):
    """`chosen(paths)`: the folders of the tests that run if these files have changed."""

    def folders(*paths: str) -> set[str]:
        monkeypatch.setattr(since, "changed_files", lambda _: set(paths))
        plugin = Since("main")
        return {str(Path(file).parent.relative_to(TESTS)) for file in FILES if plugin.runs(file)}

    return folders


def test_a_room_and_those_above_it_run(chosen) -> None:
    ran = chosen("src/roster/broker/log/segment.py")
    assert {"broker", "cli", "testing"} <= ran
    assert not {folder for folder in ran if folder.startswith(("spark", "sinks", "state", "assignors", "member"))}


def test_a_change_of_the_vocabulary_runs_all_rooms(chosen) -> None:
    assert {"wire", "coordinator", "member", "sinks", "cli"} <= chosen("src/roster/model/topics.py")


def test_a_file_of_tests_runs_alone_and_a_helper_with_its_folder(chosen) -> None:
    assert chosen("tests/broker/test_retention.py") == {"broker"}
    assert chosen("tests/spark/spark_topics.py") >= {"spark", "spark/jobs", "sinks", "saved", "stateful"}
    assert "wire" not in chosen("tests/spark/spark_topics.py")


def test_what_runs_pipelines_runs_with_the_jobs_of_spark(chosen) -> None:
    assert chosen("src/roster/spark/jobs/runner.py") >= {"spark", "sinks", "pipeline/driver", "stateful", "saved"}
    assert "spark" not in chosen("tests/sinks/test_delta_sink.py")


def test_pages_run_their_own_tests_and_versions_run_everything(chosen) -> None:
    assert chosen("docs/index.md") == {"docs"}
    assert chosen("constraints.txt") == {str(file.parent.relative_to(TESTS)) for file in FILES}


@pytest.mark.process
def test_an_unknown_revision_is_one_line() -> None:
    with pytest.raises(pytest.UsageError, match=r"--since: .*nowhere"):
        since.changed_files("nowhere")
