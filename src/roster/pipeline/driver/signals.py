"""Handling of SIGINT and SIGTERM while a session or a pipeline runs in the main thread."""

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


@contextlib.contextmanager
def exiting_on_sigint() -> Iterator[None]:
    """Let SIGINT end the process as `sys.exit(130)` does: py4j logs a long trace for a KeyboardInterrupt.

    Does nothing outside the main thread, or if the application has set a handler of its own.
    """
    is_program = threading.current_thread() is threading.main_thread() and not hasattr(sys, "ps1")
    if not is_program or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _exit)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is _exit:  # PySpark may have set one of its own
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def held_until_done() -> Iterator[None]:
    """Defer the first signal that would end the process: it would leave a starting JVM behind. A second one ends it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        if came:
            _exit(number, frame)
        came.append(number)

    deferred = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) is _exit]
    for number in deferred:
        signal.signal(number, hold)
    try:
        yield
    finally:
        for number in deferred:
            signal.signal(number, _exit)
        if came:
            signal.raise_signal(came[0])


def _exit(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # if the clean end hangs, a second signal ends the process
    log.info("stopped by %s before a pipeline was running", signal.Signals(number).name)
    sys.exit(128 + number if number == signal.SIGINT else 0)
