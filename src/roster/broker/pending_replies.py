"""Requests given to a coordinator, until its reply comes."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class PendingReplies:
    """Callbacks for the replies to pending requests, by the token that request and reply share."""

    def __init__(self) -> None:
        self._tokens = itertools.count(1)
        self._waiting: dict[int, Callable[[Any], None]] = {}
        self._futures: set[asyncio.Future[Any]] = set()

    def begin(self, answered: Callable[[Any], None]) -> int:
        """Return a new token; `answered` is called with the reply to it, unless it is given up."""
        token = next(self._tokens)
        self._waiting[token] = answered
        return token

    def give_up(self, token: int) -> None:
        """Forget a request: its reply is dropped. No error if it was answered."""
        self._waiting.pop(token, None)

    async def ask(self, send: Callable[[int], None]) -> Any:
        """Call `send` with a new token and return the reply to it."""
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        token = self.begin(lambda message: None if reply.done() else reply.set_result(message))
        self._futures.add(reply)
        try:
            send(token)
            return await reply
        finally:
            self._futures.discard(reply)
            self.give_up(token)

    def answer(self, token: int, reply: object) -> None:
        """Pass a reply to its request, unless the request was given up."""
        answered = self._waiting.pop(token, None)
        if answered is not None:  # else its connection is gone
            answered(reply)

    def is_waiting(self, token: int) -> bool:
        """Return True while a request waits; one whose client has closed the connection was given up."""
        return token in self._waiting

    def cancel(self) -> None:
        """Cancel every request that `ask` waits for."""
        for reply in self._futures:
            reply.cancel()
