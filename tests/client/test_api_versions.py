"""Requests keep their meaning in every version both sides may agree on."""

from __future__ import annotations

import pytest

from roster.client.cluster import parse_bootstrap
from roster.client.connection import from_version, to_version
from roster.client.errors import OptionError
from roster.wire import API_VERSIONS, ApiKey, Message, decode, encode
from roster.wire.messages import (
    DeleteTopicsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    LeaveGroupRequest,
    MetadataRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

REQUESTS: list[Message] = [
    FindCoordinatorRequest(coordinator_keys=["g"]),
    HeartbeatRequest(group_id="g", generation_id=1, member_id="m"),
    LeaveGroupRequest(group_id="g", members=[LeaveGroupRequest.Member(member_id="m", reason="why")]),
    MetadataRequest(topics=[MetadataRequest.Topic(name="t")], allow_auto_topic_creation=False),
    OffsetFetchRequest(
        groups=[
            OffsetFetchRequest.Group(
                group_id="g", topics=[OffsetFetchRequest.Topic(name="t", partition_indexes=[0, 1])]
            )
        ],
        require_stable=True,
    ),
    DeleteTopicsRequest(topics=[DeleteTopicsRequest.Topic(name="t")], timeout_ms=5),
]
CASES = [(request, version) for request in REQUESTS for version in API_VERSIONS[ApiKey(request.__table__.key or 0)]]


@pytest.mark.parametrize(("request_", "version"), CASES, ids=lambda v: v if isinstance(v, int) else type(v).__name__)
def test_every_version_carries_the_request(request_: Message, version: int) -> None:
    data = encode(to_version(request_, version), version)
    back = decode(type(request_), version, data)
    text = repr(back)
    for needle in ("'g'", "'t'", "'m'"):
        if needle in repr(request_):
            assert needle in text


@pytest.mark.parametrize("version", range(1, 8))
def test_an_old_offset_fetch_answer_reads_like_a_new_one(version: int) -> None:
    request = OffsetFetchRequest(groups=[OffsetFetchRequest.Group(group_id="g", topics=[])])
    row = OffsetFetchResponse.Partition(partition_index=2, committed_offset=9, metadata="x", error_code=0)
    old = OffsetFetchResponse(topics=[OffsetFetchResponse.Topic(name="t", partitions=[row])], error_code=0)
    new = from_version(request, decode(OffsetFetchResponse, version, encode(old, version)), version)
    assert isinstance(new, OffsetFetchResponse)
    (group,) = new.groups
    assert (group.group_id, group.topics[0].name, group.topics[0].partitions[0].committed_offset) == ("g", "t", 9)


GOOD = {
    "127.0.0.1:9092": [("127.0.0.1", 9092)],
    "a, b:1 ,": [("a", 9092), ("b", 1)],
    "[::1]:9093": [("::1", 9093)],
    "[::1]": [("::1", 9092)],
}


@pytest.mark.parametrize(("text", "addresses"), GOOD.items())
def test_bootstrap_addresses(text: str, addresses: list[tuple[str, int]]) -> None:
    assert parse_bootstrap(text) == addresses
    assert parse_bootstrap(text.split(",")) == addresses


@pytest.mark.parametrize("text", ["", " , ", ":9092", "host:", "host:zero", "host:0", "host:65536"])
def test_a_bad_bootstrap_address_names_the_option(text: str) -> None:
    with pytest.raises(OptionError, match="option bootstrap: ") as raised:
        parse_bootstrap(text)
    assert raised.value.option == "bootstrap"
