"""Signals handled as Ctrl-C is."""

import signal
import threading
from types import FrameType

_interrupted = threading.Event()


def end_like_ctrl_c(*signals: signal.Signals) -> None:
    """Unwind on these signals, so that no child, no directory and no half-drawn screen is left behind."""

    def unwind(_signal: int, _frame: FrameType | None) -> None:
        _interrupted.set()
        raise KeyboardInterrupt

    _interrupted.clear()
    for number in signals:
        signal.signal(number, unwind)


def check_interrupted() -> None:
    """Raise KeyboardInterrupt if a signal has come: a finaliser or a callback that it met drops the exception."""
    if _interrupted.is_set():
        _interrupted.clear()
        raise KeyboardInterrupt
