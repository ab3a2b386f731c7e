"""A worker's loaded objects are frozen once for each set of modules, and never outside of a task."""

from __future__ import annotations

import gc
import sys
import types
from typing import TYPE_CHECKING

import pytest
from pyspark import TaskContext

from roster.spark.tasks import python_workers

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def thawed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(python_workers, "_modules_frozen", 0)
    yield
    gc.unfreeze()


def test_objects_are_frozen_again_only_after_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "_taskContext", TaskContext())
    gc.unfreeze()
    python_workers.freeze_loaded()
    frozen = gc.get_freeze_count()
    assert frozen > 1_000
    kept = [[number] for number in range(1_000)]
    python_workers.freeze_loaded()
    assert gc.get_freeze_count() < frozen + len(kept)
    monkeypatch.setitem(sys.modules, "imported_by_a_function", types.ModuleType("imported_by_a_function"))
    python_workers.freeze_loaded()
    assert gc.get_freeze_count() >= frozen + len(kept)


def test_a_process_that_runs_no_task_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "_taskContext", None)
    gc.unfreeze()
    python_workers.freeze_loaded()
    assert gc.get_freeze_count() == 0
