"""Signals that end a command as Ctrl-C does."""

from __future__ import annotations

import contextlib
import signal
import sys

import pytest

from roster.cli.signals import check_interrupted, end_like_ctrl_c


@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGUSR1")
def test_a_signal_counts_though_its_exception_is_dropped():
    before = signal.getsignal(signal.SIGUSR1)
    try:
        end_like_ctrl_c(signal.SIGUSR1)
        check_interrupted()
        with contextlib.suppress(KeyboardInterrupt):  # as a finaliser does
            signal.raise_signal(signal.SIGUSR1)
        with pytest.raises(KeyboardInterrupt):
            check_interrupted()
        check_interrupted()
    finally:
        signal.signal(signal.SIGUSR1, before)
