"""Programs of the tests that run Spark: started, listened to and killed."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Self

START_SECONDS = 300
_ROOTS = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(_ROOTS)}
"""Of programs that import from the tests."""


class Application:
    """A program in a process group of its own, with what it says as it says it: a JSON object a line."""

    def __init__(self, program: Path, *arguments: str, log: Path) -> None:
        self._log = log.open("w")
        self.process = subprocess.Popen(
            [sys.executable, str(program), *arguments],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
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
        """To everything the application started: driver, JVM and workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def ends(self, seconds: float = START_SECONDS) -> int:
        return self.process.wait(seconds)
