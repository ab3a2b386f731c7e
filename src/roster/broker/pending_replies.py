"""Requests given to a coordinator, until its reply comes."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class PendingReplies:
    """Futures of the requests under way, by the token that each request and its reply have in common."""

    def __init__(self) -> None:
        self._tokens = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    async def ask(self, send: Callable[[int], None]) -> Any:
        """Call `send` with a new token and return the reply to it."""
        token = next(self._tokens)
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[token] = reply
        try:
            send(token)
            return await reply
        finally:
            self._waiting.pop(token, None)

    def answer(self, token: int, reply: object) -> None:
        """Pass a reply to its request, unless the request was given up."""
        future = self._waiting.get(token)
        if future is not None and not future.done():  # else its connection is gone
            future.set_result(reply)

    def is_waiting(self, token: int) -> bool:
        """Return True while a request waits; one whose client has closed the connection was given up."""
        return token in self._waiting

    def cancel(self) -> None:
        """Cancel every request under way."""
        for future in self._waiting.values():
            future.cancel()
