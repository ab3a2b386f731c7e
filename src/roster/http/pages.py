"""Pages of an HTTP server, and their answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple

from roster.http.feed import Feed


class Answer(NamedTuple):
    """What a page answers."""

    status: HTTPStatus
    body: bytes
    media_type: str = "application/json"


class Page(NamedTuple):
    """What one path answers.

    path: as Starlette has it. answer: called with path and query, undecoded, on one of `threads` threads; requests
    beyond wait. needs_token: False for probes, which reveal nothing.
    """

    path: str
    answer: Callable[[str], Answer]
    threads: int = 4
    needs_token: bool = True


class Stream(NamedTuple):
    """What one path tells for as long as a client listens, as server-sent events.

    path: as Starlette has it. open: called with path and query, undecoded; returns the feed, or the
    answer that refuses.
    """

    path: str
    open: Callable[[str], Feed | Answer]


def error_answer(status: HTTPStatus, field: str, problem: str, fix: str = "") -> Answer:
    """Return the answer for an error."""
    document = {"error": {"field": field, "problem": problem, "fix": fix}}
    return Answer(status, json.dumps(document, ensure_ascii=False).encode(errors="replace"))
