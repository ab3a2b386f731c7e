"""An event loop on a thread of its own, for blocking callers.

anyio's blocking portal does the same; sixty lines are cheaper than a dependency for those who need only the client.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from roster.client.errors import ClosedError

T = TypeVar("T")


class LoopThread:
    """Runs coroutines and callbacks for other threads until it is stopped."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._stopped = False
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end and return its result, or raise what it raised."""
        if self._stopped:
            work.close()
            raise ClosedError("the client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def post(self, callback: Callable[..., object], *arguments: object) -> None:
        """Run a callback on the loop soon."""
        if self._stopped:
            raise ClosedError("the client is closed")
        self._loop.call_soon_threadsafe(callback, *arguments)

    def stop(self) -> None:
        """Stop the loop and wait for the thread."""
        if self._stopped:
            return
        self._stopped = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()
