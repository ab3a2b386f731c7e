"""A rewritten segment takes the place of an old one, with its sidecar: after a crash both are there, or neither.

The new files wait as `.index.swap` and `.log.swap`. The name of the second is the decision: from then on the next start
finishes what a crash cut off. Before it, the old segment and its sidecar are untouched.
"""

from pathlib import Path

from roster._files import sync_path, write_atomically
from roster.broker.log.files import names_in

SWAP_SUFFIX = ".swap"


def _waiting(path: Path) -> Path:
    return path.with_name(path.name + SWAP_SUFFIX)


def swap(written: Path, log: Path, index: Path, sidecar: bytes) -> None:
    """Replace `log` by a durable file, and `index` by the bytes of its sidecar."""
    write_atomically(_waiting(index), sidecar)
    written.rename(_waiting(log))
    sync_path(log.parent)
    _finish(log, index)


def _finish(log: Path, index: Path) -> None:
    """Give the files their names; the log last, whose name tells that there is something to finish."""
    if _waiting(index).exists():
        _waiting(index).rename(index)
        sync_path(index.parent)
    _waiting(log).rename(log)
    sync_path(log.parent)


def finish_swaps(directory: Path, log_suffix: str, index_suffix: str) -> None:
    """Complete a swap that a crash interrupted, or undo it if it was not decided."""
    waiting = [directory / name for name in names_in(directory) if name.endswith(SWAP_SUFFIX)]
    for path in waiting:
        log = path.with_suffix("")
        if log.suffix == log_suffix:
            _finish(log, log.with_suffix(index_suffix))
    for path in waiting:
        path.unlink(missing_ok=True)
