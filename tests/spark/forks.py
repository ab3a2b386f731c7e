"""Python programs as forks of a process that has imported what most of them import: a start costs a tenth of the CPU.

    python -m tests.spark.forks DESCRIPTOR

is that process. It forks a child for each order from a socket, and ends, with its children, when the socket is closed.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
import types
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

IMPORTED = (
    "confluent_kafka.admin",
    "pandas",
    "pyarrow.dataset",
    "pyspark.sql.pandas.types",
    "roster.saved.tasks.moving",
    "roster.spark.assembly",
    "roster.spark.processor.operator",
    "roster.spark.structured_streaming",
    "tests.spark.apps.stateful",
)
ROOT = Path(__file__).parents[2]
_NUMBER = struct.Struct("!i")
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl


class ForkedProcess:
    """What `subprocess.Popen` is of a program that starts anew."""

    def __init__(self, args: Sequence[str], conversation: socket.socket, stdout: IO[str] | None) -> None:
        self.args, self.stdout = args, stdout
        self.returncode: int | None = None
        self._conversation = conversation
        self.pid = self._number(None)

    def _number(self, timeout: float | None) -> int:
        self._conversation.settimeout(timeout)
        data = self._conversation.recv(_NUMBER.size, socket.MSG_WAITALL)
        assert data, "the process that forks programs has ended: its standard error says why"
        return int(_NUMBER.unpack(data)[0])

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            try:
                self.returncode = self._number(timeout)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0) from None
            self._conversation.close()
        return self.returncode

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forks:
    """Starts programs."""

    def __init__(self, bound: Any, environment: Mapping[str, str]) -> None:
        """`bound` makes a command one that ends with this process."""
        self._orders, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                bound([sys.executable, "-m", "tests.spark.forks", str(number)]),
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                pass_fds=[number],
                start_new_session=True,
                env={"PYTHONHASHSEED": "0", **environment},
            )

    def start(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
    ) -> ForkedProcess:
        """Start `python PROGRAM …` or `python -m MODULE …` in a session of its own."""
        conversation, theirs = socket.socketpair()
        with contextlib.ExitStack() as stack:
            stack.enter_context(theirs)
            read = None
            if stdout == subprocess.PIPE:
                reading, writing = os.pipe()
                read, stdout = os.fdopen(reading, encoding="utf-8"), stack.enter_context(os.fdopen(writing, "wb"))
            nowhere = stack.enter_context(Path(os.devnull).open("wb"))
            output = _descriptor(stdout, 1, nowhere)
            errors = output if stderr == subprocess.STDOUT else _descriptor(stderr, 2, nowhere)
            socket.send_fds(self._orders, [b"!"], [theirs.fileno(), output, errors])
            order = json.dumps({"arguments": command[1:], "environment": dict(env), "folder": str(Path.cwd())})
            conversation.sendall(_NUMBER.pack(len(order.encode())) + order.encode())
        return ForkedProcess(command, conversation, read)


def _descriptor(file: int | IO[Any] | None, otherwise: int, nowhere: IO[Any]) -> int:
    if file is None:
        return otherwise
    file = nowhere if file == subprocess.DEVNULL else file
    return file if isinstance(file, int) else file.fileno()


def fork_for_each(orders: socket.socket) -> socket.socket:
    """Fork a child for each order; return in the child, with the socket that has the order."""
    running: dict[int, socket.socket] = {}
    woken, waking = socket.socketpair()
    waking.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
    parent = os.getpid()
    while True:
        ready = wait([orders, woken])  # select takes no descriptor beyond 1,023, of which a run of all tests has more
        if woken in ready:
            woken.recv(4096)
            report_ended(running)
        if orders in ready:
            _, descriptors, *_ = socket.recv_fds(orders, 1, 3)
            if not descriptors:
                sys.exit()
            conversation = socket.socket(fileno=descriptors[0])
            if (pid := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for other in (orders, woken, waking, *running.values()):
                    other.close()
                settle(parent, *descriptors[1:])
                return conversation
            running[pid] = conversation
            for descriptor in descriptors[1:]:
                os.close(descriptor)


def report_ended(running: dict[int, socket.socket]) -> None:
    """Tell who waits for a child that has ended how it did."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            with running.pop(pid) as conversation, contextlib.suppress(OSError):  # nobody may wait
                conversation.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(status)))


def settle(parent: int, output: int, errors: int) -> None:
    """Give a child its session and its outputs, and let it end with its parent."""
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel was asked
        os._exit(1)
    for descriptor, number in ((output, 1), (errors, 2)):
        os.dup2(descriptor, number)
    for descriptor in {output, errors}:
        os.close(descriptor)


def obey(conversation: socket.socket) -> None:
    """Run what is ordered, as if Python had been started with these arguments."""
    (size,) = _NUMBER.unpack(conversation.recv(_NUMBER.size, socket.MSG_WAITALL))
    order = json.loads(conversation.recv(size, socket.MSG_WAITALL))
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = order["arguments"]
    more = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in more if path and path not in sys.path]
    conversation.sendall(_NUMBER.pack(os.getpid()))
    conversation.close()
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        return
    program = Path(sys.argv[0])
    sys.path.insert(0, str(program.parent.absolute()))
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = str(program)
    exec(compile(program.read_bytes(), program, "exec", dont_inherit=True), vars(main))


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    obey(fork_for_each(socket.socket(fileno=int(sys.argv[1]))))
