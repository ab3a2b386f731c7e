"""SIGINT and SIGTERM while a session or a pipeline runs in the main thread."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

log = logging.getLogger("roster.pipeline")

_ECHO = 1.0
"""Seconds in which a second signal repeats the first: `timeout` sends to a process and to its group."""


@contextlib.contextmanager
def stopping(stop: Callable[[str, bool], object]) -> Iterator[None]:
    """Let SIGINT and SIGTERM call `stop(reason, now)`; `now` is True for a second one after a second or more.

    Does nothing outside the main thread. Restores the previous handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    first: float | None = None

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal first
        moment = time.monotonic()
        now = first is not None and moment - first >= _ECHO
        first = moment if first is None else first
        # A handler may interrupt the holder of any lock, so a thread does the work.
        threading.Thread(target=stop, args=(signal.Signals(number).name, now), daemon=True).start()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def exit_on_sigterm() -> None:
    """Let SIGTERM end the process as `sys.exit(0)` does: `finally` and exit handlers run, Spark is stopped.

    Only in the main thread, and only where the application has set no handler of its own.
    """
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # should the clean end hang, a second one ends it
    log.info("stopped by %s before a pipeline was running", signal.Signals(number).name)
    sys.exit(0)
