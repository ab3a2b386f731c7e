"""What a browser needs of the server: events for as long as it listens, and nothing of others."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from roster.http import server as server_module
from roster.http.access import parse_access
from roster.http.pages import Feed, Stream, error_answer
from roster.http.server import HttpServer
from roster.model import Address
from tests.http.test_server import OPEN, PAGES, TOKEN, Access, ask
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator


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


def test_a_stream_needs_the_token() -> None:
    access = parse_access({"token": TOKEN})
    with serving(Counter(), access) as server:
        assert ask(server, "/live")[0] == 401
        with listening(server, **access.headers) as events:
            assert next(events) == ("state", {"value": 0})


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
