"""What a browser needs of the server: a cookie in place of the token, and events for as long as it listens."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from roster.http import server as server_module
from roster.http.access import LIFETIME, Login, parse_access
from roster.http.pages import Feed, Stream, error_answer
from roster.http.server import HttpServer
from roster.model import Address
from tests.http.test_server import OPEN, PAGES, TOKEN, Access, ask, certificates  # noqa: F401 - a fixture
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.http.test_server import Certificates


class Counter:
    """A state of one number."""

    def __init__(self) -> None:
        self.lock, self.value = threading.RLock(), 0
        self.feed = Feed(lambda: {"value": self.value}, self.lock)
        self.made = 0

    def add(self, number: int) -> None:
        with self.lock:
            self.value += number
            self.feed.publish({"more": number})


@contextlib.contextmanager
def serving(counter: Counter, access: Access = OPEN) -> Iterator[HttpServer]:
    streams = [
        Stream("/live", lambda _: counter.feed),
        Stream("/none", lambda target: error_answer(http.HTTPStatus.NOT_FOUND, "path", target)),
    ]
    with contextlib.closing(HttpServer(Address("127.0.0.1", 0), PAGES, access, streams=streams)) as server:
        yield server


@contextlib.contextmanager
def listening(server: HttpServer, **headers: str) -> Iterator[Iterator[tuple[str, Any]]]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
        connection.request("GET", "/live", headers=headers)
        response = connection.getresponse()
        assert (response.status, response.headers["Content-Type"]) == (200, "text/event-stream; charset=utf-8")

        def events() -> Iterator[tuple[str, Any]]:
            while line := response.readline().decode():
                if line.startswith("event: "):
                    yield line[7:].strip(), json.loads(response.readline()[6:])

        yield events()


def test_a_listener_gets_the_state_and_then_each_change() -> None:
    counter = Counter()
    counter.add(5)
    with serving(counter) as server, listening(server) as events:
        assert next(events) == ("state", {"value": 5})
        for number in (1, 2, 3):
            counter.add(number)
        assert [next(events) for _ in range(3)] == [("change", {"more": number}) for number in (1, 2, 3)]


def test_thirty_listeners_hear_the_same_and_leave_nothing_behind() -> None:
    counter = Counter()
    with serving(counter) as server, contextlib.ExitStack() as opened:
        all_events = [opened.enter_context(listening(server)) for _ in range(30)]
        assert all(next(events) == ("state", {"value": 0}) for events in all_events)
        assert counter.feed.listeners == 30
        counter.add(7)
        assert all(next(events) == ("change", {"more": 7}) for events in all_events)
        opened.close()
        until(lambda: (counter.add(1), counter.feed.listeners == 0)[1], 60)


def test_one_that_is_far_behind_gets_the_whole_state() -> None:
    counter = Counter()
    with counter.feed.listening(lambda: None):
        seen, _ = counter.feed.since(-1)
        for _ in range(5):
            counter.add(1)
        assert counter.feed.since(seen)[1].count(b"event: change") == 5
        for _ in range(100):
            counter.add(1)
        assert counter.feed.since(seen) == (105, b'event: state\ndata: {"value":105}\n\n')
        assert counter.feed.since(105) == (105, b"")


def test_text_cannot_break_out_of_an_event() -> None:
    lock = threading.RLock()
    _, told = Feed(lambda: {"name": "a\n\nevent: change\ndata: \ud800"}, lock).since(-1)
    assert told.count(b"\n") == 3


def test_a_stream_may_refuse() -> None:
    with serving(Counter()) as server:
        assert ask(server, "/none?x=1") == (404, {"error": {"field": "path", "problem": "/none?x=1", "fix": ""}})


def test_the_server_ends_in_order_while_somebody_listens(caplog: pytest.LogCaptureFixture) -> None:
    counter = Counter()
    with serving(counter) as server, listening(server) as events:
        next(events)
        server.close()
        assert list(events) == []
    assert caplog.records == []
    assert counter.feed.listeners == 0


def test_streams_take_no_places_of_requests_and_have_a_limit_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_MOST_CONNECTIONS", 1)
    monkeypatch.setattr(server_module, "_MOST_STREAMS", 2)
    counter = Counter()
    with serving(counter) as server, contextlib.ExitStack() as opened:
        streams = [opened.enter_context(listening(server)) for _ in range(2)]
        assert [next(events) for events in streams] == [("state", {"value": 0})] * 2
        assert ask(server, "/live")[0] == 503
        assert ask(server, "/probe") == (200, "/probe")
        counter.add(1)
        assert [next(events) for events in streams] == [("change", {"more": 1})] * 2
        opened.close()
        until(lambda: (counter.add(1), not server._server.streams)[1])
        with listening(server) as events:
            assert next(events)[0] == "state"


def login(server: HttpServer, token: str) -> tuple[int, str | None]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
        connection.request("POST", "/login", body=token.encode())
        response = connection.getresponse()
        return response.status, response.headers["Set-Cookie"]


def test_the_token_is_exchanged_for_a_cookie_that_opens_pages_and_streams() -> None:
    with serving(Counter(), parse_access({"token": TOKEN})) as server:
        assert ask(server, "/live")[0] == 401
        for wrong in ("", f"{TOKEN}x", "é", "x" * 100_000):
            assert login(server, wrong) == (401, None)
        status, cookie = login(server, TOKEN)
        assert status == 204
        assert cookie is not None
        value, *flags = cookie.split("; ")
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} < set(flags)
        assert TOKEN not in cookie
        assert ask(server, "/data/a", Cookie=f"other=1; {value}")[0] == 200
        with listening(server, Cookie=value) as events:
            assert next(events) == ("state", {"value": 0})
        name, _, proof = value.partition("=")
        for wrong in (f"{name}={proof[:-1]}x", f"{name}=9{proof}", f"{name}=.", f"{name}=é", "roster-1=" + proof):
            assert ask(server, "/data/a", Cookie=wrong)[0] == 401, wrong


def test_without_a_token_there_is_no_login() -> None:
    with serving(Counter()) as server:
        assert ask(server, "/login", method="POST")[0] == 404


def test_a_cookie_is_good_for_its_time_on_its_port_and_with_tls_for_tls_only(certificates: Certificates) -> None:  # noqa: F811
    now = [1_000.0]
    access = parse_access({"token": TOKEN})
    login = Login(access, 8080, lambda: now[0])
    name, _, value = login.set_cookie().partition(";")[0].partition("=")
    assert login.is_known({name: value})
    assert not Login(access, 8081, lambda: now[0]).is_known({"roster-8081": value})
    assert not Login(parse_access({"token": TOKEN[::-1]}), 8080, lambda: now[0]).is_known({name: value})
    now[0] += LIFETIME
    assert not login.is_known({name: value})
    assert "Secure" not in login.set_cookie()
    assert "; Secure" in Login(certificates.access("server", token=TOKEN), 8080).set_cookie()


def test_a_browser_may_ask_no_other_host_and_run_nothing_but_files_of_this_one() -> None:
    with (
        serving(Counter()) as server,
        contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection,
    ):
        for path in ("/probe", "/nothing", "/live"):
            connection.request("GET", path)
            response = connection.getresponse()
            policy = response.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "http" not in policy
            if path != "/live":
                response.read()
