"""Cancels the running batch when its partitions are lost, the revoke deadline comes, or Spark makes no progress."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from roster.client import GroupMember, Ownership
from roster.pipeline.batch import Batch

log = logging.getLogger("roster.spark")

_TICK = 0.5  # seconds between two checks while ownership does not change
OUTLASTS = "it would outlast the rebalance timeout"
_LOOKS = 20  # checks of a batch's progress within the stall timeout


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
