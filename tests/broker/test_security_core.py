"""Logins, principals and ACLs as pure functions: against other people's SCRAM and a plain reading of the rules."""

from __future__ import annotations

import hashlib
import hmac
import string
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scramp import ScramClient

from roster.broker.call import Call
from roster.broker.dispatch import guarded
from roster.broker.errors import BrokerStartError, CloseConnection, RefusedError
from roster.broker.handlers.security_admin import _alter
from roster.broker.listener import Admission, Slot
from roster.broker.security.access import Access
from roster.broker.security.authorizer import Authorizer
from roster.broker.security.config import BrokerSecurity, is_loopback
from roster.broker.security.principals import certificate_principal
from roster.broker.security.session import ServerLogin
from roster.broker.security.store import Users
from roster.model.acl import WILDCARD, AclBinding, AclFilter, AclOperation, AclPermission, PatternType, ResourceType
from roster.wire import ApiKey, ErrorCode
from roster.wire.frames import RequestHeader
from roster.wire.messages import (
    AlterUserScramCredentialsRequest,
    ProduceRequest,
    ProduceResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from roster.wire.sasl.mechanism import SaslError
from roster.wire.sasl.scram import Scram, ScramCredential, ScramServer, read_plain
from tests.examples_tried import examples

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
CREDENTIALS = {
    ("rita", mechanism): ScramCredential.of_password(mechanism, "pencil", b"salt of rita", 4096)
    for mechanism in MECHANISMS
}


def login(known_as: str | None = None, mechanisms: tuple[str, ...] = ("PLAIN", *MECHANISMS)) -> ServerLogin:
    return ServerLogin(
        mechanisms,
        lambda mechanism, name: CREDENTIALS.get((name, mechanism)),
        "nonce-of-the-server",
        lifetime_ms=1_000,
        known_as=known_as,
    )


async def test_a_produce_that_a_hook_answers_goes_through_its_gate() -> None:
    class Mine(Authorizer):
        def __init__(self) -> None: ...

        def allows(self, *arguments: object) -> bool:
            return arguments[-1] == "mine"

    async def reply(_: object, call: Call[ProduceRequest]) -> ProduceResponse:
        return ProduceResponse(responses=[ProduceResponse.Topic(name=topic.name) for topic in call.message.topic_data])

    request = ProduceRequest(acks=1, topic_data=[ProduceRequest.Topic(name=name) for name in ("mine", "theirs")])
    session = SimpleNamespace(access=Access("User:a", "h", Mine()))
    call = Call(RequestHeader(ApiKey.PRODUCE, 9, 1, "client"), request, "h", session=session)
    response = await guarded(SimpleNamespace(), call, reply)
    assert isinstance(response, ProduceResponse)
    assert [topic.name for topic in response.responses] == ["mine", "theirs"]
    assert [topic.name for topic in call.message.topic_data] == ["mine"]


async def test_rights_on_topics_that_are_named_by_id() -> None:
    class AllButTheirs(Authorizer):
        def __init__(self) -> None: ...

        def allows(self, *arguments: object) -> bool:
            return arguments[-1] != "theirs"

    topics = {b"%016d" % number: SimpleNamespace(name=name) for number, name in enumerate(("mine", "theirs"))}
    partition = TxnOffsetCommitRequest.Partition(partition_index=0, committed_offset=1)
    named = [TxnOffsetCommitRequest.Topic(topic_id=each, partitions=[partition]) for each in (*topics, b"%016d" % 9)]
    request = TxnOffsetCommitRequest(transactional_id="mine", group_id="mine", topics=named)
    session = SimpleNamespace(access=Access("User:a", "h", AllButTheirs()))
    call = Call(RequestHeader(ApiKey.TXN_OFFSET_COMMIT, 6, 1, "client"), request, "h", session=session)

    async def handler(_: object, call: Call[TxnOffsetCommitRequest]) -> TxnOffsetCommitResponse:
        return TxnOffsetCommitResponse(
            topics=[TxnOffsetCommitResponse.Topic(topic_id=t.topic_id) for t in call.message.topics]
        )

    answer = await guarded(SimpleNamespace(topics=SimpleNamespace(by_id=topics.get)), call, handler)
    assert isinstance(answer, TxnOffsetCommitResponse)
    codes = {topic.topic_id: [row.error_code for row in topic.partitions] for topic in answer.topics}
    assert codes == {b"%016d" % 0: [], b"%016d" % 9: [], b"%016d" % 1: [ErrorCode.TOPIC_AUTHORIZATION_FAILED]}


@settings(max_examples=examples(20), deadline=None)
@given(
    mechanism=st.sampled_from(MECHANISMS),
    password=st.text(string.ascii_letters + string.digits, min_size=1, max_size=20),
    other=st.text(string.ascii_letters, min_size=1, max_size=3),
)
def test_other_peoples_client_logs_in_with_the_right_password_only(mechanism: str, password: str, other: str) -> None:
    credential = ScramCredential.of_password(mechanism, password, b"salt of a user", 4096)
    for tried in {password, other}:
        server = ScramServer({"user": credential}.get, "server-nonce")
        client = ScramClient([mechanism], "user", tried)
        client.set_server_first(server.first(client.get_client_first().encode()).decode())
        final = client.get_client_final().encode()
        if tried == password:
            client.set_server_final(server.final(final).decode())
        else:
            with pytest.raises(SaslError, match="does not know the password"):
                server.final(final)


@pytest.mark.parametrize("salted", [b"x", bytes(32), bytes(64), bytes(200)])
def test_a_salted_password_may_have_any_length_as_with_kafka(salted: bytes) -> None:
    upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
    users: Users = {}
    _alter(users, upsertion(name="rita", mechanism=1, iterations=4096, salt=b"salt", salted_password=salted))
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    assert users["rita"]["SCRAM-SHA-256"].stored_key == stored
    with pytest.raises(RefusedError, match="must not be empty"):
        _alter(users, upsertion(name="rita", mechanism=1, iterations=4096, salt=b"salt", salted_password=b""))


@given(st.binary(max_size=60))
def test_any_bytes_of_a_client_are_refused(data: bytes) -> None:
    with pytest.raises(SaslError):
        ScramServer({}.get, "nonce").first(data)
    server = ScramServer({"rita": CREDENTIALS["rita", MECHANISMS[0]]}.get, "nonce")
    server.first(b"n,,n=rita,r=abc")
    with pytest.raises(SaslError):
        server.final(data)


@pytest.mark.parametrize(
    "first", [b"n,,n=rita,r=a b", b"p=tls-unique,,n=rita,r=abc", b"n,a=otto,n=rita,r=abc", b"n,,n=ri=ta,r=abc"]
)
def test_first_messages_that_are_none_of_scram(first: bytes) -> None:
    with pytest.raises(SaslError):
        ScramServer({"rita": CREDENTIALS["rita", MECHANISMS[0]]}.get, "nonce").first(first)


def test_plain_is_rfc_4616() -> None:
    assert read_plain(b"\0tim\0tanstaaftanstaaf") == ("tim", "tanstaaftanstaaf")
    assert read_plain(b"tim\0tim\0x") == ("tim", "x")
    for bad in (b"", b"tim", b"\0tim\0", b"\0\0x", b"ursel\0tim\0x", b"\0a\0b\0c", b"\xff\0a\0b"):
        with pytest.raises(SaslError):
            read_plain(bad)


def test_a_login_in_one_step_and_in_two() -> None:
    plain = login()
    assert plain.handshake("PLAIN").error_code == 0
    assert plain.is_slow
    assert plain.authenticate(b"\0rita\0pencil").session_lifetime_ms == 1_000
    assert plain.principal == "User:rita"
    server, client = login(), Scram("SCRAM-SHA-512", "rita", "pencil", "nonce-of-the-client")
    server.handshake("SCRAM-SHA-512")
    final = client.answer(server.authenticate(client.first()).auth_bytes)
    assert final is not None
    assert client.answer(server.authenticate(final).auth_bytes) is None
    client.finish()
    assert server.principal == "User:rita"


def test_what_is_refused_has_kafkas_code_and_tells_the_client_nothing_more() -> None:
    unknown = login(mechanisms=("SCRAM-SHA-512",))
    answer = unknown.handshake("GSSAPI")
    assert (answer.error_code, answer.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, ["SCRAM-SHA-512"])
    assert unknown.failed
    said = set()
    for token in (b"\0rita\0wrong", b"\0nobody\0pencil", b"nonsense"):
        plain = login()
        plain.handshake("PLAIN")
        response = plain.authenticate(token)
        assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        said.add(response.error_message)
        assert plain.failed
        assert "wrong" not in repr(plain.reason)
    assert said == {"Authentication failed: Invalid username or password"}


def test_a_renewed_login_keeps_its_user() -> None:
    same = login(known_as="User:rita")
    same.handshake("PLAIN")
    assert same.authenticate(b"\0rita\0pencil").error_code == 0
    other = login(known_as="User:otto")
    other.handshake("PLAIN")
    response = other.authenticate(b"\0rita\0pencil")
    assert response.error_message == "Cannot change principals during re-authentication from User.otto: User.rita"


def test_no_secret_is_in_a_repr() -> None:
    credential = CREDENTIALS["rita", MECHANISMS[0]]
    shown = repr(credential)
    assert shown == "ScramCredential(mechanism='SCRAM-SHA-256', iterations=4096)"
    assert "salt" not in repr(ScramServer({"rita": credential}.get, "the-nonce"))


# ACLs

NAMES = ("", "a", "ab", "b")
RULES = st.builds(
    AclBinding,
    st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP]),
    st.sampled_from(("a", "ab", "b", WILDCARD)),
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from(["User:rita", "User:otto", "User:*"]),
    st.sampled_from(["10.0.0.1", WILDCARD]),
    st.sampled_from([AclOperation.ALL, AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE]),
    st.sampled_from([AclPermission.ALLOW, AclPermission.DENY]),
)


def plainly_allowed(acls: list[AclBinding], operation: AclOperation, name: str) -> bool:
    """Kafka's rules, read one by one: a denial of the operation wins, then an allowance or what implies it."""

    def fits(acl: AclBinding) -> bool:
        if acl.pattern_type is PatternType.PREFIXED:
            named = name.startswith(acl.resource_name)
        else:
            named = acl.resource_name in (name, "*")
        return (
            named
            and acl.resource_type is ResourceType.TOPIC
            and acl.principal in ("User:rita", "User:*")
            and acl.host in ("10.0.0.1", "*")
        )

    mine = [acl for acl in acls if fits(acl)]
    if any(acl.permission is AclPermission.DENY and acl.operation in (operation, AclOperation.ALL) for acl in mine):
        return False
    enough = {operation, AclOperation.ALL}
    if operation is AclOperation.DESCRIBE:
        enough |= {AclOperation.READ, AclOperation.WRITE}
    return any(acl.permission is AclPermission.ALLOW and acl.operation in enough for acl in mine)


ALL_ALLOWED = AclBinding(
    ResourceType.TOPIC, WILDCARD, PatternType.LITERAL, "User:*", WILDCARD, AclOperation.ALL, AclPermission.ALLOW
)


@settings(max_examples=examples(300))
@given(st.lists(RULES, max_size=6))
@example([ALL_ALLOWED, replace(ALL_ALLOWED, operation=AclOperation.READ, permission=AclPermission.DENY)])
@example([replace(ALL_ALLOWED, operation=AclOperation.READ), replace(ALL_ALLOWED, permission=AclPermission.DENY)])
def test_the_authorizer_reads_acls_as_kafkas_documentation_says(acls: list[AclBinding]) -> None:
    authorizer = Authorizer(acls, {"User:root"})
    for operation in (AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE):
        some = False
        for name in ("a", "ab", "abc", "b", "c"):
            allowed = authorizer.allows("User:rita", "10.0.0.1", operation, ResourceType.TOPIC, name)
            assert allowed == plainly_allowed(acls, operation, name), (operation, name)
            some |= allowed and operation is not AclOperation.DESCRIBE
            assert authorizer.allows("User:root", "10.0.0.1", operation, ResourceType.TOPIC, name)
        if some:
            assert authorizer.allows_any("User:rita", "10.0.0.1", operation, ResourceType.TOPIC)


@settings(max_examples=examples(100))
@given(st.lists(RULES, max_size=6), RULES)
def test_a_filter_made_of_an_acl_selects_it_and_its_equals_only(acls: list[AclBinding], wanted: AclBinding) -> None:
    exact = AclFilter(
        wanted.resource_type,
        wanted.resource_name,
        wanted.pattern_type,
        wanted.principal,
        wanted.host,
        wanted.operation,
        wanted.permission,
    )
    assert [acl for acl in acls if exact.matches(acl)] == [acl for acl in acls if acl == wanted]
    assert all(AclFilter().matches(acl) for acl in acls)
    matching = AclFilter(ResourceType.TOPIC, "ab", PatternType.MATCH)
    assert [acl for acl in acls if matching.matches(acl)] == [
        acl for acl in acls if acl.resource_type is ResourceType.TOPIC and acl.covers("ab")
    ]


# Certificates and settings


def test_the_subject_of_a_certificate_is_a_principal() -> None:
    subject = (
        (("organizationName", "Shop"),),
        (("organizationalUnitName", "Tills, south"),),
        (("commonName", "rita"),),
    )
    assert certificate_principal({"subject": subject}) == "User:CN=rita,OU=Tills\\, south,O=Shop"
    assert certificate_principal({}) == "User:ANONYMOUS"


@pytest.mark.parametrize(
    ("host", "is_local"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False), ("kafka", False)],
)
def test_plaintext_is_for_loopback_unless_told_otherwise(host: str, is_local: bool) -> None:
    assert is_loopback(host) == is_local
    BrokerSecurity(allow_plaintext=True).check_listener(host)
    if is_local:
        BrokerSecurity().check_listener(host)
    else:
        with pytest.raises(BrokerStartError, match="--allow-plaintext"):
            BrokerSecurity().check_listener(host)


# Places


def slot(host: str = "h") -> Slot:
    return Slot(host, f"{host}:1", 0.0, lambda: None)


def test_the_connection_that_is_being_set_up_for_longest_makes_room() -> None:
    admission = Admission(2, 2)
    settled, first, second = slot("a"), slot("b"), slot("b")
    admission.admit(settled)
    admission.settle(settled)
    assert admission.admit(first) is None
    assert admission.admit(second) is first
    admission.settle(second)
    with pytest.raises(CloseConnection, match=r"max\.connections"):
        admission.admit(slot("c"))
    admission.release(first)  # its task ends later, and gives its place back again
    assert admission.count == 2
    admission.release(settled)
    assert admission.admit(slot("b")) is None
    with pytest.raises(CloseConnection, match=r"max\.connections\.per\.ip"):
        admission.admit(slot("b"))
