"""A broker that does what the test says, frame by frame."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from roster.wire import ApiKey, ErrorCode, Message
from roster.wire.frames import RequestHeader, decode_request, encode_response
from roster.wire.messages import ApiVersionsResponse

Answer = Callable[[RequestHeader, Message, asyncio.StreamWriter], Awaitable[None]]


def versions(*entries: tuple[ApiKey, int, int], error: ErrorCode = ErrorCode.NONE) -> ApiVersionsResponse:
    rows = [
        ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high) for key, low, high in entries
    ]
    return ApiVersionsResponse(api_keys=rows, error_code=error)


def send(writer: asyncio.StreamWriter, header: RequestHeader, message: Message, version: int | None = None) -> None:
    chosen = header.api_version if version is None else version
    writer.write(encode_response(message, chosen, header.correlation_id))


@asynccontextmanager
async def scripted_broker(answer: Answer) -> AsyncIterator[tuple[str, int]]:
    """Serve on a port of the loopback interface; `answer` gets every request."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                header, message = decode_request(await reader.readexactly(size))
                await answer(header, message, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()[:2]
        yield host, port
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
