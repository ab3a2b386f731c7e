"""Signals handled as Ctrl-C is."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


def end_like_ctrl_c(*signals: signal.Signals) -> None:
    """Unwind on these signals too, so that no child, no directory and no half-drawn screen is left behind."""

    def unwind(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for each in signals:
        signal.signal(each, unwind)
