"""Asks another application of the group for entries of its stores, over HTTP; see `server` for the other end."""

from __future__ import annotations

import base64
import http.client
from collections.abc import Collection
from urllib.parse import quote, urlencode

from roster._json import JsonObject, loads
from roster.http.access import OPEN, Access
from roster.model import Address
from roster.model.tasks import TaskId
from roster.spark.queries.store_reads import Found
from roster.state.entries import Read, Span
from roster.state.store import StateError

_TIMEOUT = 5.0
"""Seconds without a byte from the other end."""


class StateClient:
    """Asks for entries of one store.

    fingerprint: of the store's definition; an application with another one refuses. access: of all applications.
    """

    def __init__(self, store: str, fingerprint: str, timeout: float = _TIMEOUT, access: Access = OPEN) -> None:
        self._path, self._fingerprint, self._timeout = f"/stores/{quote(store, safe='')}/entries", fingerprint, timeout
        self._headers, self._context = access.headers, access.client_context()

    def __call__(self, host: Address, span: Span, tasks: Collection[TaskId], *, stale: bool) -> Found:
        """Return the entries of the tasks among these that the application can read. Raises StateError."""
        try:
            return decoded(self._document(host, f"{self._path}?{urlencode(self._query(span, tasks, stale=stale))}"))
        except (OSError, http.client.HTTPException) as error:
            raise StateError(f"{host} does not answer ({error or type(error).__name__})") from None
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
            raise StateError(f"{host} gave an answer that is not understood ({error})") from None

    def _query(self, span: Span, tasks: Collection[TaskId], *, stale: bool) -> list[tuple[str, str]]:
        query = [("definition", self._fingerprint), *(("task", str(task)) for task in sorted(tasks))]
        if span.is_key:
            query.append(("key", span.start.hex()))
        else:
            query.append(("start", span.start.hex()))
            query += [("stop", span.stop.hex())] if span.stop is not None else []
        query += [("limit", str(span.limit))] if span.limit is not None else []
        query += [("part", span.part)] if span.part is not None else []
        return query + ([("stale", "true")] if stale else [])

    def _document(self, host: Address, target: str) -> JsonObject:
        connection = self._connection(host)
        try:
            connection.request("GET", target, headers=self._headers)
            response = connection.getresponse()
            document: JsonObject = loads(response.read())
        finally:
            connection.close()
        if response.status != http.client.OK:
            error = document["error"]
            raise StateError(f"{host}: {error['field']}: {error['problem']}")
        return document

    def _connection(self, host: Address) -> http.client.HTTPConnection:
        if self._context is None:
            return http.client.HTTPConnection(host.host, host.port, timeout=self._timeout)
        return http.client.HTTPSConnection(host.host, host.port, timeout=self._timeout, context=self._context)


def encoded(found: Found) -> JsonObject:
    """Return entries as a JSON document; lists of variables, mostly the same in many tasks, once each."""
    lists: dict[bytes, list[str]] = {}
    for task, read in sorted(found.reads.items()):
        if read.registry is not None:
            lists.setdefault(read.registry, []).append(str(task))
    return {
        "entries": {
            str(task): [[_text(name), _text(value)] for name, value in read.entries]
            for task, read in found.reads.items()
        },
        "variables": [[_text(registry), tasks] for registry, tasks in lists.items()],
        "behind": {str(task): gap for task, gap in found.behind.items()},
        "problems": {str(task): problem for task, problem in found.problems.items()},
    }


def decoded(document: JsonObject) -> Found:
    """Return the argument of `encoded`. Raises ValueError, KeyError and TypeError for another document."""
    registry_of = {task: base64.b64decode(text) for text, tasks in document["variables"] for task in tasks}
    reads = {
        TaskId.parse(task): Read(
            [(base64.b64decode(name), base64.b64decode(value)) for name, value in entries], registry_of.get(task)
        )
        for task, entries in document["entries"].items()
    }
    return Found(
        reads,
        {TaskId.parse(task): int(gap) for task, gap in document["behind"].items()},
        {TaskId.parse(task): str(problem) for task, problem in document["problems"].items()},
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
