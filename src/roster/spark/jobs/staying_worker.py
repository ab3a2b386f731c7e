"""The worker that stays on the driver's host: it is started, and replaced when it dies or grows."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from pyspark import SparkContext, SparkFiles
from typing_extensions import override

from roster.model.offsets import Arrival
from roster.spark.jobs.workers import SPARE_SECONDS, Link, Workers, environment, run

_EXECUTOR_ENVIRONMENT = "spark.executorEnv."


class _Process(NamedTuple):
    """A worker that was started, and the driver's side of its connection."""

    connection: Connection
    popen: subprocess.Popen[bytes]
    python: str
    environment: Mapping[str, str]

    @classmethod
    def start(cls, python: str, environment: Mapping[str, str]) -> _Process:
        ours, theirs = Pipe()
        number = theirs.fileno()
        command = [python, "-m", "roster.spark.tasks.worker_main", str(number)]
        with theirs:
            popen = subprocess.Popen(  # noqa: S603 - the session's own Python
                command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=[number], env=environment
            )
        return cls(ours, popen, python, environment)

    def end(self) -> int:
        with contextlib.suppress(OSError):
            self.popen.kill()
        return self.popen.wait()


_early: list[_Process] = []
"""A process for the first pipeline of a session."""


def start_early(settings: Mapping[str, str]) -> None:
    """Start the worker of a session's first pipeline while Spark starts, which leaves cores idle.

    settings: the session's. The worker ends if no pipeline of a local session with these settings asks for it soon.
    """
    if not settings["spark.master"].startswith("local["):
        return
    names = [name for name in settings if name.startswith(_EXECUTOR_ENVIRONMENT)]
    executors = {name.removeprefix(_EXECUTOR_ENVIRONMENT): settings[name] for name in names}
    executors["PYTHONHASHSEED"] = os.environ.get("PYTHONHASHSEED", "0")
    with contextlib.suppress(OSError):  # the pipeline tells it
        _early.append(_Process.start(os.environ.get("PYSPARK_PYTHON", "python3"), environment(executors)))
    timer = threading.Timer(SPARE_SECONDS, _end_early)
    timer.daemon = True
    timer.start()


def _taken(python: str, environment: Mapping[str, str]) -> _Process | None:
    """Return the early process if it is as wanted, and end it if it is not."""
    with contextlib.suppress(IndexError):
        early = _early.pop()
        if early.popen.poll() is None and (early.python, early.environment) == (python, environment):
            return early
        early.connection.close()
        early.end()
    return None


def _end_early() -> None:
    _taken("", {})


class StayingWorker(Workers):
    """One process, started anew whenever it is gone."""

    def __init__(self, context: SparkContext) -> None:
        super().__init__(context)
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Link | None = None

    @property
    @override
    def has_any(self) -> bool:
        return self._process is not None

    @override
    def start(self) -> None:
        if self._process is not None and self._process.poll() is None and self._link is not None and self._link.is_open:
            return
        self.close()
        self._environment = environment(self._context.environment)
        wanted = self._context.pythonExec, self._environment
        process = _taken(*wanted) or _Process.start(*wanted)
        self._process = process.popen
        self._link = Link(self._context, process.connection, process.end, SparkFiles.getRootDirectory())

    @override
    def are_on(self, hosts: Sequence[str | None]) -> bool:
        return len(hosts) == 1

    @override
    def run(self, work: Any, arrivals: Sequence[Arrival] = (), hosts: Sequence[str | None] = (None,)) -> list[Any]:
        self.start()
        link = self._link
        assert link is not None  # noqa: S101 - it was started
        results = run([link], work, arrivals)
        if link.has_grown:
            self.close()
            self.start()
        return results

    @override
    def cancel(self) -> None:
        if self._link is not None:
            self._link.cancel()

    @override
    def close(self) -> None:
        if self._link is not None:
            self._link.close()
        self._process = self._link = None
