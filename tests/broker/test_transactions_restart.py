"""kill -9 at every write of a broker with transactions: what a client was told holds, and nothing is half visible.

The data directory is copied after each append, which is what a killed process leaves: a broker is started on each copy.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from roster.broker.log.partition_log import PartitionLog
from roster.testing.broker import running_broker
from roster.wire import ErrorCode
from roster.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    CreateTopicsRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    FetchRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    OffsetFetchRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from roster.wire.records import read_batch, split_batches
from tests.broker.batches import batch
from tests.broker.rawclient import RawClient
from tests.waiting import until

TOPIC, GROUP, ID = "t", "g", "tx"
PARTITIONS = (0, 1)
TRANSACTIONAL = 0x10
RETRY = {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}


def is_final(answer: Any) -> bool:
    return answer.error_code not in RETRY


def answered(ask: Any, good: Any = is_final) -> Any:
    """Ask until the answer is good."""
    return until(lambda: [answer for answer in [ask()] if good(answer)])[0]


@dataclass
class Producer:
    """One transaction after the other, each with a record in every partition and an offset."""

    client: RawClient
    version: int
    told: dict[int, bool] = field(default_factory=dict)
    """Transactions whose end was answered, with the decision."""
    pid: int = -1
    epoch: int = -1
    sequence: int = 0

    def ask(self, message: Any, version: int) -> Any:
        return answered(lambda: self.client.ask(message, version))

    def init(self) -> None:
        request = InitProducerIdRequest(transactional_id=ID, transaction_timeout_ms=60_000)
        told = self.ask(request, 5)
        assert told.error_code == ErrorCode.NONE
        self.pid, self.epoch, self.sequence = told.producer_id, told.producer_epoch, 0

    def add(self) -> None:
        own = (ID, self.pid, self.epoch)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=own[0],
            v3_and_below_producer_id=own[1],
            v3_and_below_producer_epoch=own[2],
            v3_and_below_topics=[AddPartitionsToTxnRequest.Topic(name=TOPIC, partitions=list(PARTITIONS))],
        )

        def code() -> int:
            return (
                self.client.ask(request, 3)
                .results_by_topic_v3_and_below[0]
                .results_by_partition[0]
                .partition_error_code
            )

        assert answered(code, lambda told: told not in RETRY) == ErrorCode.NONE
        request = AddOffsetsToTxnRequest(
            transactional_id=ID, producer_id=self.pid, producer_epoch=self.epoch, group_id=GROUP
        )
        assert self.ask(request, 3).error_code == ErrorCode.NONE

    def transaction(self, number: int, *, committed: bool | None) -> None:
        """None: it stays open."""
        if self.version == 1:
            self.add()
        for partition in PARTITIONS:
            records = batch([b"%d" % number], producer=(self.pid, self.epoch, self.sequence), attributes=TRANSACTIONAL)
            data = ProduceRequest.Topic.Partition(index=partition, records=records)
            request = ProduceRequest(
                transactional_id=ID,
                acks=-1,
                timeout_ms=1_000,
                topic_data=[ProduceRequest.Topic(name=TOPIC, partition_data=[data])],
            )
            (topic,) = self.client.ask(request, 12 if self.version == 2 else 11).responses
            assert topic.partition_responses[0].error_code == ErrorCode.NONE
        offset = TxnOffsetCommitRequest.Partition(partition_index=0, committed_offset=number, committed_metadata="")
        commit = TxnOffsetCommitRequest(
            transactional_id=ID,
            group_id=GROUP,
            producer_id=self.pid,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequest.Topic(name=TOPIC, partitions=[offset])],
        )
        told = self.client.ask(commit, 5 if self.version == 2 else 4)
        assert told.topics[0].partitions[0].error_code == ErrorCode.NONE
        if committed is None:
            return
        end = EndTxnRequest(transactional_id=ID, producer_id=self.pid, producer_epoch=self.epoch, committed=committed)
        ended = self.ask(end, 5 if self.version == 2 else 4)
        assert ended.error_code == ErrorCode.NONE
        self.told[number] = committed
        if self.version == 2:
            self.pid, self.epoch = ended.producer_id, ended.producer_epoch
        else:
            self.sequence += 1


def create_topic(client: RawClient) -> None:
    asked = CreateTopicsRequest.Topic(name=TOPIC, num_partitions=2, replication_factor=1)
    # Records of long ago and markers of today stay in one segment, which one Fetch reads.
    asked.configs = [CreateTopicsRequest.Topic.Config(name="segment.ms", value=str(2**63 - 1))]
    assert client.ask(CreateTopicsRequest(topics=[asked]), 7).topics[0].error_code == ErrorCode.NONE


def committed_records(client: RawClient, partition: int) -> list[int]:
    """The records of one partition below its last stable offset that were not aborted."""
    wanted = FetchRequest.Partition(partition=partition, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        isolation_level=1,
        max_wait_ms=0,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[FetchRequest.Topic(topic=TOPIC, partitions=[wanted])],
    )
    (answer,) = client.ask(request, 12).responses[0].partitions
    assert answer.error_code == ErrorCode.NONE
    aborted = sorted(((each.first_offset, each.producer_id) for each in answer.aborted_transactions), reverse=True)
    skipping: set[int] = set()
    found = []
    for header, whole in split_batches(answer.records or b""):
        while aborted and aborted[-1][0] <= header.base_offset:
            skipping.add(aborted.pop()[1])
        (record,) = read_batch(whole)
        if header.is_control:
            if record.key == bytes(4):
                skipping.discard(header.producer_id)
        elif header.producer_id not in skipping:
            found.append(int(record.value or b""))
    return found


def end_of(client: RawClient, partition: int, level: int) -> int:
    asked = ListOffsetsRequest.Partition(partition_index=partition, timestamp=-1)
    request = ListOffsetsRequest(
        isolation_level=level, topics=[ListOffsetsRequest.Topic(name=TOPIC, partitions=[asked])]
    )
    offset: int = client.ask(request, 7).topics[0].partitions[0].offset
    return offset


def stable_offset(client: RawClient) -> int:
    topics = [OffsetFetchRequest.Topic(name=TOPIC, partition_indexes=[0])]
    request = OffsetFetchRequest(group_id=GROUP, topics=topics, require_stable=True)
    told = answered(lambda: client.ask(request, 7))
    (partition,) = told.topics[0].partitions
    assert partition.error_code == ErrorCode.NONE
    offset: int = partition.committed_offset
    return offset


def resolved(client: RawClient) -> None:
    """Wait for what was decided; abort what was not, as a second instance of the producer does."""

    def state() -> Any:
        return client.ask(DescribeTransactionsRequest(transactional_ids=[ID]), 0).transaction_states[0]

    answered(state, lambda told: told.error_code not in RETRY and not told.transaction_state.startswith("Prepare"))
    Producer(client, 2).init()


def test_records_of_an_open_transaction_are_not_read_as_committed(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker, RawClient(broker.address) as client:
        create_topic(client)
        producer = Producer(client, 1)
        producer.init()
        producer.transaction(1, committed=True)
        producer.transaction(2, committed=None)
        assert [committed_records(client, partition) for partition in PARTITIONS] == [[1], [1]]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("version", [1, 2])
def test_what_a_client_was_told_holds_after_kill_9_at_any_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    live, copies = tmp_path / "live", tmp_path / "copies"
    told_then: list[dict[int, bool]] = []
    told: dict[int, bool] = {}
    write = PartitionLog._write

    def write_and_copy(self: PartitionLog, *arguments: Any) -> int:
        offset = write(self, *arguments)
        if self.directory.is_relative_to(live):
            shutil.copytree(live, copies / str(len(told_then)), ignore=shutil.ignore_patterns("lock"))
            told_then.append(dict(told))
        return offset

    with running_broker(live) as broker, RawClient(broker.address) as client:
        create_topic(client)
        producer = Producer(client, version, told)
        monkeypatch.setattr(PartitionLog, "_write", write_and_copy)
        producer.init()
        for number, committed in enumerate((True, False, True), 1):
            producer.transaction(number, committed=committed)
        resolved(client)
    assert len(told_then) > 20
    for number, known in enumerate(told_then):
        with running_broker(copies / str(number)) as broker, RawClient(broker.address) as client:
            resolved(client)
            records = [committed_records(client, partition) for partition in PARTITIONS]
            where = f"after write {number}, when {known} was answered"
            assert records[0] == records[1], f"{where}: half visible"
            assert set(records[0]) >= {each for each, committed in known.items() if committed}, f"{where}: lost"
            assert not set(records[0]) & {each for each, committed in known.items() if not committed}, where
            assert len(set(records[0])) == len(records[0]), f"{where}: doubled"
            assert stable_offset(client) == (max(records[0]) if records[0] else -1), where
            for partition in PARTITIONS:
                assert end_of(client, partition, 0) == end_of(client, partition, 1), f"{where}: stays open"
