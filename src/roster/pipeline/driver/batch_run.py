"""A planned batch: it runs while its partitions are watched, and its results and offsets are committed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from roster.client import ClientError, CommitFenced, GroupMember, OffsetAndMetadata, Ownership
from roster.model import TopicPartition
from roster.pipeline.batch import Batch, Owner, Split
from roster.pipeline.batch_sink import BatchSink
from roster.pipeline.driver.batch_size import Pace
from roster.pipeline.driver.runner_protocol import BetweenBatches, Outcome, Refused, Runner
from roster.pipeline.driver.switching import Unswitched
from roster.pipeline.errors import MissingSchemasError, RefusedRowsError, SinkFencedError

log = logging.getLogger("roster.spark")

RETRY_SECONDS = 0.2
_GIVE_UP_SECONDS = 10.0
"""Time for which a stopping pipeline retries the commit of its last batch."""
_TICK = 0.5  # seconds between two checks while ownership does not change
OUTLASTS = "it would outlast the rebalance timeout"
_LOOKS = 20  # checks of a batch's progress within the stall timeout


@dataclass(slots=True)
class BatchTimer:
    """Times of one batch: when it began, in monotonic seconds and in wall-clock ns, and the ms of each phase."""

    begun: float
    started_ns: int
    phases: dict[str, int] = field(default_factory=dict)
    duration_ms: int = 0
    """From the start to the last lap."""
    _lapped: float | None = None

    def lap(self, phase: str) -> None:
        """Record the milliseconds since the last lap."""
        before, self._lapped = self.begun if self._lapped is None else self._lapped, time.monotonic()
        self.phases[phase] = round((self._lapped - before) * 1000)
        self.duration_ms = round((self._lapped - self.begun) * 1000)


class BatchRuns:
    """Runs batches, and commits them in the sink and in the group; call all methods on the pipeline's thread."""

    def __init__(
        self,
        member: GroupMember,
        runner: Runner,
        sink: BatchSink,
        stores: BetweenBatches,
        switching: Unswitched,
        guard: BatchGuard,
        pace: Pace,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._member, self._runner, self._sink, self._stores = member, runner, sink, stores
        self._switching, self._guard, self._pace, self._is_stopping = switching, guard, pace, is_stopping
        self._committed = stores.done

    def run(
        self, batch: Batch, tasks: Sequence[Sequence[Split]], ownership: Ownership, timer: BatchTimer
    ) -> Outcome | None:
        """Run a batch, and commit it in the sink and then in the group; return None if it does not count."""
        if self._sink.commits_offsets:
            ends = {partition: span.end for partition, span in batch.ranges.items()}
            batch = replace(batch, group_offsets=self.group_offsets(ends, batch.owner))
        timer.lap("plan")
        refused: list[Mapping[int, Mapping[int, str]]] = []
        while True:
            outcome = self._guarded(batch, tasks, refused)
            timer.lap("work")
            try:
                is_committed = outcome is not None and self._commit_results(batch, outcome, ownership)
                break
            except RefusedRowsError as error:
                log.warning("batch %d is done again without bad rows: %s", batch.number, error)
                refused.append(error.rows)
        if outcome is None or not is_committed:
            self.drop_positions(batch.ranges.keys())
            return None
        timer.lap("transaction" if self._sink.commits_offsets else "sink")
        if not self._sink.commits_offsets:
            self._commit_offsets(batch, ownership)
            timer.lap("group")
        if taken_over := self._switching.restrictions.taking_over & batch.ranges.keys():
            self._switching.count_batch(taken_over)
        self._pace.done(batch, timer.duration_ms / 1000)
        return outcome

    def _guarded(self, batch: Batch, tasks: Sequence[Sequence[Split]], refused: Refused) -> Outcome | None:
        """Run the batch; return None if it was cancelled."""
        self._guard.begin(batch)
        try:
            outcome = self._runner.run(batch, tasks, self._sink, refused)
        except Exception as error:
            reason = self._guard.end()
            if reason is None and isinstance(error, SinkFencedError):
                log.warning("batch %d is fenced by the sink: %s", batch.number, error)
            elif reason is None and isinstance(error, MissingSchemasError):
                log.info("batch %d is done again, with schemas that were not known: %s", batch.number, error.keys)
            elif reason is None:
                raise
            if reason == OUTLASTS or self._guard.stalled is not None:
                self._pace.cancelled(batch)
            self._abort(None, batch)
            return None
        if self._guard.end() is None:
            return outcome
        self._abort(outcome.written, batch)
        return None

    def _commit_results(self, batch: Batch, outcome: Outcome, ownership: Ownership) -> bool:
        """Commit a batch in the sink; return False if it is fenced or its partitions are lost.

        Raises RefusedRowsError, the sink's own errors, and ClientError if it cannot be committed at all.
        """
        log_ends: Mapping[TopicPartition, int] | None
        if self._sink.commits_offsets:
            log_ends = self._commit_with_offsets(batch, outcome, ownership)
        elif reason := cancel_reason(batch, self._member.ownership(), float("-inf"), 0.0):
            log.warning("batch %d is not committed: %s", batch.number, reason)
            self._abort(outcome.written, batch)
            return False
        else:
            try:
                log_ends = self._sink.commit_batch(outcome.written, batch)
            except SinkFencedError as error:
                log.warning("batch %d is fenced by the sink: %s", batch.number, error)
                return False
        if log_ends is None:
            return False
        self._stores.committed(batch, outcome, log_ends)
        self._committed.positions.update((partition, span.end) for partition, span in batch.ranges.items())
        return True

    def _commit_with_offsets(
        self, batch: Batch, outcome: Outcome, ownership: Ownership
    ) -> Mapping[TopicPartition, int] | None:
        """Commit results and offsets in one atomic step of the sink; return as `commit_batch`, None if it is fenced."""
        give_up = None
        while True:
            current, now = self._member.ownership(), time.monotonic()
            reason = cancel_reason(batch, current, now, 0.0)
            try:
                if reason is None:
                    generation, member_id = self._member.confirm(batch.ranges.keys(), ownership)
                    owner = Owner(batch.owner.group, generation, member_id)
                    if owner != batch.owner:
                        offsets = self.group_offsets(batch.next_offsets, owner)
                        batch = replace(batch, owner=owner, group_offsets=offsets)
                    return self._sink.commit_batch(outcome.written, batch)
            except (SinkFencedError, CommitFenced) as error:
                reason = str(error)
            except ClientError as error:
                if not error.retriable:
                    self._abort(outcome.written, batch)
                    raise
                give_up = give_up or now + _GIVE_UP_SECONDS
                if not self._is_stopping() or now < give_up:
                    self._member.wait(current.epoch, RETRY_SECONDS)
                    continue
                reason = f"the pipeline is stopping ({error})"
            log.warning("batch %d is not committed: %s", batch.number, reason)
            self._abort(outcome.written, batch)
            return None

    def _commit_offsets(self, batch: Batch, ownership: Ownership) -> None:
        """Commit a batch's offsets in the group, under the ownership it was planned with. Raises ClientError.

        Positions in doubt are dropped.
        """
        offsets = self.group_offsets(batch.next_offsets, batch.owner)
        give_up = None
        while offsets:
            try:
                self._member.commit(offsets, ownership)
                break
            except CommitFenced as error:
                fenced = error.partitions & offsets.keys() or frozenset(offsets)
                log.warning("offsets of %d partitions are not committed: %s", len(fenced), error)
                self.drop_positions(fenced)
                offsets = {p: offset for p, offset in offsets.items() if p not in fenced}
            except ClientError as error:
                if not error.retriable:
                    raise
                now = time.monotonic()
                give_up = give_up or now + _GIVE_UP_SECONDS
                current = self._member.ownership()
                reason = cancel_reason(batch, current, now, 0.0)
                if reason is None and self._is_stopping() and now >= give_up:
                    reason = "the pipeline is stopping"
                if reason is not None:
                    log.warning("offsets of batch %d are not committed: %s (%s)", batch.number, error, reason)
                    self.drop_positions(batch.ranges.keys())
                    return
                self._member.wait(current.epoch, RETRY_SECONDS)

    def _abort(self, written: object, batch: Batch) -> None:
        """Undo a batch; `written` is what its tasks have returned, None if they did not end."""
        self._stores.aborted(batch)
        self._sink.abort(written, batch)

    def group_offsets(
        self, offsets: Mapping[TopicPartition, int], owner: Owner
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what the group gets for these next offsets, with the sink's claim and the standing in a switch."""
        metadata = self._sink.offset_metadata(owner)
        texts = self._switching.with_standings(offsets, metadata) if self._switching.is_on else {}
        return {p: OffsetAndMetadata(offset, metadata=texts.get(p, metadata)) for p, offset in offsets.items()}

    def drop_positions(self, partitions: Collection[TopicPartition]) -> None:
        """Forget positions in doubt; those of partitions still owned are looked up again."""
        positions = self._committed.positions
        self._committed.positions = {p: offset for p, offset in positions.items() if p not in partitions}

    def commit_without_batch(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], ownership: Ownership, *, is_needed: bool = True
    ) -> None:
        """Commit offsets without a batch, and drop the positions if that fails: they must not be processed.

        Starting offsets are committed so that `latest` keeps its meaning and lag is known; only where the commit
        `is_needed` does a failure count. Raises ClientError for one that a retry does not mend.
        """
        try:
            self._member.commit(offsets, ownership)
        except ClientError as error:
            log.info("offsets not committed: %s", error)
            if is_needed and not error.retriable and not isinstance(error, CommitFenced):
                raise
            if is_needed:
                self.drop_positions(offsets.keys())


def cancel_reason(batch: Batch, ownership: Ownership, now: float, margin: float) -> str | None:
    """Return why the batch must be cancelled, None if it need not be. `now` is monotonic seconds.

    `margin` is how many seconds before the revoke deadline to cancel: the time that cancelling and releasing take.
    """
    if ownership.error is not None:
        return f"the member failed: {ownership.error}"
    if ownership.member_id != batch.owner.member_id:
        return "the group does not know this member any more"
    gone = batch.ranges.keys() - ownership.partitions - ownership.revoking
    if gone:
        return f"{len(gone)} of its partitions were lost, among them {min(gone)}"
    late = ownership.revoke_deadline is not None and now >= ownership.revoke_deadline - margin
    if late and not ownership.revoking.isdisjoint(batch.ranges.keys()):
        return OUTLASTS
    return None


class BatchGuard:
    """A thread that checks the running batch against the member's ownership and Spark's progress."""

    def __init__(
        self,
        member: GroupMember,
        cancel: Callable[[], None],
        margin: float,
        *,
        activity: Callable[[], object] = lambda: None,
        patience: float = float("inf"),
    ) -> None:
        """`cancel` cancels the running batch's jobs; it is thread-safe and idempotent.

        If `activity` returns the same value for `patience` seconds, the batch is cancelled and the member leaves the
        group at once, so that other members take over even if cancelling takes long. `stalled` then has the reason.
        """
        self._member, self._cancel, self._margin = member, cancel, margin
        self._activity, self._patience = activity, patience
        self._seen: tuple[object, float] | None = None
        self._checked_at = float("-inf")
        self.stalled: str | None = None
        self._lock = threading.Lock()
        self._batch: Batch | None = None
        self._reason: str | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="roster-batch-guard", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def begin(self, batch: Batch) -> None:
        """Start guarding a batch."""
        with self._lock:
            self._batch, self._reason = batch, None
            self._seen, self._checked_at = None, float("-inf")

    def end(self) -> str | None:
        """Stop guarding the batch; return why it was cancelled, None if it was not."""
        with self._lock:
            self._batch = None
            return self._reason

    def cancel(self, reason: str) -> None:
        """Cancel the batch, if one is running."""
        with self._lock:
            if self._batch is not None and self._reason is None:
                log.warning("batch %d is cancelled: %s", self._batch.number, reason)
                self._reason = reason
            if self._batch is not None:
                self._cancel()

    def check(self, ownership: Ownership, now: float) -> None:
        """Check the running batch; cancel it again as long as it runs, as it may start further jobs."""
        with self._lock:
            batch, reason = self._batch, self._reason
        if batch is not None:
            stall = self._stall(now)
            reason = reason or cancel_reason(batch, ownership, now, self._margin) or stall
            if reason is not None:
                self.cancel(reason)
            if stall is not None and self._is_cancelled():
                self.stalled = stall
                self._member.close()

    def _stall(self, now: float) -> str | None:
        """Return why the batch counts as stalled, None if it makes progress."""
        if now - self._checked_at < self._patience / _LOOKS:
            return None
        self._checked_at = now
        activity = self._activity()
        if self._seen is None or self._seen[0] != activity:
            self._seen = activity, now
        if now - self._seen[1] < self._patience:
            return None
        return (
            f"no task of the batch has finished for {self._patience:g} s (max_batch_ms): "
            "Spark has no executor for it, or a task takes longer than that"
        )

    def _is_cancelled(self) -> bool:
        with self._lock:
            return self._batch is not None and self._reason is not None

    def close(self) -> None:
        """Stop the thread; it ends within 0.5 s."""
        self._closed.set()

    def _run(self) -> None:
        epoch, timeout = -1, _TICK
        while not self._closed.is_set():
            if self.stalled is not None:
                self._closed.wait(_TICK)  # a closed member's `wait` returns at once
            try:
                ownership = self._member.wait(epoch, timeout)
                self.check(ownership, time.monotonic())
            except Exception:
                if self._closed.is_set():
                    return
                log.exception("watching the group failed; trying again")
                self._closed.wait(_TICK)
                continue
            epoch, timeout = ownership.epoch, _TICK
            if ownership.revoke_deadline is not None:
                left = ownership.revoke_deadline - self._margin - time.monotonic()
                timeout = min(_TICK, max(left, 0.05))
