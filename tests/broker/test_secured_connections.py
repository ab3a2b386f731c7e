"""TLS handshakes, slow and silent clients, and limits of connections, with sockets that say what they are told."""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import ssl
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from roster.broker import BrokerConfig, BrokerSecurity, BrokerStartError
from roster.broker.request_limits import SERVED
from roster.broker.security.principals import distinguished_name
from roster.broker.security.session import FAILURE_DELAY_SECONDS
from roster.client import Admin, AuthenticationError
from roster.testing.broker import running_broker
from roster.wire import ApiKey, ErrorCode, request_class
from roster.wire.frames import encode_request
from roster.wire.messages import (
    ApiVersionsRequest,
    DescribeAclsRequest,
    FetchRequest,
    MetadataRequest,
    ProduceRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from tests.broker.fuzzed_frames import random_message
from tests.broker.rawclient import RawClient
from tests.broker.secured import PASSWORDS, Secured, secured_broker
from tests.real.realparts.secured import make_certificates

if TYPE_CHECKING:
    from collections.abc import Iterator

    from roster.broker import Broker

PLAIN = {"protocol": "SASL_PLAINTEXT", "ssl_keystore_location": None}


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A listener that asks for client certificates."""
    directory = tmp_path_factory.mktemp("tls")
    certificates = make_certificates(directory)
    subject = ssl._ssl._test_decode_cert(certificates["client"])["subject"]  # type: ignore[attr-defined]
    security = {
        "protocol": "SSL",
        "ssl_truststore_location": directory / "ca.pem",
        "ssl_client_auth": "required",
        "super_users": frozenset({f"User:{distinguished_name(subject)}"}),
    }
    with secured_broker(directory, security, certificates) as running:
        yield running


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Logins without TLS, so that raw clients can do them; each lasts for an hour."""
    with secured_broker(tmp_path_factory.mktemp("plain"), {**PLAIN, "connections_max_reauth_ms": 3_600_000}) as running:
        yield running


def mutual(secured: Secured, certificate: str = "client", ca: str = "ca") -> Admin:
    files = secured.certificates
    settings = {
        "security.protocol": "SSL",
        "ssl.ca.location": files[ca],
        "ssl.certificate.location": files[certificate],
        "ssl.key.location": files[f"{certificate}-key"],
    }
    return Admin(secured.bootstrap, security=settings, request_timeout_ms=60_000)


def test_the_certificate_of_a_client_is_its_principal(tls: Secured) -> None:
    with mutual(tls) as admin:
        admin.create_topic("of-a-super-user")


@pytest.mark.parametrize(
    ("certificate", "said"),
    [("expired-client", "certificate expired|expired"), ("foreign-client", "unknown ca|certificate")],
)
def test_a_client_reads_why_its_certificate_is_refused(tls: Secured, certificate: str, said: str) -> None:
    with mutual(tls, certificate) as admin, pytest.raises(AuthenticationError, match=said):
        admin.list_topics()


def test_a_broker_that_is_not_trusted_and_a_missing_certificate(tls: Secured) -> None:
    with mutual(tls, ca="other-ca") as admin, pytest.raises(AuthenticationError, match=r"set ssl\.ca\.location"):
        admin.list_topics()
    only_ca = {"security.protocol": "SSL", "ssl.ca.location": tls.certificates["ca"]}
    with (
        Admin(tls.bootstrap, security=only_ca) as admin,
        pytest.raises(AuthenticationError, match="asks for a client certificate"),
    ):
        admin.list_topics()


def test_a_client_without_tls_is_closed_cleanly_and_knows_why(tls: Secured) -> None:
    with socket.create_connection(tls.broker.address, timeout=60) as client:
        client.sendall(encode_request(ApiVersionsRequest(), 0, 1, "raw"))
        assert client.recv(100) == bytes.fromhex("1503010002020a")  # a TLS alert
        assert client.recv(100) == b""
    with Admin(tls.bootstrap) as admin, pytest.raises(AuthenticationError, match="it speaks TLS"):
        admin.list_topics()


def test_tls_before_1_2_is_refused(tls: Secured) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with socket.create_connection(tls.broker.address, timeout=60) as client, pytest.raises(OSError):  # noqa: PT011
        context.wrap_socket(client)


def sasl(client: RawClient, token: bytes) -> Any:
    client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    return client.ask(SaslAuthenticateRequest(auth_bytes=token), 2)


def test_a_login_step_by_step(plain: Secured) -> None:
    token = f"\0admin\0{PASSWORDS['admin']}".encode()
    with RawClient(plain.broker.address) as client:
        assert client.ask(ApiVersionsRequest(), 0).error_code == 0
        done = sasl(client, token)
        assert (done.error_code, done.session_lifetime_ms) == (0, 3_600_000)
        everything = DescribeAclsRequest(resource_type_filter=1, operation=1, permission_type=1, pattern_type_filter=1)
        everything.resource_name_filter = everything.principal_filter = everything.host_filter = None
        assert client.ask(everything, 2).error_code == 0
        assert client.ask(SaslAuthenticateRequest(auth_bytes=b""), 1).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert sasl(client, token).error_code == 0  # renewed
        other = sasl(client, f"\0rita\0{PASSWORDS['rita']}".encode())
        assert other.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert "Cannot change principals" in other.error_message


def test_a_handshake_of_version_0_is_followed_by_bare_messages(plain: Secured) -> None:
    with RawClient(plain.broker.address) as client:
        assert client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 0).error_code == 0
        token = f"\0rita\0{PASSWORDS['rita']}".encode()
        client.socket.sendall(struct.pack(">i", len(token)) + token)
        assert client.frame() == b""
        assert client.ask(MetadataRequest(topics=[]), 1).topics == []


def test_no_request_is_answered_before_the_login(plain: Secured) -> None:
    for message, version in ((MetadataRequest(topics=None), 1), (SaslAuthenticateRequest(auth_bytes=b"x"), 1)):
        with RawClient(plain.broker.address) as client:
            client.send(message, version)
            assert client.is_closed()
    with RawClient(plain.broker.address) as client:
        client.socket.sendall(struct.pack(">i", 600_000))
        assert client.is_closed()


def test_the_log_says_who_was_refused_and_holds_no_password(plain: Secured, caplog: pytest.LogCaptureFixture) -> None:
    assert FAILURE_DELAY_SECONDS > 0
    with caplog.at_level(logging.DEBUG), RawClient(plain.broker.address) as client:
        assert sasl(client, b"\0rita\0hunter2").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        client.socket.shutdown(socket.SHUT_WR)
        assert client.is_closed()
    assert "user 'rita'" in caplog.text
    assert "hunter2" not in caplog.text


def test_a_login_that_has_expired_ends_the_connection(tmp_path: Path) -> None:
    with (
        secured_broker(tmp_path, {**PLAIN, "connections_max_reauth_ms": 1}) as secured,
        RawClient(secured.broker.address) as client,
    ):
        sasl(client, f"\0rita\0{PASSWORDS['rita']}".encode())
        time.sleep(0.01)  # ten times as long as the login lasts
        client.send(MetadataRequest(topics=[]), 1)
        assert client.is_closed()


@pytest.mark.parametrize("key", sorted(set(SERVED) - {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}))
def test_each_request_in_each_version_is_answered_to_a_user_without_rights(plain: Secured, key: ApiKey) -> None:
    chance = random.Random(key)
    with RawClient(plain.broker.address) as client:
        assert sasl(client, f"\0otto\0{PASSWORDS['otto']}".encode()).error_code == 0
        for version in list(SERVED[key]) * 5:
            message = random_message(request_class(key), version, chance)
            if isinstance(message, ProduceRequest):
                message.acks = 1
            if isinstance(message, FetchRequest):
                message.max_wait_ms = 0
            if isinstance(message, MetadataRequest) and version < 12:  # which cannot answer about ids
                message.topics = [MetadataRequest.Topic(name=name) for name in ("t", "u")]
            client.ask(message, version)


# Limits


@contextlib.contextmanager
def opened(broker: Broker, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(broker.address, timeout=60)) for _ in range(count)]


def test_half_open_connections_keep_no_one_out(tmp_path: Path) -> None:
    with (
        running_broker(tmp_path, max_connections=20) as broker,
        RawClient(broker.address) as settled,
    ):
        settled.ask(ApiVersionsRequest(), 0)
        with opened(broker, 100):
            for _ in range(3):
                with RawClient(broker.address) as client:
                    assert client.ask(ApiVersionsRequest(), 0).error_code == 0
            assert settled.ask(ApiVersionsRequest(), 0).error_code == 0


def test_connections_that_are_in_use_are_not_closed_for_others(tmp_path: Path) -> None:
    with running_broker(tmp_path, max_connections=2) as broker, contextlib.ExitStack() as stack:
        used = [stack.enter_context(RawClient(broker.address)) for _ in range(2)]
        for client in used:
            client.ask(ApiVersionsRequest(), 0)
        with RawClient(broker.address) as late:
            assert late.is_closed()
        for client in used:
            assert client.ask(ApiVersionsRequest(), 0).error_code == 0


def test_one_address_has_no_more_than_its_connections(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with (
        running_broker(tmp_path, max_connections_per_ip=3) as broker,
        opened(broker, 3),
        RawClient(broker.address) as client,
    ):
        assert client.is_closed()
    assert "has 3 connections already (max.connections.per.ip)" in caplog.text


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT"])
def test_a_connection_that_is_not_set_up_in_time_is_closed(tmp_path: Path, protocol: str) -> None:
    keystore = tmp_path / "broker.pem" if protocol == "SSL" else None
    security = {"protocol": protocol, "ssl_keystore_location": keystore}
    with secured_broker(tmp_path, security, connection_setup_timeout_ms=200) as secured:
        for start in (b"", b"\x16\x03\x01", b"\0\0\0\x0a\0"):
            if protocol != "SSL" and start:
                continue  # a request that has begun has the receive timeout
            with RawClient(secured.broker.address) as client:
                client.socket.sendall(start)
                with contextlib.suppress(ConnectionError):
                    while client.socket.recv(100):  # an alert, perhaps
                        pass


def test_a_request_that_trickles_in_is_cut_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with (
        running_broker(tmp_path, receive_timeout_ms=200) as broker,
        RawClient(broker.address) as client,
        RawClient(broker.address) as bystander,
    ):
        client.socket.sendall(struct.pack(">i", 1_000) + b"\0\x03")
        assert client.is_closed()
        assert bystander.ask(ApiVersionsRequest(), 0).error_code == 0
    assert "receive timeout" in caplog.text


# Settings


@pytest.mark.parametrize(
    ("settings", "option"),
    [
        ({"protocol": "TLS"}, "--security-protocol"),
        ({"protocol": "SSL"}, "--ssl-keystore-location"),
        ({"ssl_keystore_location": Path("x")}, "--security-protocol SSL or SASL_SSL"),
        ({"protocol": "SSL", "ssl_keystore_location": Path("x"), "ssl_client_auth": "required"}, "--ssl-truststore"),
        ({"protocol": "SASL_PLAINTEXT", "sasl_enabled_mechanisms": ()}, "--sasl-enabled-mechanisms"),
        ({"super_users": frozenset({"admin"})}, "write User:NAME"),
    ],
)
def test_settings_that_contradict_each_other_name_the_option(settings: dict[str, Any], option: str) -> None:
    with pytest.raises(BrokerStartError, match=option):
        BrokerSecurity(**settings)


def test_an_encrypted_key_needs_its_password(tls: Secured, tmp_path: Path) -> None:
    files = tls.certificates
    keystore, password = tmp_path / "keystore.pem", tmp_path / "password"
    chain = Path(files["broker"]).read_text().split("-----BEGIN PRIVATE KEY")[0]
    keystore.write_text(chain + Path(files["broker-encrypted-key"]).read_text())
    security = {"protocol": "SSL", "ssl_keystore_location": keystore, "ssl_key_password_file": password}
    for text, works in (("pa55\n", True), ("wrong\n", False)):
        password.write_text(text)
        started = running_broker(tmp_path / text.strip(), security=BrokerSecurity(**security))
        if works:
            with started:
                pass
        else:
            with pytest.raises(BrokerStartError, match="--ssl-key-password-file"), started:
                pass


@pytest.mark.parametrize(
    ("store", "problem"),
    [
        (b"\x30\x82", "--ssl-keystore-location: .* is binary .*openssl pkcs12"),
        (b"\xfe\xed\xfe\xed", "--ssl-keystore-location: .* is a Java keystore .*keytool -importkeystore"),
        (b"no PEM", "--ssl-keystore-location: it contains no private key"),
        (None, "--ssl-keystore-location: .* cannot be read .No such file"),
    ],
)
def test_a_key_store_that_cannot_be_used_is_named_with_the_fix(
    tmp_path: Path, store: bytes | None, problem: str
) -> None:
    keystore = tmp_path / "keystore"
    if store is not None:
        keystore.write_bytes(store)
    security = BrokerSecurity(protocol="SSL", ssl_keystore_location=keystore)
    started = running_broker(tmp_path / "data", security=security)
    with pytest.raises(BrokerStartError, match=problem), started:
        pass


def test_limits_of_nothing_are_refused_by_name() -> None:
    with pytest.raises(BrokerStartError, match="max_connections: 0 is not a whole number from 1 to"):
        BrokerConfig(data_dir=Path(), max_connections=0)
