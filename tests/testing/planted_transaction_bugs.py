"""Defects of transactions, planted in the same way as those of groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from roster.coordinator import offset_commit, offset_fetch, records
from roster.coordinator.group import Group
from roster.transactions import TransactionCoordinator, WriteMarkers, coordinator, metadata
from roster.transactions.events import TimerKind, TimerName
from roster.transactions.runtime import COORDINATOR_EPOCH, Runtime
from roster.transactions.states import TransactionState
from roster.wire import ErrorCode
from tests.testing.planted_bugs import AT_REST, READ, PlantedBug, instead, wrapped

TWICE = "no output is committed twice"
TOGETHER = "offsets and outputs together or not at all"
ENDS = "a transaction ends in time"
ANSWERED_END = "an answered end is durable"
MARKER = "a marker follows a durable decision"
FENCED_WRITE = "no write of a fenced producer is accepted"
NEW_INSTANCE = "a new instance fences the one before"
FINAL = "a decision is final"
ABORTED = "no aborted transaction is visible"


def two_instances_have_one_epoch(patch: pytest.MonkeyPatch) -> None:
    initialize = metadata.initialize

    def same(before: Any, *more: Any) -> Any:
        following = initialize(before, *more)
        if isinstance(following, ErrorCode) or following.producer_id != before.producer_id:
            return following
        return replace(following, producer_epoch=max(before.producer_epoch, 0))

    patch.setattr(metadata, "initialize", same)


def end_answered_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    store = Runtime.store

    def early(self: Runtime, transaction: Any, following: Any, then: Any) -> None:
        is_end = following.state.is_prepared
        store(self, transaction, following, (lambda _: None) if is_end else then)
        if is_end:
            then(ErrorCode.NONE)

    patch.setattr(Runtime, "store", early)


def markers_written_before_the_decision(patch: pytest.MonkeyPatch) -> None:
    store = Runtime.store

    def early(self: Runtime, transaction: Any, following: Any, then: Any) -> None:
        store(self, transaction, following, then)
        if following.state.is_prepared:
            commit = following.state is TransactionState.PREPARE_COMMIT
            producer = (following.producer_id, following.producer_epoch)
            self._effects.markers.append(WriteMarkers("", *producer, commit, following.partitions, COORDINATOR_EPOCH))

    patch.setattr(Runtime, "store", early)


def decided_transactions_forgotten_at_a_reload(patch: pytest.MonkeyPatch) -> None:
    load = TransactionCoordinator._load

    def forgetful(*arguments: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Runtime, "write_markers", lambda *_: None)
            load(*arguments)

    patch.setattr(TransactionCoordinator, "_load", forgetful)


def transactions_do_not_time_out(patch: pytest.MonkeyPatch) -> None:
    expired = TransactionCoordinator._timer_expired

    def patient(self: TransactionCoordinator, name: TimerName) -> None:
        if name.kind is not TimerKind.TRANSACTION_TIMEOUT:
            expired(self, name)

    patch.setattr(TransactionCoordinator, "_timer_expired", patient)


def epochs_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    add = coordinator.add_or_verify

    def trusting(rt: Runtime, event: Any) -> None:
        found = rt.transactions.get(event.transactional_id)
        add(rt, event if found is None else replace(event, producer_epoch=found.current.producer_epoch))

    patch.setattr(coordinator, "add_or_verify", trusting)


def generation_of_offsets_not_looked_at(validate: Any) -> Any:
    def overlooking(*arguments: Any) -> ErrorCode:
        found: ErrorCode = validate(*arguments)
        refusals = (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)
        return ErrorCode.NONE if found in refusals else found

    return overlooking


def aborted_offsets_count(end: Any) -> Any:
    return lambda self, producer_id, committed: end(self, producer_id, committed=True)


TRANSACTION_BUGS = [
    PlantedBug("give two instances one epoch", (FENCED_WRITE, TWICE, TOGETHER), 55, two_instances_have_one_epoch),
    PlantedBug("answer EndTxn before the decision is durable", (ANSWERED_END,), 4, end_answered_before_it_is_durable),
    PlantedBug("write markers before the decision is durable", (MARKER,), 4, markers_written_before_the_decision),
    PlantedBug(
        "show offsets of undecided transactions as stable",
        (TWICE, TOGETHER),
        35,
        instead(offset_fetch, "mark_unstable", lambda *_: None),
    ),
    PlantedBug(
        "forget offsets of undecided transactions at a reload",
        (TWICE, TOGETHER),
        4,
        instead(records.Replay, "_apply_pending", lambda *_: None),
    ),
    PlantedBug(
        "forget decided transactions at a reload", (ENDS, AT_REST), 43, decided_transactions_forgotten_at_a_reload
    ),
    PlantedBug("let transactions stay open for ever", (ENDS,), 137, transactions_do_not_time_out),
    PlantedBug("add partitions for any epoch", (FENCED_WRITE, TWICE, TOGETHER), 21, epochs_not_looked_at),
    PlantedBug(
        "accept offsets of a transaction from any generation",
        (TWICE, TOGETHER),
        42,
        wrapped(offset_commit, "validate_in_transaction", generation_of_offsets_not_looked_at),
    ),
    PlantedBug(
        "count the offsets of an aborted transaction",
        (READ, TWICE, TOGETHER),
        14,
        wrapped(Group, "end_transaction", aborted_offsets_count),
    ),
]
