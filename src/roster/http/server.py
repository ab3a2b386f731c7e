"""An HTTP server on a thread of its own: pages that only read, behind one guard and within limits."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from roster._errors import RosterError
from roster.http.access import OPEN, Access
from roster.http.feed import Feed
from roster.http.login import Login
from roster.http.pages import Answer, Page, Stream, error_answer
from roster.model import Address

log = logging.getLogger(__name__)

_MOST_CONNECTIONS = 200
_LARGEST_HEAD = 1 << 18
"""Bytes of a request line with its headers."""
_IDLE = 30.0
"""Seconds until a request's head must have arrived."""
_GRACE = 1
"""Seconds that requests under way may take when the server ends."""
_BEAT = 15.0
"""Seconds without a change until a listener is told that the server is still there."""
_LARGEST_TOKEN = 4096
_LOGIN = "/login"
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Of every answer: a browser asks this server alone, runs its files only, and shows it in no other site's frame."""


class HttpServerError(RosterError):
    """The address cannot be listened on."""


class HttpServer:
    """Answers GET requests until closed; with a token also the POST that exchanges it for a cookie.

    Raises HttpServerError if the address cannot be used.

    names: of this server besides its address's host and the machine's name, for the check of `Host`.
    """

    def __init__(
        self,
        address: Address,
        pages: Sequence[Page],
        access: Access = OPEN,
        names: Collection[str] = (),
        streams: Sequence[Stream] = (),
    ) -> None:
        self._socket, self._end = _listening(address), _End()
        self.port = int(self._socket.getsockname()[1])
        """The listening port."""
        own = frozenset(name.lower() for name in (address.host, socket.gethostname(), *names))
        config = uvicorn.Config(
            _application(pages, streams, self._end, own, Login(access, self.port) if access.token else None),
            loop="asyncio",
            http=_Protocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_MOST_CONNECTIONS,
            h11_max_incomplete_event_size=_LARGEST_HEAD,
            timeout_keep_alive=int(_IDLE),
            timeout_graceful_shutdown=_GRACE,
        )
        config.load()
        config.ssl = access.server_context()
        self._server = uvicorn.Server(config)
        run = partial(self._server.run, [self._socket])
        self._thread = threading.Thread(target=run, name="roster-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self._end.come()
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


def _listening(address: Address) -> socket.socket:
    try:
        family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((address.host, address.port), family=family)
    except OSError as error:
        raise HttpServerError(f"{address} cannot be listened on: {error.strerror or error}") from None


class _Protocol(H11Protocol):
    """Closes a connection whose next request does not arrive, which uvicorn does only while no byte of it has come."""

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self._await_head()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._deadline.cancel()
        self._await_head()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._deadline.cancel()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._deadline = self.loop.call_later(_IDLE, self._close_if_waiting)

    def _close_if_waiting(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


def _application(
    pages: Sequence[Page], streams: Sequence[Stream], end: _End, own: Collection[str], login: Login | None
) -> Starlette:
    free = frozenset(page.path for page in pages if not page.needs_token) | {_LOGIN}
    guard = Middleware(_Guard, own=own, login=login, free=free)
    routes = [Route(page.path, _endpoint(page), methods=["GET"]) for page in pages]
    routes += [Route(each.path, _stream_endpoint(each, end), methods=["GET"]) for each in streams]
    if login is not None:
        routes.append(Route(_LOGIN, _login_endpoint(login), methods=["POST"]))
    return Starlette(routes=routes, middleware=[guard], exception_handlers={HTTPException: _no_page})


def _endpoint(page: Page) -> Callable[[Request], Any]:
    """Make the endpoint of a page; each has threads of its own, so that slow pages do not hold up the others."""
    limiter = CapacityLimiter(page.threads)

    async def endpoint(request: Request) -> Response:
        try:
            answer = await to_thread.run_sync(page.answer, _target(request), limiter=limiter)
        except Exception:
            log.exception("GET %s", request.url.path)
            answer = error_answer(HTTPStatus.INTERNAL_SERVER_ERROR, "page", "it could not be made; the log says why")
        return _response(answer)

    return endpoint


def _target(request: Request) -> str:
    path, query = request.scope["raw_path"].decode("latin-1"), request.scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def _stream_endpoint(stream: Stream, end: _End) -> Callable[[Request], Any]:
    limiter = CapacityLimiter(4)

    async def events(feed: Feed) -> AsyncIterator[bytes]:
        loop, changed, seen = asyncio.get_running_loop(), asyncio.Event(), -1
        wake = partial(loop.call_soon_threadsafe, changed.set)
        with feed.listening(wake), end.waking(wake):
            while not end.has_come:
                changed.clear()
                seen, told = await to_thread.run_sync(feed.since, seen, limiter=limiter)
                yield told or b": still here\n\n"
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), _BEAT)

    async def endpoint(request: Request) -> Response:
        opened = await to_thread.run_sync(stream.open, _target(request), limiter=limiter)
        if isinstance(opened, Answer):
            return _response(opened)
        return StreamingResponse(events(opened), headers=_HEADERS, media_type="text/event-stream")

    return endpoint


def _login_endpoint(login: Login) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        sent = b""
        async for part in request.stream():
            sent += part
            if len(sent) > _LARGEST_TOKEN:
                break
        if login.is_token(sent.decode(errors="replace")):
            return Response(status_code=HTTPStatus.NO_CONTENT, headers={**_HEADERS, "Set-Cookie": login.set_cookie()})
        return _response(error_answer(HTTPStatus.UNAUTHORIZED, "token", "it is not the token"))

    return endpoint


async def _no_page(request: Request, error: Exception) -> Response:
    status = HTTPStatus(getattr(error, "status_code", HTTPStatus.NOT_FOUND))
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        answer = error_answer(status, "request", f"{request.method} is not answered", "Use GET")
        return _response(answer, {"Allow": "GET"})
    return _response(error_answer(status, "path", f"there is no {request.url.path!r}"))


def _response(answer: Answer, headers: Mapping[str, str] | None = None) -> Response:
    more = {"Retry-After": "1"} if answer.status == HTTPStatus.SERVICE_UNAVAILABLE else {}
    return Response(answer.body, answer.status, {**_HEADERS, **(headers or {}), **more}, answer.media_type)


class _End:
    """Has the streams of a server end, which would otherwise be cut off when it closes."""

    def __init__(self) -> None:
        self.has_come, self._wakes = False, set[Callable[[], object]]()

    @contextlib.contextmanager
    def waking(self, wake: Callable[[], object]) -> Iterator[None]:
        """Call `wake` at the end."""
        self._wakes.add(wake)
        try:
            yield
        finally:
            self._wakes.remove(wake)

    def come(self) -> None:
        """End the streams."""
        self.has_come = True
        for wake in self._wakes.copy():
            wake()


class _Guard:
    """Refuses requests for other hosts, and without the token or a cookie for it."""

    def __init__(self, app: ASGIApp, own: Collection[str], login: Login | None, free: Collection[str]) -> None:
        self._app, self._own, self._login, self._free = app, own, login, free

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let the page answer."""
        refused = self._refused(Request(scope).cookies, Headers(scope=scope), scope["path"])
        await (self._app if refused is None else refused)(scope, receive, send)

    def _refused(self, cookies: dict[str, str], headers: Headers, path: str) -> Response | None:
        host = headers.get("host")
        if not is_own_name(host, self._own):
            names = ", ".join(sorted(self._own))
            problem, fix = f"{host!r} is not the name of this server", f"Ask for {names}, localhost or an IP address"
            return _response(error_answer(HTTPStatus.MISDIRECTED_REQUEST, "Host", problem, fix))
        if path in self._free or self._login is None:
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if (scheme == "Bearer" and self._login.is_token(given)) or self._login.is_known(cookies):
            return None
        answer = error_answer(HTTPStatus.UNAUTHORIZED, "Authorization", "it is not the token", "Send Bearer TOKEN")
        return _response(answer, {"WWW-Authenticate": "Bearer"})


def is_own_name(host: str | None, own: Collection[str]) -> bool:
    """Return True if the Host header has one of these names, localhost or an address, or is missing.

    Another name may be a web page's whose owner lets it resolve to this machine.
    """
    if host is None:
        return True
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return False
    return name in own or name == "localhost" or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
