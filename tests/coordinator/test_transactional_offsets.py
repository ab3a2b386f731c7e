"""Offsets in transactions (KIP-98, KIP-447): pending until the marker, and decided alike after a restart."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.coordinator import Coordinator, CoordinatorConfig
from roster.coordinator.events import TransactionalRecord, TransactionEnd, TransactionEnded
from roster.coordinator_common import PartitionLoaded, PartitionLoading, RequestReceived, WriteCompleted
from roster.wire import ErrorCode
from roster.wire.messages import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest, TxnOffsetCommitRequest
from tests.examples_tried import examples

CONFIG = CoordinatorConfig(partitions=1)
GROUP, TOPIC = "g", "t"
PENDING = object()


class Log:
    """A coordinator with one partition, and the log that it writes."""

    def __init__(self) -> None:
        self.records: list = []
        self.token = 0
        self.start()

    def start(self) -> None:
        self.coordinator = Coordinator(CONFIG, lambda: "id")
        self.step(PartitionLoading(0))
        self.step(PartitionLoaded(0, tuple(self.records), 1))

    def step(self, event):
        effects = self.coordinator.step(event, 0)
        replies = list(effects.replies)
        for write in effects.writes:
            for key, value in write.records:
                self.records.append(
                    (key, value) if write.producer is None else TransactionalRecord(write.producer[0], key, value)
                )
            replies += self.step(WriteCompleted(write.id, 1))
        return replies

    def ask(self, message, version: int):
        self.token += 1
        (reply,) = self.step(RequestReceived(self.token, version, "c", "h", 1, message))
        return reply.message

    def commit(self, offset: int) -> None:
        partition = OffsetCommitRequest.Partition(partition_index=0, committed_offset=offset, committed_metadata="")
        topics = [OffsetCommitRequest.Topic(name=TOPIC, partitions=[partition])]
        told = self.ask(OffsetCommitRequest(group_id=GROUP, topics=topics), 8)
        assert told.topics[0].partitions[0].error_code == 0

    def commit_in(self, producer: int, offset: int, **member) -> int:
        partition = TxnOffsetCommitRequest.Partition(partition_index=0, committed_offset=offset, committed_metadata="")
        topics = [TxnOffsetCommitRequest.Topic(name=TOPIC, partitions=[partition])]
        request = TxnOffsetCommitRequest(group_id=GROUP, producer_id=producer, topics=topics, **member)
        return self.ask(request, 5).topics[0].partitions[0].error_code

    def end(self, producer: int, *, committed: bool) -> None:
        self.records.append(TransactionEnd(producer, committed))
        self.step(TransactionEnded(0, TransactionEnd(producer, committed), 1))

    def delete(self) -> None:
        partitions = [OffsetDeleteRequest.Partition(partition_index=0)]
        topics = [OffsetDeleteRequest.Topic(name=TOPIC, partitions=partitions)]
        self.ask(OffsetDeleteRequest(group_id=GROUP, topics=topics), 0)

    def fetch(self, *, stable: bool) -> object:
        topics = [OffsetFetchRequest.Topic(name=TOPIC, partition_indexes=[0])]
        request = OffsetFetchRequest(group_id=GROUP, topics=topics, require_stable=stable)
        (found,) = self.ask(request, 7).topics[0].partitions
        if found.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT:
            assert (found.committed_offset, found.metadata) == (-1, "")
            return PENDING
        return found.committed_offset


@pytest.fixture
def log():
    return Log()


def test_a_pending_offset_counts_when_its_transaction_commits(log):
    log.commit(3)
    assert log.commit_in(1, 7) == 0
    assert (log.fetch(stable=True), log.fetch(stable=False)) == (PENDING, 3)
    log.end(1, committed=True)
    assert log.fetch(stable=True) == 7


def test_an_aborted_one_leaves_what_was_there(log):
    log.commit(3)
    log.commit_in(1, 7)
    log.end(1, committed=False)
    assert log.fetch(stable=True) == 3


def test_an_aborted_first_commit_leaves_no_group(log):
    log.commit_in(1, 7)
    assert log.coordinator.group_ids() == [GROUP]
    log.end(1, committed=False)
    assert log.coordinator.group_ids() == []


def test_the_later_record_in_the_log_wins(log):
    log.commit_in(1, 50)
    log.commit(40)
    assert log.fetch(stable=True) is PENDING
    log.end(1, committed=True)
    assert log.fetch(stable=True) == 40


def test_a_deletion_takes_pending_offsets_with_it(log):
    log.commit_in(1, 50)
    log.delete()
    assert log.fetch(stable=True) == -1
    log.end(1, committed=True)
    assert log.fetch(stable=True) == -1


def test_fencing_by_generation_and_member(log):
    log.commit(1)
    assert log.commit_in(1, 2, generation_id=4, member_id="m") == ErrorCode.UNKNOWN_MEMBER_ID
    request = TxnOffsetCommitRequest(group_id="no", generation_id=4, member_id="m")
    partition = TxnOffsetCommitRequest.Partition(partition_index=0, committed_offset=1, committed_metadata="")
    request.topics = [TxnOffsetCommitRequest.Topic(name=TOPIC, partitions=[partition])]
    assert log.ask(request, 5).topics[0].partitions[0].error_code == ErrorCode.ILLEGAL_GENERATION


steps = st.lists(
    st.tuples(st.sampled_from(["plain", "pending", "commit", "abort", "delete", "restart"]), st.integers(1, 3)),
    max_size=30,
)


@settings(max_examples=examples(200))
@given(steps)
def test_a_restart_at_any_time_changes_no_answer(history):  # noqa: PLR0912 (a model)
    """Two coordinators with the same history, one of which is restarted, and a model of the log's last word."""
    steady, restarted = Log(), Log()
    settled, place = -1, -1
    open_: dict[int, int] = {}
    for number, (what, producer) in enumerate(history):
        for log in (steady, restarted):
            match what:
                case "plain":
                    log.commit(number)
                case "pending":
                    log.commit_in(producer, number)
                case "commit" | "abort":
                    log.end(producer, committed=what == "commit")
                case "delete":
                    log.delete()
        match what:
            case "plain":
                settled = place = number
            case "pending":
                open_[producer] = number
            case "commit" | "abort":
                offset = open_.pop(producer, -1)
                if what == "commit" and offset > place:
                    settled = place = offset
            case "delete":
                settled, place, open_ = -1, -1, {}
            case "restart":
                restarted.start()
        for log in (steady, restarted):
            assert log.fetch(stable=False) == settled
            assert log.fetch(stable=True) == (PENDING if open_ else settled)


def test_of_two_transactions_the_later_record_counts_whichever_ends_first(log):
    log.commit_in(1, 10)
    log.commit_in(2, 20)
    log.end(1, committed=True)
    log.end(2, committed=True)
    assert log.fetch(stable=True) == 20
    log.commit_in(1, 30)
    log.commit_in(2, 40)
    log.end(2, committed=True)
    log.end(1, committed=True)
    assert log.fetch(stable=True) == 40
