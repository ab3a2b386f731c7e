"""Watches group and Spark while a batch runs: cancels it when its partitions are lost, it is late, or it stalls."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from roster.client import Ownership
from roster.spark.batch import Batch
from roster.spark.member_protocol import Membership

log = logging.getLogger(__name__)

_TICK = 0.5  # seconds between looks when nothing changes
_LOOKS = 20  # at a batch's progress within its patience


def cancel_reason(batch: Batch, ownership: Ownership, now: float, margin: float) -> str | None:
    """Why the batch must not go on, None if it may. `now` and `margin` are monotonic seconds.

    A batch must be over `margin` before the deadline: the time it takes to cancel it and say so.
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
        return "it would outlast the rebalance timeout"
    return None


class BatchGuard:
    """A thread that holds each batch against the member's ownership."""

    def __init__(
        self,
        member: Membership,
        cancel: Callable[[], None],
        margin: float,
        *,
        activity: Callable[[], object] = lambda: None,
        patience: float = float("inf"),
    ) -> None:
        """`cancel` ends the running batch's jobs, is thread-safe and may be called again.

        A batch whose `activity` stays the same for `patience` seconds is cancelled and the group is left at once, so
        that others can do the work even if the cancel takes its time; `stalled` then says so.
        """
        self._member, self._cancel, self._margin = member, cancel, margin
        self._activity, self._patience = activity, patience
        self._seen: tuple[object, float] | None = None
        self._looked = float("-inf")
        self.stalled: str | None = None
        self._lock = threading.Lock()
        self._batch: Batch | None = None
        self._reason: str | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="roster-watch", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def begin(self, batch: Batch) -> None:
        """A batch is starting."""
        with self._lock:
            self._batch, self._reason = batch, None
            self._seen, self._looked = None, float("-inf")

    def end(self) -> str | None:
        """The batch is over; returns why it was cancelled, None if it was not."""
        with self._lock:
            self._batch = None
            return self._reason

    def cancel(self, reason: str) -> None:
        """Cancel the running batch, if there is one."""
        with self._lock:
            if self._batch is not None and self._reason is None:
                log.warning("batch %d is cancelled: %s", self._batch.number, reason)
                self._reason = reason
            if self._batch is not None:
                self._cancel()

    def look(self, ownership: Ownership, now: float) -> None:
        """Hold the running batch against an ownership; cancels again while it lasts (it may start further jobs)."""
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
        """Why the batch is taken to stand still, None if it gets on."""
        if now - self._looked < self._patience / _LOOKS:
            return None
        self._looked = now
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
        """Stop watching; the thread ends within a tick."""
        self._closed.set()

    def _run(self) -> None:
        epoch, timeout = -1, _TICK
        while not self._closed.is_set():
            if self.stalled is not None:
                self._closed.wait(_TICK)  # a closed member's `wait` returns at once
            try:
                ownership = self._member.wait(epoch, timeout)
                self.look(ownership, time.monotonic())
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
