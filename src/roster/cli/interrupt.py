"""Ctrl-C kept out of librdkafka's callbacks: an exception raised in the one for its log is lost in C."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[Callable[[], None]]:
    """Let a SIGINT wait until the function that is yielded is called, or the block ends.

    Both raise KeyboardInterrupt then. Outside of the main thread, where no signal arrives, nothing changes.
    """
    arrived = False

    def note(_number: int, _frame: object) -> None:
        nonlocal arrived
        arrived = True

    def check() -> None:
        if arrived:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield check
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
    check()
