"""Logins and rights: answers as Apache Kafka with its StandardAuthorizer gives them; texts for logins only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AclBinding, AclOperation, AdminClient, ResourceType

from roster.client import Admin
from roster.model import OffsetAndMetadata, TopicPartition
from roster.wire import ErrorCode
from roster.wire import messages as m
from roster.wire.sasl.scram import Scram
from tests.broker.batches import batch
from tests.broker.rawclient import RawClient
from tests.broker.secured import MECHANISMS, PASSWORDS, secured_broker
from tests.broker.test_secured_clients import acl
from tests.real.realparts.cluster import unique

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.real.realparts.secured import SecuredKafka

SUFFIX = unique("")
SEEN, HIDDEN = f"shop{SUFFIX}", f"vault{SUFFIX}"
MISSING, MISSING_HIDDEN = f"shop-missing{SUFFIX}", f"vault-missing{SUFFIX}"
NAMES = (SEEN, HIDDEN, MISSING, MISSING_HIDDEN)
COMPARED = frozenset(
    {
        *("error_code", "partition_error_code", "topic_config_error_code", "name", "topic", "key"),
        *("group_id", "transactional_id", "resource_name", "partition_index", "index", "partition", "base_offset"),
        *("offset", "timestamp", "committed_offset", "producer_epoch", "num_partitions", "replication_factor", "user"),
        *("authorized_operations", "end_offset", "mechanisms", "node_id"),
    }
)
Address = tuple[str, int]


@pytest.fixture(scope="module")
def addresses(secured_kafka: SecuredKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Address]]:
    """Listeners with logins and without TLS, same users, topics and ACLs."""
    with Admin(secured_kafka.bootstrap, request_timeout_ms=60_000) as admin:
        _prepare(admin)
    security = {"protocol": "SASL_PLAINTEXT", "ssl_keystore_location": None}
    with secured_broker(tmp_path_factory.mktemp("roster"), security) as roster:
        settings = {**roster.settings("admin"), "security.protocol": "SASL_PLAINTEXT"}
        settings.pop("ssl.ca.location")
        with Admin(roster.bootstrap, security=settings) as admin:
            _prepare(admin)
        granting = AdminClient({"bootstrap.servers": roster.bootstrap, **settings})
        for done in granting.create_acls(rights()).values():
            done.result(60)
        host, port = secured_kafka.address("SASL").split(":")
        yield {"roster": roster.broker.address, "apache": (host, int(port))}


def _prepare(admin: Admin) -> None:
    """Topics and groups that both clusters have; the coordinators of Apache Kafka are there afterwards."""
    for topic in (SEEN, HIDDEN):
        admin.create_topic(topic)
        admin.commit_group_offsets(topic, {TopicPartition(topic, 0): OffsetAndMetadata(1)})


def rights() -> list[AclBinding]:
    """Those that `SecuredKafka` gives rita."""
    of_topics = ("READ", "WRITE", "CREATE", "DELETE", "DESCRIBE", "ALTER", "DESCRIBE_CONFIGS")
    of_groups = ("READ", "DELETE")
    return [
        *(acl("rita", ResourceType.TOPIC, "shop", AclOperation[operation]) for operation in of_topics),
        *(acl("rita", ResourceType.GROUP, "shop", AclOperation[operation]) for operation in of_groups),
    ]


def shown(value: Any) -> Any:
    """What is compared of a response, items in an order of their own."""
    if isinstance(value, list):
        items = [shown(each) for each in value if not _is_another_tests(each)]
        return sorted(items, key=repr)
    if not hasattr(value, "__table__"):
        return value
    found = {}
    for name, field in value.__table__.fields:
        each = getattr(value, name)
        if name != "configs" and (field.kind in ("array", "struct") or name in COMPARED):
            found[name] = shown(each)
    return found


def _is_another_tests(item: Any) -> bool:
    """A topic or group of the shared cluster that is none of this module's."""
    name = getattr(item, "name", None) or getattr(item, "group_id", None)
    return isinstance(name, str) and not name.endswith(SUFFIX) and not hasattr(item, "value")


def logged_in(address: Address, user: str) -> RawClient:
    client = RawClient(address)
    client.ask(m.SaslHandshakeRequest(mechanism="PLAIN"), 1)
    done = client.ask(m.SaslAuthenticateRequest(auth_bytes=f"\0{user}\0{PASSWORDS[user]}".encode()), 2)
    assert done.error_code == 0, done.error_message
    return client


def requests() -> list[tuple[str, int, Any]]:
    """Each right that a request may lack, with the version that it is sent in."""
    group, hidden_group, transaction = SEEN, HIDDEN, f"tx{SUFFIX}"
    found: list[tuple[str, int, Any]] = []

    def add(message: Any, *versions: int) -> None:
        found.extend((type(message).__name__, version, message) for version in versions)

    def topics(cls: Any, name: str = "name", **more: Any) -> list[Any]:
        return [cls(**{name: each}, **more) for each in NAMES]

    add(m.MetadataRequest(topics=topics(m.MetadataRequest.Topic), include_topic_authorized_operations=True), 8, 12)
    add(m.MetadataRequest(topics=None), 1, 9)
    add(m.MetadataRequest(topics=[]), 0)
    fetched = topics(
        m.FetchRequest.Topic, "topic", partitions=[m.FetchRequest.Topic.Partition(partition_max_bytes=1000)]
    )
    add(m.FetchRequest(max_wait_ms=0, max_bytes=1000, topics=fetched), 11)
    listed = m.ListOffsetsRequest.Topic.Partition(partition_index=0, timestamp=-1)
    add(m.ListOffsetsRequest(topics=topics(m.ListOffsetsRequest.Topic, partitions=[listed])), 1, 7)
    data = m.ProduceRequest.Topic.Partition(index=0, records=batch([b"x"]))
    produced = [m.ProduceRequest.Topic(name=n, partition_data=[data]) for n in NAMES[1:]]
    add(m.ProduceRequest(acks=1, topic_data=produced), 8)
    add(m.InitProducerIdRequest(transactional_id=transaction, transaction_timeout_ms=1000), 4)
    committed = m.OffsetCommitRequest.Topic.Partition(partition_index=0, committed_offset=1, committed_metadata="")
    for each in (group, hidden_group):
        commit = m.OffsetCommitRequest(group_id=each, generation_id_or_member_epoch=-1)
        commit.topics = topics(m.OffsetCommitRequest.Topic, partitions=[committed])
        add(commit, 5, 8)
        wanted = topics(m.OffsetFetchRequest.Topic, partition_indexes=[0])
        add(m.OffsetFetchRequest(group_id=each, topics=wanted), 1, 5)
        add(m.OffsetFetchRequest(group_id=each, topics=None), 7)
        several = topics(m.OffsetFetchRequest.Group.Topic, partition_indexes=[0])
        add(m.OffsetFetchRequest(groups=[m.OffsetFetchRequest.Group(group_id=each, topics=several)]), 8)
        add(m.HeartbeatRequest(group_id=each, generation_id=1, member_id="x"), 0, 4)
        add(m.SyncGroupRequest(group_id=each, generation_id=1, member_id="x"), 3)
        add(m.LeaveGroupRequest(group_id=each, members=[m.LeaveGroupRequest.Member(member_id="x")]), 4)
        protocol = m.JoinGroupRequest.Protocol(name="range", metadata=b"")
        joining = {"session_timeout_ms": 6000, "rebalance_timeout_ms": 6000, "protocol_type": "consumer"}
        add(m.JoinGroupRequest(group_id=each, member_id="x", protocols=[protocol], **joining), 5)
        add(m.OffsetDeleteRequest(group_id=each, topics=[]), 0)
        add(m.FindCoordinatorRequest(key=each), 0, 3)
    add(m.FindCoordinatorRequest(coordinator_keys=[group, hidden_group]), 4)
    add(m.FindCoordinatorRequest(key_type=1, key=transaction), 2)
    add(m.DescribeGroupsRequest(groups=[group, hidden_group], include_authorized_operations=True), 5)
    add(m.ListGroupsRequest(), 3)
    add(m.DeleteGroupsRequest(groups_names=[hidden_group]), 2)
    created = [m.CreateTopicsRequest.Topic(name=n, num_partitions=1, replication_factor=1) for n in NAMES[1:]]
    add(m.CreateTopicsRequest(topics=created, validate_only=True, timeout_ms=9000), 4, 7)
    add(m.DeleteTopicsRequest(topic_names=[HIDDEN, MISSING, MISSING_HIDDEN], timeout_ms=9000), 5)
    add(m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequest.Topic(name=n) for n in NAMES[1:]], timeout_ms=9000), 6)
    grown = [m.CreatePartitionsRequest.Topic(name=n, count=2, assignments=None) for n in NAMES[1:]]
    add(m.CreatePartitionsRequest(topics=grown, timeout_ms=9000), 3)
    resources = [m.DescribeConfigsRequest.Resource(resource_type=2, resource_name=n) for n in NAMES[1:]]
    resources.append(m.DescribeConfigsRequest.Resource(resource_type=4, resource_name="1"))
    resources += [m.DescribeConfigsRequest.Resource(resource_type=32, resource_name=n) for n in (SEEN, HIDDEN)]
    add(m.DescribeConfigsRequest(resources=resources), 4)
    altered = [m.IncrementalAlterConfigsRequest.Resource(resource_type=2, resource_name=n) for n in NAMES]
    add(m.IncrementalAlterConfigsRequest(resources=altered), 1)
    replaced = [m.AlterConfigsRequest.Resource(resource_type=2, resource_name=n) for n in NAMES]
    add(m.AlterConfigsRequest(resources=replaced, validate_only=True), 2)
    producer: dict[str, Any] = {"producer_id": 1, "producer_epoch": 0}
    added = m.AddPartitionsToTxnRequest(v3_and_below_transactional_id=transaction)
    added.v3_and_below_topics = [m.AddPartitionsToTxnRequest.Topic(name=n, partitions=[0]) for n in NAMES]
    added.v3_and_below_producer_id = 1
    add(added, 3)
    add(m.AddOffsetsToTxnRequest(transactional_id=transaction, group_id=group, **producer), 3)
    add(m.EndTxnRequest(transactional_id=transaction, committed=True, **producer), 3)
    add(m.DescribeTransactionsRequest(transactional_ids=[transaction]), 0)
    deletion = m.AlterUserScramCredentialsRequest.ScramCredentialDeletion(name="nobody", mechanism=1)
    add(m.AlterUserScramCredentialsRequest(deletions=[deletion]), 0)
    add(m.DescribeAclsRequest(resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1), 2)
    acl = m.CreateAclsRequest.AclCreation(resource_type=2, resource_name="x", principal="User:x", host="*")
    acl.operation, acl.permission_type = 3, 3
    add(m.CreateAclsRequest(creations=[acl]), 2)
    one = m.DeleteAclsRequest.DeleteAclsFilter(resource_type_filter=2, resource_name_filter="x", operation=1)
    one.permission_type = 1
    add(m.DeleteAclsRequest(filters=[one]), 2)
    return found


@pytest.mark.parametrize("user", ["otto", "rita"])
def test_what_is_missing_has_apache_kafkas_error(addresses: dict[str, Address], user: str) -> None:
    differences = []
    for name, version, message in requests():
        answers = [_answer(addresses[which], user, message, version) for which in ("roster", "apache")]
        if answers[0] != answers[1]:
            differences.append(f"{name} v{version}:\n  roster {answers[0]}\n  apache {answers[1]}")
    assert not differences, "\n".join(differences)


def _answer(address: Address, user: str, message: Any, version: int) -> Any:
    with logged_in(address, user) as client:
        client.socket.settimeout(30)
        try:
            return shown(client.ask(message, version))
        except (TimeoutError, ConnectionError) as error:
            return repr(error)


@pytest.mark.gate
def test_logins_are_answered_as_apache_kafka_answers_them(addresses: dict[str, Address]) -> None:
    tokens = {
        "PLAIN": (b"\0rita\0wrong", b"\0nobody\0x", b"", b"rita", b"otto\0rita\0" + PASSWORDS["rita"].encode()),
        **dict.fromkeys(MECHANISMS, (b"n,,n=nobody,r=abc", b"", b"n,,n=rita", b"n,a=otto,n=rita,r=abc")),
    }
    for mechanism, messages in tokens.items():
        for token in messages:
            answers = [_login(address, mechanism, token) for address in addresses.values()]
            if len(token) > len("n,,n=rita") and b"otto" not in token:  # else the text names what is malformed
                assert answers[0] == answers[1], (mechanism, token)
            assert answers[0][0] == answers[1][0] == ErrorCode.SASL_AUTHENTICATION_FAILED
    for mechanism in MECHANISMS:
        assert len({_wrong_password(address, mechanism) for address in addresses.values()}) == 1
    unknown = []
    for address in addresses.values():
        with RawClient(address) as client:
            unknown.append(client.ask(m.SaslHandshakeRequest(mechanism="GSSAPI"), 1).error_code)
            assert client.is_closed()
    assert unknown[0] == unknown[1] == ErrorCode.UNSUPPORTED_SASL_MECHANISM


def _login(address: Address, mechanism: str, token: bytes) -> tuple[int, str | None]:
    with RawClient(address) as client:
        client.ask(m.SaslHandshakeRequest(mechanism=mechanism), 1)
        done = client.ask(m.SaslAuthenticateRequest(auth_bytes=token), 2)
        client.socket.shutdown(1)
        assert client.is_closed()
        return done.error_code, done.error_message


def _wrong_password(address: Address, mechanism: str) -> tuple[int, str | None]:
    scram = Scram(mechanism, "rita", "wrong", "abcdefghijklmnopqrstuvwx")
    with RawClient(address) as client:
        client.ask(m.SaslHandshakeRequest(mechanism=mechanism), 1)
        first = client.ask(m.SaslAuthenticateRequest(auth_bytes=scram.first()), 2)
        final = scram.answer(first.auth_bytes)
        assert final is not None
        done = client.ask(m.SaslAuthenticateRequest(auth_bytes=final), 2)
        return done.error_code, done.error_message
