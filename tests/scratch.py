"""Where the files of tests lie under the profile `quick`: in memory, where there is room.

A broker syncs what it has written, and a sync waits for all that others write to the same disk. `make gate` uses it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
"""Linux has a file system in memory there."""
ROOM = 4 << 30
"""Bytes that are to be free: the files of `make test` take 1 GiB."""


class FilesInMemory:
    """The plugin of the process that prints: workers and programs inherit the variable.

    A run that fails leaves its files to whoever looks for the reason, until the next run.
    """

    def __init__(self) -> None:
        for left in MEMORY.glob("roster-*"):
            if not Path("/proc", left.name.removeprefix("roster-")).exists():
                shutil.rmtree(left, ignore_errors=True)
        self._folder = MEMORY / f"roster-{os.getpid()}"  # short: the name of a socket has at most 107 bytes
        self._folder.mkdir(mode=0o755)  # a database runs as another user
        self._has_passed = False
        os.environ["TMPDIR"] = tempfile.tempdir = str(self._folder)
        atexit.register(self._remove)  # after multiprocessing, which is loaded later, has removed its own

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._has_passed = exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}

    def _remove(self) -> None:
        if self._has_passed:
            shutil.rmtree(self._folder, ignore_errors=True)


def is_wanted() -> bool:
    """Return True if nobody has said where files are to lie, and memory has room and lets programs run."""
    if "TMPDIR" in os.environ or not MEMORY.is_dir():
        return False
    may_run = not os.statvfs(MEMORY).f_flag & getattr(os, "ST_NOEXEC", 0)
    return may_run and shutil.disk_usage(MEMORY).free >= ROOM
