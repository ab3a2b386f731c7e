"""The transactional producer's decisions: every error code of every request, and the requests of both versions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roster.client.producer_state import Decision, Epoch, Phase, ProducerState, decide
from roster.client.transactional_producer import ClaimedBy
from roster.model import OffsetAndMetadata, TopicPartition
from roster.wire import API_VERSIONS, ApiKey, ErrorCode
from roster.wire.messages import EndTxnResponse, InitProducerIdResponse

REQUESTS = [
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
    ApiKey.HEARTBEAT,
]
FENCES = {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED}
LOST = {
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    ErrorCode.OPERATION_NOT_ATTEMPTED,
}
ELSEWHERE = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.KAFKA_STORAGE_ERROR,
}
PASSING = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
}
MEMBER_LOST = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}
OF_GROUPS = {
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION): Decision.RETRY,
    (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION): Decision.RETRY,
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.REBALANCE_IN_PROGRESS): Decision.GENERATION,
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.ILLEGAL_GENERATION): Decision.GENERATION,
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.STALE_MEMBER_EPOCH): Decision.GENERATION,
    (ApiKey.HEARTBEAT, ErrorCode.ILLEGAL_GENERATION): Decision.GENERATION,
    (ApiKey.HEARTBEAT, ErrorCode.REBALANCE_IN_PROGRESS): Decision.DONE,
}


def expected(api: ApiKey, code: ErrorCode) -> Decision:
    """What Kafka's protocol guide and KIP-890's table of errors say of it."""
    if (api, code) in OF_GROUPS:
        return OF_GROUPS[api, code]
    if code in MEMBER_LOST:
        return Decision.MEMBER_FENCED if api in (ApiKey.TXN_OFFSET_COMMIT, ApiKey.HEARTBEAT) else Decision.FATAL
    kinds = [
        ({ErrorCode.NONE}, Decision.DONE),
        (FENCES, Decision.PRODUCER_FENCED),
        (LOST, Decision.ABORT),
        (ELSEWHERE, Decision.FIND),
        (PASSING, Decision.RETRY),
    ]
    return next((decision for codes, decision in kinds if code in codes), Decision.FATAL)


@pytest.mark.parametrize("api", REQUESTS, ids=lambda api: api.name)
def test_each_error_code_of_a_request_has_its_decision(api: ApiKey) -> None:
    assert {code: decide(api, code) for code in ErrorCode} == {code: expected(api, code) for code in ErrorCode}


def state(*, is_version_2: bool) -> ProducerState:
    made = ProducerState("id", "group", 60_000, is_version_2=is_version_2)
    made.initialised(InitProducerIdResponse(producer_id=7, producer_epoch=3))
    return made


def test_a_transaction_of_version_2_ends_with_the_next_ones_epoch_and_adds_explicitly_only_what_it_need_not() -> None:
    producer = state(is_version_2=True)
    assert producer.begin() == Epoch(7, 3)
    assert producer.add_partitions([TopicPartition("t", 0)]) is None
    assert producer.add_offsets() is None
    early = producer.add_offsets(is_early=True)
    assert early is not None
    assert (early.producer_id, early.producer_epoch, early.group_id) == (7, 3, "group")
    assert producer.highest(ApiKey.END_TXN) is None
    first, again = producer.end(), producer.end()
    assert (first.producer_epoch, first.committed) == (again.producer_epoch, again.committed) == (3, True)
    producer.ended(EndTxnResponse(producer_id=7, producer_epoch=4))
    assert not producer.needs_epoch
    assert producer.begin() == Epoch(7, 4)


def test_a_producer_id_that_is_used_up_is_replaced_by_the_one_that_the_end_brings() -> None:
    producer = state(is_version_2=True)
    producer.begin()
    producer.end()
    producer.ended(EndTxnResponse(producer_id=8, producer_epoch=0))
    assert producer.begin() == Epoch(8, 0)


def test_a_transaction_of_version_1_adds_partitions_and_offsets_and_needs_a_new_epoch_afterwards() -> None:
    producer = state(is_version_2=False)
    producer.begin()
    added = producer.add_partitions([TopicPartition("t", 1), TopicPartition("t", 0), TopicPartition("a", 2)])
    assert added is not None
    topics = {topic.name: topic.partitions for topic in added.v3_and_below_topics}
    assert topics == {"a": [2], "t": [0, 1]}
    assert producer.add_offsets() is not None
    limits = {ApiKey.TXN_OFFSET_COMMIT: 4, ApiKey.END_TXN: 4}
    assert {api: producer.highest(api) for api in limits} == limits
    assert API_VERSIONS[ApiKey.ADD_PARTITIONS_TO_TXN].high == 3  # later ones are for brokers
    producer.end()
    producer.ended(EndTxnResponse())
    assert producer.needs_epoch


def test_offsets_name_the_member_and_its_generation() -> None:
    producer = state(is_version_2=True)
    producer.begin()
    offsets = {TopicPartition("t", 1): OffsetAndMetadata(5, 2, "x"), TopicPartition("t", 0): OffsetAndMetadata(4)}
    request = producer.commit_offsets(offsets, 9, "member", "instance")
    assert (request.generation_id, request.member_id, request.group_instance_id) == (9, "member", "instance")
    (topic,) = request.topics
    rows = [
        (p.partition_index, p.committed_offset, p.committed_leader_epoch, p.committed_metadata)
        for p in topic.partitions
    ]
    assert rows == [(0, 4, -1, ""), (1, 5, 2, "x")]


def test_a_transaction_given_up_needs_a_new_epoch_in_every_phase() -> None:
    for phase in Phase:
        producer = state(is_version_2=True)
        producer.phase = phase
        producer.forget()
        assert producer.needs_epoch


@given(st.text(min_size=1), st.text())
def test_the_owner_in_an_offsets_metadata_is_read_back(transactional_id: str, member_id: str) -> None:
    owner = ClaimedBy(transactional_id, member_id)
    assert ClaimedBy.of(owner.to_metadata()) == owner


HOSTILE = [
    *("", "null", "[]", "7", "NaN", '{"member.id": "m"}', '{"transactional.id": "t"}'),
    *("[" * 3_000, '{"transactional.id":' * 180, "9" * 4_000, '{"transactional.id": "\\ud800", "member.id": "m"}'),
    *('{"transactional.id": "", "member.id": "m"}', '{"transactional.id": {}, "member.id": "m"}'),
]
"""Texts that any client may commit beside an offset; Kafka takes up to 4096 characters."""


@given(st.text() | st.sampled_from(HOSTILE))
def test_other_metadata_names_no_owner(metadata: str) -> None:
    assert ClaimedBy.of(metadata) is None
