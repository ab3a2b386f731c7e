"""The transaction coordinator, case by case; figures are those that Apache Kafka 4.3 answers to the same requests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roster.transactions import TransactionConfig
from roster.transactions.records import record
from roster.transactions.states import PREVIOUS, TransactionState
from roster.wire import ErrorCode
from roster.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
)
from tests.transactions.transaction_world import World

ID = "tx"
P0, P1 = ("t", 0), ("t", 1)


@pytest.fixture
def world():
    return World()


def init(world, version=5, timeout_ms=60_000, own=(-1, -1), transactional_id=ID):
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=own[0],
        producer_epoch=own[1],
    )
    told = world.ask(request, version)
    return told.error_code, told.producer_id, told.producer_epoch


def end(world, pid, epoch, *, committed=True, version=5, transactional_id=ID):
    request = EndTxnRequest(
        transactional_id=transactional_id, producer_id=pid, producer_epoch=epoch, committed=committed
    )
    told = world.ask(request, version)
    return told.error_code, told.producer_id, told.producer_epoch


def state(world, transactional_id=ID):
    return world.coordinator.transaction(transactional_id).current.state


def begun(world, *, version=5, timeout_ms=60_000):
    _, pid, epoch = init(world, version, timeout_ms)
    assert world.added(ID, pid, epoch, P0, P1) == {P0: 0, P1: 0}
    return pid, epoch


def test_a_new_id_gets_a_producer_id_and_epoch_0(world):
    assert init(world) == (0, 101, 0)
    assert init(world) == (0, 101, 1)
    assert state(world) is TransactionState.EMPTY


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"timeout_ms": 900_000}, ErrorCode.NONE),
        ({"timeout_ms": 900_001}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"own": (101, -1)}, ErrorCode.INVALID_REQUEST),
        ({"own": (-1, 0)}, ErrorCode.INVALID_REQUEST),
        ({"own": (2**40, 0)}, ErrorCode.PRODUCER_FENCED),
        ({"own": (101, 7)}, ErrorCode.PRODUCER_FENCED),
        ({"own": (101, 7), "version": 3}, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_what_init_producer_id_refuses(world, change, expected):
    init(world)
    assert init(world, **change)[0] == expected


def test_a_repeated_bump_of_the_own_epoch_is_answered_alike(world):
    _, pid, _ = init(world)
    assert init(world, own=(pid, 0)) == (0, pid, 1)
    assert init(world, own=(pid, 0)) == (0, pid, 1)
    assert init(world, own=(pid, 1)) == (0, pid, 2)
    assert init(world, own=(pid, 0))[0] == ErrorCode.PRODUCER_FENCED


def test_version_2_commits_with_a_new_epoch(world):
    pid, epoch = begun(world)
    assert end(world, pid, epoch) == (0, pid, epoch + 1)
    assert state(world) is TransactionState.COMPLETE_COMMIT
    assert [each.commit for each in world.data[P0].entries] == [True]
    assert world.data[P1].entries[0].epoch == epoch + 1
    assert end(world, pid, epoch) == (0, pid, epoch + 1)
    assert end(world, pid, epoch, committed=False)[0] == ErrorCode.INVALID_TXN_STATE
    assert end(world, pid, epoch + 1)[0] == ErrorCode.INVALID_TXN_STATE
    assert end(world, pid, epoch + 3)[0] == ErrorCode.PRODUCER_FENCED


def test_version_1_keeps_its_epoch(world):
    pid, epoch = begun(world, version=3)
    assert end(world, pid, epoch, version=3)[0] == ErrorCode.NONE
    assert world.data[P0].entries[0].epoch == epoch
    assert end(world, pid, epoch, version=3)[0] == ErrorCode.NONE
    assert end(world, pid, epoch, version=3, committed=False)[0] == ErrorCode.INVALID_TXN_STATE
    assert end(world, pid, epoch - 1, version=3)[0] == ErrorCode.PRODUCER_FENCED
    assert end(world, pid, epoch - 1, version=1)[0] == ErrorCode.INVALID_PRODUCER_EPOCH
    assert end(world, pid + 7, epoch, version=3)[0] == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_the_end_of_nothing(world):
    _, pid, epoch = init(world)
    assert end(world, pid, epoch)[0] == ErrorCode.INVALID_TXN_STATE
    assert end(world, pid, epoch, version=4)[0] == ErrorCode.INVALID_TXN_STATE
    assert end(world, pid, epoch, version=4, committed=False)[0] == ErrorCode.INVALID_TXN_STATE
    assert end(world, pid, epoch, committed=False) == (0, pid, epoch + 1)
    assert state(world) is TransactionState.COMPLETE_ABORT


def test_the_answer_waits_for_the_decision_and_not_for_the_markers(world):
    pid, epoch = begun(world)
    token = world.send(EndTxnRequest(transactional_id=ID, producer_id=pid, producer_epoch=epoch, committed=True), 5)
    assert token not in world.replies
    world.run_task()
    assert world.replies[token].error_code == 0
    assert state(world) is TransactionState.PREPARE_COMMIT
    assert not world.data
    waiting = world.add(ID, pid, epoch + 1, P0)
    assert world.replies[waiting] == {P0: ErrorCode.CONCURRENT_TRANSACTIONS}
    repeated = world.send(EndTxnRequest(transactional_id=ID, producer_id=pid, producer_epoch=epoch, committed=True), 5)
    assert world.replies[repeated].error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    world.run()
    assert world.added(ID, pid, epoch + 1, P0) == {P0: 0}


@pytest.mark.parametrize("markers", [None, 0, 1], ids=["being decided", "decided", "one marker"])
@pytest.mark.parametrize("committed", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("bump", [-1, 0, 1, 2])
def test_every_end_is_to_come_again_while_one_is_under_way(world, bump, committed, markers):
    pid, epoch = begun(world)
    world.send(EndTxnRequest(transactional_id=ID, producer_id=pid, producer_epoch=epoch, committed=True), 5)
    for _ in range(0 if markers is None else markers + 1):
        world.run_task()
    again = EndTxnRequest(transactional_id=ID, producer_id=pid, producer_epoch=epoch + bump, committed=committed)
    other = EndTxnRequest(transactional_id=ID, producer_id=pid + 1, producer_epoch=epoch, committed=committed)
    for request in (again, other):
        assert world.replies[world.send(request, 5)].error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert set(world.replies[world.add(ID, pid, epoch + bump, P0)].values()) == {ErrorCode.CONCURRENT_TRANSACTIONS}


def test_the_next_transaction_may_end_empty_while_the_last_one_completes(world):
    pid, epoch = begun(world)
    world.send(EndTxnRequest(transactional_id=ID, producer_id=pid, producer_epoch=epoch, committed=True), 5)
    world.run_task()
    for committed in (True, False):
        following = EndTxnRequest(transactional_id=ID, producer_id=pid, producer_epoch=epoch + 1, committed=committed)
        assert world.replies[world.send(following, 5)].error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    world.run()
    assert end(world, pid, epoch + 1)[0] == ErrorCode.INVALID_TXN_STATE
    for bump in (1, 2, 3):
        assert end(world, pid, epoch + bump, committed=False) == (0, pid, epoch + bump + 1)
    assert end(world, pid, epoch + 4)[0] == ErrorCode.INVALID_TXN_STATE


def test_a_second_instance_aborts_and_fences(world):
    pid, epoch = begun(world)
    token = world.send(InitProducerIdRequest(transactional_id=ID, transaction_timeout_ms=1_000), 5)
    world.run()
    assert world.replies[token].error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert [each.commit for each in world.data[P0].entries] == [False]
    assert world.data[P0].entries[0].epoch == epoch + 1
    assert init(world) == (0, pid, epoch + 2)
    assert world.added(ID, pid, epoch, P0) == {P0: ErrorCode.PRODUCER_FENCED}
    assert end(world, pid, epoch)[0] == ErrorCode.PRODUCER_FENCED


def test_the_own_epoch_is_bumped_once_in_an_open_transaction(world):
    pid, epoch = begun(world)
    assert init(world, own=(pid, epoch))[0] == ErrorCode.CONCURRENT_TRANSACTIONS
    assert init(world, own=(pid, epoch)) == (0, pid, epoch + 1)


def test_a_transaction_that_takes_too_long_is_aborted(world):
    pid, epoch = begun(world, timeout_ms=5_000)
    world.advance(4_999)
    world.run()
    assert state(world) is TransactionState.ONGOING
    world.advance(1)
    world.run()
    assert state(world) is TransactionState.COMPLETE_ABORT
    assert end(world, pid, epoch)[0] == ErrorCode.INVALID_TXN_STATE
    assert end(world, pid, epoch, version=4)[0] == ErrorCode.PRODUCER_FENCED
    assert end(world, pid, epoch, committed=False) == (0, pid, epoch + 1)
    assert init(world, own=(pid, epoch)) == (0, pid, epoch + 1)


def test_the_timeout_runs_from_the_first_partition_on_also_over_a_restart(world):
    begun(world, timeout_ms=30_000)
    world.advance(12_000)
    world.crash()
    world.advance(17_999)
    world.run()
    assert state(world) is TransactionState.ONGOING
    world.advance(1)
    world.run()
    assert state(world) is TransactionState.COMPLETE_ABORT


@pytest.mark.parametrize("late", [False, True])
def test_a_client_has_ten_seconds_after_a_restart_to_end_its_transaction(world, late):
    pid, epoch = begun(world, timeout_ms=5_000)
    world.advance(3_000)
    world.crash()
    world.advance(10_000 if late else 9_999)
    world.run()
    ended = end(world, pid, epoch)
    assert ended[0] == (ErrorCode.INVALID_TXN_STATE if late else ErrorCode.NONE)
    assert state(world) is (TransactionState.COMPLETE_ABORT if late else TransactionState.COMPLETE_COMMIT)


def test_a_committed_transaction_does_not_time_out(world):
    pid, epoch = begun(world, timeout_ms=5_000)
    end(world, pid, epoch)
    world.advance(60_000)
    world.run()
    assert state(world) is TransactionState.COMPLETE_COMMIT


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("markers", range(3))
def test_a_prepared_transaction_is_completed_after_a_restart(world, committed, markers):
    pid, epoch = begun(world)
    world.send(EndTxnRequest(transactional_id=ID, producer_id=pid, producer_epoch=epoch, committed=committed), 5)
    for _ in range(1 + markers):
        world.run_task()
    world.crash()
    world.run()
    assert state(world).label == ("CompleteCommit" if committed else "CompleteAbort")
    for partition in (P0, P1):
        assert {each.commit for each in world.data[partition].entries} == {committed}


def test_a_decision_that_was_not_durable_was_not_made(world):
    pid, epoch = begun(world)
    token = world.send(EndTxnRequest(transactional_id=ID, producer_id=pid, producer_epoch=epoch, committed=True), 5)
    world.crash()
    world.run()
    assert token not in world.replies
    assert state(world) is TransactionState.ONGOING
    assert end(world, pid, epoch) == (0, pid, epoch + 1)


def test_a_failed_write_changes_nothing(world):
    pid, epoch = begun(world)
    world.failing = True
    assert end(world, pid, epoch)[0] == ErrorCode.NOT_COORDINATOR
    assert init(world)[0] == ErrorCode.NOT_COORDINATOR
    world.failing = False
    assert state(world) is TransactionState.ONGOING
    assert end(world, pid, epoch) == (0, pid, epoch + 1)


def test_a_completion_that_fails_is_tried_again(world):
    pid, epoch = begun(world)
    world.send(EndTxnRequest(transactional_id=ID, producer_id=pid, producer_epoch=epoch, committed=True), 5)
    world.run_task()
    world.failing = True
    world.run()
    assert state(world) is TransactionState.PREPARE_COMMIT
    world.failing = False
    world.advance(500)
    world.run()
    assert state(world) is TransactionState.COMPLETE_COMMIT


def used_up(world):
    """The transactional id in the last epoch of producer id 101, with a transaction that is open."""
    begun(world)
    current = world.coordinator.transaction(ID).current
    world.log[world.coordinator.transaction(ID).partition] += [record(ID, replace(current, producer_epoch=32_766))]
    world.crash()


def test_used_up_epochs_give_a_new_producer_id(world):
    used_up(world)
    assert end(world, 101, 32_766) == (0, 102, 0)
    assert world.data[P0].entries[-1].epoch == 32_767
    assert end(world, 101, 32_766) == (0, 102, 0)
    assert world.added(ID, 102, 0, P0) == {P0: 0}
    assert world.added(ID, 101, 32_766, P0) == {P0: ErrorCode.INVALID_PRODUCER_ID_MAPPING}


def test_init_producer_id_rotates_after_the_last_epoch_was_fenced(world):
    used_up(world)
    assert init(world)[0] == ErrorCode.CONCURRENT_TRANSACTIONS
    assert init(world) == (0, 102, 0)
    world.crash()
    assert init(world) == (0, 102, 1)


def test_adding_partitions_by_request(world):
    _, pid, epoch = init(world)

    def add(version=3, **change):
        fields = {"transactional_id": ID, "producer_id": pid, "producer_epoch": epoch, **change}
        topics = [AddPartitionsToTxnRequest.Topic(name="t", partitions=[0, 1])]
        named = {f"v3_and_below_{name}": value for name, value in fields.items()}
        told = world.ask(AddPartitionsToTxnRequest(v3_and_below_topics=topics, **named), version)
        (topic,) = told.results_by_topic_v3_and_below
        return {each.partition_error_code for each in topic.results_by_partition}

    assert add() == {0}
    writes = len(world.log[0]) + len(world.log[1])
    assert add() == {0}
    assert len(world.log[0]) + len(world.log[1]) == writes
    assert add(producer_epoch=epoch + 1) == {ErrorCode.PRODUCER_FENCED}
    assert add(version=1, producer_epoch=epoch + 1) == {ErrorCode.INVALID_PRODUCER_EPOCH}
    assert add(producer_id=pid + 1) == {ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    assert add(transactional_id="no") == {ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    assert add(transactional_id="") == {ErrorCode.INVALID_REQUEST}


def test_adding_the_offsets_of_a_group(world):
    _, pid, epoch = init(world)
    request = AddOffsetsToTxnRequest(transactional_id=ID, producer_id=pid, producer_epoch=epoch, group_id="g")
    assert world.ask(request, 4).error_code == 0
    assert world.coordinator.transaction(ID).current.partitions == {("__consumer_offsets", 3)}


def test_verification_names_what_was_not_added(world):
    pid, epoch = begun(world)
    other = ("t", 9)
    told = world.added(ID, pid, epoch, P0, other, verify=True)
    assert told == {P0: 0, other: ErrorCode.TRANSACTION_ABORTABLE}
    assert world.added(ID, pid, epoch - 1, P0, verify=True) == {P0: ErrorCode.PRODUCER_FENCED}
    assert world.added("no", pid, epoch, P0, verify=True) == {P0: ErrorCode.INVALID_PRODUCER_ID_MAPPING}


def test_describing_and_listing(world):
    begun(world, timeout_ms=5_000)
    init(world, transactional_id="idle")
    world.advance(10)
    mine, idle, none, empty = world.ask(
        DescribeTransactionsRequest(transactional_ids=[ID, "idle", "no", ""]), 0
    ).transaction_states
    assert (mine.transaction_state, mine.producer_epoch, mine.transaction_timeout_ms) == ("Ongoing", 0, 5_000)
    assert mine.transaction_start_time_ms == world.wall - 10
    assert [(topic.topic, topic.partitions) for topic in mine.topics] == [("t", [0, 1])]
    assert (idle.transaction_state, idle.transaction_start_time_ms) == ("Empty", -1)
    assert none.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert empty.error_code == ErrorCode.INVALID_REQUEST

    def listed(version=1, **filters):
        told = world.ask(ListTransactionsRequest(**filters), version)
        return {each.transactional_id for each in told.transaction_states}, told.unknown_state_filters

    assert listed() == ({ID, "idle"}, [])
    assert listed(state_filters=["Ongoing", "ongoing"]) == ({ID}, ["ongoing"])
    assert listed(producer_id_filters=[102]) == ({"idle"}, [])
    assert listed(duration_filter=9) == ({ID, "idle"}, [])
    assert listed(duration_filter=10) == ({"idle"}, [])


def test_an_id_that_is_not_used_for_long_is_forgotten():
    world = World(TransactionConfig(partitions=1, expiration_ms=10_000, expiration_check_interval_ms=1_000))
    pid, epoch = begun(world)
    init(world, transactional_id="idle")
    world.advance(10_000)
    world.run()
    assert world.coordinator.transaction("idle") is None
    assert state(world) is TransactionState.ONGOING
    end(world, pid, epoch)
    world.advance(9_000)
    world.run()
    assert world.coordinator.transaction(ID) is not None
    world.advance(2_000)
    world.run()
    assert world.coordinator.transaction(ID) is None
    world.crash()
    assert world.coordinator.transaction(ID) is None


def test_before_its_partition_is_loaded_an_id_has_no_coordinator():
    world = World(TransactionConfig(partitions=1))
    world.coordinator = type(world.coordinator)(world.config)
    assert init(world)[0] == ErrorCode.NOT_COORDINATOR


def test_the_table_of_transitions_is_kafkas():
    s = TransactionState
    at_rest = {s.EMPTY, s.COMPLETE_COMMIT, s.COMPLETE_ABORT}
    assert {after: set(before) for after, before in PREVIOUS.items()} == {
        s.EMPTY: at_rest,
        s.ONGOING: at_rest | {s.ONGOING},
        s.PREPARE_COMMIT: {s.ONGOING},
        s.PREPARE_ABORT: at_rest | {s.ONGOING, s.PREPARE_EPOCH_FENCE},
        s.COMPLETE_COMMIT: {s.PREPARE_COMMIT},
        s.COMPLETE_ABORT: {s.PREPARE_ABORT},
        s.DEAD: at_rest,
        s.PREPARE_EPOCH_FENCE: {s.ONGOING},
    }
    assert s.PREPARE_EPOCH_FENCE.label == "PrepareEpochFence"
