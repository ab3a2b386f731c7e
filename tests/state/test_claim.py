"""Who may export to a folder: one process at a time, and another one once it has been killed."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from roster.state.saved.claim import CLAIM, claimed
from roster.state.saved.folder import Folder, FolderError

OWNER = """
import sys
from roster.state.saved.claim import claimed
from roster.state.saved.folder import Folder
with claimed(Folder(sys.argv[1])) as claim:
    print(*claim, flush=True)
    sys.stdin.read()
"""


@pytest.mark.process
def test_a_claim_ends_with_its_process(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "export"))
    command = [sys.executable, "-c", OWNER, folder.place]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == f"{CLAIM} False\n"
        message = r"another export works in .*export\. Wait until it has ended, or name another folder$"
        with pytest.raises(FolderError, match=message), claimed(folder):
            pass
        assert folder.names() == [CLAIM], "the owner's claim is as it was"
        owner.send_signal(signal.SIGKILL)
    assert folder.names() == [CLAIM]
    with claimed(folder) as claim:
        assert claim == (CLAIM, True)
        with pytest.raises(FolderError, match="another export works"), claimed(folder):
            pass
    assert folder.names() == []
    with claimed(folder) as claim:
        assert claim == (CLAIM, False)


def test_a_claim_that_ends_while_another_process_waits_for_its_lock_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / CLAIM).touch()
    lock = fcntl.flock

    def late(file: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        (tmp_path / CLAIM).unlink()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with claimed(Folder(str(tmp_path))) as claim:
        assert claim == (CLAIM, False)
        assert (tmp_path / CLAIM).exists()


def test_without_locks_the_file_is_the_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(fcntl, "flock", unknown)
    check_that_the_file_is_the_claim(Folder(str(tmp_path)))


def test_an_object_storage_has_no_locks() -> None:
    folder = Folder("mock:///x")
    files: Any = folder._found[0]
    files.create_dir("x")
    check_that_the_file_is_the_claim(folder)


def check_that_the_file_is_the_claim(folder: Folder) -> None:
    with claimed(folder) as (name, is_left):
        assert not is_left
        message = rf"another export works in .*, or was killed there\. .* or delete {name} and what else"
        with pytest.raises(FolderError, match=message), claimed(folder):
            pass
        assert folder.names() == [name], "the other one's claim is as it was"
    assert folder.names() == []
