"""The HTTP server through real sockets: TLS, tokens, client certificates, limits."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import ssl
import threading
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from roster.http import server as server_module
from roster.http.access import OPEN, Access, parse_access, read_access
from roster.http.pages import Answer, Page
from roster.http.server import HttpServer, HttpServerError
from roster.model import Address
from roster.security import SettingError
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKEN = "0123456789abcdef"


def echo(target: str) -> Answer:
    return Answer(HTTPStatus.OK, json.dumps(target).encode())


PAGES = (Page("/probe", echo, needs_token=False), Page("/data/{rest:path}", echo))


@contextlib.contextmanager
def serving(access: Access = OPEN, pages: tuple[Page, ...] = PAGES) -> Iterator[HttpServer]:
    with contextlib.closing(HttpServer(Address("127.0.0.1", 0), pages, access)) as server:
        yield server


def ask(server: HttpServer, target: str, access: Access = OPEN, method: str = "GET", **headers: str) -> tuple[int, Any]:
    context = access.client_context()
    made = (
        http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        if context is None
        else http.client.HTTPSConnection("127.0.0.1", server.port, timeout=60, context=context)
    )
    with contextlib.closing(made) as connection:
        connection.request(method, target, headers={**access.headers, **headers})
        response = connection.getresponse()
        return response.status, json.loads(response.read())


class Certificates:
    """Key stores of an authority that both sides trust, and of a stranger."""

    def __init__(self, directory: Path) -> None:
        own, other = trustme.CA(), trustme.CA()
        self.trusted = str(directory / "ca.pem")
        own.cert_pem.write_to_path(self.trusted)
        self.stores = {}
        for name, authority in (("server", own), ("client", own), ("stranger", other)):
            self.stores[name] = str(directory / f"{name}.pem")
            authority.issue_cert("127.0.0.1", "localhost").private_key_and_cert_chain_pem.write_to_path(
                self.stores[name]
            )

    def access(self, name: str, **more: str) -> Access:
        given = {"ssl.keystore.location": self.stores[name], "ssl.truststore.location": self.trusted}
        return parse_access(given | {key.replace("_", "."): value for key, value in more.items()})


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def test_a_page_gets_path_and_query_as_they_were_sent() -> None:
    with serving() as server:
        assert ask(server, "/data/a%2Fb?key=%C3%A9&key=") == (200, "/data/a%2Fb?key=%C3%A9&key=")


@pytest.mark.parametrize(
    ("method", "target", "status"), [("GET", "/x", 404), ("POST", "/probe", 405), ("PUT", "/", 404)]
)
def test_what_is_not_there_is_said_in_json(method: str, target: str, status: int) -> None:
    with serving() as server:
        code, document = ask(server, target, method=method)
    assert code == status
    assert document["error"]["problem"]


def test_all_pages_but_probes_need_the_token() -> None:
    with serving(parse_access({"token": TOKEN})) as server:
        assert ask(server, "/probe")[0] == 200
        for given in ({}, {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": TOKEN}, {"Authorization": "\xe9"}):
            assert ask(server, "/data/a", **given)[0] == 401
        assert ask(server, "/data/a", Authorization=f"Bearer {TOKEN}")[0] == 200
        assert ask(server, "/data/a", Authorization=f"Bearer {TOKEN}", Host="evil.example")[0] == 421


def test_with_client_certificates_strangers_are_refused(certificates: Certificates) -> None:
    access = certificates.access("server", ssl_client_auth="required")
    with serving(access) as server:
        assert ask(server, "/probe", certificates.access("client")) == (200, "/probe")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            ask(server, "/probe", certificates.access("stranger"))
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            ask(server, "/probe")


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"token": "short"}, "token"),
        ({"token": "with a blank in the middle"}, "token"),
        ({"token": 5}, "token"),
        ({"ssl.client.auth": "maybe"}, "ssl.client.auth"),
        ({"ssl.client.auth": "required"}, "ssl.client.auth"),
        ({"ssl.keystore.location": "/no/such/file"}, "ssl.keystore.location"),
        ({"sasl.username": "u"}, "sasl.username"),
    ],
)
def test_a_wrong_setting_is_named(given: dict[str, object], key: str) -> None:
    with pytest.raises(SettingError) as caught:
        parse_access(given)
    assert caught.value.key == key
    assert caught.value.fix


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("tokn", "did you mean token?"),
        ("ssl.client.aut", "did you mean ssl.client.auth?"),
        (
            "bearer",
            "use some of ssl.keystore.location, ssl.key.password, ssl.truststore.location, ssl.client.auth, token",
        ),
        ("ssl.keystore.password", "leave it out: a PEM file has none; the key's password is ssl.key.password"),
    ],
)
def test_an_unknown_setting_is_answered_with_those_of_http(name: str, fix: str) -> None:
    with pytest.raises(SettingError) as caught:
        parse_access({name: TOKEN})
    assert (caught.value.key, caught.value.fix) == (name, fix)


def test_an_authority_without_a_key_is_not_enough(certificates: Certificates) -> None:
    with pytest.raises(SettingError, match=r"ssl.keystore.location"):
        parse_access({"ssl.truststore.location": certificates.trusted})


def test_a_file_has_the_same_names_and_no_secret_is_shown(certificates: Certificates) -> None:
    text = f"ssl.keystore.location={certificates.stores['server']}\ntoken={TOKEN}\n"
    access = read_access(text)
    assert (access.scheme, access.headers) == ("https", {"Authorization": f"Bearer {TOKEN}"})
    assert TOKEN not in repr(access)
    assert "PRIVATE" not in repr(access)


def test_a_client_that_sends_nothing_or_half_a_request_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_IDLE", 0.1)
    with serving() as server:
        for sent in (b"", b"GET /probe HTTP/1.1\r\nHost: localhost\r\n"):
            with socket.create_connection(("127.0.0.1", server.port), timeout=60) as silent:
                silent.sendall(sent)
                assert silent.recv(1_000) == b""


def test_a_head_without_end_is_refused() -> None:
    with serving() as server, socket.create_connection(("127.0.0.1", server.port), timeout=60) as endless:
        with contextlib.suppress(ConnectionError):
            endless.sendall(b"GET /" + b"a" * (server_module._LARGEST_HEAD + 100_000))
        with contextlib.suppress(ConnectionError):
            assert endless.recv(12) == b"HTTP/1.1 400"


REQUEST = b"GET /probe HTTP/1.1\r\nHost: localhost\r\n\r\n"


def connected(opened: contextlib.ExitStack, server: HttpServer, sent: bytes = b"") -> socket.socket:
    made = opened.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
    made.sendall(sent)
    return made


def is_ended(held: socket.socket) -> bool:
    try:
        while held.recv(1_000):
            pass
    except ConnectionError:
        pass
    return True


BODY = b"POST /probe HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nx"


@pytest.mark.parametrize(
    "sent", [b"", b"GET /pro", BODY, REQUEST], ids=["nothing", "half a head", "a body", "a request"]
)
def test_clients_that_keep_the_server_waiting_make_room_for_others(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(server_module, "_MOST_CONNECTIONS", 2)
    with serving(parse_access({"token": TOKEN})) as server, contextlib.ExitStack() as opened:
        held = []
        for _ in range(5):
            held.append(connected(opened, server, sent))
            if sent == REQUEST:  # while it is under way, it makes no room
                answer = b""
                while not answer.endswith(b'"/probe"'):
                    part = held[-1].recv(1_000)
                    assert part, answer
                    answer += part
        assert ask(server, "/probe") == (200, "/probe")
        assert all(is_ended(each) for each in held[:4])


def test_silent_tls_handshakes_make_room_for_others_and_end(
    monkeypatch: pytest.MonkeyPatch, certificates: Certificates
) -> None:
    monkeypatch.setattr(server_module, "_MOST_CONNECTIONS", 2)
    access = certificates.access("server")
    with serving(access) as server, contextlib.ExitStack() as opened:
        held = [connected(opened, server) for _ in range(5)]
        assert ask(server, "/probe", access) == (200, "/probe")
        assert all(is_ended(each) for each in held[:4])
        monkeypatch.setattr(server_module, "_HANDSHAKE", 0.1)
        assert is_ended(connected(opened, server, b"\x16\x03\x01"))
        assert ask(server, "/probe", access) == (200, "/probe")


def test_a_body_that_does_not_come_and_an_answer_that_is_not_read_end_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = threading.Event()

    def long(_: str) -> Answer:
        asked.set()
        return Answer(HTTPStatus.OK, bytes(100_000_000))

    pages = (Page("/long", long, needs_token=False), *PAGES)
    with serving(parse_access({"token": TOKEN}), pages) as server, contextlib.ExitStack() as opened:
        monkeypatch.setattr(server_module, "_IDLE", 0.1)
        assert is_ended(connected(opened, server, BODY))
        deaf = connected(opened, server, REQUEST.replace(b"probe", b"long"))
        assert asked.wait(60)
        until(lambda: not server._server.server_state.connections)
        assert sum(len(part) for part in iter(lambda: _received(deaf), b"")) < 100_000_000


def _received(held: socket.socket) -> bytes:
    try:
        return held.recv(1 << 20)
    except ConnectionError:
        return b""


def test_more_requests_than_the_limit_are_told_to_come_again_but_for_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_MOST_REQUESTS", 1)
    monkeypatch.setattr(server_module, "_MOST_CONNECTIONS", 3)
    entered, end = threading.Event(), threading.Event()

    def slow(target: str) -> Answer:
        entered.set()
        end.wait(60)
        return echo(target)

    with serving(pages=(Page("/slow", slow), *PAGES)) as server:
        waiting = threading.Thread(target=ask, args=(server, "/slow"))
        waiting.start()
        assert entered.wait(60)
        status, document = ask(server, "/data/a")
        assert (status, document["error"]["problem"]) == (503, "it has too many clients")
        assert ask(server, "/probe") == (200, "/probe")
        end.set()
        waiting.join()
        until(lambda: ask(server, "/data/a")[0] == 200)


def test_a_client_that_leaves_or_speaks_nonsense_writes_nothing_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    upgrade = REQUEST.replace(b"Host", b"Connection: upgrade\r\nUpgrade: websocket\r\nHost")
    with serving(parse_access({"token": TOKEN})) as server, contextlib.ExitStack() as opened:
        for sent in (BODY, b"nonsense\r\n\r\n", upgrade):
            connected(opened, server, sent).close()
        ask(server, "/probe")
        until(lambda: not server._server.server_state.tasks)
    assert not caplog.records


def test_browsers_ask_for_the_token_and_send_it_as_the_password_of_any_user() -> None:
    def basic(given: str) -> str:
        return f"Basic {base64.b64encode(given.encode()).decode()}"

    with serving(parse_access({"token": TOKEN})) as server:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
            connection.request("GET", "/data/a")
            assert connection.getresponse().headers["WWW-Authenticate"].startswith("Basic realm=")
        for user in ("", "rita", "ä"):
            assert ask(server, "/data/a", Authorization=basic(f"{user}:{TOKEN}"))[0] == 200
        for wrong in (basic(f"{TOKEN}:"), basic(f":{TOKEN}x"), basic(TOKEN), "Basic :", "Basic é", "Basic"):
            assert ask(server, "/data/a", Authorization=wrong)[0] == 401, wrong


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer "])
def test_the_scheme_of_a_token_is_in_any_case(scheme: str) -> None:
    with serving(parse_access({"token": TOKEN})) as server:
        assert ask(server, "/data/a", Authorization=f"{scheme} {TOKEN}")[0] == 200
        assert ask(server, "/data/a", Authorization=f"Basic {TOKEN}")[0] == 401


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv4 and IPv6")
def test_all_addresses_are_those_of_both_families() -> None:
    with contextlib.closing(HttpServer(Address("::", 0), PAGES)) as server:
        for host in ("127.0.0.1", "::1"):
            with contextlib.closing(http.client.HTTPConnection(host, server.port, timeout=60)) as connection:
                connection.request("GET", "/probe")
                assert connection.getresponse().status == 200


def test_slow_pages_do_not_hold_up_others_nor_the_end() -> None:
    entered, end = threading.Event(), threading.Event()

    def slow(target: str) -> Answer:
        entered.set()
        end.wait(60)
        return echo(target)

    with serving(pages=(Page("/slow", slow, threads=1), *PAGES)) as server:
        waiting = [threading.Thread(target=ask, args=(server, "/slow")) for _ in range(3)]
        for each in waiting:
            each.start()
        assert entered.wait(60)
        assert ask(server, "/probe") == (200, "/probe")
        end.set()
        for each in waiting:
            each.join()


def test_a_page_that_fails_is_an_error_of_its_own() -> None:
    def broken(target: str) -> Answer:
        raise ValueError(target)

    with serving(pages=(Page("/broken", broken), *PAGES)) as server:
        status, document = ask(server, "/broken?secret=1")
        assert (status, document["error"]["field"]) == (500, "page")
        assert "secret" not in str(document)
        assert ask(server, "/probe")[0] == 200


def test_an_address_that_is_taken_is_named() -> None:
    with serving() as server, pytest.raises(HttpServerError, match=f"127.0.0.1:{server.port} cannot be listened on"):
        HttpServer(Address("127.0.0.1", server.port), PAGES)
