"""One run of a pipeline: wait for a slot on an executor, join the group, work, leave; and once more after a stall."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from roster.client import ClosedError
from roster.spark.batch import Progress
from roster.spark.driver import DriverLoop, Runner
from roster.spark.member_protocol import Membership
from roster.spark.options import Options
from roster.spark.reporting import Reporter
from roster.spark.sinks.base import Sink

_SLICE = 0.2  # seconds: how late `stop` may be noticed while waiting
_FIRST_WORD = 5.0  # seconds of waiting for executors before a line says so
_NEXT_WORD = 30.0  # seconds between two such lines

WAITING, JOINING, RUNNING = "waiting for executors", "joining", "running"


class Probe(Protocol):
    """A tiny job that shows whether Spark has a slot."""

    @property
    def running(self) -> bool:
        """Whether an executor is at work on it."""

    def wait(self, seconds: float) -> bool:
        """Wait for its end; False if it has not ended."""

    def check(self) -> None:
        """PipelineError if executors cannot do a pipeline's work."""

    def cancel(self) -> None:
        """Withdraw it."""


class SlotRunner(Runner, Protocol):
    """A runner that can ask for a slot."""

    def ask_for_slot(self) -> Probe:
        """A probe under way."""


class Run:
    """One run; `work` is called once, on the pipeline's thread, `stop` on any."""

    def __init__(
        self,
        options: Options,
        runner: SlotRunner,
        sink: Sink,
        membership: Callable[[Options], Membership],
        reporter: Reporter,
        on_progress: Callable[[Progress], object] | None = None,
    ) -> None:
        self._options, self._runner, self._sink = options, runner, sink
        self._membership, self._reporter, self._on_progress = membership, reporter, on_progress
        self._stopping = threading.Event()
        self._joining: Membership | None = None
        self._loop: DriverLoop | None = None
        self._last_progress: Progress | None = None
        self.phase = WAITING

    @property
    def last_progress(self) -> Progress | None:
        """The latest finished batch."""
        return (self._loop.last_progress if self._loop is not None else None) or self._last_progress

    def stop(self, *, now: bool = False) -> None:
        """End after the batch in flight, or (`now`) cancel that; waiting and joining end at once."""
        self._stopping.set()
        if self._loop is not None:
            self._loop.stop(now=now)
        if self._joining is not None:
            self._joining.close()

    def work(self, *, available_now: bool) -> None:
        """Until stopped or, with `available_now`, until what was there is done."""
        batches = 0
        while self._has_slot():
            member = self._membership(
                replace(self._options, capacity=self._options.capacity or max(self._runner.cores, 1))
            )
            with contextlib.ExitStack() as cleanup:
                cleanup.callback(member.close)
                if not self._join(member):
                    return
                loop = DriverLoop(
                    member,
                    self._runner,
                    self._sink,
                    self._options,
                    self._on_progress,
                    reporter=self._reporter,
                    first_batch=batches,
                )
                self._loop, self.phase = loop, RUNNING
                if not self._stopping.is_set():
                    loop.run(available_now=available_now)
            if loop.stalled is None:
                return
            self._reporter.left(loop.stalled)
            batches, self._last_progress = loop.batches, self.last_progress

    def _has_slot(self) -> bool:
        """Wait until Spark has run a task for this application; False if the run is to stop."""
        self.phase = WAITING
        probe, began = self._runner.ask_for_slot(), time.monotonic()
        word = _FIRST_WORD
        while not probe.wait(_SLICE):
            if self._stopping.is_set():
                probe.cancel()
                return False
            waited = time.monotonic() - began
            if waited >= word:
                word = waited + _NEXT_WORD
                if not probe.running:
                    self._reporter.line(
                        "waits for executors", logging.WARNING, seconds=round(waited), partitions="none meanwhile"
                    )
        if self._stopping.is_set():
            return False
        probe.check()
        return True

    def _join(self, member: Membership) -> bool:
        """Join the group; False if the run was stopped meanwhile."""
        self.phase, self._joining = JOINING, member
        try:
            if not self._stopping.is_set():
                member.start(self._options.start_timeout_ms / 1000)
        except ClosedError:
            if not self._stopping.is_set():
                raise
        finally:
            self._joining = None
        return not self._stopping.is_set()


def client_id_of(application: str) -> str:
    """A client id for an application's name: what brokers use in metrics and file names, at most 100 characters."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", application).strip("-")[:100] or "roster"
