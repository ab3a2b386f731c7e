"""The loop on the driver: micro-batches over the partitions assigned to the member.

One pass: ownership → positions of newly assigned partitions → log end offsets → ranges and tasks → run the batch →
commit in the sink → commit in the group. Revoked partitions are released between two passes, when no batch is running.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from roster.client import ClientError, ClosedError, GroupMember, OffsetAndMetadata, Ownership
from roster.client.arrivals import MOST_WATCHED
from roster.model import TopicPartition
from roster.model.offsets import Arrival
from roster.model.switch import Results
from roster.pipeline.batch import Batch, Owner, Progress, Range, Split
from roster.pipeline.batch_sink import BatchSink
from roster.pipeline.driver import offset_ranges
from roster.pipeline.driver.batch_run import RETRY_SECONDS, BatchGuard, BatchRuns, BatchTimer
from roster.pipeline.driver.batch_size import BatchSize, Pace
from roster.pipeline.driver.offset_ranges import StartingPositions, Targets
from roster.pipeline.driver.reporting import Reporter
from roster.pipeline.driver.runner_protocol import SHORTEST_RESTORE, BetweenBatches, Runner
from roster.pipeline.driver.switching import Unswitched
from roster.pipeline.options import Options

log = logging.getLogger("roster.spark")

STOP_CHECK_SECONDS = 0.2
"""Time between two looks at `stop` while waiting."""
_SHORT_PAUSE = 1.0  # seconds
_LOOKS_APART = 9
"""Where brokers do not tell of records: a look for them costs a tenth of the time, or less of a second."""
_UNASKED = 0.6
"""Part of a batch's time in which the next one is not fetched: each answer with a record or two costs as much."""
_MOST_UNASKED = 0.05  # seconds, as the next batch may be a short one
_RUNNER_INTERVAL = 0.1
"""Seconds between two looks at whether a batch can run, which costs a small one much."""
_LOOK_INTERVAL = 3.0
"""Seconds between two looks at what a sink writes to while there is nothing to read."""


def pace_of(options: Options) -> Pace:
    """Make the pace of batches that end near `target_batch_ms`, and well inside the rebalance timeout."""
    longest = options.settings.rebalance_timeout_ms / 3000
    return Pace(BatchSize(options.max_offsets_per_batch, min(options.target_batch_ms / 1000, longest), longest))


class DriverLoop:
    """Micro-batches of one group member, on the caller's thread."""

    def __init__(
        self,
        member: GroupMember,
        runner: Runner,
        sink: BatchSink,
        options: Options,
        on_progress: Sequence[Callable[[Progress], object]] = (),
        guard: BatchGuard | None = None,
        reporter: Reporter | None = None,
        first_batch: int = 0,
        pace: Pace | None = None,
        between_batches: BetweenBatches | None = None,
        switching: Unswitched | None = None,
    ) -> None:
        """on_progress: are called with each committed batch. pace: what earlier loops of the same run learned."""
        self._member, self._runner, self._sink, self._options = member, runner, sink, options
        self._on_progress, self._stores = on_progress, between_batches or BetweenBatches()
        self._committed = self._stores.done
        self._committed.positions = {}
        self._switching = switching or Unswitched()
        self._reporter = reporter or Reporter(options.group)
        self._starting_positions = StartingPositions(member, sink, options, self._reporter)
        self._targets = Targets(options.topics, self._stores.log_ends)
        margin = min(5.0, options.settings.rebalance_timeout_ms / 10_000)
        patience = options.max_batch_ms / 1000
        self._guard = guard or BatchGuard(member, runner.cancel, margin, activity=runner.activity, patience=patience)
        self._poll_seconds = options.tuning.poll_interval_ms / 1000
        self._ends: Mapping[TopicPartition, int] = {}
        """The log end offsets at the last look."""
        self._ends_asked_at = float("-inf")
        """When they were asked for; below, what brokers have sent since."""
        self._arrivals: Mapping[TopicPartition, Sequence[Arrival]] = {}
        self._adopted: Ownership | None = None
        self._stopping = False
        self.batches = first_batch
        """The next batch's number."""
        self.passes = 0
        """Passes that have begun: what is committed in one is reported before the next."""
        self._pace = pace or pace_of(options)
        parts = member, runner, sink, self._stores, self._switching, self._guard, self._pace
        self._runs = BatchRuns(*parts, lambda: self._stopping)
        self._batch_started = self._runner_checked_at = float("-inf")
        self._sink_checked_at = time.monotonic()
        self._asking_seconds = 0.0
        """How long asking for the log ends took last."""
        self.last_progress: Progress | None = None

    def stop(self, *, now: bool = False) -> None:
        """End after the running batch, or with `now` cancel it uncommitted. Thread- and signal-safe."""
        self._stopping = True
        if now:
            self._guard.cancel("the pipeline was told to stop at once")

    @property
    def stalled(self) -> str | None:
        """Reason if a batch counted as stalled and the group was left, else None."""
        return self._guard.stalled

    def run(self, *, available_now: bool) -> None:
        """Run batches until stopped or stalled or, with `available_now`, up to the log end offsets at the assignment.

        The member must have been started; it is closed here only if a batch stalls. Raises PipelineError and
        ClientError if the run cannot go on, and what a function, a task or the sink raised.
        """
        self._starting_positions.note_topics()
        interval = self._sink.default_trigger_interval_ms or 0
        if self._options.trigger_interval_ms is None and interval > 1_000 and not available_now:
            self._reporter.line(
                "small batches start apart, the sink's default; trigger_interval_ms changes it",
                seconds=interval / 1000,
                sink=type(self._sink).__name__,
            )
        batches = self.batches
        self._guard.start()
        try:
            while not self._stopping and self.stalled is None:
                self.passes += 1
                if self.batches == batches:  # else the report of the last one has
                    self._reporter.tick()
                batches = self.batches
                if (now := time.monotonic()) >= self._runner_checked_at + _RUNNER_INTERVAL:
                    self._runner.check()
                    self._runner_checked_at = now
                try:
                    ownership, worked = self._pass(available_now=available_now)
                except ClientError as error:
                    if isinstance(error, ClosedError) and self.stalled is not None:
                        return
                    if not error.retriable:
                        raise
                    log.warning("%s; trying again", error)
                    self._idle(RETRY_SECONDS, self._member.ownership())
                    continue
                if worked:
                    continue
                if available_now and self._is_done(ownership) and self._targets.are_reached(self._committed.positions):
                    self._note_nothing_read()
                    return
                self._check_sink()
                self._wait_for_records(self._poll_seconds, ownership)
        finally:
            self._guard.close()

    def _pass(self, *, available_now: bool) -> tuple[Ownership, bool]:
        """Do one pass; return the ownership it began with, and False if there was nothing to read."""
        ownership = self._member.ownership()
        if ownership.error is not None:
            raise ownership.error
        if ownership.revoking:
            self._member.release(ownership.revoking)
        self._adopt(ownership)
        self._switch(ownership)
        if not self._committed.positions:
            return ownership, self._restore_copies(ownership, available_now=available_now)
        timer = BatchTimer(time.monotonic(), time.time_ns())
        ends = self._ends = self._log_ends(available_now=available_now)
        available = self._available(ends, available_now=available_now)
        self._asking_seconds = time.monotonic() - timer.begun
        if not available:
            return ownership, self._restore_copies(ownership, available_now=available_now)
        most = self._pace.size.limit
        pause = self._seconds_to_wait(available, most, timer.begun, available_now=available_now)
        if pause > 0:
            self._ends_asked_at = float("-inf")  # more will have come by then
            if not self._restore_copies(ownership, pause, available_now=available_now):
                # A switch does not wait for the end of the pause.
                to_look = self._switching.next_look - time.monotonic()
                self._idle(min(pause, max(to_look, self._poll_seconds)), ownership)
            return ownership, True
        self._batch_started = timer.begun
        if left := self._skip_passed(available, ownership):
            self._run_batch(ownership, left, most, ends, timer)
        return ownership, True

    def _log_ends(self, *, available_now: bool) -> Mapping[TopicPartition, int]:
        """Return the log ends: as brokers told them with the records they sent, and asked for every so often."""
        positions = self._committed.positions
        self._arrivals = self._member.arrivals(positions)
        ends = {
            **self._ends,
            **{p: max(arrivals[-1].end, self._ends.get(p, 0)) for p, arrivals in self._arrivals.items()},
        }
        is_known = positions.keys() <= ends.keys()
        is_known = is_known and self._targets.own_topics.isdisjoint(partition.topic for partition in self._arrivals)
        is_told = bool(self._arrivals) or all(ends.get(p, offset) <= offset for p, offset in positions.items())
        age = time.monotonic() - self._ends_asked_at
        if is_known and is_told and not available_now and age < self._poll_seconds:
            return ends
        self._ends_asked_at = time.monotonic()
        return self._member.end_offsets(positions.keys())

    def _run_batch(
        self,
        ownership: Ownership,
        available: Mapping[TopicPartition, Range],
        most: int | None,
        ends: Mapping[TopicPartition, int],
        timer: BatchTimer,
    ) -> None:
        """Plan a batch, run it, and commit it in the sink and then in the group."""
        batch, tasks = self._plan_batch(ownership, available, most)
        outcome = self._runs.run(batch, tasks, ownership, timer)
        if outcome is None:
            self._reporter.abandoned()
            return
        self.batches += 1
        started_at = timer.started_ns // 1_000_000
        self._report(
            Progress(
                **outcome.figures(),
                group=batch.owner.group,
                member_id=batch.owner.member_id,
                generation=batch.owner.generation,
                batch=batch.number,
                started_at=started_at,
                duration_ms=timer.duration_ms,
                since_ms=None if self.last_progress is None else started_at - self.last_progress.started_at,
                ranges=batch.ranges,
                lag={p: max(ends[p] - position, 0) for p, position in self._committed.positions.items() if p in ends},
                tasks=len(tasks),
                phases=timer.phases,
            )
        )

    def _plan_batch(
        self, ownership: Ownership, available: Mapping[TopicPartition, Range], most: int | None
    ) -> tuple[Batch, Sequence[Sequence[Split]]]:
        """Return the next batch of what there is to read, and the splits of its tasks. most: of its offsets."""
        small = self._runner.most_offsets
        taking_over = self._switching.restrictions.taking_over
        if waiting := taking_over & available.keys():  # the only batch between the results of two groups
            available, most = {p: available[p] for p in waiting}, self._options.max_offsets_per_batch
        elif small is not None and self._sink.default_trigger_interval_ms is None and small < (most or small + 1):
            most = small
            if offset_ranges.total(available) > most:
                self._batch_started = float("-inf")  # the rest does not wait for the next interval
        if (suspects := self._pace.suspects) is not None:
            chosen = suspects.choose(frozenset(available))
            available = {p: span for p, span in available.items() if p in chosen}
        cores, least = self._options.tasks or self._runner.cores, self._options.tuning.min_offsets_per_task
        ranges, tasks = offset_ranges.planned(available, most, cores, least, is_whole=self._runner.whole_partitions)
        arrivals_read = [
            arrival
            for p, arrivals in self._arrivals.items()
            if p in ranges
            for arrival in arrivals
            if arrival.start < ranges[p].end
        ]
        batch = Batch(self.batches, self._owner(ownership), ranges, arrivals=arrivals_read)
        if self._options.trigger_interval_ms == 0 and self._runner.takes_arrivals:
            # The next batch is fetched meanwhile.
            following = self._fully_read({**self._committed.positions, **batch.next_offsets})
            seconds = self._options.target_batch_ms / 1000
            pause = 0.0 if self.last_progress is None else _UNASKED * self.last_progress.duration_ms / 1000
            self._member.watch(following, seconds, is_committed=self._is_committed, pause=min(pause, _MOST_UNASKED))
        return batch, tasks

    def _available(self, ends: Mapping[TopicPartition, int], *, available_now: bool) -> dict[TopicPartition, Range]:
        """Return what there is to read; with `available_now` up to the log end offset seen first.

        A range is empty if its task must run without records: for timers, or as it has had none for a time.
        """
        positions, restrictions = self._committed.positions, self._switching.restrictions
        behind = {p for p, offset in positions.items() if ends.get(p, offset) > offset}
        ends = self._targets.limit(ends) if available_now else dict(ends)
        bounds = {} if self._sink.bounds is None else self._sink.bounds(positions)
        for limits in (self._stores.until, restrictions.limits, bounds):
            ends |= {p: min(ends[p], limits[p]) for p in limits.keys() & ends.keys()}
        at_limit = {p for p, limit in restrictions.limits.items() if limit <= positions.get(p, 0)}
        held, due = self._stores.held_and_due(positions, behind, once=available_now)
        waiting = held | at_limit
        return {
            p: Range(offset, max(offset, ends[p]))
            for p, offset in positions.items()
            if p not in waiting and (ends[p] > offset or p in due)
        }

    def _restore_copies(self, ownership: Ownership, seconds: float = float("inf"), *, available_now: bool) -> bool:
        """Work on copies of state while no batch runs; return False if there was nothing to do.

        With `available_now` only on those that partitions wait for.
        """
        if ownership.generation < 0:
            return False
        if available_now and not self._stores.held(self._committed.positions):
            return False
        batch = Batch(self.batches, self._owner(ownership), {})
        self._guard.begin(batch)
        try:
            worked = self._runner.restore(min(seconds, max(self._poll_seconds, SHORTEST_RESTORE)))
        finally:
            self._guard.end()
        self._reporter.restoring(self._stores.restoring())
        return worked

    def _seconds_to_wait(
        self, available: Mapping[TopicPartition, Range], most: int | None, now: float, *, available_now: bool
    ) -> float:
        """Return the seconds to wait before the next look; 0 or less if the batch may start. most: of its offsets."""
        configured = self._options.trigger_interval_ms
        if not available.keys().isdisjoint(self._switching.restrictions.taking_over):
            return 0.0
        if configured is not None:
            return self._batch_started + configured / 1000 - now
        if available_now or (most is not None and sum(end - start for start, end in available.values()) >= most):
            return 0.0
        suggested = self._sink.default_trigger_interval_ms
        interval = self._pace.interval.seconds if suggested is None else suggested / 1000
        left = self._batch_started + interval - now
        # Polls again during a long pause, in case a full batch has accumulated.
        return left if left < _SHORT_PAUSE else min(left, self._poll_seconds)

    def _adopt(self, ownership: Ownership) -> None:
        """Drop the positions of partitions no longer owned and find those of newly assigned ones."""
        before, positions = self._adopted, self._committed.positions
        if before is not None and before.epoch == ownership.epoch and ownership.partitions <= positions.keys():
            return
        # Between two changes, or two member ids, another member may have owned a partition.
        continuous = (
            before is not None
            and ownership.epoch - before.epoch <= 1
            and ownership.member_id == before.member_id
            and not ownership.lost & positions.keys()
        )
        kept = {p: offset for p, offset in positions.items() if continuous and p in ownership.partitions}
        new = ownership.partitions - kept.keys()
        self._reporter.owns(ownership, self._member.assignor)
        owner = self._owner(ownership)
        if new and self._sink.commits_offsets:
            self._sink.take_over(new, owner)
        if new:
            self._stores.assigned(new)
        committed = self._member.committed(sorted(new)) if new else {}
        self._switching.assigned(committed)
        found, uncommitted = self._starting_positions.find(committed, owner)
        self._committed.positions = {**kept, **found}
        self._targets.adopt(ownership.partitions, new)
        if new:
            self._batch_started = float("-inf")  # newly assigned partitions may have a backlog: do not wait
        self._adopted = ownership
        starts = self._runs.group_offsets(found, owner)
        is_needed = any(start.metadata for start in starts.values())
        if starts := starts if is_needed else {p: starts[p] for p in uncommitted}:
            self._runs.commit_without_batch(starts, ownership, is_needed=is_needed)

    def _switch(self, ownership: Ownership) -> None:
        """Take the next steps of a switch between two groups, if there is one; see `roster.model.switch`."""
        positions = self._committed.positions
        is_whole = positions and ownership.partitions <= positions.keys()
        if time.monotonic() < self._switching.next_look or not is_whole:
            return
        ahead = () if self._sink.bounds is None else self._sink.bounds(positions)
        steps = self._switching.next_steps({p: offset for p, offset in positions.items() if p not in ahead})
        if not steps:
            self._reporter.paused(self._switching.results if self._switching.is_paused else "")
            return
        owner = self._owner(ownership)
        metadata = self._sink.offset_metadata(owner)
        offsets = {
            p: OffsetAndMetadata(positions[p], metadata=standing.added_to(metadata)) for p, standing in steps.items()
        }
        self._runs.commit_without_batch(offsets, ownership)
        positions = self._committed.positions
        taken = {p: standing for p, standing in steps.items() if p in positions}
        self._switching.record(taken)
        self._reporter.switched(taken, positions, max(map(self._switching.batches_between, taken), default=0))
        if begun := [p for p, standing in taken.items() if standing.results is Results.WRITES]:
            self._sink.claim(begun, owner, {p: positions[p] for p in begun})
            self._batch_started = float("-inf")  # they have waited long enough

    def _skip_passed(self, available: dict[TopicPartition, Range], ownership: Ownership) -> dict[TopicPartition, Range]:
        """Go on without reading where records lead to nothing, and return what is left to read."""
        if passed := available.keys() & self._switching.restrictions.passed_over:
            ends = {p: available[p].end for p in passed}
            self._runs.commit_without_batch(self._runs.group_offsets(ends, self._owner(ownership)), ownership)
            self._committed.positions |= {p: end for p, end in ends.items() if p in self._committed.positions}
            return {p: span for p, span in available.items() if p not in passed}
        return available

    def _is_done(self, ownership: Ownership) -> bool:
        """Return True if all that was available is read; an empty assignment must last for one heartbeat interval."""
        if ownership.generation < 0 or ownership.revoking:
            return False
        if not ownership.partitions:
            epoch = ownership.epoch
            settled = time.monotonic() + self._options.settings.heartbeat_interval_ms / 1000
            while not self._stopping and (left := settled - time.monotonic()) > 0:
                if self._member.wait(epoch, min(left, STOP_CHECK_SECONDS)).epoch != epoch:
                    return False
        return self._member.ownership().epoch == ownership.epoch

    def _check_sink(self) -> None:
        """Have the sink look at what it writes to, every few seconds."""
        now = time.monotonic()
        if now - self._sink_checked_at >= _LOOK_INTERVAL:
            self._sink_checked_at = now
            self._sink.check_target()

    def _note_nothing_read(self) -> None:
        """Log why no batch has run."""
        if self._committed.positions and self.last_progress is None:
            self._reporter.line("nothing is new: the group stands at the end of all partitions")
        if not isinstance(self._options.topics, tuple) and not self._member.topics():
            self._reporter.line("no topic matches", logging.WARNING, pattern=self._options.topics.pattern)

    def _idle(self, seconds: float, ownership: Ownership) -> None:
        """Wait for `seconds`, a change of ownership, or `stop`."""
        until = time.monotonic() + seconds
        while not self._stopping and (left := until - time.monotonic()) > 0:
            if self._member.wait(ownership.epoch, min(left, STOP_CHECK_SECONDS)).epoch != ownership.epoch:
                return

    def _wait_for_records(self, seconds: float, ownership: Ownership) -> None:
        """Wait for `seconds`, a change of ownership, `stop`, or new records in fully consumed partitions."""
        read = self._fully_read(self._committed.positions)
        if len(read) > MOST_WATCHED:
            seconds = max(seconds, min(_LOOKS_APART * self._asking_seconds, _SHORT_PAUSE))
        if self._stopping or not read or seconds > STOP_CHECK_SECONDS:
            self._idle(seconds, ownership)
            return
        self._member.wait_for_records(read, ownership.epoch, seconds, is_committed=self._is_committed)

    def _fully_read(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the positions of partitions that have no records left to read, as far as is known."""
        return {p: offset for p, offset in positions.items() if self._ends.get(p, offset) <= offset}

    @property
    def _is_committed(self) -> bool:
        return self._options.isolation_level == "read_committed"

    def _owner(self, ownership: Ownership) -> Owner:
        return Owner(self._options.group, ownership.generation, ownership.member_id)

    def _report(self, progress: Progress) -> None:
        self.last_progress = progress
        log.debug("%s", progress)
        self._reporter.progress(progress)
        for hear in self._on_progress:
            hear(progress)
