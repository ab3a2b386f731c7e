"""The worker that stays on the driver's host: it is started, and replaced when it dies or grows."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence
from multiprocessing import Pipe
from typing import Any

from pyspark import SparkContext, SparkFiles
from typing_extensions import override

from roster.model.offsets import Arrival
from roster.spark.jobs.workers import Link, Workers, environment, run


class StayingWorker(Workers):
    """One process, started anew whenever it is gone."""

    def __init__(self, context: SparkContext) -> None:
        super().__init__(context)
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Link | None = None

    @property
    @override
    def has_any(self) -> bool:
        return self._process is not None

    @override
    def start(self) -> None:
        if self._process is not None and self._process.poll() is None and self._link is not None and self._link.is_open:
            return
        self.close()
        ours, theirs = Pipe()
        self._environment = environment(self._context)
        number = theirs.fileno()
        command = [self._context.pythonExec, "-m", "roster.spark.tasks.worker_main", str(number)]
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - the session's own Python
                command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=[number], env=self._environment
            )

        def end() -> int:
            with contextlib.suppress(OSError):
                process.kill()
            return process.wait()

        self._process, self._link = process, Link(self._context, ours, end, SparkFiles.getRootDirectory())

    @override
    def are_on(self, hosts: Sequence[str | None]) -> bool:
        return len(hosts) == 1

    @override
    def run(self, work: Any, arrivals: Sequence[Arrival] = (), hosts: Sequence[str | None] = (None,)) -> list[Any]:
        self.start()
        link = self._link
        assert link is not None  # noqa: S101 - it was started
        results = run([link], work, arrivals)
        if link.has_grown:
            self.close()
            self.start()
        return results

    @override
    def cancel(self) -> None:
        if self._link is not None:
            self._link.cancel()

    @override
    def close(self) -> None:
        if self._link is not None:
            self._link.close()
        self._process = self._link = None
