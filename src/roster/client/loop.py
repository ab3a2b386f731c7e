"""An event loop on a thread of its own, for blocking callers.

anyio's blocking portal does the same; a hundred lines are cheaper than a dependency of the client.
"""

import asyncio
import atexit
import functools
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Concatenate, ParamSpec, TypeVar

from roster.client.errors import ClosedError

T = TypeVar("T")
P = ParamSpec("P")


class LoopThread:
    """Runs coroutines and callbacks for other threads until it is stopped, is collected, or the interpreter ends."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        # The thread has no reference to this object, or it would never be collected.
        self._thread = threading.Thread(target=_run, args=(self._loop,), name=name, daemon=True)
        self._thread.start()
        self._forgotten = weakref.finalize(self, _collected, self._loop, name)
        self._forgotten.atexit = False
        _running.add(self)

    def call(self, work: Coroutine[None, None, T]) -> T:
        """Run a coroutine and return its result; its exceptions are raised here."""
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, work: Coroutine[None, None, T]) -> Future[T]:
        """Run a coroutine, and return at once."""
        if not self._forgotten.alive:
            work.close()
            raise ClosedError("the client is closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def post(self, callback: Callable[..., object], *arguments: object) -> None:
        """Run a callback on the loop soon."""
        if not self._forgotten.alive:
            raise ClosedError("the client is closed")
        self._loop.call_soon_threadsafe(callback, *arguments)

    def stop(self) -> None:
        """Stop the loop and wait for the thread."""
        if self._forgotten.detach() is None:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()


class OnLoop:
    """Has an event loop for its requests, on which its `blocking` methods run."""

    def _running(self) -> LoopThread:
        """Return the loop's thread. Raises ClosedError."""
        raise NotImplementedError


S = TypeVar("S", bound=OnLoop)


def blocking(method: Callable[Concatenate[S, P], Coroutine[None, None, T]]) -> Callable[Concatenate[S, P], T]:
    """Have a coroutine method run on its object's event loop; the caller waits for what it returns."""

    @functools.wraps(method)
    def call(self: S, /, *arguments: P.args, **options: P.kwargs) -> T:
        return self._running().call(method(self, *arguments, **options))

    return call


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped; then cancel its tasks."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _collected(loop: asyncio.AbstractEventLoop, name: str) -> None:
    """Stop the loop of a collected object; without waiting, since garbage collection may hold any lock."""
    loop.call_soon_threadsafe(loop.stop)
    warnings.warn(f"{name} was not closed", ResourceWarning, stacklevel=2)


_running: weakref.WeakSet[LoopThread] = weakref.WeakSet()


@atexit.register  # with the import: what an application registers to close its clients runs before
def _stop_all() -> None:
    """Stop the remaining loops: daemon threads die with the interpreter, and asyncio then warns of pending tasks."""
    for loop in list(_running):
        loop.stop()
