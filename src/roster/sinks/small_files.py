"""Small files of an appended table, merged in the background while batches go on.

Each commit adds files of its own. Once `FAN` commits came within `FAN * SECONDS`, a thread writes their rows again into
one file for each partition of the table, and then the pipeline's thread commits that it replaces theirs. `FAN` results
of such merges are merged in turn, up to `1 / FAN` of the target size. So a row is written again a few times, and an
hour of small commits leaves `FAN` files for each of these levels.

What is merged was appended by this run: no other run merges it, and files of others are left alone. A merge changes no
rows and no positions, so it needs no fence: it is committed only if all files that it replaces are still there.
"""

import contextlib
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from roster.pipeline.tasks.writer import written
from roster.sinks.tasks.parquet import ParquetWriter, WrittenFile
from roster.sinks.upsert import file_rows

FAN = 32
"""Commits that are merged together."""
SECONDS = 2.0
"""Seconds between two commits from which on their files stay as they are."""


class Appended(NamedTuple):
    """What one commit appended, or one merge made."""

    files: Sequence[WrittenFile]
    entry: Any
    """What tells the commit in the table."""
    at: float
    """Monotonic seconds."""


class Merging(NamedTuple):
    """A merge under way."""

    writer: ParquetWriter
    parts: Sequence[Appended]
    level: int
    written_files: Future[list[WrittenFile]]

    def drop(self) -> None:
        """Remove its files once they are written."""
        with contextlib.suppress(Exception):
            for file in self.written_files.result():
                self.writer.remove(file.name)


class SmallFiles:
    """What a run has appended that is worth merging."""

    def __init__(self, target_file_bytes: int) -> None:
        self._most_bytes = target_file_bytes // FAN
        self._levels: list[deque[Appended]] = []

    def add(self, files: Sequence[WrittenFile], entry: Any, level: int = 0) -> None:
        """Note what a commit appended; level: of how many merges it is the result."""
        if files and sum(file.size for file in files) < self._most_bytes:
            while len(self._levels) <= level:
                self._levels.append(deque())
            self._levels[level].append(Appended(files, entry, time.monotonic()))

    def due(self) -> tuple[Sequence[Appended], int] | None:
        """Take the commits to merge next, with their level; None if there are none."""
        for level, parts in enumerate(self._levels):
            while len(parts) >= FAN and not level and parts[FAN - 1].at - parts[0].at > FAN * SECONDS:
                parts.popleft()
            if len(parts) >= FAN:
                self._levels[level] = deque()
                return parts, level
        return None


def merged(writer: ParquetWriter, parts: Sequence[Appended]) -> list[WrittenFile]:
    """Write the rows of small files as larger ones. Raises OSError if one is gone."""
    small, names = (file for part in parts for file in part.files), writer.schema.names
    rows = (file_rows(writer, writer.path(file.name), file.values, names) for file in small)
    files: list[WrittenFile] = written(writer, (batch for some in rows for batch in some.combine_chunks().to_batches()))
    return files
