"""A pipeline's workers that stay: started, given tasks over connections, and replaced if they die or grow."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, Self

import py4j
import pyspark
from pyspark import SparkContext, SparkFiles, cloudpickle
from pyspark.accumulators import _accumulatorRegistry

from roster.model.offsets import Arrival
from roster.pipeline.tasks.python_workers import SentOnce
from roster.spark.jobs.worker_main import READY, Answer, Request

_MORE_MEMORY = 1 << 30
"""Bytes by which a worker may grow; then it is replaced, as a function may leak."""
_SETTLED = 20  # tasks after which its memory is what it needs
_MOST_SENT = 16
"""Parts of tasks after which a worker forgets them: they are those of pipelines that have ended."""

_NOT_SENT = ("SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "PYTEST_CURRENT_TEST")
"""What a Spark context sets in the driver's environment for its own connections, and pytest anew for each test."""


class WorkerError(Exception):
    """A task was not done: it failed, with the traceback of its error, or its worker ended."""


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


class Worker:
    """One process and the connection to it. All methods but `cancel` are for one thread at a time."""

    def __init__(self, context: SparkContext, process: _Process) -> None:
        self._context: Any = context
        self._process, self._files = process, SparkFiles.getRootDirectory()
        self._connection: Connection | None = process.connection
        self._lock = threading.Lock()
        self._is_busy = self._is_ready = False
        self._tasks, self._settled = 0, 0
        self._sent: dict[int, SentOnce] = {}
        """Parts of tasks that the process has, by `id`."""
        self.has_grown = False
        """True if the process should be replaced: it has grown by much more than it needed first."""

    @property
    def is_alive(self) -> bool:
        """False once the process has ended."""
        return self._connection is not None and self._process.popen.poll() is None

    @property
    def is_ready(self) -> bool:
        """True once the process has loaded modules: its next task begins at once."""
        with contextlib.suppress(WorkerError):
            if not self._is_ready and self._over(lambda connection: connection.poll()):
                self._over(self._wait_until_ready)
        return self._is_ready and self._connection is not None

    def _wait_until_ready(self, connection: Connection) -> None:
        if not self._is_ready and connection.recv_bytes() != READY:
            raise EOFError
        self._is_ready = True

    def ask(self, work: Any, number: int, arrivals: Sequence[Arrival]) -> None:
        """Send the task with this number. Raises WorkerError."""
        known = self._sent if len(self._sent) < _MOST_SENT else {}
        self._context._pickled_broadcast_vars.clear()
        task, parts = _pickled(work, known)
        if any(True for _ in self._context._pickled_broadcast_vars):
            self._context._pickled_broadcast_vars.clear()
            raise WorkerError("only Spark's own workers have broadcast variables")
        includes, has_none = tuple(self._context._python_includes or ()), not known
        sent = {number: data for number, (_, data) in parts.items()}
        request = Request(self._files, includes, number, task, sent, has_none, tuple(arrivals))
        self._is_busy = True
        self._over(lambda connection: connection.send_bytes(pickle.dumps(tuple(request))))
        self._sent = {**known, **{number: part for number, (part, _) in parts.items()}}

    def answer(self) -> Answer:
        """Wait for the task's end. Raises WorkerError."""
        self._over(self._wait_until_ready)
        answer: Answer = self._over(_received)
        self._is_busy = False
        self._note(answer.memory)
        if answer.problem:
            raise WorkerError(answer.problem)
        return answer

    def _over(self, act: Callable[[Connection], Any]) -> Any:
        try:
            if self._connection is None:
                raise EOFError
            return act(self._connection)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise WorkerError(f"the worker ended (exit status {self.close()})") from error
        except BaseException:  # the answer would reach the next task
            self.close()
            raise

    def _note(self, memory: int) -> None:
        self._tasks += 1
        if self._tasks <= _SETTLED:
            self._settled = max(self._settled, memory)
        else:
            self.has_grown = memory > 2 * self._settled + _MORE_MEMORY

    def cancel(self) -> None:
        """End the process if it has a task; from any thread."""
        with self._lock:
            if self._is_busy and self._connection is not None:
                self._process.end()

    def close(self) -> int:
        """End the process; return its exit status."""
        with self._lock:
            connection, self._connection, self._is_busy = self._connection, None, False
            if connection is not None:
                connection.close()
            return self._process.end()


def _received(connection: Connection) -> Answer:
    return Answer(*pickle.loads(connection.recv_bytes()))  # noqa: S301 - from our own process


def run(workers: Sequence[Worker], work: object, arrivals: Sequence[Arrival]) -> list[object]:
    """Run one task on each worker at the same time: a function that is given its number and yields results.

    Return the results in order. Updates of accumulators count if all succeed. Raises WorkerError.
    """
    busy: list[Worker] = []
    answers: list[Answer] = []
    problems: list[WorkerError] = []
    try:
        with _collecting(problems):
            for number, worker in enumerate(workers):
                worker.ask(work, number, arrivals)
                busy.append(worker)
        for worker in busy:
            with _collecting(problems):
                answers.append(worker.answer())
    except BaseException:  # an answer that is not read would reach the next task
        for worker in busy:
            worker.close()
        raise
    if problems:
        raise problems[0]
    for answer in answers:
        for number, update in answer.updates.items():
            if number in _accumulatorRegistry:
                _accumulatorRegistry[number] += update
    return [result for answer in answers for result in answer.results]


@contextlib.contextmanager
def _collecting(problems: list[WorkerError]) -> Iterator[None]:
    try:
        yield
    except WorkerError as error:
        problems.append(error)


class _Pickler(cloudpickle.Pickler):
    """Leaves out the parts of a task that the worker has, or is sent beside it."""

    def __init__(self, file: io.BytesIO, known: Mapping[int, SentOnce]) -> None:
        super().__init__(file)  # type: ignore[no-untyped-call]
        self._known = known
        self.parts: dict[int, tuple[SentOnce, bytes]] = {}

    def persistent_id(self, value: object) -> int | None:
        """Return the number of a part."""
        if not isinstance(value, SentOnce):
            return None
        number = id(value)
        if number not in self._known and number not in self.parts:
            self.parts[number] = value, cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
        return number


def _pickled(work: object, known: Mapping[int, SentOnce]) -> tuple[bytes, dict[int, tuple[SentOnce, bytes]]]:
    """Return a task's bytes without its parts, and those parts that are not known, with theirs."""
    file = io.BytesIO()
    pickler = _Pickler(file, known)
    pickler.dump(work)  # type: ignore[no-untyped-call]
    return file.getvalue(), pickler.parts


def environment(executors: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a worker on this host; Spark's own find PySpark like this too.

    executors: what Spark's workers get beside the driver's own, `SparkContext.environment`.
    """
    paths = [os.environ.get("PYTHONPATH", ""), *(str(Path(package.__path__[0]).parent) for package in (pyspark, py4j))]
    own = {name: value for name, value in os.environ.items() if name not in _NOT_SENT}
    return {**own, **executors, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


_EXECUTOR_ENVIRONMENT = "spark.executorEnv."
SPARE_SECONDS = 60.0
"""Time for which workers without a pipeline wait for the session's next, as Spark's idle ones do."""


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


class LocalWorkers:
    """One process, started anew whenever it is gone, and others beside it while batches are larger.

    All methods but `cancel` are for one thread at a time.
    """

    def __init__(self, context: SparkContext) -> None:
        self._context: Any = context
        self._environment = environment(context.environment)
        self._workers: list[Worker] = []
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
            self._workers.append(Worker(self._context, process))

    def are_ready(self, count: int) -> bool:
        """Return True if so many can begin at once."""
        return sum(worker.is_ready for worker in self._workers) >= count

    def run(self, work: object, arrivals: Sequence[Arrival] = (), count: int = 1) -> list[object]:
        """Run so many tasks at the same time, as `run` does; `cancel` makes it raise a WorkerError.

        arrivals: records that tasks need not read.
        """
        if count == 1:
            self.start()
        chosen = [worker for worker in self._workers if count == 1 or worker.is_ready][:count]
        results = run(chosen, work, arrivals)
        if grown := [worker for worker in chosen if worker.has_grown]:
            self._close(grown)
            self.start(len(self._workers) + len(grown))
        return results

    def cancel(self) -> None:
        """End the processes that have a task; from any thread."""
        for worker in list(self._workers):
            worker.cancel()

    def close(self) -> None:
        """End the processes."""
        self._close(self._workers)

    def _close(self, workers: Sequence[Worker]) -> None:
        self._workers = [worker for worker in self._workers if worker not in workers]
        for worker in workers:
            worker.close()


_spare: list[LocalWorkers] = []
"""Those whose pipelines have ended."""
