"""A schema registry in the test's process: Confluent's HTTP interface, with compatibility of Avro schemas."""

from __future__ import annotations

import base64
import json
import re
import ssl
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from roster.wire.avro.columns import layout
from roster.wire.avro.program import compiled
from roster.wire.avro.schema import SchemaError, parse

LEVELS = ("NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE")
_NO_SUBJECT, _NO_VERSION, _NO_SCHEMA, _INVALID, _NO_LEVEL = 40401, 40402, 40403, 42201, 42203


class _RefusedError(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class _Schema:
    id: int
    kind: str
    text: str
    references: tuple[tuple[str, str, int], ...]
    """Name, subject and version of each."""

    @property
    def shown(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"id": self.id, "guid": str(_guid(self)), "schema": self.text}
        if self.kind != "AVRO":
            shown["schemaType"] = self.kind
        if self.references:
            names = ("name", "subject", "version")
            shown["references"] = [dict(zip(names, each, strict=True)) for each in self.references]
        return shown


def _guid(schema: _Schema) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_OID, f"{schema.kind} {schema.text} {schema.references}")


@dataclass
class SchemaRegistry:
    """A schema registry on a free port of 127.0.0.1, from `start` or `with` to `close`.

    It keeps subjects, versions, ids, references and compatibility levels in memory, and checks compatibility of Avro
    schemas; those of Protobuf and JSON Schema are taken as compatible. A Protobuf schema is a FileDescriptorProto in
    base64, as Confluent's client for Python registers it. `requests` has the method and path of each
    request; `fail` makes the next ones fail.

    >>> with SchemaRegistry() as registry:
    ...     registry.register("orders-value", '{"type": "record", "name": "Order", "fields": []}')
    1

    Args:
        auth: user name and password, or the bearer token, that each request must have.
        tls: the server's context, for https.

    """

    auth: tuple[str, str] | str | None = None
    tls: ssl.SSLContext | None = None
    requests: list[str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._schemas: dict[int, _Schema] = {}
        self._subjects: dict[str, dict[int, int]] = {}
        self._levels: dict[str, str] = {"": "BACKWARD"}
        self._lock = threading.RLock()
        self._failing: tuple[int, int] = (0, 0)
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        """The address, while it runs."""
        if self._server is None:
            raise RuntimeError("the registry is not started")
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> Self:
        """Listen, and return the registry."""
        made = type("Handler", (_Handler,), {"registry": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), made)
        if self.tls is not None:
            self._server.socket = self.tls.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def close(self) -> None:
        """Stop listening; what is registered stays for another `start`."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def fail(self, times: int, status: int = 503) -> None:
        """Answer the next requests with this status."""
        self._failing = times, status

    def register(
        self, subject: str, text: str, kind: str = "AVRO", references: tuple[tuple[str, str, int], ...] = ()
    ) -> int:
        """Register a schema as the next version of a subject, if it is not one yet; return its id.

        references: name, subject and version of each. Raises ValueError if it is invalid or not compatible.
        """
        try:
            return self._register(subject, kind, text, references).id
        except _RefusedError as error:
            raise ValueError(str(error)) from None

    def _register(self, subject: str, kind: str, text: str, references: tuple[tuple[str, str, int], ...]) -> _Schema:
        with self._lock:
            made = self._same(kind, text, references) or _Schema(len(self._schemas) + 1, kind, text, references)
            self._check(made)
            versions = self._subjects.get(subject, {})
            if made.id in versions.values():
                return made
            if problems := self._incompatible(subject, made, None):
                said = f"Schema being registered is incompatible with an earlier schema for subject {subject!r}"
                raise _RefusedError(HTTPStatus.CONFLICT, f"{said}: {'; '.join(problems)}")
            self._schemas[made.id] = made
            self._subjects[subject] = {**versions, max(versions, default=0) + 1: made.id}
            return made

    def _same(self, kind: str, text: str, references: tuple[tuple[str, str, int], ...]) -> _Schema | None:
        wanted = (kind, text, references)
        return next((s for s in self._schemas.values() if (s.kind, s.text, s.references) == wanted), None)

    def _check(self, schema: _Schema) -> None:
        """Raise _RefusedError if it is no schema."""
        try:
            if schema.kind == "AVRO":
                parse(schema.text, self._referred(schema))
            elif schema.kind == "JSON":
                json.loads(schema.text)
        except (SchemaError, ValueError) as error:
            raise _RefusedError(_INVALID, f"Invalid schema: {error}") from None

    def _referred(self, schema: _Schema) -> list[str]:
        found: list[str] = []
        for _, subject, version in schema.references:
            referred = self._version(subject, str(version))[1]
            found += [*self._referred(referred), referred.text]
        return found

    def _incompatible(self, subject: str, made: _Schema, version: int | None) -> list[str]:
        """Return why a schema cannot follow the versions of a subject, or one of them."""
        level = self._levels.get(subject, self._levels[""])
        versions = sorted(self._subjects.get(subject, {}).items())
        if level == "NONE" or not versions:
            return []
        if version is not None:
            versions = [each for each in versions if each[0] == version]
        elif not level.endswith("_TRANSITIVE"):
            versions = versions[-1:]
        problems = []
        for _, key in versions:
            before = self._schemas[key]
            if level.startswith(("BACKWARD", "FULL")):
                problems += self._unread(before, made)
            if level.startswith(("FORWARD", "FULL")):
                problems += self._unread(made, before)
        return problems

    def _unread(self, writer: _Schema, reader: _Schema) -> list[str]:
        if writer.kind != reader.kind:
            return [f"{writer.kind} is not {reader.kind}"]
        if writer.kind != "AVRO":
            return []
        one, other = (parse(each.text, self._referred(each)) for each in (writer, reader))
        try:
            return list(compiled(one, other, layout(other)).refused)
        except SchemaError as error:
            return [str(error)]

    def _version(self, subject: str, version: str) -> tuple[int, _Schema]:
        versions = self._subjects.get(subject)
        if not versions:
            raise _RefusedError(_NO_SUBJECT, f"Subject '{subject}' not found.")
        number = max(versions) if version in ("latest", "-1") else int(version)
        if number not in versions:
            raise _RefusedError(_NO_VERSION, f"Version {version} not found.")
        return number, self._schemas[versions[number]]

    def _answer(self, method: str, path: str, body: Any) -> Any:
        for pattern, by_method in _ROUTES:
            if (found := pattern.fullmatch(path)) is not None and method in by_method:
                with self._lock:
                    return by_method[method](self, *map(unquote, found.groups()), body=body)
        raise _RefusedError(HTTPStatus.NOT_FOUND, f"HTTP 404 Not Found: {method} {path}")

    def _by_id(self, key: str, **_: Any) -> Any:
        found = self._schemas.get(int(key))
        if found is None:
            raise _RefusedError(_NO_SCHEMA, f"Schema {key} not found")
        return found.shown

    def _by_guid(self, guid: str, **_: Any) -> Any:
        found = next((each for each in self._schemas.values() if str(_guid(each)) == guid), None)
        if found is None:
            raise _RefusedError(_NO_SCHEMA, f"Schema {guid} not found")
        return found.shown

    def _post_version(self, subject: str, *, body: Any, **_: Any) -> Any:
        made = self._register(subject, *_given(body))
        version = next(v for v, key in self._subjects[subject].items() if key == made.id)
        return {"subject": subject, "version": version, **made.shown}

    def _lookup(self, subject: str, *, body: Any, **_: Any) -> Any:
        self._version(subject, "latest")
        found = self._same(*_given(body))
        for version, key in self._subjects[subject].items():
            if found is not None and key == found.id:
                return {"subject": subject, "version": version, **found.shown}
        raise _RefusedError(_NO_SCHEMA, "Schema not found")

    def _get_version(self, subject: str, version: str, **_: Any) -> Any:
        number, found = self._version(subject, version)
        return {"subject": subject, "version": number, **found.shown}

    def _versions(self, subject: str, **_: Any) -> Any:
        self._version(subject, "latest")
        return sorted(self._subjects[subject])

    def _delete(self, subject: str, **_: Any) -> Any:
        self._version(subject, "latest")
        return sorted(self._subjects.pop(subject))

    def _compatibility(self, subject: str, version: str = "", *, body: Any, **_: Any) -> Any:
        number = self._version(subject, version)[0] if version else None
        problems = self._incompatible(subject, _Schema(0, *_given(body)), number)
        return {"is_compatible": not problems, "messages": problems}

    def _get_level(self, subject: str = "", **_: Any) -> Any:
        return {"compatibilityLevel": self._levels.get(subject, self._levels[""])}

    def _put_level(self, subject: str = "", *, body: Any, **_: Any) -> Any:
        if body.get("compatibility") not in LEVELS:
            raise _RefusedError(_NO_LEVEL, f"Invalid compatibility level. Valid values are {', '.join(LEVELS)}")
        self._levels[subject] = body["compatibility"]
        return body


def _given(body: Any) -> tuple[str, str, tuple[tuple[str, str, int], ...]]:
    references = tuple((each["name"], each["subject"], each["version"]) for each in body.get("references") or ())
    return body.get("schemaType") or "AVRO", body["schema"], references


_R = SchemaRegistry
_ROUTES: list[tuple[re.Pattern[str], Mapping[str, Callable[..., Any]]]] = [
    (re.compile(pattern), methods)
    for pattern, methods in (
        ("/subjects", {"GET": lambda registry, **_: sorted(registry._subjects)}),
        ("/subjects/([^/]+)", {"POST": _R._lookup, "DELETE": _R._delete}),
        ("/subjects/([^/]+)/versions", {"GET": _R._versions, "POST": _R._post_version}),
        ("/subjects/([^/]+)/versions/([^/]+)", {"GET": _R._get_version}),
        (r"/schemas/ids/(\d+)", {"GET": _R._by_id}),
        ("/schemas/guids/([^/]+)", {"GET": _R._by_guid}),
        ("/schemas/types", {"GET": lambda *_, **__: ["AVRO", "JSON", "PROTOBUF"]}),
        ("/compatibility/subjects/([^/]+)/versions", {"POST": _R._compatibility}),
        ("/compatibility/subjects/([^/]+)/versions/([^/]+)", {"POST": _R._compatibility}),
        ("/config", {"GET": _R._get_level, "PUT": _R._put_level}),
        ("/config/([^/]+)", {"GET": _R._get_level, "PUT": _R._put_level}),
    )
]


class _Handler(BaseHTTPRequestHandler):
    registry: SchemaRegistry
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        registry, url = self.registry, urlsplit(self.path)
        registry.requests.append(f"{self.command} {url.path}")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        left, status = registry._failing
        if left:
            registry._failing = left - 1, status
            return self._send(status, {"error_code": status, "message": "told to fail"})
        if registry.auth is not None and self.headers.get("Authorization") != _authorization(registry.auth):
            return self._send(401, {"error_code": 401, "message": "Unauthorized"})
        try:
            given = json.loads(body) if body else None
            return self._send(200, registry._answer(self.command, url.path, given))
        except _RefusedError as error:
            status = error.code // 100 if error.code > 999 else error.code
            return self._send(status, {"error_code": error.code, "message": str(error)})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return self._send(422, {"error_code": 422, "message": f"no request: {error!r}"})

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815

    def _send(self, status: int, answer: Any) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def _authorization(auth: tuple[str, str] | str) -> str:
    if isinstance(auth, str):
        return f"Bearer {auth}"
    return f"Basic {base64.b64encode(':'.join(auth).encode()).decode()}"
