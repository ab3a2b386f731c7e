"""Pages of an HTTP server and their answers; states that change, sent to many listeners at the price of one."""

import contextlib
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import NamedTuple

_CHANGES_KEPT = 16
"""A listener that is further behind gets the whole state again."""


def sse(event: str, document: object) -> bytes:
    """Return a server-sent event with a document as JSON."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return f"event: {event}\ndata: {text}\n\n".encode(errors="replace")


class Feed:
    """The versions of a state. Each change is encoded once, the state at most once a version, when a client needs it.

    state: returns the newest state as a document for JSON. lock: of the state; `publish` is called with it.
    """

    def __init__(self, state: Callable[[], object], lock: threading.RLock) -> None:
        self._state, self._lock = state, lock
        self._version, self._whole = 0, (-1, b"")
        self._changes: deque[bytes] = deque(maxlen=_CHANGES_KEPT)
        self._listeners: list[Callable[[], object]] = []

    @property
    def listeners(self) -> int:
        """Number of listeners."""
        return len(self._listeners)

    def publish(self, change: object) -> None:
        """Tell a change, a document for JSON, that the state already has."""
        if self._listeners:
            self._changes.append(sse("change", change))
        else:
            self._changes.clear()
        self._version += 1
        for wake in self._listeners.copy():
            wake()

    def since(self, seen: int) -> tuple[int, bytes]:
        """Return the newest version, and what leads there from the version seen (-1: none) as server-sent events."""
        with self._lock:
            version, changes = self._version, list(self._changes)
            behind = version - seen
            if 0 <= behind <= len(changes) and seen >= 0:
                return version, b"".join(changes[len(changes) - behind :])
            if self._whole[0] != version:
                self._whole = version, sse("state", self._state())
            return self._whole

    @contextlib.contextmanager
    def listening(self, wake: Callable[[], object]) -> Iterator[None]:
        """Call `wake` after each change, on the thread that publishes."""
        self._listeners.append(wake)
        try:
            yield
        finally:
            self._listeners.remove(wake)


class Answer(NamedTuple):
    """The answer of a page."""

    status: HTTPStatus
    body: bytes
    media_type: str = "application/json"


class Page(NamedTuple):
    """The page at one path.

    path: as Starlette has it. answer: called with path and query, undecoded, on one of `threads` threads; requests
    beyond wait. needs_token: False for probes, which reveal nothing.
    """

    path: str
    answer: Callable[[str], Answer]
    threads: int = 4
    needs_token: bool = True


class Stream(NamedTuple):
    """The stream of server-sent events at one path.

    path: as Starlette has it. open: called with path and query, undecoded; returns the feed, or the
    answer that refuses.
    """

    path: str
    open: Callable[[str], Feed | Answer]


def error_answer(status: HTTPStatus, field: str, problem: str, fix: str = "") -> Answer:
    """Return the answer for an error."""
    document = {"error": {"field": field, "problem": problem, "fix": fix}}
    return Answer(status, json.dumps(document, ensure_ascii=False).encode(errors="replace"))
