"""SASL mechanisms: vectors of the RFCs, and SCRAM against an implementation of the server by other people."""

from __future__ import annotations

import base64
import json
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scramp import ScramException, ScramMechanism

from roster.wire.sasl.mechanism import Bearer, Plain, SaslError
from roster.wire.sasl.scram import Scram
from tests.examples_tried import examples

NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
MECHANISMS = st.sampled_from(["SCRAM-SHA-256", "SCRAM-SHA-512"])
NONCES = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters=","), min_size=1, max_size=40)
# scramp prepares names and passwords with SASLprep, Kafka does not: only text that this leaves as it is.
TEXTS = st.text(
    st.characters(min_codepoint=0x20, max_codepoint=0x17F, exclude_categories=["Cc", "Cf", "Zs"]),
    min_size=1,
    max_size=30,
).filter(lambda text: unicodedata.normalize("NFKC", text) == text)


def begun(nonce: str = NONCE, password: str = "pencil") -> Scram:
    client = Scram("SCRAM-SHA-256", "user", password, nonce)
    client.first()
    return client


def test_rfc_7677_section_3() -> None:
    client = Scram("SCRAM-SHA-256", "user", "pencil", NONCE)
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert client.answer(SERVER_FIRST) == CLIENT_FINAL
    assert client.answer(SERVER_FINAL) is None
    client.finish()


@settings(max_examples=examples(60), deadline=None)
@given(mechanism=MECHANISMS, username=TEXTS, password=TEXTS, nonce=NONCES, iterations=st.integers(4096, 6000))
def test_a_server_by_other_people_accepts_the_password(
    mechanism: str, username: str, password: str, nonce: str, iterations: int
) -> None:
    server_side = ScramMechanism(mechanism)
    users = {username: server_side.make_auth_info(password, iteration_count=iterations)}
    server = server_side.make_server(users.__getitem__)
    client = Scram(mechanism, username, password, nonce)
    server.set_client_first(client.first().decode())
    final = client.answer(server.get_server_first().encode())
    assert final is not None
    server.set_client_final(final.decode())
    assert client.answer(server.get_server_final().encode()) is None
    client.finish()


@settings(max_examples=examples(20), deadline=None)
@given(mechanism=MECHANISMS, password=TEXTS, other=TEXTS)
def test_it_refuses_another_password_and_the_client_another_server(mechanism: str, password: str, other: str) -> None:
    server_side = ScramMechanism(mechanism)
    users = {"u": server_side.make_auth_info(password)}
    server = server_side.make_server(users.__getitem__)
    client = Scram(mechanism, "u", other, NONCE)
    server.set_client_first(client.first().decode())
    final = client.answer(server.get_server_first().encode())
    assert final is not None
    if other == password:
        server.set_client_final(final.decode())
        return
    with pytest.raises(ScramException):
        server.set_client_final(final.decode())
    with pytest.raises(SaslError):
        client.answer(server.get_server_final().encode())
    with pytest.raises(SaslError, match="before it proved itself"):
        client.finish()


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (b"r=other,s=W22Z,i=4096", "does not continue"),
        (f"r={NONCE},s=W22Z,i=4096".encode(), "does not continue"),
        (f"r={NONCE}x,s=W22Z,i=4095".encode(), "4095 SCRAM iterations"),
        (f"r={NONCE}x,s=W22Z,i=1000001".encode(), "iterations"),
        (f"r={NONCE}x,s=W22Z,i=99999999999999".encode(), "iterations"),
        (f"r={NONCE}x,s=W22Z,i=-4096".encode(), "iterations"),
        (f"r={NONCE}x,s=W2,i=4096".encode(), "base64"),
        (f"r={NONCE}x,s=,i=4096".encode(), "salt"),
        (f"s=W22Z,r={NONCE}x,i=4096".encode(), "first message"),
        (f"m=ext,r={NONCE}x,s=W22Z,i=4096".encode(), "extension"),
        (b"e=unknown-user", "refused: unknown-user"),
        (b"", "first message"),
        (b"\xff", "UTF-8"),
    ],
)
def test_a_bad_first_message_of_the_server_ends_the_exchange(first: bytes, said: str) -> None:
    with pytest.raises(SaslError, match=said):
        begun().answer(first)


@pytest.mark.parametrize(
    ("final", "said"),
    [
        (b"v=" + base64.b64encode(bytes(32)), "signature is wrong"),
        (b"e=invalid-proof", "refused: invalid-proof"),
        (b"x", "final message"),
        (b"v=***", "base64"),
    ],
)
def test_a_bad_final_message_of_the_server_ends_the_exchange(final: bytes, said: str) -> None:
    client = begun()
    client.answer(SERVER_FIRST)
    with pytest.raises(SaslError, match=said):
        client.answer(final)


@given(st.binary(max_size=80))
def test_any_bytes_of_a_server_are_refused(data: bytes) -> None:
    with pytest.raises(SaslError):
        begun().answer(data)


def test_what_cannot_be_sent_and_what_comes_too_much() -> None:
    with pytest.raises(SaslError, match="no SCRAM mechanism"):
        Scram("SCRAM-SHA-1", "u", "p", "n")
    with pytest.raises(SaslError, match="nonce"):
        Scram("SCRAM-SHA-256", "u", "p", "a,b")
    client = begun()
    client.answer(SERVER_FIRST)
    client.answer(SERVER_FINAL)
    with pytest.raises(SaslError, match="more messages"):
        client.answer(b"")


def test_names_are_escaped() -> None:
    assert Scram("SCRAM-SHA-256", "a=b,c", "p", "n").first() == b"n,,n=a=3Db=2Cc,r=n"


def test_plain_is_rfc_4616() -> None:
    assert Plain("tim", "tanstaaftanstaaf").first() == b"\0tim\0tanstaaftanstaaf"
    assert Plain("a", "b").answer(b"") is None
    with pytest.raises(SaslError, match="zero byte"):
        Plain("a\0", "b").first()
    with pytest.raises(SaslError, match="challenge"):
        Plain("a", "b").answer(b"x")


def test_bearer_is_rfc_7628() -> None:
    client = Bearer("vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg==", {"host": "server.example.com", "port": "143"})
    assert client.first() == (
        b"n,,\x01auth=Bearer vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg==\x01host=server.example.com\x01port=143\x01\x01"
    )
    assert client.answer(b"") is None
    client.finish()


def test_a_refused_token_is_answered_with_0x01_and_then_an_error() -> None:
    """RFC 7628, 3.2.3: the client completes the exchange before the server fails it."""
    client = Bearer("abc")
    client.first()
    assert client.answer(json.dumps({"status": "invalid_token", "scope": "kafka"}).encode()) == b"\x01"
    assert client.refusal == "the server refused the token: status invalid_token, scope kafka"
    for end in (lambda: client.answer(b"x"), client.finish):
        with pytest.raises(SaslError, match="status invalid_token"):
            end()


@pytest.mark.parametrize("said", [b"\xff", b"[1]", b"1", b"nonsense", b"[" * 5000])
def test_a_refusal_in_no_json_is_one_too(said: bytes) -> None:
    client = Bearer("abc")
    assert client.answer(said) == b"\x01"
    assert client.refusal == "the server refused the token"


@pytest.mark.parametrize(
    ("token", "extensions"),
    [("a b", {}), ("", {}), ("a\x01", {}), ("a", {"auth": "x"}), ("a", {"k1": "x"}), ("a", {"k": "\x01"})],
)
def test_a_token_or_extension_that_cannot_travel(token: str, extensions: dict[str, str]) -> None:
    with pytest.raises(SaslError) as caught:
        Bearer(token, extensions).first()
    assert "Bearer" not in str(caught.value)


def test_secrets_are_in_no_repr() -> None:
    shown = repr([Plain("u", "hidden"), Scram("SCRAM-SHA-256", "u", "hidden", "n"), Bearer("hidden", {"k": "hidden"})])
    assert "hidden" not in shown
