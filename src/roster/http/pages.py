"""Pages of an HTTP server, and their answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple


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


def error_answer(status: HTTPStatus, field: str, problem: str, fix: str = "") -> Answer:
    """Return the answer for an error."""
    document = {"error": {"field": field, "problem": problem, "fix": fix}}
    return Answer(status, json.dumps(document, ensure_ascii=False).encode(errors="replace"))
