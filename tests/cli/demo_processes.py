"""What a demo says and leaves behind: its processes are known by the temporary directory that the test gives it."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import pytest


def left_behind(tmp_path: Path) -> list[str]:
    """Command lines of living processes that inherited the demo's temporary directory, or have one within it."""
    mark = f"TMPDIR={tmp_path / 'tmp'}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text().replace("\0", " ")[:200])
    return found


def has_java(tmp_path: Path) -> bool:
    """Return True once the demo has started a JVM."""
    return any("java" in command.split(" ")[0] for command in left_behind(tmp_path))


def read_until(process: subprocess.Popen, words: str) -> None:
    for line in process.stdout:
        if words in line:
            return
    pytest.fail(f"the demo ended before it said {words!r}")
