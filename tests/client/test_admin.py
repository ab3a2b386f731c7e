"""Admin against Roster's broker."""

from __future__ import annotations

from itertools import count
from random import Random

import pytest

from roster.client import (
    Admin,
    BrokerError,
    ClosedError,
    GroupMember,
    GroupNotEmptyError,
    OffsetAndMetadata,
    OptionError,
    TopicExistsError,
    UnknownGroupError,
    UnknownTopicError,
    UnreachableError,
)
from roster.client.cluster import Cluster
from roster.model import TopicPartition
from roster.wire.messages import MetadataResponse

numbers = count()


@pytest.fixture
def name() -> str:
    return f"admin-{next(numbers)}"


@pytest.mark.usefixtures("missing_at_once")
def test_the_life_of_a_topic(admin: Admin, name: str) -> None:
    admin.create_topic(name, 2)
    with pytest.raises(TopicExistsError):
        admin.create_topic(name, 2)
    assert admin.list_topics()[name] == 2
    admin.create_partitions(name, 5)
    described = admin.describe_topic(name)
    assert [row.partition for row in described.partitions] == [0, 1, 2, 3, 4]
    assert all(row.leader == 1 for row in described.partitions)
    assert described.topic_id is not None
    with pytest.raises(BrokerError, match="cannot grow"):
        admin.create_partitions(name, 3)
    admin.delete_topic(name)
    assert name not in admin.list_topics()
    with pytest.raises(UnknownTopicError):
        admin.delete_topic(name)
    with pytest.raises(UnknownTopicError):
        admin.describe_topic(name)
    with pytest.raises(UnknownTopicError):
        admin.end_offsets([TopicPartition(name, 0)])


@pytest.mark.usefixtures("missing_at_once")
def test_a_partition_that_does_not_exist_is_named(admin: Admin, name: str) -> None:
    admin.create_topic(name, 1)
    with pytest.raises(UnknownTopicError, match=f"there is no {name}-7"):
        admin.end_offsets([TopicPartition(name, 7)])


def test_internal_topics_are_listed_only_on_request(admin: Admin, bootstrap: str, name: str) -> None:
    admin.create_topic(name)
    with GroupMember(bootstrap, name, [name]):
        assert all(not topic.startswith("__") for topic in admin.list_topics())
        assert "__consumer_offsets" in admin.list_topics(internal=True)


def test_a_group_is_described_with_its_members_assignments(admin: Admin, bootstrap: str, name: str) -> None:
    admin.create_topic(name, 2)
    with GroupMember(bootstrap, name, [name], client_id="app", group_instance_id="i"):
        described = admin.describe_group(name)
        assert (described.state, described.protocol_type, described.protocol) == (
            "Stable",
            "consumer",
            "cooperative-sticky",
        )
        assert described.coordinator == bootstrap
        (member,) = described.members
        assert (member.instance_id, member.client_id) == ("i", "app")
        assert member.assignment == [TopicPartition(name, 0), TopicPartition(name, 1)]
        assert [row.state for row in admin.list_groups() if row.group_id == name] == ["Stable"]


def test_offsets_of_a_group_with_members_are_theirs(admin: Admin, bootstrap: str, name: str) -> None:
    admin.create_topic(name, 2)
    first = TopicPartition(name, 0)
    with GroupMember(bootstrap, name, [name]) as member:
        member.commit({first: OffsetAndMetadata(4)}, member.ownership())
        for call in (
            lambda: admin.commit_group_offsets(name, {first: OffsetAndMetadata(0)}),
            lambda: admin.delete_group(name),
        ):
            with pytest.raises(GroupNotEmptyError, match="stop them first"):
                call()
    assert admin.group_offsets(name) == {first: OffsetAndMetadata(4)}


def test_offsets_of_a_group_without_members_can_be_set_and_go_with_it(admin: Admin, name: str) -> None:
    admin.create_topic(name, 2)
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)
    admin.commit_group_offsets(name, {first: OffsetAndMetadata(3, metadata="x"), second: OffsetAndMetadata(4)})
    assert admin.group_offsets(name, [second]) == {second: OffsetAndMetadata(4)}
    admin.delete_group(name)
    assert admin.group_offsets(name) == {}
    for call in (lambda: admin.describe_group(name), lambda: admin.delete_group(name)):
        with pytest.raises(UnknownGroupError):
            call()


def test_nobody_there() -> None:
    with Admin("127.0.0.1:1", request_timeout_ms=500) as admin, pytest.raises(UnreachableError):
        admin.list_topics()


def test_closed_means_closed(bootstrap: str) -> None:
    admin = Admin(bootstrap)
    admin.close()
    admin.close()
    with pytest.raises(ClosedError):
        admin.list_topics()


@pytest.mark.parametrize("partitions", [0, -1])
def test_wrong_options(admin: Admin, partitions: int) -> None:
    with pytest.raises(OptionError, match="option partitions"):
        admin.create_topic("t", partitions)
    with pytest.raises(OptionError, match="option request_timeout_ms"):
        Admin("127.0.0.1:9092", request_timeout_ms=0)


async def test_a_topic_that_the_answer_leaves_out_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster("127.0.0.1:1", "test", 1.0, Random(1))

    async def nothing(_: object) -> MetadataResponse:
        return MetadataResponse()

    monkeypatch.setattr(cluster, "metadata", nothing)
    with pytest.raises(UnknownTopicError, match="no such topic: t"):
        await cluster.topics(["t"], timeout=0.01)
