"""Logins and ACLs of the broker as real clients see them: kafka-python, confluent-kafka, aiokafka, Roster's own."""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import TYPE_CHECKING, Any

import kafka
import kafka.errors
import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from roster.client import AuthenticationError, AuthorizationError
from tests.broker.secured import PASSWORDS, Secured, secured_broker
from tests.real.realparts.cluster import unique

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 60
"""Patience with clients on a machine that is busy."""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_broker(tmp_path_factory.mktemp("secured")) as running:
        allow = confluent_admin(running)
        rights = [
            acl("rita", ResourceType.TOPIC, "shop", AclOperation.ALL),
            acl("rita", ResourceType.GROUP, "shop", AclOperation.READ),
            acl("rita", ResourceType.TRANSACTIONAL_ID, "shop", AclOperation.WRITE),
        ]
        for done in allow.create_acls(rights).values():
            done.result(SECONDS)
        yield running


def acl(user: str, kind: ResourceType, name: str, operation: AclOperation) -> AclBinding:
    return AclBinding(kind, name, ResourcePatternType.PREFIXED, f"User:{user}", "*", operation, AclPermissionType.ALLOW)


def librdkafka(secured: Secured, user: str, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": secured.bootstrap, "log_level": 2, **secured.settings(user), **more}


def confluent_admin(secured: Secured, user: str = "admin") -> AdminClient:
    return AdminClient(librdkafka(secured, user))


def kafka_python(secured: Secured, user: str, password: str | None = None, mechanism: str = "PLAIN") -> dict[str, Any]:
    return {
        "bootstrap_servers": secured.bootstrap,
        "security_protocol": "SASL_SSL",
        "ssl_cafile": secured.certificates["ca"],
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": PASSWORDS[user] if password is None else password,
    }


def new_topic(secured: Secured, prefix: str = "shop") -> str:
    topic = unique(prefix)
    with secured.admin() as admin:
        admin.create_topic(topic)
    return topic


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_kafka_python_writes_and_reads_with_each_mechanism(secured: Secured, mechanism: str) -> None:
    topic = new_topic(secured)
    config = kafka_python(secured, "rita", mechanism=mechanism)
    producer = kafka.KafkaProducer(**config)
    producer.send(topic, b"value").get(SECONDS)
    producer.close()
    consumer = kafka.KafkaConsumer(**config, auto_offset_reset="earliest")
    consumer.assign([kafka.TopicPartition(topic, 0)])
    assert [record.value for record in _until_some(consumer)] == [b"value"]
    consumer.close()


def _until_some(consumer: Any) -> list[Any]:
    for _ in range(SECONDS):
        found = [record for records in consumer.poll(1_000).values() for record in records]
        if found:
            return found
    raise AssertionError("no records")


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password_is_an_authentication_error_to_kafka_python(
    secured: Secured, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    said = "SaslAuthenticationFailedError: Authentication failed"
    config = kafka_python(secured, "rita", "nonsense", mechanism)
    for patience_ms in (300, 3_000, 30_000):  # it tries again until then
        with pytest.raises(kafka.errors.KafkaError), caplog.at_level(logging.ERROR, "kafka"):
            kafka.KafkaAdminClient(**config, bootstrap_timeout_ms=patience_ms)
        if said in caplog.text:
            break
    assert said in caplog.text
    assert "nonsense" not in caplog.text


def test_a_wrong_password_is_an_authentication_error_to_librdkafka(secured: Secured) -> None:
    seen: list[KafkaError] = []
    settings = librdkafka(secured, "rita", **{"sasl.password": "wrong", "error_cb": seen.append})
    producer = Producer(settings)
    for _ in range(SECONDS):
        producer.poll(1)
        if any(error.code() == KafkaError._AUTHENTICATION for error in seen):
            break
    (said,) = {error.str() for error in seen if error.code() == KafkaError._AUTHENTICATION}
    assert "invalid credentials with SASL mechanism SCRAM-SHA-512" in said


def test_a_mechanism_that_is_not_enabled_is_refused_with_those_that_are(tmp_path: Any) -> None:
    only = {"sasl_enabled_mechanisms": ("SCRAM-SHA-512",)}
    with (
        secured_broker(tmp_path, only) as secured,
        secured.admin() as known,
    ):
        known.list_topics()
        refused = secured.settings("rita", mechanism="SCRAM-SHA-256")
        from roster.client import Admin

        with (
            Admin(secured.bootstrap, security=refused) as admin,
            pytest.raises(
                AuthenticationError, match=r"does not offer sasl.mechanism=SCRAM-SHA-256; it offers SCRAM-SHA-512"
            ),
        ):
            admin.list_topics()


async def test_aiokafka_writes_in_a_transaction(secured: Secured) -> None:
    topic = await asyncio.to_thread(new_topic, secured)
    context = ssl.create_default_context(cafile=secured.certificates["ca"])
    producer = AIOKafkaProducer(
        bootstrap_servers=secured.bootstrap,
        security_protocol="SASL_SSL",
        ssl_context=context,
        sasl_mechanism="SCRAM-SHA-256",
        sasl_plain_username="rita",
        sasl_plain_password=PASSWORDS["rita"],
        transactional_id=unique("shop"),
    )
    await producer.start()
    try:
        async with producer.transaction():
            await producer.send_and_wait(topic, b"value")
    finally:
        await producer.stop()


def test_what_a_user_may_not_has_kafkas_error(secured: Secured) -> None:
    topic = new_topic(secured)
    assert _first_error(secured, "rita", "other-group", topic) == KafkaError.GROUP_AUTHORIZATION_FAILED
    assert _first_error(secured, "otto", "shop-group", topic) in (
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    )
    with secured.admin("otto") as stranger, pytest.raises(AuthorizationError, match="may not read topic"):
        stranger.describe_topic(topic)
    admin = confluent_admin(secured, "rita")
    (done,) = admin.create_acls([acl("rita", ResourceType.TOPIC, "vault", AclOperation.ALL)]).values()
    with pytest.raises(KafkaException) as caught:
        done.result(SECONDS)
    assert caught.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED


def _first_error(secured: Secured, user: str, group: str, topic: str) -> int:
    consumer = Consumer(librdkafka(secured, user, **{"group.id": group}))
    try:
        consumer.subscribe([topic])
        for _ in range(SECONDS):
            message = consumer.poll(1)
            if message is not None and message.error() is not None:
                return message.error().code()
    finally:
        consumer.close()
    raise AssertionError("no error")


def _acls_of(secured: Secured, user: str) -> list[AclBinding]:
    everything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    admin = confluent_admin(secured, user)  # ends what is under way when it is forgotten
    found: list[AclBinding] = admin.describe_acls(everything).result(SECONDS)
    return found


def test_topics_and_groups_that_a_user_may_not_see_are_not_shown(secured: Secured) -> None:
    hidden, seen = new_topic(secured, "vault"), new_topic(secured)
    with secured.admin("rita") as admin:
        topics = admin.list_topics()
        assert seen in topics
        assert hidden not in topics
        with pytest.raises(AuthorizationError, match="grant this client"):
            admin.create_topic(unique("vault"))
        with pytest.raises(AuthorizationError, match="grant this client"):
            admin.delete_topic(hidden)
    with secured.admin("otto") as admin:
        assert admin.list_topics() == {}
        assert admin.list_groups() == []
        unseen = unique("unseen")
        known = confluent_admin(secured)
        (done,) = known.create_acls([acl("otto", ResourceType.TOPIC, unseen, AclOperation.CREATE)]).values()
        done.result(SECONDS)
        with pytest.raises(AuthorizationError, match="may not read topic"):
            admin.create_topic(unseen)


def test_acls_are_described_and_deleted_and_a_denial_wins(secured: Secured) -> None:
    topic = new_topic(secured)
    admin = confluent_admin(secured)
    denial = AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        "User:rita",
        "*",
        AclOperation.WRITE,
        AclPermissionType.DENY,
    )
    for done in admin.create_acls([denial]).values():
        done.result(SECONDS)
    assert denial in _acls_of(secured, "admin")
    failures: list[KafkaError] = []
    producer = Producer(librdkafka(secured, "rita"))
    producer.produce(topic, b"value", on_delivery=lambda error, _: failures.append(error))
    producer.flush(SECONDS)
    assert failures[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    wanted = AclBindingFilter(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    ((_, done),) = admin.delete_acls([wanted]).items()
    assert done.result(SECONDS) == [denial]
    assert denial not in _acls_of(secured, "admin")
    producer = Producer(librdkafka(secured, "rita"))
    producer.produce(topic, b"value", on_delivery=lambda error, _: failures.append(error))
    producer.flush(SECONDS)
    assert failures[1] is None


def test_users_come_and_go_by_the_standard_requests(secured: Secured) -> None:
    admin = confluent_admin(secured)
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    (done,) = admin.alter_user_scram_credentials([UserScramCredentialUpsertion("nina", info, b"pw-of-nina")]).values()
    done.result(SECONDS)
    described = admin.describe_user_scram_credentials(["nina"])["nina"].result(SECONDS)
    assert [(found.mechanism, found.iterations) for found in described.scram_credential_infos] == [
        (ScramMechanism.SCRAM_SHA_512, 4096)
    ]
    for mechanism in ("SCRAM-SHA-512", "PLAIN"):
        consumer = kafka.KafkaConsumer(**kafka_python(secured, "nina", "pw-of-nina", mechanism))
        assert consumer.topics() == set()
        consumer.close()
    gone = UserScramCredentialDeletion("nina", ScramMechanism.SCRAM_SHA_512)
    (done,) = admin.alter_user_scram_credentials([gone]).values()
    done.result(SECONDS)
    with pytest.raises(KafkaException) as caught:
        admin.describe_user_scram_credentials(["nina"])["nina"].result(SECONDS)
    assert caught.value.args[0].code() == KafkaError.RESOURCE_NOT_FOUND


def test_no_secret_is_in_the_files_and_only_their_owner_reads_them(secured: Secured) -> None:
    path = secured.broker.config.data_dir / "security.json"
    assert path.stat().st_mode & 0o077 == 0
    text = path.read_text()
    assert not any(password in text for password in PASSWORDS.values())
