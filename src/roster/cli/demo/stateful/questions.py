"""Questions to the applications of the stateful demo about their group's state, over HTTP."""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from typing import Any
from urllib.parse import urlencode

from roster.model import Address

_TIMEOUT_S = 30.0
"""More than the time for which an application waits for a task that moves."""


def ask(server: Address, path: str, **query: str) -> dict[str, Any] | None:
    """Return an application's answer, None if it has none now: it starts, a task moves, or there is no such key."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=_TIMEOUT_S)
    with closing(connection):
        try:
            connection.request("GET", f"{path}?{urlencode(query)}")
            response = connection.getresponse()
            document: dict[str, Any] = json.loads(response.read())
        except (OSError, http.client.HTTPException):
            return None
    return document if response.status == http.client.OK else None
