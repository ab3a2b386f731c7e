"""The worker that stays: a Python process that runs the tasks of small batches, as a Spark worker on this host would.

`spark/jobs/staying_worker.py` starts it, and it ends with the driver. It reads pickled requests from a socket that it
inherits, one after the other, and answers each.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import os
import pickle
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from pyspark import SparkFiles, TaskContext
from pyspark.accumulators import _accumulatorRegistry

from roster.model.offsets import Arrival
from roster.spark.tasks.reader import take_arrivals

_PAGE = os.sysconf("SC_PAGE_SIZE")


class Request(NamedTuple):
    """A task to run: a pickled function that is given the task's number and yields results.

    files: Spark's folder of files that were added to the session. includes: names of Python archives in it. parts: of
    this task and later ones, pickled, by number. has_none: parts of earlier requests are to be forgotten. arrivals:
    records of the task that the driver has received.
    """

    files: str
    includes: tuple[str, ...]
    task: bytes
    parts: Mapping[int, bytes]
    has_none: bool
    arrivals: tuple[Arrival, ...] = ()


class Answer(NamedTuple):
    """What a task yielded, and its updates of accumulators by id; or `problem`, the traceback of its error.

    memory: bytes that this process holds for itself.
    """

    results: list[Any]
    updates: dict[int, Any]
    problem: str
    memory: int


def main(descriptor: int) -> None:
    """Serve the socket until the driver closes it, or has died."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal: the driver decides
    threading.Thread(target=_die_with, args=(descriptor,), daemon=True).start()
    connection = Connection(descriptor)
    importlib.import_module("roster.spark.state.tasks.task")  # and with it what all tasks need, while Spark starts
    stores: Any = importlib.import_module("roster.spark.state.tasks.store_location")
    stores.keep_open()
    with contextlib.suppress(EOFError, BrokenPipeError):
        for number in itertools.count(1):
            while not connection.poll(stores.UNUSED):
                stores.close_unused()
            request = Request(*pickle.loads(connection.recv_bytes()))  # noqa: S301 - from the driver
            connection.send_bytes(_answer(request, number))
            stores.close_unused()


_parts: dict[int, bytes] = {}
"""Parts of tasks that were sent."""


def _note_parts(request: Request) -> None:
    if request.has_none:
        _parts.clear()
    _parts.update(request.parts)


class _Unpickler(pickle.Unpickler):
    """Makes the parts of a task anew for each, as if they had been sent with it."""

    def __init__(self, task: bytes) -> None:
        super().__init__(io.BytesIO(task))
        self._made: dict[int, Any] = {}

    def persistent_load(self, number: int) -> Any:
        """Return the part of this number."""
        if number not in self._made:
            self._made[number] = pickle.loads(_parts[number])  # noqa: S301 - from the driver
        return self._made[number]


def _answer(request: Request, number: int) -> bytes:
    _set_up(request.files, request.includes, number)
    _accumulatorRegistry.clear()
    take_arrivals(request.arrivals)
    _note_parts(request)
    try:
        work: Callable[[Iterable[int]], Iterable[Any]] = _Unpickler(request.task).load()
        results = list(work(iter((0,))))
        updates = {number: each._value for number, each in _accumulatorRegistry.items()}
        return pickle.dumps((results, updates, "", _memory()))
    except BaseException:  # of a function that ends its process, too
        return pickle.dumps(([], {}, traceback.format_exc(), _memory()))


def _set_up(files: str, includes: Iterable[str], number: int) -> None:
    """Give the task the surroundings that Spark's worker gives one."""
    SparkFiles._root_directory, SparkFiles._is_running_on_worker = files, True
    for path in (files, *(str(Path(files) / name) for name in includes)):
        if path not in sys.path:
            sys.path.insert(1, path)
            importlib.invalidate_caches()
    context: Any = TaskContext._getOrCreate()
    context._stageId = context._partitionId = context._attemptNumber = 0
    context._taskAttemptId, context._cpus, context._resources, context._localProperties = number, 1, {}, {}


def _memory() -> int:
    """Return the bytes of this process that are not pages of files; 0 where the system does not say."""
    try:
        _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    except OSError:
        return 0
    return (resident - shared) * _PAGE


def _die_with(descriptor: int) -> None:
    """End the process once the driver has closed its side, whatever a task does meanwhile."""
    hangup = select.poll()
    hangup.register(descriptor, 0)
    hangup.poll()
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
