"""The driver's side of the workers that stay: tasks go to them over connections, one for each process."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import py4j
import pyspark
from pyspark import SparkContext, cloudpickle
from pyspark.accumulators import _accumulatorRegistry

from roster.model.offsets import Arrival
from roster.pipeline.tasks.python_workers import SentOnce
from roster.spark.jobs.worker_main import READY, Answer, Request

_MORE_MEMORY = 1 << 30
"""Bytes by which a worker may grow; then it is replaced, as a function may leak."""
_SETTLED = 20  # tasks after which its memory is what it needs
_MOST_SENT = 16
"""Parts of tasks after which a worker forgets them: they are those of pipelines that have ended."""

_SET_BY_CONTEXT = ("SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE")
"""What a context sets in the driver's environment, for its own connections to the JVM."""


class WorkerError(Exception):
    """A task was not done: it failed, with the traceback of its error, or its worker ended."""


class Link:
    """The connection to one worker. All methods but `cancel` are for one thread at a time."""

    def __init__(
        self, context: SparkContext, connection: Connection, end: Callable[[], int | None], files: str
    ) -> None:
        """`end` ends the process and returns its exit status, if known. files: Spark's folder of files there."""
        self._context: Any = context
        self._connection: Connection | None = connection
        self._end, self._files = end, files
        self._lock = threading.Lock()
        self._is_busy = self._is_ready = False
        self._tasks, self._settled = 0, 0
        self._sent: dict[int, SentOnce] = {}
        """Parts of tasks that the process has, by `id`."""
        self.has_grown = False
        """True if the process should be replaced: it has grown by much more than it needed first."""

    @property
    def is_open(self) -> bool:
        """False once the process is known to have ended."""
        return self._connection is not None

    @property
    def is_ready(self) -> bool:
        """True once the process has loaded modules: its next task begins at once."""
        with contextlib.suppress(WorkerError):
            if not self._is_ready and self._over(lambda connection: connection.poll()):
                self._over(self._wait_until_ready)
        return self._is_ready and self.is_open

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
            status = self.close()
            known = "" if status is None else f" (exit status {status})"
            raise WorkerError(f"the worker ended{known}") from error
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
                self._end()

    def close(self) -> int | None:
        """End the process; return its exit status if that is known."""
        with self._lock:
            connection, self._connection, self._is_busy = self._connection, None, False
            if connection is None:
                return None
            connection.close()
            return self._end()


def _received(connection: Connection) -> Answer:
    return Answer(*pickle.loads(connection.recv_bytes()))  # noqa: S301 - from our own process


def run(links: Sequence[Link], work: object, arrivals: Sequence[Arrival]) -> list[object]:
    """Run one task on each worker at the same time: a function that is given its number and yields results.

    Return the results in order. Updates of accumulators count if all succeed. Raises WorkerError.
    """
    busy: list[Link] = []
    answers: list[Answer] = []
    problems: list[WorkerError] = []
    try:
        with _collecting(problems):
            for number, link in enumerate(links):
                link.ask(work, number, arrivals)
                busy.append(link)
        for link in busy:
            with _collecting(problems):
                answers.append(link.answer())
    except BaseException:  # an answer that is not read would reach the next task
        for link in busy:
            link.close()
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
    own = {name: value for name, value in os.environ.items() if name not in _SET_BY_CONTEXT}
    return {**own, **executors, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
