"""A pipeline's workers that stay: they are started, replaced when they die or grow, and left to the next pipeline."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Self

from pyspark import SparkContext, SparkFiles

from roster.model.offsets import Arrival
from roster.spark.jobs.workers import Link, environment, run

_EXECUTOR_ENVIRONMENT = "spark.executorEnv."
SPARE_SECONDS = 60.0
"""Time for which workers without a pipeline wait for the session's next, as Spark's idle ones do."""


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


class LocalWorkers:
    """One process, started anew whenever it is gone, and others beside it while batches are larger.

    All methods but `cancel` are for one thread at a time.
    """

    def __init__(self, context: SparkContext) -> None:
        self._context: Any = context
        self._environment = environment(context.environment)
        self._workers: list[_Worker] = []
        self._used_together = 0.0

    @classmethod
    def of(cls, context: SparkContext) -> Self:
        """Return the workers of a pipeline of this session that has ended, or new ones."""
        wanted = environment(context.environment)
        for workers in list(_spare):
            if isinstance(workers, cls) and workers._context is context and workers._environment == wanted:
                with contextlib.suppress(ValueError):
                    _spare.remove(workers)
                    return workers
        return cls(context)

    def leave(self) -> None:
        """Leave the workers to the session's next pipeline, for a while."""
        if not self._workers:
            return
        _spare.append(self)
        timer = threading.Timer(SPARE_SECONDS, self._end_spare)
        timer.daemon = True
        timer.start()

    def _end_spare(self) -> None:
        with contextlib.suppress(ValueError):  # another pipeline has them
            _spare.remove(self)
            self.close()

    def start(self, at_once: int = 1) -> None:
        """Have so many processes; new ones load modules meanwhile."""
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

    def are_ready(self, count: int) -> bool:
        """Return True if so many can begin at once; one is started if it is missing."""
        return count == 1 or sum(worker.link.is_ready for worker in self._workers) >= count

    def run(self, work: object, arrivals: Sequence[Arrival] = (), count: int = 1) -> list[object]:
        """Run so many tasks at the same time, as `run` of links; `cancel` makes it raise a WorkerError.

        arrivals: records that tasks need not read.
        """
        if count == 1:
            self.start()
        chosen = [worker for worker in self._workers if count == 1 or worker.link.is_ready][:count]
        results = run([worker.link for worker in chosen], work, arrivals)
        if grown := [worker for worker in chosen if worker.link.has_grown]:
            self._close(grown)
            self.start(len(self._workers) + len(grown))
        return results

    def cancel(self) -> None:
        """End the processes that have a task; from any thread."""
        for worker in list(self._workers):
            worker.link.cancel()

    def close(self) -> None:
        """End the processes."""
        self._close(self._workers)

    def _close(self, workers: Sequence[_Worker]) -> None:
        self._workers = [worker for worker in self._workers if worker not in workers]
        for worker in workers:
            worker.link.close()


_spare: list[LocalWorkers] = []
"""Those whose pipelines have ended."""
