"""Programs of the tests that run Spark: started, listened to and killed, or run in the tests' own session."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import queue
import runpy
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from unittest import mock

from tests.real.realparts.jvm import bound_to_parent
from tests.spark.forks import ForkedProcess, Forks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

APPS = Path(__file__).with_name("apps")
"""The folder of these programs."""
START_SECONDS = 300
Process = subprocess.Popen[str] | ForkedProcess
STARTED: list[Process] = []
_starter = ThreadPoolExecutor(1, "starts-programs")
"""A program bound to its parent ends with the thread that started it: this one stays."""


def environment() -> dict[str, str]:
    """Of programs that import from the tests."""
    roots = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(roots)}


@functools.cache
def forks() -> Forks:
    """The process of which programs are forks."""
    return _starter.submit(Forks, bound_to_parent, environment()).result()


def start(command: Sequence[str], **how: Any) -> Process:
    """Start a program in a process group of its own; it ends with this process, and with the test (`programs_end`).

    A file or module of Python is a fork of a process that has imported what most of them import.
    """
    process: Process
    if command[0] == sys.executable and (command[1] == "-m" or command[1].endswith(".py")):
        process = forks().start(command, **{"env": environment(), **how})
    else:
        more = {"text": True, "env": environment(), "start_new_session": True, **how}
        process = _starter.submit(subprocess.Popen, bound_to_parent(list(command)), **more).result()
    STARTED.append(process)
    return process


def send(process: Process, number: int) -> None:
    """Send a signal to a program and all it started in its group: driver, JVM and tasks."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


@contextlib.contextmanager
def ended() -> Iterator[None]:
    """End all that is started in the block and still runs behind it."""
    before = len(STARTED)
    try:
        yield
    finally:
        for process in STARTED[before:]:
            send(process, signal.SIGKILL)
            process.wait()
        del STARTED[before:]


class Application:
    """A program in a process group of its own, with what it says as it says it: a JSON object a line."""

    def __init__(self, program: Path, *arguments: str, log: Path) -> None:
        self._log = log.open("w")
        command = [sys.executable, str(program), *arguments]
        self.process = start(command, stdout=subprocess.PIPE, stderr=self._log)
        self.said: list[dict[str, Any]] = []
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self.process.stdout or ():
            self._lines.put(line)
        self._lines.put("")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait(30)
        self._log.close()

    def hears(self, what: str, seconds: float = START_SECONDS) -> dict[str, Any]:
        """The next line that says `what`."""
        while True:
            line = self._lines.get(timeout=seconds)
            assert line, f"the application ended:\n{Path(self._log.name).read_text()[-3000:]}"
            if line.startswith("{"):
                self.said.append(json.loads(line))
                if what in self.said[-1]:
                    return self.said[-1]

    def signal(self, number: int) -> None:
        send(self.process, number)

    def ends(self, seconds: float = START_SECONDS) -> int:
        return self.process.wait(seconds)


def run_in_session(spark: SparkSession, directory: Path, program: str | Path, *arguments: str) -> str:
    """Run a program in a directory and in this session, which its `session()` returns and which goes on; its output."""
    context = spark.sparkContext
    files = context._jvm.org.apache.hadoop.fs.FileSystem.getLocal(context._jsc.hadoopConfiguration())
    before, output, handler = files.getWorkingDirectory(), io.StringIO(), signal.getsignal(signal.SIGTERM)
    files.setWorkingDirectory(context._jvm.org.apache.hadoop.fs.Path(str(directory)))
    try:
        with (
            contextlib.chdir(directory),
            # As a shell sets it: a worker that was started elsewhere imports nothing from here, and is not taken.
            mock.patch.dict(os.environ, {"PWD": str(directory)}),
            contextlib.redirect_stdout(output),
            mock.patch.object(sys, "argv", [str(program), *arguments]),
            mock.patch.object(type(spark), "stop"),
        ):
            runpy.run_path(str(program), run_name="__main__")
    finally:
        files.setWorkingDirectory(before)
        signal.signal(signal.SIGTERM, handler)
    return output.getvalue()
