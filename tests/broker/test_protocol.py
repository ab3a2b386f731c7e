"""The broker's answers, request by request, on a raw connection."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from roster.broker.request_limits import SERVED
from roster.wire import API_VERSIONS, ZERO_UUID, ApiKey, ErrorCode
from roster.wire.messages import (
    ApiVersionsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    EndTxnRequest,
    FetchRequest,
    FindCoordinatorRequest,
    IncrementalAlterConfigsRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from tests.broker.batches import base_offsets, batch, placed
from tests.broker.rawclient import RawClient
from tests.waiting import until

if TYPE_CHECKING:
    from roster.broker import Broker


@pytest.fixture
def topic(client: RawClient) -> str:
    """A new topic with two partitions."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    asked = CreateTopicsRequest.Topic(name=name, num_partitions=2, replication_factor=1)
    (made,) = client.ask(CreateTopicsRequest(topics=[asked]), 7).topics
    assert made.error_code == ErrorCode.NONE
    return name


def produce_request(name: str, records: bytes, *, partition: int = 0, acks: int = -1) -> ProduceRequest:
    data = ProduceRequest.Topic.Partition(index=partition, records=records)
    return ProduceRequest(
        acks=acks, timeout_ms=1_000, topic_data=[ProduceRequest.Topic(name=name, partition_data=[data])]
    )


def produce(client: RawClient, name: str, records: bytes, version: int = 9, **options: Any) -> Any:
    response = client.ask(produce_request(name, records, **options), version)
    return response.responses[0].partition_responses[0]


def fetch_request(name: str, offset: int, *, partition: int = 0, **options: Any) -> FetchRequest:
    limits = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, **options}
    asked = FetchRequest.Topic.Partition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(**limits, topics=[FetchRequest.Topic(topic=name, partitions=[asked])])


def fetch(client: RawClient, name: str, offset: int, version: int = 12, **options: Any) -> Any:
    return client.ask(fetch_request(name, offset, **options), version).responses[0].partitions[0]


def offset_at(client: RawClient, name: str, timestamp: int, version: int = 9) -> Any:
    asked = ListOffsetsRequest.Topic.Partition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsRequest.Topic(name=name, partitions=[asked])])
    return client.ask(request, version).topics[0].partitions[0]


def metadata(client: RawClient, *names: str, create: bool = False, version: int = 12) -> list[Any]:
    topics = [MetadataRequest.Topic(name=name, topic_id=ZERO_UUID) for name in names]
    response = client.ask(MetadataRequest(topics=topics, allow_auto_topic_creation=create), version)
    return list(response.topics)


# What there is


@pytest.mark.parametrize("version", list(API_VERSIONS[ApiKey.API_VERSIONS]))
def test_api_versions_lists_every_request_the_broker_serves(client: RawClient, version: int) -> None:
    response = client.ask(ApiVersionsRequest(client_software_name="raw", client_software_version="1"), version)
    assert response.error_code == ErrorCode.NONE
    offered = {entry.api_key: entry.max_version for entry in response.api_keys}
    assert offered == {int(key): versions.high for key, versions in SERVED.items()}


def test_a_client_that_means_another_broker_is_told_so(broker: Broker, client: RawClient) -> None:
    """KIP-1242: an address may come to be that of another cluster, or of another broker of this one."""
    told = client.ask(DescribeClusterRequest(), 0)
    (node,) = told.brokers
    for cluster, number, code in (
        (told.cluster_id, node.broker_id, ErrorCode.NONE),
        (told.cluster_id, node.broker_id + 1, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("another", node.broker_id, ErrorCode.REBOOTSTRAP_REQUIRED),
        (None, node.broker_id + 1, ErrorCode.NONE),
    ):
        answer = client.ask(ApiVersionsRequest(cluster_id=cluster, node_id=number), 5)
        assert (answer.error_code, not answer.api_keys) == (code, code != ErrorCode.NONE)


def test_every_request_offered_has_a_handler() -> None:
    from roster.broker.dispatch import HANDLERS

    assert set(HANDLERS) == set(SERVED)


def test_a_version_that_is_not_offered_closes_the_connection(client: RawClient) -> None:
    beyond = SERVED[ApiKey.INIT_PRODUCER_ID].high + 1
    client.socket.sendall(bytes.fromhex(f"0000000e 0016 {beyond:04x} 0000002a 0003 726177 00"))
    assert client.is_closed()


def test_an_api_versions_request_from_the_future_is_answered_in_v0(client: RawClient) -> None:
    """KIP-511: UNSUPPORTED_VERSION, in v0, with the versions that are spoken; the connection goes on."""
    client.socket.sendall(bytes.fromhex("0000000e 0012 7fff 0000002a 0003 726177 00"))
    frame = client.frame()
    assert frame[:4] == (42).to_bytes(4, "big")
    assert int.from_bytes(frame[4:6], "big") == ErrorCode.UNSUPPORTED_VERSION
    assert int.from_bytes(frame[6:10], "big") == 1
    assert client.ask(ApiVersionsRequest(), 0).error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", list(API_VERSIONS[ApiKey.METADATA]))
def test_metadata_in_every_version_names_the_broker_and_its_topics(
    broker: Broker, client: RawClient, topic: str, version: int
) -> None:
    response = client.ask(MetadataRequest(topics=[MetadataRequest.Topic(name=topic)]), version)
    (node,) = response.brokers
    assert (node.host, node.port) == broker.address
    (found,) = response.topics
    assert (found.name, found.error_code, len(found.partitions)) == (topic, 0, 2)
    assert {part.leader_id for part in found.partitions} == {node.node_id}
    every = client.ask(MetadataRequest(topics=[] if version == 0 else None), version)
    assert topic in {each.name for each in every.topics}
    if version > 0:
        assert client.ask(MetadataRequest(topics=[]), version).topics == []


def test_topics_are_found_by_id_too(client: RawClient, topic: str) -> None:
    (known,) = metadata(client, topic)
    asked = [
        MetadataRequest.Topic(name=None, topic_id=known.topic_id),
        MetadataRequest.Topic(name=None, topic_id=b"x" * 16),
    ]
    found, unknown = client.ask(MetadataRequest(topics=asked, allow_auto_topic_creation=False), 12).topics
    assert (found.name, found.error_code) == (topic, 0)
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_topics_are_created_on_demand_only_if_both_sides_agree(client: RawClient) -> None:
    name = f"auto-{uuid.uuid4().hex}"
    assert metadata(client, name)[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    made, bad = metadata(client, name, "no/such name", create=True)
    assert (made.error_code, len(made.partitions)) == (0, 3)
    assert bad.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert metadata(client, name)[0].topic_id == made.topic_id


@pytest.mark.parametrize("version", list(API_VERSIONS[ApiKey.FIND_COORDINATOR]))
def test_the_broker_coordinates_every_group_and_transaction(broker: Broker, client: RawClient, version: int) -> None:
    request = FindCoordinatorRequest(**({"coordinator_keys": ["g", "h"]} if version >= 4 else {"key": "g"}))
    response = client.ask(request, version)
    for found in response.coordinators if version >= 4 else [response]:
        assert (found.error_code, (found.host, found.port)) == (0, broker.address)
    if version >= 1:
        for kind, error in ((1, ErrorCode.NONE), (2, ErrorCode.INVALID_REQUEST)):
            keys = {"coordinator_keys": ["x"]} if version >= 4 else {"key": "x"}
            response = client.ask(FindCoordinatorRequest(key_type=kind, **keys), version)
            found = response.coordinators[0] if version >= 4 else response
            assert found.error_code == error


def test_the_cluster_is_one_broker(broker: Broker, client: RawClient) -> None:
    response = client.ask(DescribeClusterRequest(endpoint_type=1), 1)
    (node,) = response.brokers
    assert (node.host, node.port) == broker.address
    assert response.controller_id == node.broker_id
    assert client.ask(DescribeClusterRequest(endpoint_type=2), 1).error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE


# Produce


@pytest.mark.parametrize("version", list(API_VERSIONS[ApiKey.PRODUCE]))
def test_produce_in_every_version_and_fetch_in_every_version(client: RawClient, topic: str, version: int) -> None:
    (known,) = metadata(client, topic)
    request = produce_request(topic, batch([b"one", b"two"]))
    request.topic_data[0].topic_id = known.topic_id
    answer = client.ask(request, version).responses[0].partition_responses[0]
    assert (answer.error_code, answer.base_offset) == (0, 0)
    for fetch_version in API_VERSIONS[ApiKey.FETCH]:
        wanted = fetch_request(topic, 0)
        wanted.topics[0].topic_id = known.topic_id
        response = client.ask(wanted, fetch_version)
        assert response.session_id == 0
        (got,) = response.responses[0].partitions
        assert bytes(got.records) == placed(batch([b"one", b"two"]), 0)
        assert (got.error_code, got.high_watermark, got.last_stable_offset) == (0, 2, 2)


def test_acks_0_is_not_answered_and_acks_1_is(client: RawClient, topic: str) -> None:
    client.send(produce_request(topic, batch([b"a"]), acks=0), 9)
    assert produce(client, topic, batch([b"b"]), acks=1).base_offset == 1


def test_a_failed_produce_with_acks_0_closes_the_connection(client: RawClient) -> None:
    client.send(produce_request("no-such-topic", batch([b"a"]), acks=0), 9)
    assert client.is_closed()


def damaged(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    ("records", "code"),
    [
        pytest.param(damaged(batch([b"x"])), ErrorCode.CORRUPT_MESSAGE, id="crc"),
        pytest.param(batch([b"x"])[:-1], ErrorCode.INVALID_RECORD, id="cut off"),
        pytest.param(batch([b"x"])[:16] + b"\1" + batch([b"x"])[17:], ErrorCode.INVALID_RECORD, id="magic 1"),
        pytest.param(batch([b"x"]) * 2, ErrorCode.INVALID_RECORD, id="two batches"),
        pytest.param(b"", ErrorCode.INVALID_RECORD, id="nothing"),
        pytest.param(batch([b"x"], attributes=1 << 5), ErrorCode.INVALID_RECORD, id="control"),
        pytest.param(
            batch([b"x"], attributes=1 << 4),
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            id="transactional without an id",
        ),
        pytest.param(batch([b"x"], producer=(5, -1, -1)), ErrorCode.INVALID_RECORD, id="producer without epoch"),
        pytest.param(batch([b"x" * 1_100_000]), ErrorCode.MESSAGE_TOO_LARGE, id="too large"),
    ],
)
def test_records_that_are_not_one_good_batch_are_refused(
    client: RawClient, topic: str, records: bytes, code: ErrorCode
) -> None:
    assert produce(client, topic, records).error_code == code
    assert produce(client, topic, batch([b"good"])).base_offset == 0


def test_unknown_topics_partitions_and_acks_are_refused(client: RawClient, topic: str) -> None:
    one = batch([b"x"])
    assert produce(client, "no-such", one).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert produce(client, topic, one, partition=2).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert produce(client, topic, one, partition=-1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert produce(client, topic, one, acks=2).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert produce(client, topic, one, version=13).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert produce(client, "__consumer_offsets", one).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_an_idempotent_batch_sent_twice_has_one_offset_and_a_gap_is_refused(client: RawClient, topic: str) -> None:
    """KIP-98: "duplicate: the original offset; a gap: OUT_OF_ORDER_SEQUENCE_NUMBER"."""
    given = client.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), 4)
    other = client.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), 4)
    assert given.producer_id != other.producer_id
    first = batch([b"a", b"b"], producer=(given.producer_id, 0, 0))
    assert produce(client, topic, first).base_offset == 0
    assert produce(client, topic, first).base_offset == 0
    late = batch([b"d"], producer=(given.producer_id, 0, 3))
    assert produce(client, topic, late).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(client, topic, batch([b"c"], producer=(given.producer_id, 0, 2))).base_offset == 2
    assert produce(client, topic, late).base_offset == 3


def test_requests_sent_ahead_are_answered_in_their_order(client: RawClient, topic: str) -> None:
    sent = []
    for n in range(40):
        sent.append((produce_request(topic, batch([b"%d" % n])), 9))
        if n % 7 == 0:
            sent.append((MetadataRequest(topics=[]), 12))
        if n % 11 == 0:
            sent.append((fetch_request(topic, 0), 12))
    correlations = [client.send(request, version) for request, version in sent]
    offsets = []
    for correlation, (request, version) in zip(correlations, sent, strict=True):
        answered, response = client.receive(request, version)
        assert answered == correlation
        if isinstance(request, ProduceRequest):
            offsets.append(response.responses[0].partition_responses[0].base_offset)
        if isinstance(request, FetchRequest):
            assert response.responses[0].partitions[0].high_watermark == len(offsets)
    assert offsets == list(range(40))


# Fetch


def test_a_fetch_waits_for_records_and_answers_as_soon_as_they_are_durable(
    broker: Broker, client: RawClient, topic: str
) -> None:
    client.send(fetch_request(topic, 0, max_wait_ms=2**31 - 1), 12)
    with RawClient(broker.address) as other:
        produce(other, topic, batch([b"x"]))
        _, response = client.receive(fetch_request(topic, 0), 12)
    assert base_offsets(response.responses[0].partitions[0].records) == [0]


def test_a_fetch_waits_no_longer_than_max_wait_for_min_bytes(client: RawClient, topic: str) -> None:
    produce(client, topic, batch([b"x"]))
    answer = fetch(client, topic, 0, max_wait_ms=30, min_bytes=1_000_000)
    assert base_offsets(answer.records) == [0]
    answer = fetch(client, topic, 1, max_wait_ms=30)
    assert (answer.error_code, len(answer.records)) == (0, 0)


def test_the_first_batch_is_given_whatever_its_size_and_the_limits_hold_for_the_rest(
    client: RawClient, topic: str
) -> None:
    """KIP-74: a consumer always gets on."""
    size = len(batch([b"x" * 1_000]))
    for partition in (0, 1):
        for _ in range(5):
            produce(client, topic, batch([b"x" * 1_000]), partition=partition)

    def ask(max_bytes: int, partition_max_bytes: int) -> list[int]:
        asked = [
            FetchRequest.Topic.Partition(partition=n, fetch_offset=0, partition_max_bytes=partition_max_bytes)
            for n in (0, 1)
        ]
        topics = [FetchRequest.Topic(topic=topic, partitions=asked)]
        response = client.ask(FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=max_bytes, topics=topics), 12)
        return [len(base_offsets(answer.records)) for answer in response.responses[0].partitions]

    assert ask(1 << 20, 1 << 20) == [5, 5]
    assert ask(1, 1) == [1, 0]
    assert ask(1 << 20, 1) == [1, 0]
    assert ask(1 << 20, 2 * size) == [2, 2]
    assert ask(3 * size, 2 * size) == [2, 1]
    assert ask(0, 0) == [1, 0]


def test_what_cannot_be_fetched_is_said_at_once(client: RawClient, topic: str) -> None:
    produce(client, topic, batch([b"x"]))
    wait = {"max_wait_ms": 30_000}
    assert fetch(client, topic, 2, **wait).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert fetch(client, topic, -1, **wait).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert fetch(client, topic, 0, partition=9, **wait).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert fetch(client, "no-such", 0, **wait).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert fetch(client, topic, 0, version=13, **wait).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    ahead = fetch_request(topic, 0, **wait)
    ahead.topics[0].partitions[0].current_leader_epoch = 1
    answer = client.ask(ahead, 12).responses[0].partitions[0]
    assert answer.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    session = client.ask(fetch_request(topic, 0, session_id=7, session_epoch=1), 12)
    assert session.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_waiting_fetch_hears_that_its_topic_is_deleted(broker: Broker, client: RawClient, topic: str) -> None:
    client.send(fetch_request(topic, 0, max_wait_ms=30_000), 12)
    with RawClient(broker.address) as other:
        other.ask(DeleteTopicsRequest(topic_names=[topic]), 5)
    _, response = client.receive(fetch_request(topic, 0), 12)
    assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# Offsets


def test_offsets_by_time(client: RawClient, topic: str) -> None:
    assert offset_at(client, topic, -3).offset == -1
    for times in ([100, 110], [300, 290], [200]):
        produce(client, topic, batch([b"v"] * len(times), times=times))
    for asked, found in [(-2, (-1, 0)), (-1, (-1, 5)), (-4, (-1, 0)), (-5, (-1, -1)), (-3, (300, 2))]:
        answer = offset_at(client, topic, asked)
        assert (answer.error_code, answer.timestamp, answer.offset) == (0, *found)
    for asked, found in [(0, (100, 0)), (105, (110, 1)), (150, (300, 2)), (301, (-1, -1))]:
        answer = offset_at(client, topic, asked)
        assert (answer.timestamp, answer.offset) == found
    assert offset_at(client, topic, -99).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert offset_at(client, "no-such", -1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for version in API_VERSIONS[ApiKey.LIST_OFFSETS]:
        assert offset_at(client, topic, -1, version).offset == 5


def test_a_commit_for_a_topic_that_does_not_exist_is_refused_the_others_are_kept(client: RawClient, topic: str) -> None:
    one = [OffsetCommitRequest.Topic.Partition(partition_index=0, committed_offset=7, committed_metadata="m")]
    topics = [OffsetCommitRequest.Topic(name=name, partitions=one) for name in (topic, "no-such")]
    group = f"g-{topic}"
    response = client.ask(OffsetCommitRequest(group_id=group, topics=topics), 8)
    codes = {each.name: each.partitions[0].error_code for each in response.topics}
    assert codes == {topic: 0, "no-such": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    answer = client.ask(OffsetFetchRequest(groups=[OffsetFetchRequest.Group(group_id=group, topics=None)]), 8)
    (found,) = answer.groups[0].topics
    assert (found.name, found.partitions[0].committed_offset) == (topic, 7)
    client.ask(DeleteTopicsRequest(topic_names=[topic]), 5)
    while answer.groups[0].topics:  # they go with a write of their own
        answer = client.ask(OffsetFetchRequest(groups=[OffsetFetchRequest.Group(group_id=group, topics=None)]), 8)


def test_offsets_of_a_transaction_name_topics_by_id_too(client: RawClient, topic: str) -> None:
    """What Kafka's clients of 4.4 send (KIP-1319): those for a topic that was deleted go to no new one."""
    (described,) = client.ask(MetadataRequest(topics=[MetadataRequest.Topic(name=topic)]), 12).topics
    group = f"g-{topic}"
    own = {"transactional_id": f"t-{topic}"}
    begun = client.ask(InitProducerIdRequest(**own, transaction_timeout_ms=60_000), 5)
    own |= {"producer_id": begun.producer_id, "producer_epoch": begun.producer_epoch}
    one = [TxnOffsetCommitRequest.Partition(partition_index=0, committed_offset=7, committed_metadata="m")]
    one.append(TxnOffsetCommitRequest.Partition(partition_index=900, committed_offset=7, committed_metadata="m"))
    topics = [
        TxnOffsetCommitRequest.Topic(topic_id=each, partitions=one)
        for each in (b"no such topic id", described.topic_id)
    ]
    told = client.ask(TxnOffsetCommitRequest(**own, group_id=group, topics=topics), 6)
    codes = {each.topic_id: [row.error_code for row in each.partitions] for each in told.topics}
    unknown = ErrorCode.UNKNOWN_TOPIC_ID
    assert codes == {
        topics[0].topic_id: [unknown, unknown],
        described.topic_id: [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0],
    }
    assert client.ask(EndTxnRequest(**own, committed=True), 5).error_code == 0
    wanted = OffsetFetchRequest(groups=[OffsetFetchRequest.Group(group_id=group, topics=None)], require_stable=True)
    until(lambda: client.ask(wanted, 8).groups[0].topics)
    (found,) = client.ask(wanted, 8).groups[0].topics
    assert (found.name, [row.committed_offset for row in found.partitions]) == (topic, [7])


# Topics


def created(client: RawClient, validate_only: bool = False, **topic: Any) -> Any:
    asked = CreateTopicsRequest.Topic(**{"num_partitions": 1, "replication_factor": 1, **topic})
    return client.ask(CreateTopicsRequest(topics=[asked], validate_only=validate_only), 7).topics[0]


def test_what_no_topic_may_be_is_refused(client: RawClient, topic: str) -> None:
    config = CreateTopicsRequest.Topic.Config
    assert created(client, name=topic).error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    for name in ("", ".", "..", "a/b", "a" * 250, "é"):
        assert created(client, name=name).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert created(client, name="beside.dots_").error_code == ErrorCode.NONE
    for name in ("beside_dots_", "beside.dots.", "beside_dots."):  # their metrics would have one name in Kafka
        assert created(client, name=name, validate_only=True).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert created(client, name=name).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert created(client, name="beside-dots.", validate_only=True).error_code == ErrorCode.NONE
    assert created(client, name="x", num_partitions=0).error_code == ErrorCode.INVALID_PARTITIONS
    assert created(client, name="x", replication_factor=2).error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    for name, value in (("nonsense", "1"), ("segment.bytes", "-1"), ("retention.ms", "-2"), ("cleanup.policy", None)):
        refused = created(client, name="x", configs=[config(name=name, value=value)])
        assert refused.error_code == ErrorCode.INVALID_CONFIG
        assert name in refused.error_message
    twice = [CreateTopicsRequest.Topic(name="y", num_partitions=1, replication_factor=1)] * 2
    (answer,) = client.ask(CreateTopicsRequest(topics=twice), 7).topics
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert created(client, name="x", validate_only=True).error_code == ErrorCode.NONE
    assert [each.error_code for each in metadata(client, "x", "y")] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2


def test_a_topic_created_again_after_its_deletion_is_another_and_empty(client: RawClient, topic: str) -> None:
    produce(client, topic, batch([b"x"]))
    (before,) = metadata(client, topic)
    by_id = DeleteTopicsRequest(topics=[DeleteTopicsRequest.Topic(name=None, topic_id=before.topic_id)])
    (gone,) = client.ask(by_id, 6).responses
    assert (gone.error_code, gone.name) == (0, topic)
    assert client.ask(by_id, 6).responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert produce(client, topic, batch([b"x"])).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert created(client, name=topic).topic_id != before.topic_id
    assert offset_at(client, topic, -1).offset == 0
    internal = client.ask(DeleteTopicsRequest(topic_names=["__consumer_offsets"]), 5).responses[0]
    assert internal.error_code == ErrorCode.INVALID_REQUEST


def test_partitions_are_added_and_never_taken_away(client: RawClient, topic: str) -> None:
    def grow(name: str, count: int) -> int:
        request = CreatePartitionsRequest(topics=[CreatePartitionsRequest.Topic(name=name, count=count)])
        code: int = client.ask(request, 3).results[0].error_code
        return code

    assert grow(topic, 5) == ErrorCode.NONE
    assert len(metadata(client, topic)[0].partitions) == 5
    assert produce(client, topic, batch([b"x"]), partition=4).base_offset == 0
    assert grow(topic, 5) == grow(topic, 2) == ErrorCode.INVALID_PARTITIONS
    assert grow("no-such", 5) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_request_makes_ten_thousand_partitions_at_most(client: RawClient, topic: str) -> None:
    def create(*counts: int) -> set[int]:
        asked = [
            CreateTopicsRequest.Topic(name=f"large{at}", num_partitions=count, replication_factor=1)
            for at, count in enumerate(counts)
        ]
        answers = client.ask(CreateTopicsRequest(topics=asked, validate_only=True), 7).topics
        assert len(answers) == len(counts)
        return {answer.error_code for answer in answers}

    def grow(*counts: int) -> list[int]:
        names = [topic, "grown-1", "grown-2"]
        asked = [
            CreatePartitionsRequest.Topic(name=name, count=count) for name, count in zip(names, counts, strict=False)
        ]
        answers = client.ask(CreatePartitionsRequest(topics=asked, validate_only=True), 3).results
        return [answer.error_code for answer in answers]

    before = len(metadata(client, topic)[0].partitions)
    for name in ("grown-1", "grown-2"):
        assert created(client, name=name).error_code == ErrorCode.NONE
    assert create(9_999) == {ErrorCode.NONE}
    assert create(10_000) == create(5_000, 5_000) == create(50_001) == {ErrorCode.POLICY_VIOLATION}
    assert grow(before + 10_000) == [ErrorCode.NONE]
    assert grow(before + 10_001) == [ErrorCode.POLICY_VIOLATION]
    assert grow(before + 6_000, 5_001, 4_001) == [
        ErrorCode.NONE,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.NONE,
    ]


def test_settings_are_described_changed_and_obeyed(client: RawClient, topic: str) -> None:
    def settings() -> dict[str, str]:
        resource = DescribeConfigsRequest.Resource(resource_type=2, resource_name=topic)
        (result,) = client.ask(DescribeConfigsRequest(resources=[resource]), 4).results
        return {entry.name: entry.value for entry in result.configs}

    def alter(name: str, operation: int, value: str | None) -> int:
        change = IncrementalAlterConfigsRequest.Resource.Config(name=name, config_operation=operation, value=value)
        resource = IncrementalAlterConfigsRequest.Resource(resource_type=2, resource_name=topic, configs=[change])
        answer = client.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
        code: int = answer.responses[0].error_code
        return code

    assert settings()["max.message.bytes"] == "1048588"
    assert alter("max.message.bytes", 0, "100") == ErrorCode.NONE
    assert settings()["max.message.bytes"] == "100"
    assert produce(client, topic, batch([b"x" * 100])).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert alter("max.message.bytes", 1, None) == ErrorCode.NONE
    assert produce(client, topic, batch([b"x" * 100])).error_code == ErrorCode.NONE
    assert alter("nonsense", 0, "1") == ErrorCode.INVALID_CONFIG
    assert settings()["min.cleanable.dirty.ratio"] == "0.5"
    for ratio, error in (("0.25", 0), ("1", 0), ("1.5", 40), ("-0.5", 40), ("1e-1", 40), ("", 40), ("nan", 40)):
        assert alter("min.cleanable.dirty.ratio", 0, ratio) == error, ratio
    assert settings()["min.cleanable.dirty.ratio"] == "1"
    for fixed, other in (("preallocate", "true"), ("segment.jitter.ms", "1"), ("local.retention.ms", "5")):
        assert alter(fixed, 0, settings()[fixed]) == ErrorCode.NONE
        assert alter(fixed, 0, other) == ErrorCode.INVALID_CONFIG


def test_what_clients_ask_in_another_way_is_not_offered(client: RawClient) -> None:
    """Leader epochs, pages of topics, groups of KIP-848: clients do without, or ask Metadata and DescribeGroups."""
    offered = {entry.api_key for entry in client.ask(ApiVersionsRequest(), 0).api_keys}
    assert not offered & {23, 69, 74, 75}


def test_what_is_not_in_memory_is_read_by_a_thread(
    client: RawClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(client, topic, batch([b"cold"]))
    monkeypatch.setattr("roster.broker.log.segment_reader.read_cached", lambda *_: None)
    assert bytes(fetch(client, topic, 0).records) == placed(batch([b"cold"]), 0)
