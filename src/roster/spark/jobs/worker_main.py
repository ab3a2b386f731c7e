"""The worker that stays: a Python process that runs the tasks of small batches, as a Spark worker on this host would.

`spark/jobs/workers.py` starts it on the driver's host, where it inherits a socket. It reads pickled requests, one
after the other, and answers each. It ends with the driver.
"""

from __future__ import annotations

import contextlib
import ctypes
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

from roster.model.offsets import Arrival
from roster.pipeline.tasks.reader import hold_little, take_arrivals

READY = b"ready"
"""What a worker sends once it has loaded modules."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of `mallopt`."""


class Request(NamedTuple):
    """A task to run: a pickled function that is given its number and yields results.

    files: Spark's folder of files that were added to the session. includes: names of Python archives in it. parts: of
    this task and later ones, pickled, by number. has_none: parts of earlier requests are to be forgotten. arrivals:
    records of the task that the driver has received.
    """

    files: str
    includes: tuple[str, ...]
    number: int
    task: bytes
    parts: Mapping[int, bytes]
    has_none: bool
    arrivals: tuple[Arrival, ...] = ()


class Answer(NamedTuple):
    """What a task yielded, and its updates of accumulators by id; or `problem`, the traceback of its error.

    memory: bytes that this process holds for itself.
    """

    results: list[Any]
    updates: dict[int, object]
    problem: str
    memory: int


def main(connection: Connection) -> None:
    """Serve the driver until it closes the connection, or has died."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal: the driver decides
    threading.Thread(target=_die_with, args=(connection.fileno(),), daemon=True).start()
    stores = load()
    stores.keep_open()
    hold_little()
    _keep_freed_memory()
    with contextlib.suppress(EOFError, OSError):  # the driver is gone, perhaps amid a message
        connection.send_bytes(READY)
        importlib.import_module("pyspark")  # which a task may ask for where it runs
        for number in itertools.count(1):
            while not connection.poll(stores.UNUSED):
                stores.close_unused()
            request = Request(*pickle.loads(connection.recv_bytes()))  # noqa: S301 - from the driver
            connection.send_bytes(_answer(request, number))
            stores.close_unused()


def _keep_freed_memory() -> None:
    """Let the C library reuse what a large batch frees: the system clears each page that it hands out again."""
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:  # glibc's
        mallopt(_TRIM_THRESHOLD, 256 << 20)
        mallopt(_MMAP_THRESHOLD, 32 << 20)


def load() -> Any:
    """Load what all tasks need, without PySpark; return the module that keeps stores open."""
    import roster.stateful.tasks.task  # noqa: F401, PLC0415 - Ctrl-C is ignored before that
    from roster.stateful.tasks import store_location  # noqa: PLC0415 - likewise

    return store_location


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
        self._made: dict[int, object] = {}

    def persistent_load(self, number: int) -> object:
        """Return the part of this number."""
        if number not in self._made:
            self._made[number] = pickle.loads(_parts[number])  # noqa: S301 - from the driver
        return self._made[number]


def _answer(request: Request, number: int) -> bytes:
    from pyspark.accumulators import _accumulatorRegistry  # noqa: PLC0415 - not at the start

    _set_up(request, number)
    _accumulatorRegistry.clear()
    take_arrivals(request.arrivals)
    _note_parts(request)
    try:
        work: Callable[[Iterable[int]], Iterable[object]] = _Unpickler(request.task).load()
        results = list(work(iter((request.number,))))
        updates = {number: each._value for number, each in _accumulatorRegistry.items()}
        return pickle.dumps((results, updates, "", _memory()))
    except BaseException:  # of a function that ends its process, too
        return pickle.dumps(([], {}, traceback.format_exc(), _memory()))


def _set_up(request: Request, number: int) -> None:
    """Give the task the surroundings that Spark's worker gives one; `number` of this worker's tasks."""
    from pyspark import SparkFiles, TaskContext  # noqa: PLC0415 - as above

    SparkFiles._root_directory, SparkFiles._is_running_on_worker = request.files, True
    for path in (request.files, *(str(Path(request.files) / name) for name in request.includes)):
        if path not in sys.path:
            sys.path.insert(1, path)
            importlib.invalidate_caches()
    context: Any = TaskContext._getOrCreate()
    context._stageId = context._attemptNumber = 0
    context._partitionId = request.number
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
    main(Connection(int(sys.argv[1])))
