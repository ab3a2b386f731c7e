"""Queries of state over HTTP: the pages of a pipeline's stores, at the address of its HTTP server.

    GET /stores                                          all stores, their tasks here and elsewhere
    GET /stores/STORE/get?key=A1                         the row of a key: `key` once for each key column
    GET /stores/STORE/get?key=A1&variable=count          that of a processor's variable
    GET /stores/STORE/prefix?key=A&limit=10              rows by the first key columns
    GET /stores/STORE/prefix?key=A&side=left             those of one side of a join
    GET /stores/STORE/range?start=A&stop=B&limit=10      rows from one key up to before another
    GET /stores/STORE/entries?…                          for other applications of the group: bytes of named tasks

`StateView` describes rows. `get` has one row; if a key has several, the error says what to name or use instead.
Answers are JSON. With `stale=true` copies answer too, and `behind` says how far each is from the truth; with
`local=true` no other application is asked. Errors are {"error": {"field", "problem", "fix"}}: 400 for a wrong query,
404 for a key or path that does not exist, 409 for a store of another definition, 503 while a task moves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from roster._errors import one_line
from roster.http.pages import Answer, Page
from roster.model.tasks import TaskId
from roster.pipeline.errors import PipelineError
from roster.spark.jobs.preferred_locations import Cluster
from roster.spark.jobs.spark_jobs import SparkJobs
from roster.spark.queries.client import StateClient, encoded
from roster.spark.queries.store_reads import LocalState, Reads, ReadsHere, ReadsOnExecutors
from roster.spark.queries.view import StateUnavailableError, StateView
from roster.state.definition import json_text
from roster.state.entries import Span, kinds_of
from roster.state.store import StateError
from roster.stateful.stores import Stores

log = logging.getLogger(__name__)

DEFAULT_LIMIT = 1_000
"""Limit of keys in an answer if the query names none."""
_MOST_LIMIT = 1_000_000
_THREADS = 32
_MOST_FIELDS = 20_000

Query = dict[str, list[str]]


class Served(NamedTuple):
    """A store open to queries: its name, the fingerprint of its definition, and its reader."""

    name: str
    fingerprint: str
    view: StateView
    local: LocalState


class _QueryError(Exception):
    """An answer that is an error."""

    def __init__(self, status: HTTPStatus, field: str, problem: str, fix: str = "") -> None:
        super().__init__(problem)
        self.status = status
        self.document = {"error": {"field": field, "problem": problem, "fix": fix}}


ServedByName = Mapping[str, Served]


def answer(target: str, stores: ServedByName) -> tuple[HTTPStatus, Mapping[str, object]]:
    """Return status and document for the path and query of a request."""
    try:
        return HTTPStatus.OK, _answer(target, stores)
    except Exception as error:
        refused = _refused(error)
        if refused.status == HTTPStatus.INTERNAL_SERVER_ERROR:
            log.exception("query %s", target)
        return refused.status, refused.document


def state_pages(served: Sequence[Served]) -> list[Page]:
    """Return the pages of stores. What other applications ask for has threads of its own, as they may ask in a circle.

    The other pages may wait for other applications.
    """
    stores = {store.name: store for store in served}

    def answered(target: str) -> Answer:
        status, document = answer(target, stores)
        return Answer(status, json_text(document).encode())

    paths = ("/stores/{store}/entries", "/stores", "/stores/{rest:path}")
    return [Page(path, answered, threads=_THREADS) for path in paths]


def ready_answer(served: Sequence[Served]) -> Answer | None:
    """Return the error that tasks of this application cannot be read yet, None if they can."""
    try:
        for store in served:
            store.view.check_ready()
    except (StateUnavailableError, StateError) as error:
        refused = _refused(error)
        return Answer(refused.status, json_text(refused.document).encode())
    return None


def _refused(error: Exception) -> _QueryError:
    """Return the answer for an exception."""
    match error:
        case _QueryError():
            return error
        case PipelineError():
            return _QueryError(HTTPStatus.BAD_REQUEST, error.field or "key", error.problem, error.fix or "")
        case StateUnavailableError():
            return _QueryError(HTTPStatus.SERVICE_UNAVAILABLE, "task", error.problem, error.fix)
        case StateError():
            return _QueryError(HTTPStatus.SERVICE_UNAVAILABLE, "store", one_line(error), "Ask again")
    text = f"{type(error).__name__}: {one_line(error)}"
    return _QueryError(HTTPStatus.INTERNAL_SERVER_ERROR, "query", text)


def _answer(target: str, stores: ServedByName) -> Mapping[str, object]:
    parts = urlsplit(target)
    path = [unquote(part) for part in parts.path.split("/") if part]
    try:
        query = parse_qs(parts.query, keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
    except ValueError as error:
        raise _QueryError(HTTPStatus.BAD_REQUEST, "query", f"it cannot be parsed: {error}") from None
    if path[:1] != ["stores"] or len(path) > len(("stores", "name", "method")):
        raise _QueryError(HTTPStatus.NOT_FOUND, "path", f"there is no {parts.path!r}", "Ask for /stores")
    if len(path) > 1 and path[1] not in stores:
        fix = f"The pipeline has {', '.join(map(repr, stores))}"
        raise _QueryError(HTTPStatus.NOT_FOUND, "store", f"there is no store {path[1]!r}", fix)
    if len(path) < len(("stores", "name", "method")):
        _check_fields(query, ())
        return {"stores": [_described(stores[name]) for name in path[1:] or stores]}
    _, name, method = path
    if method not in _METHODS:
        fix = f"Use one of {', '.join(_METHODS)}"
        raise _QueryError(HTTPStatus.NOT_FOUND, "path", f"a store has no {method!r}", fix)
    fields, function = _METHODS[method]
    _check_fields(query, fields)
    return function(stores[name], query)


def _check_fields(query: Query, fields: Sequence[str]) -> None:
    if unknown := sorted(query.keys() - set(fields)):
        fix = f"Use {', '.join(fields)}" if fields else "Leave it out"
        raise _QueryError(HTTPStatus.BAD_REQUEST, unknown[0], "this query has no such field", fix)


def _described(served: Served) -> Mapping[str, object]:
    view = served.view
    return {
        "store": served.name,
        "key": kinds_of(view.columns),
        **view.described(),
        "tasks": sorted(view.tasks),
        "behind": view.behind,
        "hosts": view.hosts,
    }


def _get(served: Served, query: Query) -> Mapping[str, object]:
    number = _number(query, "partition", None, least=0)
    key = served.view.parsed(query.get("key", []))
    stale, local = _flag(query, "stale"), _flag(query, "local")
    row, behind = served.view.got(key, _part(served, query), stale=stale, local=local, partition=number)
    if row is None:
        raise _QueryError(HTTPStatus.NOT_FOUND, "key", "the store has no row with this key")
    return {"row": row, "behind": behind}


def _prefix(served: Served, query: Query) -> Mapping[str, object]:
    limit = _number(query, "limit", DEFAULT_LIMIT)
    values = served.view.parsed(query.get("key", []))
    return _rows(served, query, served.view.prefix_span(values, limit, _part(served, query)))


def _range(served: Served, query: Query) -> Mapping[str, object]:
    view, limit = served.view, _number(query, "limit", DEFAULT_LIMIT)
    start, stop = (view.parsed(query.get(name, [])) for name in ("start", "stop"))
    return _rows(served, query, view.range_span(start, stop, limit, _part(served, query)))


def _rows(served: Served, query: Query, span: Span) -> Mapping[str, object]:
    answer = served.view.scanned(span, stale=_flag(query, "stale"), local=_flag(query, "local"))
    return {"rows": answer.rows, "behind": answer.behind}


def _entries(served: Served, query: Query) -> Mapping[str, object]:
    if query.get("definition") != [served.fingerprint]:
        raise _QueryError(
            HTTPStatus.CONFLICT,
            "definition",
            "this application's store has other columns, or is of another release",
            "Run the same pipeline in all applications of the group",
        )
    limit, part = _number(query, "limit", None), _one(query, "part")
    if "key" in query:
        span = Span(_bytes(query, "key"), limit=limit, is_key=True, part=part)
    else:
        span = Span(_bytes(query, "start"), _bytes(query, "stop") if "stop" in query else None, limit, part=part)
    try:
        tasks = frozenset(map(TaskId.parse, query.get("task", [])))
    except ValueError as error:
        raise _QueryError(HTTPStatus.BAD_REQUEST, "task", str(error)) from None
    return encoded(served.local.read(span, tasks, stale=_flag(query, "stale")))


_COMMON = ("variable", "side", "stale", "local")
_METHODS: Mapping[str, tuple[tuple[str, ...], Callable[[Served, Query], Mapping[str, object]]]] = {
    "get": (("key", "partition", *_COMMON), _get),
    "prefix": (("key", "limit", *_COMMON), _prefix),
    "range": (("start", "stop", "limit", *_COMMON), _range),
    "entries": (("definition", "task", "key", "start", "stop", "limit", "part", "stale"), _entries),
}


def _one(query: Query, name: str) -> str | None:
    values = query.get(name, [])
    if len(values) > 1:
        raise _QueryError(HTTPStatus.BAD_REQUEST, name, f"it is given {len(values)} times", "Give it once")
    return values[0] if values else None


def _part(served: Served, query: Query) -> str | None:
    return served.view.part(_one(query, "variable"), _one(query, "side"))


def _flag(query: Query, name: str) -> bool:
    value = _one(query, name)
    if value not in (None, "true", "false"):
        raise _QueryError(HTTPStatus.BAD_REQUEST, name, f"{value!r} is not true or false")
    return value == "true"


def _number(query: Query, name: str, default: int | None, least: int = 1) -> int | None:
    value = _one(query, name)
    if value is None:
        return default
    if not (value.isascii() and value.isdecimal() and len(value) <= 10 and least <= int(value) <= _MOST_LIMIT):
        problem = f"{value[:40]!r} is not a whole number from {least} to {_MOST_LIMIT}"
        raise _QueryError(HTTPStatus.BAD_REQUEST, name, problem)
    return int(value)


def _bytes(query: Query, name: str) -> bytes:
    try:
        return bytes.fromhex(_one(query, name) or "")
    except ValueError:
        raise _QueryError(HTTPStatus.BAD_REQUEST, name, "it is not hexadecimal") from None


def served_stores(jobs: SparkJobs, cluster: Cluster | None, stores: Stores) -> list[Served]:
    """Return the open stores of one application, ready for queries. cluster: of a session that is not local."""
    copies, address, access = stores.copies, stores.application_server, stores.options.access
    served = []
    for (store, kind), changelog in zip(stores.topology.stores.items(), stores.changelogs, strict=True):
        here = ReadsHere(kind.place, kind.definition)
        reads: Reads = here if cluster is None else ReadsOnExecutors(jobs.context, cluster, here)
        local = LocalState(reads, changelog, copies, stores.targets.last_commit)
        fingerprint = kind.definition.fingerprint
        client = StateClient(store, fingerprint, access=access)
        served.append(Served(store, fingerprint, StateView(local, kind.definition, copies, client, address), local))
    return served
