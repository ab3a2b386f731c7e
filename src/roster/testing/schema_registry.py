"""A schema registry in the test's process: Confluent's HTTP interface, with compatibility of Avro schemas."""

import json
import ssl
import threading
import uuid
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self
from urllib.parse import unquote, urlsplit

from roster._json import JsonObject
from roster.schemas.registry import authorization
from roster.wire.avro.columns import layout
from roster.wire.avro.program import Programs
from roster.wire.avro.schema import SchemaError, parse

LEVELS = ("NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE")
_NO_SUBJECT, _NO_VERSION, _NO_SCHEMA, _INVALID, _NO_LEVEL = 40401, 40402, 40403, 42201, 42203


class _RefusedError(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Schema(NamedTuple):
    kind: str
    text: str
    references: tuple[tuple[str, str, int], ...]
    """Name, subject and version of each."""

    @property
    def guid(self) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_OID, str(self)))


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
        self._schemas: list[_Schema] = []
        self._subjects: dict[str, dict[int, _Schema]] = {}
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
        handler = type("Handler", (_Handler,), {"registry": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
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
            return int(self._register(subject, _Schema(kind, text, references))["id"])
        except _RefusedError as error:
            raise ValueError(str(error)) from None

    def _register(self, subject: str, schema: _Schema) -> Any:
        with self._lock:
            self._check(schema)
            versions = self._subjects.get(subject, {})
            if schema not in versions.values():
                if problems := self._incompatible(subject, schema):
                    refusal = f"Schema being registered is incompatible with an earlier schema for subject {subject!r}"
                    raise _RefusedError(HTTPStatus.CONFLICT, f"{refusal}: {'; '.join(problems)}")
                if schema not in self._schemas:
                    self._schemas.append(schema)
                self._subjects[subject] = {**versions, max(versions, default=0) + 1: schema}
            return self._lookup(subject, schema)

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
        texts: list[str] = []
        for _, subject, version in schema.references:
            referred = self._subjects[subject][self._version(subject, str(version))]
            texts += [*self._referred(referred), referred.text]
        return texts

    def _incompatible(self, subject: str, schema: _Schema, version: int | None = None) -> list[str]:
        """Return why a schema cannot follow the versions of a subject, or one of them."""
        level = self._levels.get(subject, self._levels[""])
        versions = self._subjects.get(subject, {})
        before = [earlier for number, earlier in sorted(versions.items()) if version in (None, number)]
        if not level.endswith("_TRANSITIVE"):
            before = before[-1:]
        problems = []
        for earlier in before:
            if level.startswith(("BACKWARD", "FULL")):
                problems += self._unread(earlier, schema)
            if level.startswith(("FORWARD", "FULL")):
                problems += self._unread(schema, earlier)
        return problems

    def _unread(self, writer: _Schema, reader: _Schema) -> list[str]:
        if writer.kind != reader.kind:
            return [f"{writer.kind} is not {reader.kind}"]
        if writer.kind != "AVRO":
            return []
        one, other = (parse(schema.text, self._referred(schema)) for schema in (writer, reader))
        try:
            programs = Programs(other, layout(other))
            programs.add(one)
            return programs.refused
        except SchemaError as error:
            return [str(error)]

    def _version(self, subject: str, version: str = "latest") -> int:
        versions = self._subjects.get(subject)
        if not versions:
            raise _RefusedError(_NO_SUBJECT, f"Subject '{subject}' not found.")
        number = max(versions) if version in ("latest", "-1") else int(version)
        if number not in versions:
            raise _RefusedError(_NO_VERSION, f"Version {version} not found.")
        return number

    def _shown(self, schema: _Schema | None, key: str = "") -> JsonObject:
        if schema is None:
            raise _RefusedError(_NO_SCHEMA, f"Schema {key} not found")
        shown: JsonObject = {"id": self._schemas.index(schema) + 1, "guid": schema.guid, "schema": schema.text}
        if schema.kind != "AVRO":
            shown["schemaType"] = schema.kind
        if schema.references:
            names = ("name", "subject", "version")
            shown["references"] = [dict(zip(names, reference, strict=True)) for reference in schema.references]
        return shown

    def _lookup(self, subject: str, wanted: _Schema | int) -> Any:
        """Return a schema as a version of a subject."""
        for version, schema in self._subjects[subject].items():
            if wanted in (version, schema):
                return {"subject": subject, "version": version, **self._shown(schema)}
        raise _RefusedError(_NO_SCHEMA, "Schema not found")

    def _answer(self, request: list[str], body: Any) -> Any:  # noqa: C901, PLR0912 - a branch for each request
        """Return the answer to a method and the parts of a path."""
        match request:
            case "GET", "subjects":
                return sorted(self._subjects)
            case "POST", "subjects", subject:
                self._version(subject)
                return self._lookup(subject, _given(body))
            case "DELETE", "subjects", subject:
                self._version(subject)
                return sorted(self._subjects.pop(subject))
            case "GET", "subjects", subject, "versions":
                self._version(subject)
                return sorted(self._subjects[subject])
            case "POST", "subjects", subject, "versions":
                return self._register(subject, _given(body))
            case "GET", "subjects", subject, "versions", version:
                return self._lookup(subject, self._version(subject, version))
            case "GET", "schemas", "types":
                return ["AVRO", "JSON", "PROTOBUF"]
            case "GET", "schemas", "ids", key:
                return self._shown(dict(enumerate(self._schemas, 1)).get(int(key)), key)
            case "GET", "schemas", "guids", key:
                return self._shown({known.guid: known for known in self._schemas}.get(key), key)
            case "POST", "compatibility", "subjects", subject, "versions", *version:
                number = self._version(subject, version[0]) if version else None
                problems = self._incompatible(subject, _given(body), number)
                return {"is_compatible": not problems, "messages": problems}
            case "GET", "config", *subjects:
                return {"compatibilityLevel": self._levels.get("".join(subjects), self._levels[""])}
            case "PUT", "config", *subjects:
                if body.get("compatibility") not in LEVELS:
                    raise _RefusedError(_NO_LEVEL, f"Invalid compatibility level. Valid values are {', '.join(LEVELS)}")
                self._levels["".join(subjects)] = body["compatibility"]
                return body
        raise _RefusedError(HTTPStatus.NOT_FOUND, f"HTTP 404 Not Found: {' '.join(request)}")


def _given(body: Any) -> _Schema:
    references = tuple(
        (reference["name"], reference["subject"], reference["version"]) for reference in body.get("references") or ()
    )
    return _Schema(body.get("schemaType") or "AVRO", body["schema"], references)


class _Handler(BaseHTTPRequestHandler):
    registry: SchemaRegistry
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        registry, url = self.registry, urlsplit(self.path)
        registry.requests.append(f"{self.command} {url.path}")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            if registry._failing[0]:
                left, status = registry._failing
                registry._failing = left - 1, status
                raise _RefusedError(status, "told to fail")
            if registry.auth is not None and self.headers.get("Authorization") != authorization(registry.auth):
                raise _RefusedError(HTTPStatus.UNAUTHORIZED, "Unauthorized")
            parts = [unquote(part) for part in url.path.strip("/").split("/")]
            with registry._lock:
                answer = registry._answer([self.command, *parts], json.loads(body) if body else None)
            status = 200
        except _RefusedError as error:
            status = error.code // 100 if error.code > 999 else error.code
            answer = {"error_code": error.code, "message": str(error)}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            status, answer = 422, {"error_code": 422, "message": f"no request: {error!r}"}
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Say nothing."""
