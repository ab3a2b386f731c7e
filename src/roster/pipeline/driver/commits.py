"""Commits of results and offsets, retried while their partitions are owned."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from roster.client import ClientError, CommitFenced, GroupMember, OffsetAndMetadata, Ownership
from roster.model import TopicPartition
from roster.pipeline.batch import Batch, Owner
from roster.pipeline.batch_sink import BatchSink
from roster.pipeline.driver.batch_guard import cancel_reason
from roster.pipeline.driver.runner_protocol import BetweenBatches, Outcome
from roster.pipeline.driver.switching import Unswitched
from roster.pipeline.errors import SinkFencedError

log = logging.getLogger("roster.spark")

RETRY_SECONDS = 0.2
_GIVE_UP_SECONDS = 10.0
"""Time for which a stopping pipeline retries the commit of its last batch."""


class Commits:
    """Commits in the sink and in the group, and records them; call all methods on the pipeline's thread."""

    def __init__(
        self,
        member: GroupMember,
        sink: BatchSink,
        stores: BetweenBatches,
        switching: Unswitched,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._member, self._sink, self._stores = member, sink, stores
        self._switching, self._is_stopping = switching, is_stopping
        self._committed = stores.done

    def abort(self, written: object, batch: Batch) -> None:
        """Undo a batch; `written` is what its tasks have returned, None if they did not end."""
        self._stores.aborted(batch)
        self._sink.abort(written, batch)

    def group_offsets(
        self, offsets: Mapping[TopicPartition, int], owner: Owner
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what the group gets for these next offsets, with the sink's claim and the standing in a switch."""
        texts = self._switching.with_standings(offsets, self._sink.offset_metadata(owner))
        return {p: OffsetAndMetadata(offset, metadata=texts[p]) for p, offset in offsets.items()}

    def drop_positions(self, partitions: Collection[TopicPartition]) -> None:
        """Forget positions in doubt; those of partitions still owned are looked up again."""
        positions = self._committed.positions
        self._committed.positions = {p: offset for p, offset in positions.items() if p not in partitions}

    def commit_results(self, batch: Batch, outcome: Outcome, ownership: Ownership) -> bool:
        """Commit a batch in the sink; return False if it is fenced or its partitions are lost.

        Raises RefusedRowsError, the sink's own errors, and ClientError if it cannot be committed at all.
        """
        log_ends: Mapping[TopicPartition, int] | None
        if self._sink.commits_offsets:
            log_ends = self._commit_with_offsets(batch, outcome, ownership)
        elif reason := cancel_reason(batch, self._member.ownership(), float("-inf"), 0.0):
            log.warning("batch %d is not committed: %s", batch.number, reason)
            self.abort(outcome.written, batch)
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
        self._committed.positions.update(batch.next_offsets)
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
                    self.abort(outcome.written, batch)
                    raise
                give_up = give_up or now + _GIVE_UP_SECONDS
                if not self._is_stopping() or now < give_up:
                    self._member.wait(current.epoch, RETRY_SECONDS)
                    continue
                reason = f"the pipeline is stopping ({error})"
            log.warning("batch %d is not committed: %s", batch.number, reason)
            self.abort(outcome.written, batch)
            return None

    def commit_offsets(self, batch: Batch, ownership: Ownership) -> None:
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
