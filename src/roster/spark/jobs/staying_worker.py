"""The driver's side of the worker that stays: it is started, given tasks, and replaced when it dies or grows."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import subprocess
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import py4j
import pyspark
from pyspark import SparkContext, SparkFiles, cloudpickle
from pyspark.accumulators import _accumulatorRegistry

from roster.model.offsets import Arrival
from roster.spark.tasks.python_workers import SentOnce
from roster.spark.tasks.worker_main import Answer, Request

_MORE_MEMORY = 1 << 30
"""Bytes by which a worker may grow; then it is replaced, as a function may leak."""
_SETTLED = 20  # tasks after which its memory is what it needs
_MOST_SENT = 16
"""Parts of tasks after which a worker forgets them: they are those of pipelines that have ended."""
_SPARE_SECONDS = 60.0
"""Time for which a worker without a pipeline waits for the session's next, as Spark's idle ones do."""


class WorkerError(Exception):
    """A task was not done: it failed, with the traceback of its error, or its worker ended."""


class StayingWorker:
    """One process, started anew whenever it is gone. All methods but `cancel` are for one thread at a time."""

    def __init__(self, context: SparkContext) -> None:
        self._context: Any = context
        self._files = ""
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._is_busy = False
        self._tasks, self._settled = 0, 0
        self._sent: dict[int, SentOnce] = {}
        """Parts of tasks that the process has, by `id`."""
        self._environment: dict[str, str] = {}

    @classmethod
    def of(cls, context: SparkContext) -> StayingWorker:
        """Return the worker of a pipeline of this session that has ended, or a new one."""
        environment = _environment(context)
        for each in list(_spare):
            if each._context is context and each._environment == environment:
                with contextlib.suppress(ValueError):
                    _spare.remove(each)
                    return each
        return cls(context)

    def leave(self) -> None:
        """Leave the worker to the session's next pipeline, for a while."""
        if self._process is None:
            return
        _spare.append(self)
        timer = threading.Timer(_SPARE_SECONDS, self._end_spare)
        timer.daemon = True
        timer.start()

    def _end_spare(self) -> None:
        with contextlib.suppress(ValueError):  # another pipeline has it
            _spare.remove(self)
            self.close()

    def start(self) -> None:
        """Start the process, unless it runs; it loads what tasks need meanwhile."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self._files = self._files or SparkFiles.getRootDirectory()
        ours, theirs = Pipe()
        self._environment = _environment(self._context)
        number = theirs.fileno()
        command = [self._context.pythonExec, "-m", "roster.spark.tasks.worker_main", str(number)]
        with theirs, self._lock:
            self._process = subprocess.Popen(  # noqa: S603 - the session's own Python
                command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=[number], env=self._environment
            )
            self._connection, self._tasks, self._settled, self._sent = ours, 0, 0, {}

    def run(self, work: Any, arrivals: Sequence[Arrival] = ()) -> list[Any]:
        """Run a task, a function that is given its number and yields results, and return these.

        arrivals: records that it need not read.

        Its updates of accumulators count if it succeeds. Raises WorkerError; `cancel` makes it raise one.
        """
        self.start()
        known = self._sent if len(self._sent) < _MOST_SENT else {}
        self._context._pickled_broadcast_vars.clear()
        task, parts = _pickled(work, known)
        if any(True for _ in self._context._pickled_broadcast_vars):
            self._context._pickled_broadcast_vars.clear()
            raise WorkerError("only Spark's own workers have broadcast variables")
        includes, has_none = tuple(self._context._python_includes or ()), not known
        sent = {number: data for number, (_, data) in parts.items()}
        answer = self._ask(Request(self._files, includes, task, sent, has_none, tuple(arrivals)))
        self._sent = {**known, **{number: part for number, (part, _) in parts.items()}}
        self._look_at(answer.memory)
        if answer.problem:
            raise WorkerError(answer.problem)
        for number, update in answer.updates.items():
            if number in _accumulatorRegistry:
                _accumulatorRegistry[number] += update
        return answer.results

    def _ask(self, request: Request) -> Answer:
        connection, process = self._connection, self._process
        assert connection is not None  # noqa: S101 - it was started
        assert process is not None  # noqa: S101 - likewise
        self._is_busy = True
        try:
            connection.send_bytes(pickle.dumps(tuple(request)))
            return Answer(*pickle.loads(connection.recv_bytes()))  # noqa: S301 - from our own process
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            self.close()
            raise WorkerError(f"the worker ended (exit status {process.returncode})") from error
        except BaseException:  # the answer would reach the next task
            self.close()
            raise
        finally:
            self._is_busy = False

    def _look_at(self, memory: int) -> None:
        """Have the process replaced if it has grown by much more than it needed first."""
        self._tasks += 1
        if self._tasks <= _SETTLED:
            self._settled = max(self._settled, memory)
        elif memory > 2 * self._settled + _MORE_MEMORY:
            self.close()
            self.start()

    def cancel(self) -> None:
        """End the process if it has a task; from any thread."""
        with self._lock:
            if self._is_busy and self._process is not None:
                self._process.kill()

    def close(self) -> None:
        """End the process."""
        with self._lock:
            process, connection, self._process, self._connection = self._process, self._connection, None, None
        if connection is not None:
            connection.close()
        if process is not None:
            with contextlib.suppress(OSError):
                process.kill()
            process.wait()


class _Pickler(cloudpickle.Pickler):
    """Leaves out the parts of a task that the worker has, or is sent beside it."""

    def __init__(self, file: io.BytesIO, known: Mapping[int, SentOnce]) -> None:
        super().__init__(file)  # type: ignore[no-untyped-call]
        self._known = known
        self.parts: dict[int, tuple[SentOnce, bytes]] = {}

    def persistent_id(self, value: Any) -> int | None:
        """Return the number of a part."""
        if not isinstance(value, SentOnce):
            return None
        number = id(value)
        if number not in self._known and number not in self.parts:
            self.parts[number] = value, cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
        return number


def _pickled(work: Any, known: Mapping[int, SentOnce]) -> tuple[bytes, dict[int, tuple[SentOnce, bytes]]]:
    """Return a task's bytes without its parts, and those parts that are not known, with theirs."""
    file = io.BytesIO()
    pickler = _Pickler(file, known)
    pickler.dump(work)  # type: ignore[no-untyped-call]
    return file.getvalue(), pickler.parts


_spare: list[StayingWorker] = []
"""Those whose pipelines have ended."""


def _environment(context: Any) -> dict[str, str]:
    """Return the environment of a worker; Spark's own find PySpark like this too."""
    paths = [os.environ.get("PYTHONPATH", ""), *(str(Path(each.__path__[0]).parent) for each in (pyspark, py4j))]
    return {**os.environ, **context.environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
