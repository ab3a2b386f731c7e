"""One run of a pipeline: wait for a task slot, warm up, join the group, run batches, leave; and again after a stall.

A release that changes the state in place joins when no member of the earlier one is left.

Warming up runs the pipeline's own plan on no rows. It forks Python workers, loads modules and compiled code, and checks
the transform before the member joins: a partition that moves here waits for one batch, not for a start. The first
member of a group joins meanwhile: no other member has partitions, and the group waits some seconds for more members. It
warms up what does small batches, where that is possible, and leaves Spark's workers to the first batch that needs them.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from roster.client import ClientError, ClosedError, GroupMember
from roster.pipeline.batch import Progress
from roster.pipeline.batch_sink import BatchSink
from roster.pipeline.driver.loop import STOP_CHECK_SECONDS, DriverLoop, pace_of
from roster.pipeline.driver.reporting import Reporter
from roster.pipeline.driver.runner_protocol import BetweenBatches, Runner
from roster.pipeline.driver.switching import Unswitched
from roster.pipeline.errors import PipelineError
from roster.pipeline.options import Options
from roster.pipeline.tasks.reader import ReadError

T = TypeVar("T")
log = logging.getLogger("roster.spark")

_FIRST_NOTICE = 5.0  # seconds of waiting for executors before a line in the log
_NOTICE_INTERVAL = 30.0  # seconds between two such lines

_OLD_LOOK = 1.0  # seconds between two looks at members of an earlier release

WAITING, WARMING, JOINING, RUNNING = "waiting for executors", "warming up", "joining", "running"
PAUSED = "paused"
OLD_THERE = "waiting for the earlier release"


def until_reached(
    attempt: Callable[[], T], seconds: float, stopping: Callable[[], bool], report: Callable[[str], object]
) -> T | None:
    """Return what the attempt returns; try again while brokers do not answer, up to so many seconds.

    None: the run was stopped meanwhile. report: gets the reason, once. Raises the last error.
    """
    until, is_told = time.monotonic() + seconds, False
    while not stopping():
        try:
            return attempt()
        except (ClientError, PipelineError, ReadError) as error:
            reason = error.__cause__ if isinstance(error, PipelineError) else error
            may_pass = reason.retriable if isinstance(reason, ClientError) else isinstance(reason, ReadError)
            if not may_pass or getattr(reason, "is_lost", False) or time.monotonic() >= until:
                raise error from None
            if not is_told:
                report(str(error))
            is_told = True
        time.sleep(STOP_CHECK_SECONDS)
    return None


class Run:
    """One run. Call `work` once, on the pipeline's thread, and `stop` on any."""

    def __init__(
        self,
        options: Options,
        runner: Runner,
        sink: BatchSink,
        membership: Callable[[Options], GroupMember],
        reporter: Reporter,
        on_progress: Sequence[Callable[[Progress], object]] = (),
        between_batches: BetweenBatches | None = None,
        switching: Unswitched | None = None,
        is_alone: Callable[[], bool] = lambda: False,
        is_local: bool = False,
    ) -> None:
        """is_alone: says whether the group has no members, and tasks run here at once. is_local: they run here."""
        self._options, self._runner, self._sink = options, runner, sink
        self._membership, self._reporter, self._on_progress = membership, reporter, on_progress
        self._between_batches, self._switching = between_batches or BetweenBatches(), switching or Unswitched()
        self._is_alone, self._is_local = is_alone, is_local
        self._stopping = threading.Event()
        self._joining: GroupMember | None = None
        self._loop: DriverLoop | None = None
        self._last_progress: Progress | None = None
        self.phase = WAITING

    @property
    def results(self) -> str:
        """What becomes of the results, "" if that does not depend on another group."""
        return self._switching.results

    @property
    def status(self) -> str:
        """The phase, or that all owned partitions are paused."""
        return PAUSED if self.phase == RUNNING and self._switching.is_paused else self.phase

    @property
    def passes(self) -> int:
        """Passes that the loop has begun since the group was joined."""
        return 0 if self._loop is None else self._loop.passes

    @property
    def last_progress(self) -> Progress | None:
        """Progress of the latest finished batch."""
        return (self._loop.last_progress if self._loop is not None else None) or self._last_progress

    def stop(self, *, now: bool = False) -> None:
        """End after the running batch, or with `now` cancel it; waiting, warming up and joining end at once."""
        self._stopping.set()
        if self.phase == WARMING:
            self._runner.cancel()
        if self._loop is not None:
            self._loop.stop(now=now)
        if self._joining is not None:
            self._joining.close()

    def work(self, *, available_now: bool) -> None:
        """Run until stopped or, with `available_now`, until all that was available is read.

        Raises PipelineError, ClientError, and what a function, a task or the sink raised.
        """
        batches, pace, static_id = 0, pace_of(self._options), ""
        self._reporter.line("warms executors up, then joins")
        while True:
            with contextlib.ExitStack() as cleanup:
                member = self._warm_member(cleanup, static_id)
                if member is None:
                    return
                loop = DriverLoop(
                    member,
                    self._runner,
                    self._sink,
                    self._options,
                    self._on_progress,
                    reporter=self._reporter,
                    first_batch=batches,
                    pace=pace,
                    between_batches=self._between_batches,
                    switching=self._switching,
                )
                self._loop, self.phase = loop, RUNNING
                if not self._stopping.is_set():
                    loop.run(available_now=available_now)
                if loop.stalled is None:
                    self._runner.settle()
            if loop.stalled is None:
                return
            self._reporter.left(loop.stalled)
            static_id = member.static_id
            batches, self._last_progress = loop.batches, self.last_progress

    def _has_slot(self) -> bool:
        """Wait until Spark has run a task of this application; return False if the run was stopped."""
        self.phase = WAITING
        probe, began = self._runner.ask_for_slot(), time.monotonic()
        notice = _FIRST_NOTICE
        while not probe.wait(STOP_CHECK_SECONDS):
            if self._stopping.is_set():
                probe.cancel()
                return False
            waited = time.monotonic() - began
            if waited >= notice:
                notice = waited + _NOTICE_INTERVAL
                if not probe.running and self._is_local:
                    what = "waits for a free core, which other jobs of this session have"
                    self._reporter.line(what, logging.WARNING, seconds=round(waited))
                elif not probe.running:
                    self._reporter.line(
                        "waits for executors", logging.WARNING, seconds=round(waited), partitions="none meanwhile"
                    )
        if self._stopping.is_set():
            return False
        probe.check()
        return True

    def _warm_up(self, *, is_small: bool = False) -> bool:
        """Run the plan on no rows; return False if that was not possible, or the run was stopped meanwhile."""
        self.phase = WARMING
        began, is_warm = time.monotonic(), False
        try:
            if not self._stopping.is_set():
                is_warm = self._runner.warm_up(self._sink, is_small=is_small)
        except Exception:
            if not self._stopping.is_set():
                raise
        log.debug("warmed up in %.1f s", time.monotonic() - began)
        return is_warm and not self._stopping.is_set()

    def _old_have_left(self) -> bool:
        """Wait for members of an earlier release, which keep their tasks; return False if the run was stopped."""
        notice = began = time.monotonic()
        patience, told = self._options.start_timeout_ms / 1000, self._reporter.waits_for_brokers
        while left := until_reached(self._between_batches.old_members, patience, self._stopping.is_set, told):
            self.phase = OLD_THERE
            if time.monotonic() >= notice:
                notice = time.monotonic() + _NOTICE_INTERVAL
                seconds = round(time.monotonic() - began)
                self._reporter.line(
                    "waits for the members of the earlier release to leave", members=left, seconds=seconds
                )
            self._stopping.wait(_OLD_LOOK)
        return not self._stopping.is_set()

    def _warm_member(self, cleanup: contextlib.ExitStack, static_id: str) -> GroupMember | None:
        """Wait for a slot, warm up and join; return the member, which `cleanup` closes.

        None: the run was stopped meanwhile. static_id: of the last membership.
        """
        if not self._stopping.is_set() and self._is_alone():
            thread = cleanup.enter_context(ThreadPoolExecutor(1, "roster-join"))
            self._runner.find_stores()
            member = self._new_member(cleanup, static_id)
            joining = thread.submit(self._join, member)
            # The first batch of a small topic then waits for no Spark job; a large one is Spark's first.
            is_warm = self._warm_up(is_small=True) or (self._has_slot() and self._warm_up())
            self.phase = JOINING
            return member if is_warm and joining.result() else None
        if not self._has_slot():
            return None
        self.phase = WARMING
        self._runner.find_stores()
        if self._warm_up() and self._old_have_left():
            self.phase, member = JOINING, self._new_member(cleanup, static_id)
            return member if self._join(member) else None
        return None

    def _new_member(self, cleanup: contextlib.ExitStack, static_id: str) -> GroupMember:
        member = self._membership(replace(self._options, capacity=self._options.capacity or max(self._runner.cores, 1)))
        cleanup.callback(member.close)
        member.static_id = static_id
        member.statistics, self._joining = self._reporter.statistics, member
        return member

    def _join(self, member: GroupMember) -> bool:
        """Join the group; return False if the run was stopped meanwhile."""
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
    """Make a client id of an application's name: characters fit for metrics and file names, at most 100 of them."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", application).strip("-")[:100] or "roster"
