"""`roster prepare`, and what a session makes of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from roster.cli.root import roster
from roster.spark import spark_session
from roster.spark.spark_session import archive_path, options_of


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java that tells its version and does nothing else; the cache is empty."""
    program = tmp_path / "java" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho 'openjdk version \"21\" 2023-09-19' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("roster.records.native.compiled", lambda loops: None)
    return program


def test_a_session_uses_the_archive_of_its_java_and_a_users_options_come_later(
    java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Xmx1g")
    archive = archive_path(str(java))
    assert archive is not None
    assert options_of(archive) == ""
    with spark_session._java_options(str(java)):
        assert "SharedArchiveFile" not in os.environ["SPARK_SUBMIT_OPTS"]
    archive.parent.mkdir(parents=True)
    archive.touch()
    with spark_session._java_options(str(java)):
        assert f"-XX:SharedArchiveFile={archive} -Xmx1g" in os.environ["SPARK_SUBMIT_OPTS"]
    os.utime(java, (1, 1))  # another Java in its place
    assert archive_path(str(java)) != archive


@pytest.mark.process
def test_an_archive_that_is_there_is_kept(java: Path) -> None:
    archive = archive_path(str(java))
    assert archive is not None
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"classes")
    ended = CliRunner().invoke(roster, ["prepare"])
    assert (ended.exit_code, ended.output.splitlines()[-1]) == (0, f"classes: in {archive} already")
    assert archive.read_bytes() == b"classes"


@pytest.mark.process
def test_what_keeps_spark_from_starting_is_one_line(java: Path) -> None:
    ended = CliRunner().invoke(roster, ["prepare"])
    assert ended.exit_code == 1
    assert "Spark's classes were not archived: " in ended.stderr
    assert not list(java.parents[2].glob("cache/roster/*.jsa"))
    java.unlink()
    ended = CliRunner().invoke(roster, ["prepare"])
    assert ended.exit_code == 1
    assert "has no bin/java. Unset it or point it at a Java 17 or newer" in ended.stderr
