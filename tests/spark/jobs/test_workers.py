"""A worker's loaded objects are frozen once for each set of modules, and never outside of a task."""

from __future__ import annotations

import gc
import pickle
import socket
import subprocess
import sys
import types
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from pyspark import TaskContext

from roster.pipeline.tasks import python_workers
from roster.spark import stateful_batches
from roster.spark.jobs import runner, worker_main
from roster.spark.jobs.spark_jobs import worker_report

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def thawed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(python_workers, "_modules_frozen", 0)
    yield
    gc.freeze()  # as tests/conftest.py does


@pytest.mark.gate
def test_objects_are_frozen_again_only_after_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    # `TaskContext()` would set the attribute itself, and undoing the patch would bring that one back.
    monkeypatch.setattr(TaskContext, "_taskContext", object.__new__(TaskContext))
    gc.unfreeze()
    python_workers.freeze_loaded()
    assert is_frozen(THERE)
    kept = [["made by a task"]]
    python_workers.freeze_loaded()
    assert not is_frozen(kept)
    monkeypatch.setitem(sys.modules, "imported_by_a_function", types.ModuleType("imported_by_a_function"))
    python_workers.freeze_loaded()
    assert is_frozen(kept)


THERE = [["before the task"]]


def is_frozen(thing: object) -> bool:
    """True if garbage collection passes over it: what it visits is what `gc` lists."""
    return all(each is not thing for each in gc.get_objects())


def test_a_process_that_runs_no_task_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "_taskContext", None)
    gc.unfreeze()
    python_workers.freeze_loaded()
    assert gc.get_freeze_count() == 0


@pytest.mark.process
@pytest.mark.parametrize("kind", [runner.ByTask, stateful_batches.ByAttempt])
def test_a_worker_that_adds_to_an_accumulator_imports_nothing_of_the_driver(kind: type) -> None:
    pickled = pickle.dumps(kind())
    drivers = ("roster.client", "roster.member", "roster.assignors")
    program = (
        f"import pickle, sys; pickle.loads({pickled!r}); "
        f"print(*(name for name in sys.modules if name.startswith({drivers})))"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert not loaded.split()


def test_the_probe_for_a_slot_reads_its_input_to_the_end_so_that_its_worker_is_used_again() -> None:
    numbers = iter([0])
    (found,) = worker_report()(numbers)
    assert found["missing"] == {}
    assert next(numbers, None) is None


@pytest.mark.process
def test_the_worker_that_stays_is_ready_without_pyspark() -> None:
    program = (
        "import sys; from roster.spark.jobs import worker_main; worker_main.load();"
        " print('roster.stateful.tasks.task' in sys.modules, 'pyspark' in sys.modules, 'py4j' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False", "False"]


def test_a_driver_that_goes_amid_a_message_ends_the_worker_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, its = socket.socketpair()
    monkeypatch.setattr(worker_main, "load", lambda: mock.Mock(UNUSED=60))
    monkeypatch.setattr(worker_main, "hold_little", mock.Mock())
    monkeypatch.setattr(worker_main, "_die_with", mock.Mock())
    monkeypatch.setattr(worker_main.signal, "signal", mock.Mock())
    with Connection(its.detach()) as connection, ours:
        ours.sendall(b"\0\0\0\x64twenty of a hundred")
        ours.shutdown(socket.SHUT_WR)
        worker_main.main(connection)
