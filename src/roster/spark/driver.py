"""The driver's loop: what is owned becomes batches, batches become commits, and what is revoked is handed over.

One pass: look at the ownership → positions of what is new → the logs' ends → ranges and tasks → run the batch → the
sink's commit → the group's commit. Between two passes nothing is in flight: there revoked partitions are released.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from roster.client import ClientError, ClosedError, CommitFenced, OffsetAndMetadata, Ownership
from roster.model import TopicPartition
from roster.spark import planner
from roster.spark.batch import Batch, Owner, Progress, Range, Split
from roster.spark.batch_guard import BatchGuard, cancel_reason
from roster.spark.errors import SinkFencedError
from roster.spark.member_protocol import Membership
from roster.spark.options import Options
from roster.spark.reporting import Reporter
from roster.spark.sinks.base import Sink
from roster.spark.starting_offsets import StartingPositions

log = logging.getLogger(__name__)

_SLICE = 0.2  # seconds: how late `stop` may be noticed while nothing happens
_RETRY = 0.2  # seconds before a call that failed for a passing reason is made again
_GIVE_UP = 10.0  # seconds a stopping pipeline tries to commit its last batch


@dataclass(frozen=True, slots=True)
class Outcome:
    """What running a batch gave: the sink's handle of the uncommitted results, and the records read."""

    staged: Any
    rows: int


class Runner(Protocol):
    """Runs batches, one at a time."""

    @property
    def cores(self) -> int:
        """About how many tasks run at once."""

    def run(self, batch: Batch, tasks: Sequence[Sequence[Split]], sink: Sink) -> Outcome:
        """Read, transform and write; raises whatever went wrong, also when cancelled."""

    def cancel(self) -> None:
        """End the jobs of the running batch; thread-safe."""

    def activity(self) -> object:
        """Something that differs whenever the running batch has got on; thread-safe."""


class DriverLoop:
    """One run of a pipeline, on the caller's thread."""

    def __init__(
        self,
        member: Membership,
        runner: Runner,
        sink: Sink,
        options: Options,
        on_progress: Callable[[Progress], object] | None = None,
        watch: BatchGuard | None = None,
        reporter: Reporter | None = None,
        first_batch: int = 0,
    ) -> None:
        self._member, self._runner, self._sink, self._options = member, runner, sink, options
        self._on_progress = on_progress
        self._reporter = reporter or Reporter(options.group)
        self._starting_points = StartingPositions(member, sink, options, self._reporter)
        margin = min(5.0, options.rebalance_timeout_ms / 10_000)
        patience = options.max_batch_ms / 1000
        self._watch = watch or BatchGuard(member, runner.cancel, margin, activity=runner.activity, patience=patience)
        self._margin = margin
        self._positions: dict[TopicPartition, int] = {}
        self._targets: dict[TopicPartition, int] = {}
        """With `available_now`: where each partition's log ended when it was taken over."""
        self._adopted: Ownership | None = None
        self._stopping = False
        self.batches = first_batch
        """The next batch's number."""
        self._batch_started = float("-inf")
        self.last_progress: Progress | None = None

    def stop(self, *, now: bool = False) -> None:
        """End after the batch in flight, or (`now`) cancel that and leave it uncommitted. Thread- and signal-safe."""
        self._stopping = True
        if now:
            self._watch.cancel("the pipeline was told to stop at once")

    @property
    def stalled(self) -> str | None:
        """Why a batch was taken to stand still and the group was left; None otherwise."""
        return self._watch.stalled

    def run(self, *, available_now: bool) -> None:
        """Work until stopped or stalled or, with `available_now`, until what was there at the take-over is done.

        The member must have been started; it is closed here only when a batch stalls.
        """
        self._starting_points.note_topics()
        if self._options.trigger_interval_ms is None and self._sink.default_trigger_interval_ms and not available_now:
            self._reporter.line(
                "small batches start apart, the sink's default; trigger_interval_ms changes it",
                seconds=self._sink.default_trigger_interval_ms / 1000,
                sink=type(self._sink).__name__,
            )
        self._watch.start()
        try:
            while not self._stopping and self.stalled is None:
                self._reporter.tick()
                try:
                    ownership, worked = self._pass(available_now=available_now)
                except ClientError as error:
                    if isinstance(error, ClosedError) and self.stalled is not None:
                        return
                    if not error.retriable:
                        raise
                    log.warning("%s; trying again", error)
                    self._idle(_RETRY, self._member.ownership())
                    continue
                if worked:
                    continue
                if available_now and self._is_done(ownership):
                    self._note_no_topics()
                    return
                self._idle(self._options.poll_interval_ms / 1000, ownership)
        finally:
            self._watch.close()

    def _pass(self, *, available_now: bool) -> tuple[Ownership, bool]:
        """One pass; returns what was owned at its begin, and whether there was a batch."""
        ownership = self._member.ownership()
        if ownership.error is not None:
            raise ownership.error
        if ownership.revoking:
            self._member.release(ownership.revoking)
        self._adopt(ownership)
        if not self._positions:
            return ownership, False
        started, begun = time.time_ns() // 1_000_000, time.monotonic()
        ends = self._member.end_offsets(self._positions.keys())
        if available_now:
            for partition, end in ends.items():
                self._targets.setdefault(partition, end)
            wanted = {partition: min(end, self._targets[partition]) for partition, end in ends.items()}
        else:
            wanted = ends
        available = {p: Range(start, wanted[p]) for p, start in self._positions.items() if wanted[p] > start}
        if not available:
            return ownership, False
        pause = self._pause(available, begun, available_now=available_now)
        if pause > 0:
            self._idle(pause, ownership)
            return ownership, True
        self._batch_started = begun
        ranges = planner.limit(available, self._options.max_offsets_per_batch)
        tasks = planner.tasks(ranges, self._options.tasks or self._runner.cores, self._options.min_offsets_per_task)
        batch = Batch(self.batches, self._owner(ownership), ranges)
        planned = time.monotonic()
        outcome = self._work(batch, tasks)
        worked = time.monotonic()
        if outcome is None or not self._sink_commit(batch, outcome):
            self._forget(batch)
            return ownership, True
        sunk = time.monotonic()
        self.batches += 1
        self._positions.update(batch.next_offsets)
        self._group_commit(batch, ownership)
        done = time.monotonic()
        moments = {"plan": (begun, planned), "work": (planned, worked), "sink": (worked, sunk), "group": (sunk, done)}
        self._report(
            Progress(
                group=batch.owner.group,
                member_id=batch.owner.member_id,
                generation=batch.generation,
                batch=batch.number,
                started_at=started,
                duration_ms=round((done - begun) * 1000),
                rows=outcome.rows,
                ranges=ranges,
                lag={p: max(ends[p] - position, 0) for p, position in self._positions.items() if p in ends},
                tasks=len(tasks),
                phases={name: round((to - since) * 1000) for name, (since, to) in moments.items()},
            )
        )
        return ownership, True

    def _pause(self, available: Mapping[TopicPartition, Range], now: float, *, available_now: bool) -> float:
        """Seconds to wait before these offsets are looked at again; not above 0: the batch may start."""
        configured, most = self._options.trigger_interval_ms, self._options.max_offsets_per_batch
        if configured is not None:
            return self._batch_started + configured / 1000 - now
        if available_now or (most is not None and sum(span.size for span in available.values()) >= most):
            return 0.0
        left = self._batch_started + self._sink.default_trigger_interval_ms / 1000 - now
        return min(left, self._options.poll_interval_ms / 1000)

    def _adopt(self, ownership: Ownership) -> None:
        """Forget the positions of what is not owned any more and find those of what is new."""
        before = self._adopted
        if before is not None and before.epoch == ownership.epoch and ownership.partitions <= self._positions.keys():
            return
        # Two changes since the last look, or a new member id, may hide that a partition was gone in between.
        continuous = (
            before is not None
            and ownership.epoch - before.epoch <= 1
            and ownership.member_id == before.member_id
            and not ownership.lost & self._positions.keys()
        )
        kept = {p: at for p, at in self._positions.items() if continuous and p in ownership.partitions}
        new = ownership.partitions - kept.keys()
        self._reporter.owns(ownership, self._member.assignor)
        found, untold = self._starting_points.find(sorted(new), self._owner(ownership))
        self._positions = {**kept, **found}
        self._targets = {p: end for p, end in self._targets.items() if p in ownership.partitions}
        self._adopted = ownership
        if untold:
            self._tell_group({p: found[p] for p in untold}, ownership)

    def _tell_group(self, starts: dict[TopicPartition, int], ownership: Ownership) -> None:
        """Commit where partitions start, so that `latest` stays what it was and lag is right; no harm if it fails."""
        try:
            self._member.commit({p: OffsetAndMetadata(at) for p, at in starts.items()}, ownership)
        except ClientError as error:
            log.info("starting offsets not committed: %s", error)

    def _work(self, batch: Batch, tasks: Sequence[Sequence[Split]]) -> Outcome | None:
        """Run the batch; None if it was cancelled or its partitions went away while it ran."""
        self._watch.begin(batch)
        try:
            outcome = self._runner.run(batch, tasks, self._sink)
        except Exception:
            if self._watch.end() is None:
                raise
            self._sink.abort(None, batch)
            return None
        reason = self._watch.end()
        if reason is None:
            reason = cancel_reason(batch, self._member.ownership(), float("-inf"), self._margin)
            if reason is not None:
                log.warning("the results of batch %d are dropped: %s", batch.number, reason)
        if reason is None:
            return outcome
        self._sink.abort(outcome.staged, batch)
        return None

    def _sink_commit(self, batch: Batch, outcome: Outcome) -> bool:
        try:
            self._sink.commit(outcome.staged, batch)
        except SinkFencedError as error:
            log.warning("batch %d is fenced by the sink: %s", batch.number, error)
            return False
        return True

    def _group_commit(self, batch: Batch, ownership: Ownership) -> None:
        """Commit the batch's offsets under the ownership it was planned with, as long as its partitions are held."""
        offsets = {p: OffsetAndMetadata(at) for p, at in batch.next_offsets.items()}
        give_up = None
        while offsets:
            try:
                self._member.commit(offsets, ownership)
                return
            except CommitFenced as error:
                fenced = error.partitions & offsets.keys() or frozenset(offsets)
                log.warning("offsets of %d partitions are not committed: %s", len(fenced), error)
                self._drop(fenced)
                offsets = {p: at for p, at in offsets.items() if p not in fenced}
            except ClientError as error:
                if not error.retriable:
                    raise
                now = time.monotonic()
                give_up = give_up or now + _GIVE_UP
                current = self._member.ownership()
                reason = cancel_reason(batch, current, now, 0.0)
                if reason is None and self._stopping and now >= give_up:
                    reason = "the pipeline is stopping"
                if reason is not None:
                    log.warning("offsets of batch %d are not committed: %s (%s)", batch.number, error, reason)
                    self._forget(batch)
                    return
                self._member.wait(current.epoch, _RETRY)

    def _forget(self, batch: Batch) -> None:
        self._drop(batch.ranges.keys())

    def _drop(self, partitions: Any) -> None:
        """The positions of these partitions are in doubt: they are found anew if they are still owned."""
        self._positions = {p: at for p, at in self._positions.items() if p not in partitions}

    def _is_done(self, ownership: Ownership) -> bool:
        """Nothing left of what was there; an empty share is believed after a heartbeat without change."""
        if ownership.generation < 0 or ownership.revoking:
            return False
        if not ownership.partitions:
            epoch = ownership.epoch
            settled = time.monotonic() + self._options.heartbeat_interval_ms / 1000
            while not self._stopping and (left := settled - time.monotonic()) > 0:
                if self._member.wait(epoch, min(left, _SLICE)).epoch != epoch:
                    return False
        return self._member.ownership().epoch == ownership.epoch

    def _note_no_topics(self) -> None:
        if not isinstance(self._options.topics, tuple) and not self._member.topics():
            self._reporter.line("no topic matches", logging.WARNING, pattern=self._options.topics.pattern)

    def _idle(self, seconds: float, ownership: Ownership) -> None:
        """Wait for a change of ownership, `stop`, or the time to pass."""
        until = time.monotonic() + seconds
        while not self._stopping and (left := until - time.monotonic()) > 0:
            if self._member.wait(ownership.epoch, min(left, _SLICE)).epoch != ownership.epoch:
                return

    def _owner(self, ownership: Ownership) -> Owner:
        return Owner(self._options.group, ownership.generation, ownership.member_id)

    def _report(self, progress: Progress) -> None:
        self.last_progress = progress
        log.debug("%s", progress)
        self._reporter.progress(progress)
        if self._on_progress is not None:
            self._on_progress(progress)
