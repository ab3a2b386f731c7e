"""Ends of commands that run until they are stopped."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


def end_like_ctrl_c(*signals: signal.Signals) -> None:
    """Unwind on these signals too, so that no child, no directory and no half-drawn screen is left behind."""

    def unwind(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for each in signals:
        signal.signal(each, unwind)


def drop_stdout() -> None:
    """Send what is still written to nowhere: the reader of the pipe is gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
