"""Child processes of the demo: each in its own session, killed with the parent, its lines read into one queue."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from roster._json import JsonObject


class ChildMessage(NamedTuple):
    """A JSON line that a child wrote."""

    child: str
    message: JsonObject


class Child:
    """A running command. What it writes goes to its log; JSON objects on stdout also into the queue."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        inbox: queue.Queue[Any],
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.name, self.log, self._inbox = name, log, inbox
        self.expected_to_end = False
        parent_death = [sys.executable, "-m", "roster.cli.demo.parent_death", str(os.getpid())]
        with log.open("ab") as out:
            self.process = subprocess.Popen(  # noqa: S603  our own command lines
                [*parent_death, *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=out,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            )
        self._reader = threading.Thread(target=self._read, name=f"read-{name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Process id of the command, and id of its session."""
        return self.process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus the signal that ended it."""
        return self.process.poll()

    def pause(self) -> None:
        """SIGSTOP: stand still until `resume`."""
        if self.exit_code is None:
            self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        if self.exit_code is None:
            self.process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM: finish and leave."""
        self.expected_to_end = True
        if self.exit_code is None:
            self.process.terminate()

    def kill(self) -> None:
        """SIGKILL for it and all it started, at once, as if its machine had lost power."""
        self.expected_to_end = True
        if self.exit_code is None:
            self.process.kill()
        # What was being forked meanwhile shows up in the next look.
        while orphans := _others_in_session(self.pid):
            for pid in orphans:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        self.process.wait()

    def last_words(self, lines: int = 15) -> str:
        """The end of its log."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return ""

    def _read(self) -> None:
        if self.process.stdout is None:
            return
        with self.process.stdout as stream, self.log.open("ab") as out:
            for line in stream:
                out.write(line)
                out.flush()
                with contextlib.suppress(ValueError):
                    message = json.loads(line)
                    if isinstance(message, dict):
                        self._inbox.put(ChildMessage(self.name, message))


def end_all(children: Sequence[Child]) -> None:
    """Leave nothing of them running."""
    for child in children:
        child.kill()


def _others_in_session(leader: int) -> list[int]:
    """Living processes of a session but its leader: children of children too, whatever process group they chose.

    Empty on systems without /proc, where only Spark's own watch on its driver ends them.
    """
    members = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            # After the command in parentheses: state, parent, process group, session.
            state, _, _, session = entry.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and int(entry.parent.name) != leader and state not in "ZX":
                members.append(int(entry.parent.name))
    return members
