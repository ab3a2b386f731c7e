"""The client of a schema registry: Confluent's HTTP interface, as Apicurio, Karapace and Redpanda speak it too."""

import base64
import http.client
import io
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from roster._errors import RosterError
from roster.security import parse_security
from roster.security.tls import tls_context

_LATEST_SECONDS = 300.0
_PAUSES = (0.1, 0.3, 1.0, 3.0, 5.0)
_MOST_BYTES = 32 << 20
_MOST_REFERENCES = 1_000
_CONTENT = "application/vnd.schemaregistry.v1+json"


class RegistryError(RosterError):
    """A registry refused a request, answered with something else than is asked for, or could not be reached.

    `status` is HTTP's, 0 if it was not reached or its answer is not understood.
    """

    def __init__(self, problem: str, status: int = 0) -> None:
        super().__init__(problem)
        self.status = status


@dataclass(frozen=True)
class Registered:
    """A schema: `kind` is AVRO, JSON or PROTOBUF; `references` are ids and texts by name, in order of their use."""

    id: int
    kind: str
    text: str
    references: Mapping[str, tuple[int, str]]


class Registry:
    """Asks a schema registry, from the driver only: schemas by id are kept for ever, the latest of a subject 5 minutes.

    A registry that cannot be reached, or answers 429 or 5xx, is asked again for some 10 seconds. An answer has 32 MiB
    at most.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        auth: tuple[str, str] | str | None = None,
        security: Mapping[str, object] | None = None,
        timeout: float = 10.0,
    ) -> None:
        """Check the arguments; the first request makes the first connection.

        Args:
            url: of the registry; several of one registry are asked in turn.
            auth: user name and password, or a bearer token.
            security: TLS by Kafka's names, such as {"ssl.ca.location": "ca.pem"}.
            timeout: seconds for a request and its whole answer.

        Raises:
            RegistryError: a URL has another scheme than http or https, or another argument is wrong.
            SettingError: a setting of TLS is wrong.
        """
        urls = list(url) if isinstance(url, list | tuple) else [url]
        if not urls or not all(
            isinstance(address, str) and address.startswith(("http://", "https://")) for address in urls
        ):
            raise RegistryError(f"{url!r} is not a URL of a registry; for example http://registry:8081")
        self.urls = [str(address).rstrip("/") for address in urls]
        if not isinstance(timeout, int | float) or timeout <= 0:
            raise RegistryError(f"timeout: {timeout!r} is not a number of seconds; for example 10.0")
        self._headers = {"Accept": _CONTENT, "Content-Type": _CONTENT}
        if auth is not None:
            self._headers["Authorization"] = authorization(auth)
        self._timeout = timeout
        context = None
        if security and not any(address.startswith("https") for address in self.urls):
            raise RegistryError("security: it has no effect, as the URL has no TLS; for example https://registry:8081")
        if any(address.startswith("https") for address in self.urls):
            context = tls_context(parse_security({"security.protocol": "SSL", **(security or {})}))
        self._open = build_opener(_NoRedirect, _Http, _Https(context=context)).open
        self._lock = threading.Lock()
        self._known: dict[int | str, Registered] = {}
        self._latest: dict[str, tuple[float, Registered]] = {}

    def __repr__(self) -> str:
        """Return the URLs; no login."""
        return f"Registry({', '.join(self.urls)})"

    def __reduce__(self) -> NoReturn:
        """Refuse: a registry has logins, and tasks never ask it."""
        raise TypeError("a Registry stays on the driver")

    def schema(self, key: int | str) -> Registered | None:
        """Return a schema by its id, or by its GUID; None if the registry does not have it. Raises RegistryError."""
        with self._lock:
            if key not in self._known:
                path = f"/schemas/ids/{key}" if isinstance(key, int) else f"/schemas/guids/{key}"
                try:
                    answer = self._ask("GET", path)
                except RegistryError as error:
                    if error.status == http.client.NOT_FOUND:
                        return None
                    raise
                number = key if isinstance(key, int) else self._part({"id": -1, **self._part(answer, None)}, "id", int)
                self._known[key] = self._registered(answer, number)
            return self._known[key]

    def latest(self, subject: str) -> Registered:
        """Return the latest version of a subject. Raises RegistryError, also if there is none."""
        with self._lock:
            until, registered = self._latest.get(subject, (0.0, None))
            if registered is None or time.monotonic() > until:
                answer = self._ask("GET", f"/subjects/{quote(subject, safe='')}/versions/latest")
                registered = self._registered(answer, None)
                self._known[registered.id] = registered
                self._latest[subject] = time.monotonic() + _LATEST_SECONDS, registered
            return registered

    def has(self, subject: str) -> bool:
        """Return whether a subject has a schema, and know its latest as of now. Raises RegistryError."""
        self._latest.pop(subject, None)
        try:
            self.latest(subject)
        except RegistryError as error:
            if error.status == http.client.NOT_FOUND:
                return False
            raise
        return True

    def register(self, subject: str, text: str) -> int:
        """Register a schema of Avro under a subject, if it is not yet, and return its id.

        Raises RegistryError: with status 409 it is not compatible with the versions before, and the text says why.
        """
        body = {"schema": text}
        path = f"/subjects/{quote(subject, safe='')}"
        self._latest.pop(subject, None)
        try:  # first, as many clients may not register
            return int(self._part(self._ask("POST", path, body), "id", int))
        except RegistryError as error:
            if error.status != http.client.NOT_FOUND:
                raise
        return int(self._part(self._ask("POST", f"{path}/versions", body), "id", int))

    def _registered(self, answer: object, key: int | None) -> Registered:
        """Return what an answer has; key: its id, None if it is there, too."""
        kind = self._part(answer, "schemaType", str) if self._part(answer, None).get("schemaType") else "AVRO"
        references = dict(self._references(answer, set()))
        key = self._part(answer, "id", int) if key is None else key
        return Registered(key, kind, self._part(answer, "schema", str), references)

    def _references(self, answer: object, seen: set[str]) -> Iterator[tuple[str, tuple[int, str]]]:
        references = self._part(answer, None).get("references") and self._part(answer, "references", list)
        for reference in references or ():
            name, subject = self._part(reference, "name", str), self._part(reference, "subject", str)
            path = f"/subjects/{quote(subject, safe='')}/versions/{self._part(reference, 'version', int)}"
            if path in seen:
                continue
            seen.add(path)
            if len(seen) > _MOST_REFERENCES:
                raise RegistryError(f"{self!r}: a schema has more than {_MOST_REFERENCES} references")
            referred = self._ask("GET", path)
            yield from self._references(referred, seen)
            yield name, (self._part(referred, "id", int), self._part(referred, "schema", str))

    def _part(self, answer: object, name: str | None, kind: Any = dict) -> Any:
        """Return a part of an answer, or all of it. Raises RegistryError if it has another type."""
        part = answer if name is None else self._part(answer, None).get(name)
        if not isinstance(part, kind) or isinstance(part, bool):
            raise RegistryError(f"{self!r} answered with {str(answer)[:80]!r}, which has no {name or 'object'}")
        return part

    def _ask(self, method: str, path: str, body: Mapping[str, str] | None = None) -> Any:
        """Ask one URL after the other, and all again after a pause. Raises RegistryError."""
        problem = RegistryError(f"{self!r} was not asked")
        until = time.monotonic() + self._timeout + sum(_PAUSES)
        for pause in (0.0, *_PAUSES):
            time.sleep(pause)
            if time.monotonic() > until:
                break
            for url in self.urls:
                try:
                    return self._once(method, url + path, body)
                except RegistryError as error:
                    problem = error
                    if 0 < error.status < 500 and error.status != http.client.TOO_MANY_REQUESTS:
                        raise
        raise problem

    def _once(self, method: str, url: str, body: Mapping[str, str] | None) -> object:
        data = None if body is None else json.dumps(body).encode()
        request = Request(url, data, self._headers, method=method)  # noqa: S310 - of http or https
        try:
            with self._open(request, timeout=self._timeout) as response:
                data = response.read(_MOST_BYTES + 1)
                if len(data) > _MOST_BYTES:
                    raise ValueError(f"the answer has more than {_MOST_BYTES >> 20} MiB")
                return json.loads(data)
        except HTTPError as error:
            raise RegistryError(f"{method} {url}: {error.code} {_reply_text(error)}", error.code) from None
        except (URLError, OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            reason = getattr(error, "reason", None) or error
            raise RegistryError(f"{method} {url}: {_printable(str(reason)[:200])}") from None


class _Timed(io.RawIOBase):
    """The bytes of a socket, limited by one timeout from the start, not by one for each read."""

    def __init__(self, sock: socket.socket, raw: io.RawIOBase) -> None:
        self._sock, self._raw, self._until = sock, raw, time.monotonic() + (sock.gettimeout() or 10.0)

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, into: Any) -> Any:
        """Read what has come."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer takes too long")
        self._sock.settimeout(left)
        return self._raw.readinto(into)

    def close(self) -> None:
        """Close the socket's file, too."""
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: Any, *args: Any, **more: Any) -> None:
        super().__init__(sock, *args, **more)
        self.fp = io.BufferedReader(_Timed(sock, self.fp.detach()))


class _HttpConnection(http.client.HTTPConnection):
    response_class = _Response


class _HttpsConnection(http.client.HTTPSConnection):
    response_class = _Response


class _Http(HTTPHandler):
    def http_open(self, req: Request) -> http.client.HTTPResponse:
        return self.do_open(_HttpConnection, req)


class _Https(HTTPSHandler):
    def https_open(self, req: Request) -> http.client.HTTPResponse:
        return self.do_open(_HttpsConnection, req, context=self._context)  # type: ignore[attr-defined]


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Follow none: it would carry the login elsewhere."""


def authorization(auth: tuple[str, str] | str) -> str:
    """Return the header of a user name and password, or of a bearer token. Raises RegistryError for anything else."""
    if isinstance(auth, str):
        return f"Bearer {auth}"
    if not isinstance(auth, list | tuple) or [type(part) for part in auth] != [str, str]:
        raise RegistryError("auth: it is neither ('user', 'password') nor a bearer token as text")
    return f"Basic {base64.b64encode(':'.join(auth).encode()).decode()}"


def _reply_text(error: HTTPError) -> str:
    """Return the registry's own message, which may be any text."""
    try:
        text = error.read(100_000).decode(errors="replace")
        reply = json.loads(text)
        text = f"{str(reply['message'])[:1000]} (error code {reply['error_code']})"
    except (OSError, http.client.HTTPException):
        text = ""
    except (ValueError, KeyError, TypeError, RecursionError):
        text = text.strip()[:200]
    return _printable(text) or _printable(str(error.reason))


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
