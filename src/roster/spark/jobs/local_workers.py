"""The workers that stay on the driver's host: they are started, and replaced when they die or grow."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import NamedTuple

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
        command = [python, "-m", "roster.spark.jobs.worker_main", str(number)]
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


class _Worker(NamedTuple):
    process: _Process
    link: Link

    @property
    def is_alive(self) -> bool:
        return self.link.is_open and self.process.popen.poll() is None


class LocalWorkers(Workers):
    """One process, started anew whenever it is gone, and others beside it while batches are larger."""

    def __init__(self, context: SparkContext) -> None:
        super().__init__(context)
        self._workers: list[_Worker] = []
        self._used_together = 0.0

    @property
    @override
    def has_any(self) -> bool:
        return bool(self._workers)

    @override
    def start(self, at_once: int = 1) -> None:
        self._close([worker for worker in self._workers if not worker.is_alive])
        if at_once > 1:
            self._used_together = time.monotonic()
        elif len(self._workers) > 1 and time.monotonic() > self._used_together + SPARE_SECONDS:
            self._close(self._workers[1:])
        while len(self._workers) < at_once:
            self._environment = environment(self._context.environment)
            wanted = self._context.pythonExec, self._environment
            process = _taken(*wanted) or _Process.start(*wanted)
            link = Link(self._context, process.connection, process.end, SparkFiles.getRootDirectory())
            self._workers.append(_Worker(process, link))

    @override
    def are_on(self, hosts: Sequence[str | None]) -> bool:
        return len(hosts) == 1 or sum(worker.link.is_ready for worker in self._workers) >= len(hosts)

    @override
    def run(
        self, work: object, arrivals: Sequence[Arrival] = (), hosts: Sequence[str | None] = (None,)
    ) -> list[object]:
        if len(hosts) == 1:
            self.start()
        chosen = [worker for worker in self._workers if len(hosts) == 1 or worker.link.is_ready][: len(hosts)]
        results = run([worker.link for worker in chosen], work, arrivals)
        if grown := [worker for worker in chosen if worker.link.has_grown]:
            self._close(grown)
            self.start(len(self._workers) + len(grown))
        return results

    @override
    def cancel(self) -> None:
        for worker in list(self._workers):
            worker.link.cancel()

    @override
    def close(self) -> None:
        self._close(self._workers)

    def _close(self, workers: Sequence[_Worker]) -> None:
        self._workers = [worker for worker in self._workers if worker not in workers]
        for worker in workers:
            worker.link.close()
