"""An idempotent producer against a scripted cluster in virtual time: every record once and in order."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.records.produce_decisions import (
    ANY,
    Cluster,
    ProduceError,
    ProducerIdentity,
    ProduceSettings,
    Production,
)
from roster.wire import ErrorCode
from roster.wire.columns.writer import Body, framed
from roster.wire.compression import Compression
from roster.wire.messages import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)
from roster.wire.records import Record, build_batch, read_batch, read_header
from tests.examples_tried import examples

if TYPE_CHECKING:
    from roster.wire import Message

PARTITIONS = 3
FAULTS = [
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
]


def body(values: list[bytes]) -> Body:
    data = build_batch([Record(value=value, timestamp=5) for value in values])[61:]
    return Body.of(len(values), data, Compression.NONE, 5, 5)


@dataclass
class Brokers:
    """Three brokers with one log a partition, which take each sequence number once, as KIP-98 says."""

    chance: random.Random
    most_bytes: int = 1 << 20
    faults: float = 0.3
    leaders: list[int] = field(default_factory=lambda: [0, 1, 2])
    logs: dict[int, list[bytes]] = field(default_factory=lambda: {n: [] for n in range(PARTITIONS)})
    expected: dict[tuple[int, int], int] = field(default_factory=dict)

    def answer(self, broker: int, request: Message) -> Message | None:
        """The response; None if it is lost, whatever was done before."""
        if self.chance.random() < self.faults:
            self.leaders[self.chance.randrange(PARTITIONS)] = self.chance.randrange(3)
        if self.chance.random() < self.faults / 2:
            return None
        response: Message
        if isinstance(request, MetadataRequest):
            response = self._metadata()
        elif isinstance(request, InitProducerIdRequest):
            response = InitProducerIdResponse(producer_id=7, producer_epoch=0)
        else:
            assert isinstance(request, ProduceRequest)
            response = self._produce(broker, request)
        return None if self.chance.random() < self.faults / 2 else response

    def _metadata(self) -> MetadataResponse:
        partitions = [
            MetadataResponse.Topic.Partition(partition_index=number, leader_id=leader)
            for number, leader in enumerate(self.leaders)
        ]
        brokers = [MetadataResponse.Broker(node_id=number, host="h", port=number + 1) for number in range(3)]
        return MetadataResponse(brokers=brokers, topics=[MetadataResponse.Topic(name="t", partitions=partitions)])

    def _produce(self, broker: int, request: ProduceRequest) -> ProduceResponse:
        assert request.acks == -1
        answers = []
        for topic in request.topic_data:
            for partition in topic.partition_data:
                begin = len(self.logs[partition.index])
                code = self._append(broker, partition.index, bytes(partition.records or b""))
                offset = begin if len(self.logs[partition.index]) > begin else -1
                answers.append(ProduceResponse.Partition(index=partition.index, error_code=code, base_offset=offset))
        return ProduceResponse(responses=[ProduceResponse.Topic(name="t", partition_responses=answers)])

    def _append(self, broker: int, partition: int, batch: bytes) -> int:
        if self.leaders[partition] != broker:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if len(batch) > self.most_bytes:
            return ErrorCode.MESSAGE_TOO_LARGE
        header = read_header(batch)
        key = header.producer_id, partition
        at = self.expected.get(key, 0)
        if header.base_sequence < at:
            assert header.base_sequence + header.records_count <= at, "a retried batch is the same batch"
            return self.chance.choice([ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER])
        assert header.base_sequence == at, "no gap in the sequence"
        fault = self.chance.choice(FAULTS) if self.chance.random() < self.faults else ErrorCode.NONE
        if fault in (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
            self.logs[partition] += [record.value or b"" for record in read_batch(batch)]
            self.expected[key] = at + header.records_count
        return fault


def play(production: Production, brokers: Brokers, *, seconds: float = 600.0) -> None:
    now = 0.0
    while not production.is_done:
        assert now < seconds, production.waiting()
        requests = production.requests(now)
        assert len({broker for broker, _ in requests}) == len(requests)
        for broker, request in brokers.chance.sample(requests, len(requests)):
            response = brokers.answer(broker, request)
            if response is None:
                production.failed(broker, now, "it broke")
            else:
                production.answered(broker, response, now)
        wake = production.next_wake(now)
        now += 0.001 if wake is None else wake


@settings(deadline=None, max_examples=examples(200))
@given(
    seed=st.integers(0, 2**32),
    batches=st.lists(st.tuples(st.integers(0, PARTITIONS - 1), st.integers(1, 6)), max_size=25),
    most_bytes=st.sampled_from([90, 120, 1 << 20]),
    request_bytes=st.sampled_from([1, 200, 1 << 20]),
)
def test_every_record_is_in_its_log_once_and_in_order(
    seed: int, batches: list[tuple[int, int]], most_bytes: int, request_bytes: int
) -> None:
    brokers = Brokers(random.Random(seed), most_bytes)
    production = Production(Cluster(), ProduceSettings(request_bytes))
    wanted: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    for partition, count in batches:
        values = [b"%d-%d" % (partition, len(wanted[partition]) + at) for at in range(count)]
        wanted[partition] += values
        production.add("t", partition, body(values))
    play(production, brokers)
    assert brokers.logs == wanted
    assert production.acknowledged == sum(map(len, wanted.values()))
    assert production.queued_bytes == 0
    assert production.sequences == {("t", p): len(values) for p, values in wanted.items() if values}
    assert production.ends.keys() == production.sequences.keys()
    known = {key: end for key, end in production.ends.items() if end is not None}
    assert known.items() <= production.sequences.items(), "unknown where the first answer was lost"


def test_a_given_producer_goes_on_at_its_sequences() -> None:
    brokers = Brokers(random.Random(1), faults=0)
    brokers.expected = {(42, 1): 2**31 - 2}
    identity = ProducerIdentity(42, 3, "tx")
    production = Production(Cluster(), identity=identity, sequences={("t", 1): 2**31 - 2})
    production.add("t", 1, body([b"a", b"b", b"c"]))
    sent: list[Any] = []

    class Listening(Brokers):
        def _produce(self, broker: int, request: ProduceRequest) -> ProduceResponse:
            sent.append(request)
            return super()._produce(broker, request)

    play(production, Listening(random.Random(1), faults=0, expected=brokers.expected))
    (request,) = sent
    header = read_header(bytes(request.topic_data[0].partition_data[0].records))
    assert request.transactional_id == "tx"
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (42, 3, 2**31 - 2)
    assert production.sequences == {("t", 1): 1}, "sequence numbers begin again behind 2^31 - 1"


def led() -> Cluster:
    from roster.model import Address

    return Cluster({0: Address("h", 1)}, {("t", 0): 0}, {"t": 1})


def refusal(code: int, message: str | None = None) -> ProduceResponse:
    partition = ProduceResponse.Partition(index=0, error_code=code, error_message=message)
    return ProduceResponse(responses=[ProduceResponse.Topic(name="t", partition_responses=[partition])])


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "t-0: TOPIC_AUTHORIZATION_FAILED: no"),
        (ErrorCode.MESSAGE_TOO_LARGE, r"t-0: MESSAGE_TOO_LARGE \(\d+ bytes\): no"),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "t-0: OUT_OF_ORDER_SEQUENCE_NUMBER: no"),
        (ErrorCode.PRODUCER_FENCED, "t-0: PRODUCER_FENCED: no"),
    ],
)
def test_what_no_retry_mends_is_an_error_that_names_the_partition(code: int, text: str) -> None:
    production = Production(led(), identity=ProducerIdentity(1, 0))
    production.add("t", 0, body([b"v"]))
    production.requests(0.0)
    with pytest.raises(ProduceError, match=text):
        production.answered(0, refusal(code, "no"), 0.0)


def test_a_topic_that_is_not_there_is_asked_for_again() -> None:
    production = Production(Cluster())
    assert production.partitions("t") is None
    ((broker, request),) = production.requests(0.0)
    assert broker == ANY
    assert isinstance(request, MetadataRequest)
    unknown = MetadataResponse.Topic(name="t", error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    production.answered(ANY, MetadataResponse(topics=[unknown]), 0.0)
    assert production.requests(0.0) == []
    assert production.waiting() == ["t: UNKNOWN_TOPIC_OR_PARTITION"]
    assert [type(request) for _, request in production.requests(1.0)] == [MetadataRequest]
    refused = MetadataResponse.Topic(name="t", error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(ProduceError, match="t: TOPIC_AUTHORIZATION_FAILED; grant this client WRITE on the topic"):
        production.answered(ANY, MetadataResponse(topics=[refused]), 1.0)


def test_a_topic_that_was_deleted_is_given_up_after_a_while() -> None:
    production = Production(led(), identity=ProducerIdentity(1, 0))
    production.add("t", 0, body([b"v"]))
    production.requests(0.0)
    production.answered(0, refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ""), 0.0)
    unknown = MetadataResponse(
        topics=[MetadataResponse.Topic(name="t", error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    )
    for now in (1.0, 2.0, 3.9):
        assert [broker for broker, _ in production.requests(now)] == [ANY]
        production.answered(ANY, unknown, now)
    production.requests(4.0)
    with pytest.raises(ProduceError, match=r"^no such topic: t\. Create it"):
        production.answered(ANY, unknown, 4.0)


def test_a_producer_id_that_is_refused_names_the_right() -> None:
    production = Production(led())
    production.add("t", 0, body([b"v"]))
    production.requests(0.0)
    refused = InitProducerIdResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    with pytest.raises(ProduceError, match="grant this client WRITE on the topic, or IDEMPOTENT_WRITE on the cluster"):
        production.answered(ANY, refused, 0.0)


def test_a_throttled_broker_is_left_alone_for_so_long() -> None:
    production = Production(led(), identity=ProducerIdentity(1, 0))
    production.add("t", 0, body([b"v"]))
    production.add("t", 0, body([b"w"]))
    production.requests(0.0)
    answer = refusal(ErrorCode.NONE)
    answer.throttle_time_ms = 500
    production.answered(0, answer, 0.0)
    assert production.requests(0.4) == []
    assert len(production.requests(0.6)) == 1


def test_a_batch_that_is_sent_again_has_the_same_bytes() -> None:
    production = Production(led(), identity=ProducerIdentity(1, 0))
    production.add("t", 0, body([b"v"]))
    ((_, first),) = production.requests(0.0)
    production.answered(0, refusal(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND), 0.0)
    ((_, second),) = production.requests(10.0)
    assert isinstance(first, ProduceRequest)
    assert isinstance(second, ProduceRequest)
    assert first == second
    assert first.topic_data[0].partition_data[0].records == framed(body([b"v"]), 1, 0, 0)
