"""Tasks' own connections over TLS and SASL of a real Apache Kafka: rows, renewed logins, refusals at once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from roster.model.address import parse_addresses
from roster.records import connections
from roster.records.fetch import read_ranges
from roster.records.fetch_decisions import FetchError, Settings
from roster.security import parse_security
from tests.client.test_secured_cluster import HINTS, REFUSALS, settings, unsecured_token
from tests.real.realparts.secured import STRANGER, STRANGER_PASSWORD

if TYPE_CHECKING:
    from tests.real.realparts.secured import SecuredKafka

RECORDS = 3_000
WAYS = [
    ("MUTUAL", "SSL, certificate"),
    ("MUTUAL", "SSL, encrypted key"),
    ("SASL", "SASL_PLAINTEXT"),
    ("SECURE", "SASL_SSL, SCRAM-SHA-512"),
    ("SECURE", "SASL_SSL, PLAIN"),
    ("SECURE", "SASL_SSL, OAUTHBEARER"),
]


@pytest.fixture(scope="module")
def topic(secured_kafka: SecuredKafka) -> str:
    return secured_kafka.create_topic("shop", 2, RECORDS)


def fetch(kafka: SecuredKafka, listener: str, given: object, topic: str, timeout: float = 60.0) -> pa.Table:
    ranges = [(topic, partition, 0, RECORDS) for partition in range(2)]
    found = read_ranges(
        parse_addresses(kafka.address(listener)),
        "secured",
        ranges,
        Settings(),
        timeout=timeout,
        security=parse_security(given),  # type: ignore[arg-type]
    )
    return pa.Table.from_batches(list(found)).sort_by([("partition", "ascending"), ("offset", "ascending")])


@pytest.mark.parametrize(("listener", "how"), WAYS)
def test_rows_are_those_of_the_plaintext_listener(
    secured_kafka: SecuredKafka, topic: str, listener: str, how: str
) -> None:
    plain = fetch(secured_kafka, "PLAINTEXT", None, topic)
    assert plain.num_rows == 2 * RECORDS
    assert fetch(secured_kafka, listener, settings(secured_kafka, how), topic) == plain


@pytest.mark.parametrize(("listener", "how", "said"), REFUSALS)
def test_a_refusal_is_one_error_at_once(
    secured_kafka: SecuredKafka, topic: str, listener: str, how: str, said: str
) -> None:
    with pytest.raises(FetchError, match=said):
        fetch(secured_kafka, listener, settings(secured_kafka, how), topic, timeout=1e6)


@pytest.mark.parametrize(("listener", "how", "said"), [HINTS[0], HINTS[1], HINTS[4]])
def test_what_may_pass_ends_with_the_timeout_and_a_hint(
    secured_kafka: SecuredKafka, topic: str, listener: str, how: str, said: str
) -> None:
    with pytest.raises(FetchError, match=f"request.timeout.ms.*{said}"):
        fetch(secured_kafka, listener, settings(secured_kafka, how), topic, timeout=4)


def test_a_missing_acl_says_what_to_grant(secured_kafka: SecuredKafka, topic: str) -> None:
    with pytest.raises(FetchError, match="TOPIC_AUTHORIZATION_FAILED; grant this client READ on the topic"):
        fetch(secured_kafka, "SECURE", secured_kafka.scram(STRANGER_PASSWORD, STRANGER), topic)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN", "OAUTHBEARER"])
@pytest.mark.sampled(1)
def test_logins_are_renewed_on_the_same_connection(
    secured_kafka: SecuredKafka, topic: str, mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-368: the broker closes a connection that goes on after its session's end without a new login."""
    given: dict[str, object] = {**secured_kafka.scram(), "sasl.mechanism": mechanism}
    if mechanism == "OAUTHBEARER":
        token = {"sasl.oauthbearer.token.function": unsecured_token}
        given = {name: value for name, value in given.items() if name not in ("sasl.username", "sasl.password")} | token
    security = parse_security(given)
    opened, logins = [], []
    begin, login = connections._begin_to_connect, connections.begin_login
    monkeypatch.setattr(connections, "_begin_to_connect", lambda places: opened.append(1) or begin(places))
    monkeypatch.setattr(connections, "begin_login", lambda security: logins.append(1) or login(security))
    deadline = time.monotonic() + 60
    while len(logins) - len(opened) < 3 and time.monotonic() < deadline:
        assert fetch(secured_kafka, "RENEWED", security, topic).num_rows == 2 * RECORDS
    # A machine that stands still past the session's end costs a connection and its login, but no more.
    assert len(logins) - len(opened) >= 3
