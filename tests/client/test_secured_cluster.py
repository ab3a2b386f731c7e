"""TLS, SASL and ACLs of a real Apache Kafka: what connects, and the one error for each way it does not."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import (
    AclOperation,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from roster.client import (
    Admin,
    AuthenticationError,
    AuthorizationError,
    GroupMember,
    OffsetAndMetadata,
    UnreachableError,
    connection,
)
from roster.model import TopicPartition
from tests.real.realparts.cluster import unique
from tests.real.realparts.secured import STRANGER, STRANGER_PASSWORD, USER, USER_PASSWORD

if TYPE_CHECKING:
    from tests.real.realparts.secured import SecuredKafka


def unsecured_token(user: str = USER, seconds: int = 300) -> str:
    """A JWT without a signature, which the broker's validator for tests accepts."""
    now = int(time.time())
    parts = [{"alg": "none"}, {"sub": user, "iat": now, "exp": now + seconds}]
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts) + "."


def bad_token() -> str:
    return "abc"


def no_token() -> str:
    raise LookupError("the vault is locked")


def settings(kafka: SecuredKafka, how: str) -> dict[str, object] | None:
    """Security settings by a short name: protocol, mechanism and what is wrong with them."""
    files = kafka.certificates
    ssl: dict[str, object] = {"security.protocol": "SSL", "ssl.ca.location": files["ca"]}
    scram = kafka.scram()
    plain = {key: value for key, value in scram.items() if "ssl" not in key} | {"security.protocol": "SASL_PLAINTEXT"}
    bearer = {**ssl, "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    token = "sasl.oauthbearer.token.function"
    jaas = f'o.a.k.ScramLoginModule required username="{USER}" password="{USER_PASSWORD}";'

    def certificate(name: str, key: str = "-key") -> dict[str, object]:
        return {**ssl, "ssl.certificate.location": files[name], "ssl.key.location": files[name + key]}

    return {
        "PLAINTEXT": None,
        "SSL": ssl,
        "SSL, certificate": certificate("client"),
        "SSL, encrypted key": {**certificate("client", "-encrypted-key"), "ssl.key.password": "pa55"},
        "SSL, Java's stores": {
            "security.protocol": "SSL",
            "ssl.truststore.location": files["ca"],
            "ssl.keystore.location": files["client"],
        },
        "SSL, no host name check": {**ssl, "ssl.endpoint.identification.algorithm": ""},
        "SSL, no verification": {"security.protocol": "SSL", "enable.ssl.certificate.verification": "false"},
        "SSL, foreign CA": {"security.protocol": "SSL", "ssl.ca.location": files["other-ca"]},
        "SSL, CAs of the system": {"security.protocol": "SSL"},
        "SSL, foreign certificate": certificate("foreign-client"),
        "SSL, expired certificate": certificate("expired-client"),
        "SASL_SSL, SCRAM-SHA-512": dict(scram),
        "SASL_SSL, SCRAM-SHA-256": {**scram, "sasl.mechanism": "SCRAM-SHA-256"},
        "SASL_SSL, PLAIN": {**scram, "sasl.mechanism": "PLAIN"},
        "SASL_SSL, JAAS": {
            **{key: value for key, value in scram.items() if "name" not in key and "password" not in key},
            "sasl.jaas.config": jaas,
        },
        "SASL_SSL, OAUTHBEARER": {**bearer, token: unsecured_token},
        "SASL_SSL, bad token": {**bearer, token: bad_token},
        "SASL_SSL, no token": {**bearer, token: no_token},
        "SASL_SSL, wrong password": {**scram, "sasl.password": "wrong"},
        "SASL_SSL, PLAIN, wrong password": {**scram, "sasl.mechanism": "PLAIN", "sasl.password": "wrong"},
        "SASL_SSL, unknown user": {**scram, "sasl.username": "nobody"},
        "SASL_PLAINTEXT": plain,
    }[how]


@pytest.mark.parametrize(
    ("listener", "how"),
    [
        ("PLAINTEXT", "PLAINTEXT"),
        ("SSL", "SSL"),
        ("MUTUAL", "SSL, certificate"),
        ("MUTUAL", "SSL, encrypted key"),
        ("MUTUAL", "SSL, Java's stores"),
        ("WRONGNAME", "SSL, no host name check"),
        ("EXPIRED", "SSL, no verification"),
        ("SASL", "SASL_PLAINTEXT"),
        ("SECURE", "SASL_SSL, SCRAM-SHA-512"),
        ("SECURE", "SASL_SSL, SCRAM-SHA-256"),
        ("SECURE", "SASL_SSL, PLAIN"),
        ("SECURE", "SASL_SSL, JAAS"),
        ("SECURE", "SASL_SSL, OAUTHBEARER"),
    ],
)
def test_a_client_with_the_listeners_settings_works(secured_kafka: SecuredKafka, listener: str, how: str) -> None:
    topic = unique("shop")
    with Admin(secured_kafka.address(listener), security=settings(secured_kafka, how)) as admin:
        if listener in ("SSL", "WRONGNAME", "EXPIRED"):  # where everybody is anonymous
            assert isinstance(admin.list_topics(), dict)
            return
        admin.create_topic(topic, 2)
        assert admin.list_topics()[topic] == 2
        admin.delete_topic(topic)


REFUSALS = [
    ("SECURE", "SASL_SSL, wrong password", rf"refused user '{USER}'; check sasl\.username, sasl\.password"),
    ("SECURE", "SASL_SSL, PLAIN, wrong password", rf"refused user '{USER}'; check sasl\.username, sasl\.password"),
    ("SECURE", "SASL_SSL, unknown user", r"refused user 'nobody'; check sasl\.username"),
    ("SECURE", "SASL_SSL, bad token", r"status invalid_token; check what sasl\.oauthbearer\.token\.function returns"),
    ("SECURE", "PLAINTEXT", r"speaks TLS; set security\.protocol=SSL, or SASL_SSL"),
    ("SECURE", "SASL_PLAINTEXT", r"speaks TLS; set security\.protocol=SSL, or SASL_SSL"),
    ("SSL", "PLAINTEXT", r"speaks TLS; set security\.protocol=SSL, or SASL_SSL"),
    ("SSL", "SSL, foreign CA", r"not of a CA that is trusted .*; set ssl\.ca\.location"),
    ("SSL", "SSL, CAs of the system", r"not of a CA that is trusted .*; set ssl\.ca\.location"),
    ("SSL", "SASL_SSL, PLAIN", r"takes no SASL; use another port, or security\.protocol=SSL"),
    ("PLAINTEXT", "SASL_PLAINTEXT", r"takes no SASL; use another port, or security\.protocol=PLAINTEXT"),
    ("EXPIRED", "SSL", r"certificate has expired; renew it"),
    ("WRONGNAME", "SSL", r"certificate is for another name .*; connect by a name in the certificate"),
    ("MUTUAL", "SSL", r"asks for a client certificate; set ssl\.certificate\.location and ssl\.key\.location"),
    ("MUTUAL", "SSL, foreign certificate", r"refuses the client certificate .*; use a valid one"),
    ("MUTUAL", "SSL, expired certificate", r"refuses the client certificate .*; use a valid one"),
]


@pytest.mark.parametrize(("listener", "how", "said"), REFUSALS)
def test_what_no_other_attempt_mends_is_one_error_at_once(
    secured_kafka: SecuredKafka, listener: str, how: str, said: str
) -> None:
    never = 2**31 - 1
    with (
        Admin(
            secured_kafka.address(listener), security=settings(secured_kafka, how), request_timeout_ms=never
        ) as admin,
        pytest.raises(AuthenticationError, match=said) as caught,
    ):
        admin.list_topics()
    assert not caught.value.retriable
    assert "\n" not in str(caught.value)
    assert USER_PASSWORD not in str(caught.value)


HINTS = [
    ("PLAINTEXT", "SSL", r"is it a listener without TLS\? Then security\.protocol=SSL is wrong"),
    ("SASL", "SASL_SSL, PLAIN", r"is it a listener without TLS\? Then security\.protocol=SASL_SSL is wrong"),
    ("SASL", "PLAINTEXT", r"set security\.protocol=SASL_PLAINTEXT"),
    ("SECURE", "SSL", r"set security\.protocol=SASL_SSL"),
    ("SECURE", "SASL_SSL, no token", r"token\.function failed: LookupError: the vault is locked"),
]


@pytest.mark.parametrize(("listener", "how", "said"), HINTS)
def test_what_may_pass_is_unreachable_with_a_hint(
    secured_kafka: SecuredKafka, listener: str, how: str, said: str
) -> None:
    with (
        Admin(secured_kafka.address(listener), security=settings(secured_kafka, how)) as admin,
        pytest.raises(UnreachableError, match=said),
    ):
        admin.list_topics()


def test_a_member_is_refused_at_once_too(secured_kafka: SecuredKafka) -> None:
    member = GroupMember(
        secured_kafka.address("SECURE"), "shop", ["shop"], security=settings(secured_kafka, "SASL_SSL, wrong password")
    )
    with pytest.raises(AuthenticationError, match="check sasl"):
        member.start()


def stranger(kafka: SecuredKafka) -> dict[str, str]:
    return kafka.scram(STRANGER_PASSWORD, STRANGER)


def test_a_missing_acl_is_one_error_that_names_it(secured_kafka: SecuredKafka) -> None:
    topic, group = secured_kafka.create_topic("shop"), unique("shop")
    address = secured_kafka.address("SECURE")
    with Admin(address, security=stranger(secured_kafka)) as admin:
        cases = {
            "topic.*grant": [
                lambda: admin.create_topic(unique("shop")),
                lambda: admin.delete_topic(topic),
                lambda: admin.end_offsets([TopicPartition(topic, 0)]),
                lambda: admin.topic_configs(topic),
            ],
            r"group.*grant this client": [
                lambda: admin.group_offsets(group),
                lambda: admin.describe_group(group),
                lambda: admin.delete_group(group),
            ],
        }
        for said, calls in cases.items():
            for call in calls:
                with pytest.raises(AuthorizationError) as caught:
                    call()
                assert re.search(said, str(caught.value)), str(caught.value)
    readable = unique("shop")
    secured_kafka.allow(STRANGER, ResourceType.GROUP, readable, AclOperation.READ)
    with Admin(address, security=stranger(secured_kafka)) as admin:
        with pytest.raises(AuthorizationError, match="grant this client DELETE on the group"):
            admin.delete_group(readable)
        with pytest.raises(AuthorizationError, match="grant this client READ on the topics"):
            admin.commit_group_offsets(readable, {TopicPartition(topic, 0): OffsetAndMetadata(1)})
    with pytest.raises(AuthorizationError, match=f"topic {topic}; grant it DESCRIBE and READ"):
        GroupMember(address, group, [topic], security=stranger(secured_kafka)).start()
    secured_kafka.allow(STRANGER, ResourceType.TOPIC, topic, AclOperation.READ, AclOperation.DESCRIBE)
    with pytest.raises(AuthorizationError, match="grant it READ on the group"):
        GroupMember(address, group, [topic], security=stranger(secured_kafka)).start()


def test_a_password_counts_by_its_bytes_as_in_apache_kafka(secured_kafka: SecuredKafka) -> None:
    """SASLprep would make of these a plain space and the letters fi; Kafka's ScramFormatter.normalize does not."""
    user, password = "a=b,c", "non\u00a0breaking ﬁ"
    kind = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192)
    change = UserScramCredentialUpsertion(user, kind, password.encode())
    for done in secured_kafka.admin.alter_user_scram_credentials([change]).values():
        done.result(60)
    given = secured_kafka.scram(password, user, "SCRAM-SHA-256")
    with Admin(secured_kafka.address("SECURE"), security=given) as admin:
        for _ in range(300):  # until the broker has the new user
            try:
                assert isinstance(admin.list_topics(), dict)
                break
            except AuthenticationError:
                time.sleep(0.2)
        else:
            pytest.fail("the user cannot log in")


def test_logins_are_renewed_on_the_same_connection(
    secured_kafka: SecuredKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-368: the broker closes a connection that goes on after its session's end without a new login."""
    opened, logins = [], []
    open_connection, login = asyncio.open_connection, connection.begin_login

    def counted(*arguments: object, **options: object):
        opened.append(1)
        return open_connection(*arguments, **options)

    monkeypatch.setattr(asyncio, "open_connection", counted)
    monkeypatch.setattr(connection, "begin_login", lambda security: logins.append(1) or login(security))
    deadline = time.monotonic() + 60
    with Admin(secured_kafka.address("RENEWED"), security=secured_kafka.scram()) as admin:
        while len(logins) - len(opened) < 2 and time.monotonic() < deadline:
            assert isinstance(admin.list_topics(), dict)
    # A machine that stands still past the session's end costs a connection and its login, but no more.
    assert len(logins) - len(opened) == 2
