"""Signals: Ctrl-C deferred around callbacks of C code, other signals handled as Ctrl-C is."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType


def end_like_ctrl_c(*signals: signal.Signals) -> None:
    """Unwind on these signals too, so that no child, no directory and no half-drawn screen is left behind."""

    def unwind(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for each in signals:
        signal.signal(each, unwind)


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[Callable[[], None]]:
    """Defer SIGINT until the function that is yielded is called, or the block ends; both raise KeyboardInterrupt then.

    An exception raised in librdkafka's callback for its log would be lost in C. Outside of the main thread, where no
    signal arrives, nothing changes.
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
