"""An HTTP server on a thread of its own: pages that only read, behind one guard and within limits."""

import asyncio
import contextlib
import errno
import ipaddress
import logging
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from anyio import CapacityLimiter, WouldBlock, to_thread
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
from roster.http.pages import Answer, Feed, Page, Stream, error_answer
from roster.model import Address

log = logging.getLogger(__name__)

_MOST_CONNECTIONS = 256
"""Connections from accept on, those of streams left out. Beyond, the one whose client has been silent for longest makes
room, so that silent clients keep no probe out."""
_MOST_STREAMS = 200
_MOST_REQUESTS = 200
"""Requests under way, those for probes left out."""
_BACKLOG = 1_024
_LARGEST_HEAD = 1 << 18
"""Bytes of a request line with its headers."""
_IDLE = 30.0
"""Seconds until a request's head must have arrived, and for which a client may read nothing of its answer."""
_HANDSHAKE = 10.0
"""Seconds for a TLS handshake."""
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_GRACE = 1
"""Seconds that requests under way may take when the server ends."""
_BEAT = 15.0
"""Seconds without a change until a listener is told that the server is still there."""
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Headers of every answer: a browser asks only this server, runs only its files, and shows no page in another frame."""
_ASK = 'Basic realm="the token is the password", charset="UTF-8"'
"""Has a browser ask its user for the token."""


class HttpServerError(RosterError):
    """The address cannot be listened on."""


class HttpServer:
    """Answers GET requests until closed.

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
            _application(pages, streams, self._end, own, access),
            loop="asyncio",
            http=_Protocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=_LARGEST_HEAD,
            timeout_keep_alive=int(_IDLE),
            timeout_graceful_shutdown=_GRACE,
        )
        config.load()
        config.ssl = access.server_context()
        self._server = _Server(config)
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
        both = address.host == "::" and socket.has_dualstack_ipv6()
        return socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        raise HttpServerError(f"{address} cannot be listened on: {error.strerror or error}") from None


class _Server(uvicorn.Server):
    """Accepts connections itself: uvicorn knows none before its TLS handshake, and never ends one to make room."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.places: dict[_Protocol, asyncio.Task[None] | None] = {}
        """Connections but those of streams, the one that has been waiting for longest first, with what set it up."""
        self.streams: set[_Protocol] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept."""
        await self.lifespan.startup()
        self.servers = []
        self._accepting = [asyncio.create_task(self._accept(listening)) for listening in sockets or ()]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, and end."""
        for task in self._accepting:
            task.cancel()
        await super().shutdown(sockets)

    async def _accept(self, listening: socket.socket) -> None:
        listening.setblocking(False)
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(listening)
            except OSError as error:
                await asyncio.sleep(0.5 if error.errno in _EXHAUSTED else 0)
                continue
            if len(self.places) >= _MOST_CONNECTIONS:
                waiting = next((connection for connection in self.places if connection.is_waiting), None)
                if waiting is None:
                    client.close()
                    continue
                waiting.end()
            protocol = _Protocol(self)
            self.places[protocol] = loop.create_task(self._set_up(client, protocol))
            await asyncio.sleep(0)  # a turn for the others

    async def _set_up(self, client: socket.socket, protocol: "_Protocol") -> None:
        tls: dict[str, Any] = {"ssl": self.config.ssl, "ssl_handshake_timeout": _HANDSHAKE} if self.config.ssl else {}
        try:
            client.setblocking(False)
            await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, client, **tls)
        except OSError:  # its handshake failed
            self.places.pop(protocol, None)
        except asyncio.CancelledError:
            client.close()
            raise


class _Protocol(H11Protocol):
    """A connection that ends if its client is too slow with a request's head, or with reading the answer."""

    def __init__(self, server: _Server) -> None:
        super().__init__(server.config, server.server_state, {"connection": self})
        self._server = server
        self._unread: asyncio.TimerHandle | None = None

    @property
    def is_waiting(self) -> bool:
        """True unless a whole request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def end(self) -> None:
        """Make room for another connection."""
        set_up = self._server.places.pop(self, None)
        if self.transport is not None:
            self.transport.abort()
        elif set_up is not None:
            set_up.cancel()

    def become_stream(self) -> bool:
        """Leave the place among the requests. False if there are too many streams."""
        if len(self._server.streams) >= _MOST_STREAMS:
            return False
        self._server.places.pop(self, None)
        self._server.streams.add(self)
        return True

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self._await_head()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._deadline.cancel()
        self._server.streams.discard(self)
        self._server.places.pop(self, None)
        self._server.places[self] = None
        self._await_head()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._deadline.cancel()
        self._server.streams.discard(self)
        self._server.places.pop(self, None)
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Let the client read what was sent, for a while."""
        super().pause_writing()
        self._unread = self.loop.call_later(_IDLE, self.transport.abort)

    def resume_writing(self) -> None:
        """Send more: the client has read."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()

    def _await_head(self) -> None:
        self._deadline = self.loop.call_later(_IDLE, self._end_if_waiting)

    def _end_if_waiting(self) -> None:
        if self.is_waiting:
            self.transport.abort()


def _application(
    pages: Sequence[Page], streams: Sequence[Stream], end: "_End", own: Collection[str], access: Access
) -> Starlette:
    free = frozenset(page.path for page in pages if not page.needs_token)
    guard = Middleware(_Guard, own=own, access=access, free=free)
    room = CapacityLimiter(_MOST_REQUESTS)
    routes = [Route(page.path, _endpoint(page, room if page.needs_token else None), methods=["GET"]) for page in pages]
    routes += [Route(stream.path, _stream_endpoint(stream, end), methods=["GET"]) for stream in streams]
    return Starlette(routes=routes, middleware=[guard], exception_handlers={HTTPException: _no_page})


_TOO_MANY = error_answer(HTTPStatus.SERVICE_UNAVAILABLE, "server", "it has too many clients", "Ask again")


def _endpoint(page: Page, room: CapacityLimiter | None) -> Callable[[Request], Awaitable[Response]]:
    """Make the endpoint of a page; each has threads of its own, so that slow pages do not hold up the others."""
    limiter = CapacityLimiter(page.threads)

    async def endpoint(request: Request) -> Response:
        if room is None:
            return await answered(request)
        try:
            room.acquire_on_behalf_of_nowait(request)
        except WouldBlock:
            return _response(_TOO_MANY)
        try:
            return await answered(request)
        finally:
            room.release_on_behalf_of(request)

    async def answered(request: Request) -> Response:
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


def _stream_endpoint(stream: Stream, end: "_End") -> Callable[[Request], Awaitable[Response]]:
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
        if not request.state.connection.become_stream():
            return _response(_TOO_MANY)
        return StreamingResponse(events(opened), headers=_HEADERS, media_type="text/event-stream")

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
    """Refuses requests for other hosts, and without the token."""

    def __init__(self, app: ASGIApp, own: Collection[str], access: Access, free: Collection[str]) -> None:
        self._app, self._own, self._access, self._free = app, own, access, free

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let the page answer."""
        refused = self._refused(Headers(scope=scope), scope["path"])
        await (self._app if refused is None else refused)(scope, receive, send)

    def _refused(self, headers: Headers, path: str) -> Response | None:
        host = headers.get("host")
        if not is_own_name(host, self._own):
            names = ", ".join(sorted(self._own))
            problem, fix = f"{host!r} is not the name of this server", f"Ask for {names}, localhost or an IP address"
            return _response(error_answer(HTTPStatus.MISDIRECTED_REQUEST, "Host", problem, fix))
        if path in self._free or not self._access.token or self._access.admits(headers.get("authorization", "")):
            return None
        answer = error_answer(HTTPStatus.UNAUTHORIZED, "Authorization", "it is not the token", "Send Bearer TOKEN")
        return _response(answer, {"WWW-Authenticate": _ASK})


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
