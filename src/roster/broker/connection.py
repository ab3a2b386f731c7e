"""One client's connection: frames in, responses out in the order of their requests.

Requests of a connection are handled one after another, as in Kafka; only Produce requests overlap, so that the many a
producer has in flight share one sync of the disk. Nothing is read ahead while a response cannot be sent.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import cast

from roster.broker import request_limits
from roster.broker.call import Answer, Call
from roster.broker.direct_requests import WAITING_KEYS, DirectRequests
from roster.broker.dispatch import HANDLERS, Handler, guarded, guarded_produce
from roster.broker.errors import CloseConnection
from roster.broker.handlers.produce import produce
from roster.broker.listener import Admission, Slot
from roster.broker.log.record_range import PIECE_BYTES, RecordRange
from roster.broker.security.session import MAX_BYTES_BEFORE_LOGIN, Session
from roster.broker.services import Services
from roster.broker.streams import ClientProtocol, ClientReader, keep_alive
from roster.wire import ApiKey, Message, UnsupportedVersion, WireError
from roster.wire.codec.varint import Buffer
from roster.wire.frames import RequestHeader, encode_response, encode_response_parts, unsupported_api_versions
from roster.wire.messages import ProduceRequest

_SIZE_BYTES = 4
_LINGER_SECONDS = 1.0
"""How long a refused client may take to close its connection."""
_API_KEY_BYTES = 2
_WAITING = WAITING_KEYS | {ApiKey.FETCH}
"""Requests that wait for others; cancelled when their client disconnects. Any other runs to its end, so that disk and
memory stay consistent."""
_LARGE_RESPONSES = frozenset(
    {
        ApiKey.METADATA,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.LIST_GROUPS,
        ApiKey.OFFSET_FETCH,
        ApiKey.DESCRIBE_CONFIGS,
    }
)
"""Responses that may hold very many items whatever the request's size: encoded in a thread."""

logger = logging.getLogger(__name__)


class ReceiveBudget:
    """Bounds what all connections together hold of large frames that are not complete yet."""

    def __init__(self, limit: int) -> None:
        self._left = limit

    def take(self, size: int) -> None:
        """Reserve bytes about to be received; raise CloseConnection if the budget is used up."""
        if size > self._left:
            raise CloseConnection("the broker is receiving too many large requests")
        self._left -= size

    def give_back(self, size: int) -> None:
        """Stop counting bytes that are no longer held."""
        self._left += size


class Connection:
    """Serves one socket until the client closes it or sends something that cannot be answered."""

    def __init__(
        self,
        services: Services,
        budget: ReceiveBudget,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        slot: Slot,
        admission: Admission,
    ) -> None:
        self._services = services
        self._measures = services.hooks.measures
        self._budget = budget
        self._slot = slot
        self._admission = admission
        self._reader = reader
        self._writer = writer
        self._idle_seconds = services.config.idle_timeout_ms / 1000
        self._receive_seconds = services.config.receive_seconds
        self._send_seconds = services.config.send_seconds
        self._unanswered: deque[asyncio.Task[bytes]] = deque()
        self._problem: BaseException | None = None
        self._task = asyncio.current_task()
        self._handling: int | None = None
        """The api key of the request under way, other than Produce."""
        self._waits = False
        """True if the request under way may be cancelled."""
        self._gone = False
        self._stopping = False
        self._awaits_request = False
        peer = writer.get_extra_info("peername")
        self._host = str(peer[0]) if peer else "unknown"
        self._name = f"{peer[0]}:{peer[1]}" if peer else "unknown"
        self._session = Session(services.security, self._host, writer.get_extra_info("peercert"))
        protocol = writer.transport.get_protocol()
        self._protocol = protocol if isinstance(protocol, ClientProtocol) else None
        self._direct = DirectRequests(
            services, writer.transport, self._session, (self._host, self._name), self._send, self._give_up
        )
        if self._protocol is not None:
            self._protocol.on_lost = self.client_gone
            self._protocol.on_data = self._take_directly
        sock = writer.get_extra_info("socket")
        if sock is not None:
            keep_alive(sock)

    async def serve(self) -> None:
        """Answer requests until the connection ends; never raises but when cancelled."""
        try:
            while self._problem is None and not self._stopping:
                frame = await self._receive()
                await self._take(frame)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client is gone
        except TimeoutError:
            logger.info("closed the connection to %s: idle for %d s", self._name, self._idle_seconds)
        except Exception as error:
            self._problem = error
        finally:
            for task in self._unanswered:
                task.cancel()
            self._direct.give_up()
            self._explain()
            self._writer.transport.abort()
            self._forget()

    def _explain(self) -> None:
        """Log why the connection closed, unless the client closed it."""
        problem = self._problem
        if isinstance(problem, (CloseConnection, WireError)):
            self._services.refusals.warn(self._name, problem)
        elif problem is not None and not isinstance(problem, (asyncio.CancelledError, ConnectionError, TimeoutError)):
            logger.error("closed the connection to %s: internal error", self._name, exc_info=problem)

    def _forget(self) -> None:
        """Break reference cycles through raised exceptions, so that the memory of requests is freed at once."""
        self._problem = None
        self._unanswered.clear()
        del self._direct
        if self._protocol is not None:
            self._protocol.on_lost = self._protocol.on_data = None
        error = self._reader.exception()
        if error is not None:
            error.__traceback__ = None

    def client_gone(self) -> None:
        """Give up a request that waits for others; requests sent before the client left are still read."""
        self._gone = True
        if self._direct.waits:
            self._direct.give_up()
        if self._handling is not None and self._waits and self._task is not None:
            self._task.cancel()

    def stop(self) -> None:
        """End because the broker stops: at once, or after the request under way if it may change something."""
        self._stopping = True
        if self._task is None:
            return
        if self._direct.under_way is not None and not self._direct.waits:
            self._direct.then = self._task.cancel
        elif self._handling is None or self._waits:
            self._task.cancel()

    # Receiving

    async def _receive(self) -> bytes:
        """The next frame, without its size. A size that is not allowed is refused before anything is allocated."""
        if self._holds(_SIZE_BYTES):
            start = await self._reader.readexactly(_SIZE_BYTES)
        else:
            start = await self._begin_of_request()
        size = int.from_bytes(start, "big", signed=True)
        limit = self._services.config.max_request_bytes
        if not self._session.is_open:
            limit = min(limit, MAX_BYTES_BEFORE_LOGIN)
        if not 0 < size <= limit:
            raise CloseConnection(f"a request of {size} bytes, at most {limit} are allowed")
        if size <= PIECE_BYTES:
            return await self._piece(size)
        start = await self._piece(_API_KEY_BYTES)
        request_limits.check_size(int.from_bytes(start, "big"), size)
        return await self._receive_large(start, size)

    async def _begin_of_request(self) -> bytes:
        """The size of the next frame. Requests that are handled directly meanwhile show that the client is not idle."""
        loop = asyncio.get_running_loop()
        idle_since = loop.time()
        self._awaits_request = True
        try:
            while True:
                try:
                    async with self._time_to_begin(idle_since):
                        return await self._reader.readexactly(_SIZE_BYTES)
                except TimeoutError:
                    active_at = self._direct.last_at if self._direct.under_way is None else loop.time()
                    if active_at <= idle_since:
                        raise
                    idle_since = active_at
        finally:
            self._awaits_request = False

    def _take_directly(self, data: bytes) -> bool:
        """Handle a request in the callback that receives it, if nothing is in its way; else return False."""
        return (
            self._awaits_request
            and self._slot.is_settled
            and not self._unanswered
            and not (self._gone or self._stopping)
            and self._direct.under_way is None
            and not self._holds(1)
            and self._direct.take(data)
        )

    def _holds(self, size: int) -> bool:
        """Return True if this many bytes have arrived, so that no timer is needed."""
        return isinstance(self._reader, ClientReader) and self._reader.holds(size)

    def _time_to_begin(self, idle_since: float) -> contextlib.AbstractAsyncContextManager[object]:
        """Bound the wait for a request: while the connection is set up by its deadline, then by the idle timeout."""
        if self._slot.is_settled:
            return asyncio.timeout_at(idle_since + self._idle_seconds)
        return self._time_to_set_up()

    @contextlib.asynccontextmanager
    async def _time_to_set_up(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout_at(self._slot.deadline):
                yield
        except TimeoutError:
            what = "sent no request" if self._session.is_open else "did not log in"
            seconds = self._services.config.setup_seconds
            raise CloseConnection(f"it {what} within {seconds:g} s (connection setup timeout)") from None

    async def _piece(self, size: int) -> bytes:
        """A part of a frame that has begun: a client that sends it slowly occupies memory meanwhile."""
        if self._holds(size):
            return await self._reader.readexactly(size)
        try:
            async with asyncio.timeout(self._receive_seconds):
                return await self._reader.readexactly(size)
        except TimeoutError:
            raise CloseConnection(
                f"it took more than {self._receive_seconds:g} s to send {size} bytes of a request (receive timeout)"
            ) from None

    async def _receive_large(self, start: bytes, size: int) -> bytes:
        """The rest of a frame, piece by piece: what is held grows with what the client really sends."""
        pieces = [start]
        left = size - len(start)
        received = 0
        try:
            while left:
                piece = min(PIECE_BYTES, left)
                self._budget.take(piece)
                received += piece
                pieces.append(await self._piece(piece))
                left -= piece
            return b"".join(pieces)
        finally:
            self._budget.give_back(received)

    # Answering

    async def _take(self, frame: bytes) -> None:
        """Handle one request: a Produce is begun, anything else waits for its turn and is answered."""
        await self._direct.answered()
        if self._problem is not None:
            return
        session = self._session
        if session.expects_raw_token:
            token = await session.raw_token(frame)
            await self._send(len(token).to_bytes(_SIZE_BYTES, "big") + token)
            self._settle()
            return
        try:
            header, message = await request_limits.decode(frame)
        except UnsupportedVersion as error:
            if error.header.api_key != ApiKey.API_VERSIONS:
                raise
            await self._all_answered()
            await self._send(encode_response(unsupported_api_versions(), 0, error.header.correlation_id))
            return
        logger.debug(
            "%s asks %d: %s v%d", self._name, header.correlation_id, type(message).__name__, header.api_version
        )
        session.check(header.api_key)
        call = Call(header, message, self._host, len(frame) > request_limits.INLINE_BYTES, session)
        if self._measures is not None:
            self._measures.begin(call)
        intercept = self._services.hooks.intercept
        instead = None if intercept is None else intercept(call)
        if header.api_key == ApiKey.PRODUCE and instead is None:
            await self._begin_produce(cast("Call[ProduceRequest]", call))
            while len(self._unanswered) >= self._services.config.max_unanswered and self._problem is None:
                await self._first_answered()
            await self._drain()
            return
        await self._all_answered()
        if self._gone:
            return
        await self._answer(call, instead or HANDLERS[header.api_key], may_wait=instead is not None)

    async def _answer(self, call: Call[Message], handler: Handler, *, may_wait: bool) -> None:
        key = call.header.api_key
        self._handling, self._waits = key, may_wait or key in _WAITING
        try:
            response = await guarded(self._services, call, handler)
            self._handling = None
            logger.debug("%s is answered %d", self._name, call.header.correlation_id)
            if response is not None and not self._gone:
                await self._respond(call, response)
        finally:
            call.release(self._services)
            if self._measures is not None:
                self._measures.end(call)
        if self._session.is_refused:
            await self._linger()
            self._session.raise_if_refused()
        self._settle()

    async def _linger(self) -> None:
        """Leave a refused client time to read why: some lose an answer that arrives with the end of the connection."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while not self._gone and await self._reader.read(PIECE_BYTES):
                    pass

    def _settle(self) -> None:
        """Note after its first request, or its login, that the connection is set up."""
        if not self._slot.is_settled and self._session.is_open:
            self._admission.settle(self._slot)

    async def _respond(self, call: Call[Message], response: Message) -> None:
        header = call.header
        if self._stopping:  # slow readers are not waited for
            if header.api_key != ApiKey.FETCH:
                self._write(header, response)
            return
        if header.api_key in _LARGE_RESPONSES or call.is_large:
            parts = await asyncio.to_thread(encode_response_parts, response, header.api_version, header.correlation_id)
        else:
            parts = encode_response_parts(response, header.api_version, header.correlation_id)
        if header.api_key != ApiKey.FETCH:
            call.hold(self._services, sum(map(len, parts)))
        del response
        waiting: list[Buffer] = []
        size = 0
        async for piece in _pieces(parts):
            if waiting and size + len(piece) > PIECE_BYTES:
                await self._send(waiting[0] if len(waiting) == 1 else b"".join(waiting))
                waiting, size = [], 0
                await asyncio.sleep(0)  # a client that reads fast leaves room for the others
            waiting.append(piece)
            size += len(piece)
        await self._send(b"".join(waiting))

    async def _begin_produce(self, call: Call[ProduceRequest]) -> None:
        self._settle()
        task = asyncio.create_task(self._encoded(call, await guarded_produce(self._services, call, produce)))
        self._unanswered.append(task)
        task.add_done_callback(self._produced)

    async def _encoded(self, call: Call[Message], answer: Answer) -> bytes:
        """Wait for the response of a Produce and encode it; b"" if there is none."""
        header, response = call.header, await answer()
        if self._measures is not None:
            self._measures.end(call)
        if response is None:
            return b""
        if request_limits.count_items(response, request_limits.INLINE_ITEMS) > request_limits.INLINE_ITEMS:
            return await asyncio.to_thread(encode_response, response, header.api_version, header.correlation_id)
        return encode_response(response, header.api_version, header.correlation_id)

    def _produced(self, _: asyncio.Task[bytes]) -> None:
        """Send the responses whose turn it is."""
        while self._unanswered and self._unanswered[0].done() and self._problem is None:
            task = self._unanswered.popleft()
            if task.cancelled():
                return
            problem = task.exception()
            if problem is None:
                self._writer.write(task.result())
            else:
                self._give_up(problem)

    def _give_up(self, problem: BaseException) -> None:
        """End the connection because of what happened outside of its task."""
        self._problem = problem
        self._writer.transport.abort()

    def _write(self, header: RequestHeader, response: Message | None) -> None:
        if response is not None:
            self._writer.write(encode_response(response, header.api_version, header.correlation_id))

    async def _first_answered(self) -> None:
        await asyncio.wait([self._unanswered[0]])  # its own callback, `_produced`, runs before this resumes

    async def _all_answered(self) -> None:
        while self._unanswered and self._problem is None:
            await self._first_answered()

    async def _send(self, data: Buffer) -> None:
        """Send bytes in pieces: the transport copies what the socket does not take at once."""
        view = memoryview(data)
        for start in range(0, len(view), PIECE_BYTES):
            self._writer.write(view[start : start + PIECE_BYTES])
            await self._drain()

    async def _drain(self) -> None:
        """Wait until a slow client has read most of the data sent."""
        transport = self._writer.transport
        if transport.get_write_buffer_size() or transport.is_closing():
            try:
                async with asyncio.timeout(self._send_seconds):
                    await self._writer.drain()
            except TimeoutError:
                limit = f"{self._send_seconds:g} s to read {PIECE_BYTES} bytes of a response"
                raise CloseConnection(f"it took more than {limit} (send timeout)") from None


async def _pieces(parts: Iterable[Buffer | RecordRange]) -> AsyncIterator[Buffer]:
    """Yield the parts of a response: bytes, and the bytes that ranges of records stand for."""
    for part in parts:
        if isinstance(part, RecordRange):
            async for piece in part.pieces():
                yield piece
        else:
            yield part
