"""Idempotent producers (KIP-98): each batch once, in order, whatever is sent again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roster.broker.log.producer_state import ProducerTable, SequenceError
from roster.wire import ErrorCode
from roster.wire.messages import (
    CreateTopicsRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    ProduceRequest,
)
from roster.wire.records import BatchHeader, read_header
from tests.broker.batches import batch
from tests.broker.rawclient import RawClient

NOW = 1_000


def header(sequence: int, count: int = 1, producer: int = 1, epoch: int = 0) -> BatchHeader:
    return read_header(batch([b""] * count, producer=(producer, epoch, sequence)))


def test_a_batch_sent_again_is_found_among_the_last_five() -> None:
    table = ProducerTable()
    for n in range(7):
        assert table.check(header(2 * n, 2)) is None
        table.add(header(2 * n, 2), 100 + 2 * n, NOW)
    for n in range(2, 7):
        found = table.check(header(2 * n, 2))
        assert found is not None
        assert (found.base_offset, found.last_offset) == (100 + 2 * n, 101 + 2 * n)
    with pytest.raises(SequenceError) as error:
        table.check(header(2, 2))
    assert error.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_gap_is_out_of_order() -> None:
    table = ProducerTable()
    table.add(header(0, 3), 0, NOW)
    with pytest.raises(SequenceError, match="expected 3") as error:
        table.check(header(4))
    assert error.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert table.check(header(3)) is None


def test_a_new_epoch_begins_at_zero_and_fences_the_old_one() -> None:
    table = ProducerTable()
    table.add(header(0, 3), 0, NOW)
    with pytest.raises(SequenceError) as error:
        table.check(header(3, epoch=1))
    assert error.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert table.check(header(0, epoch=1)) is None
    table.add(header(0, epoch=1), 3, NOW)
    with pytest.raises(SequenceError) as error:
        table.check(header(3, epoch=0))
    assert error.value.code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_an_unknown_producer_may_begin_anywhere() -> None:
    assert ProducerTable().check(header(17)) is None


def test_sequences_wrap_after_the_largest_int32() -> None:
    table = ProducerTable()
    last = header(2**31 - 2, 2)
    table.add(last, 0, NOW)
    assert table.check(header(0)) is None
    table.add(header(2**31 - 1, 3), 2, NOW)
    assert table.check(header(2)) is None
    with pytest.raises(SequenceError):
        table.check(header(3))


def test_a_batch_being_verified_is_waited_for_until_it_is_withdrawn_or_old() -> None:
    def is_waited_for(table: ProducerTable) -> bool:
        try:
            table.check(header(5))
        except SequenceError:
            return True
        return False

    table = ProducerTable()
    table.announce(header(2), NOW)
    table.announce(header(3), NOW)
    assert is_waited_for(table)
    table.withdraw(header(3))
    assert is_waited_for(table), "for sequence 2"
    table.withdraw(header(2))
    assert not is_waited_for(table)
    table.announce(header(2), NOW)
    table.expire(NOW)
    assert is_waited_for(table)
    table.expire(NOW + 1)
    assert not is_waited_for(table)


@pytest.mark.parametrize("epoch", [-1, 0])
@pytest.mark.parametrize("is_announced", [False, True])
def test_a_batch_that_is_not_waited_for_can_be_withdrawn(epoch: int, is_announced: bool) -> None:
    table = ProducerTable()
    if is_announced:
        table.announce(header(0, epoch=epoch), NOW)
    table.withdraw(header(0, epoch=epoch))
    assert table.check(header(5)) is None


def test_a_producer_whose_transaction_is_refused_is_not_waited_for(client: RawClient) -> None:
    """It never added the partition (Produce up to version 11), so its transactional batch is not to be written."""
    topic = CreateTopicsRequest.Topic(name="not-added", num_partitions=1, replication_factor=1)
    client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 5)
    client.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=["never-adds"]), 4)
    started = InitProducerIdRequest(transactional_id="never-adds", transaction_timeout_ms=60_000)
    while (given := client.ask(started, 4)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        pass

    def produce(sequence: int, attributes: int) -> int:
        data = batch([b"v"], producer=(given.producer_id, given.producer_epoch, sequence), attributes=attributes)
        partition = ProduceRequest.Topic.Partition(index=0, records=data)
        topic = ProduceRequest.Topic(name="not-added", partition_data=[partition])
        asked = ProduceRequest(transactional_id="never-adds", acks=-1, timeout_ms=10_000, topic_data=[topic])
        return client.ask(asked, 11).responses[0].partition_responses[0].error_code

    assert given.error_code == ErrorCode.NONE
    assert produce(0, 0x10) == ErrorCode.TRANSACTION_ABORTABLE
    assert produce(3, 0) == ErrorCode.NONE, "as for any producer that this partition has not seen"


def test_an_idle_producer_is_forgotten() -> None:
    table = ProducerTable()
    table.add(header(0, producer=1), 0, NOW)
    table.add(header(0, producer=2), 1, NOW + 10)
    table.expire(NOW + 10)
    assert len(table) == 1
    assert table.check(header(5, producer=1)) is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 3)), max_size=30))
def test_a_table_reads_back_as_it_was_written(batches: list[tuple[int, int, int]]) -> None:
    table = ProducerTable()
    for offset, (producer, epoch, count) in enumerate(batches):
        table.add(header(offset, count, producer, epoch), offset, NOW)
    again = ProducerTable.decode(table.encode())
    assert again.encode() == table.encode()
    assert len(again) == len(table)
