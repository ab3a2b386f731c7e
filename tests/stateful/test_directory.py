"""Where stores are to lie: what is wrong with it is one error that names `State.dir`, the path and the host."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from roster.pipeline.errors import PipelineError
from roster.spark.jobs.spark_jobs import task_error
from roster.state.store import StoreFullError, disk_error
from roster.stateful.tasks.host_stores import check_state_dir

if TYPE_CHECKING:
    from pathlib import Path


def test_a_directory_is_made_and_left_empty(tmp_path: Path) -> None:
    wanted = tmp_path / "a" / "b"
    check_state_dir(str(wanted), lambda work: [work(), work()])
    assert list(wanted.iterdir()) == []


def test_the_host_that_cannot_write_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    for path, reason in ((tmp_path / "file", "File exists"), (tmp_path / "file" / "x", "Not a directory")):
        monkeypatch.setattr(platform, "node", lambda: "worker-7")
        with pytest.raises(PipelineError) as raised:
            check_state_dir(str(path), lambda work: ["", work()])
        assert raised.value.problem == f"{path} cannot be used on host worker-7: {reason}"
        assert (raised.value.field, bool(raised.value.fix)) == ("State.dir", True)


def test_a_full_disk_in_a_task_is_an_error_of_state_dir(tmp_path: Path) -> None:
    full = disk_error(tmp_path, OSError(28, "No space left on device"))
    assert isinstance(full, StoreFullError)
    trace = (
        f"Traceback (most recent call last):\n  File ...\nroster.state.store.StoreFullError: {full}\n\n\tat org.apache"
    )
    error = task_error(PySparkException(trace))
    assert isinstance(error, PipelineError)
    assert error.field == "State.dir"
    assert str(tmp_path) in error.problem
    assert platform.node() in error.problem
