"""Loads a long changelog into an empty store: first into sorted runs, then from these in the order of keys.

Changes in the order of the log would rewrite nearly every page of a large store with each transaction. Sorted, each
page is written once, and memory does not grow with the log. Either part may be interrupted: the next process goes on
with the next run, or from the last transaction. The runs lie beside the store's data, and go with it.
"""

from __future__ import annotations

import json
import shutil
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa

from roster.state.byte_slices import Column, large_binary, last_places
from roster.state.store import Position, StoreDamagedError, Value, disk_error

if TYPE_CHECKING:
    from roster.state.file_store import TaskStore

_SLICE, _LEAST_OF_RUN = 8 << 20, 1 << 14
"""About how many bytes of entries are written to the store at once, and the least of each run on average."""
_NOTED = "runs.json"
_ALIGNED = 64
"""Bytes that the begin of a run is a multiple of, for Arrow."""


class _Run(NamedTuple):
    """Sorted changes up to before an offset of the changelog; where they are in the file of entries."""

    end: int
    rows: int
    at: int
    bytes: int
    crc: int


class SortedLoad:
    """The load of one store, whose position stays at the changelog offset `begin` until `finish`.

    `roster.state.changelog.restore` takes it for a store and adds runs; `merge` brings these to the store.
    """

    sorted_bytes = 8 << 20
    """Size of a run: more would only cost memory, which the system hands out page by page, each cleared first."""
    entries_at_once = 5_000_000

    def __init__(self, store: TaskStore, begin: int) -> None:
        self._store, self._folder, self._begin = store, store.sorted_runs, begin
        self._runs: list[_Run] = []
        self._merged: list[int] = []
        """Rows of each run that are in the store; empty while runs are added."""
        if (state_file := self._folder / _NOTED).exists():
            begin, runs, merged = json.loads(state_file.read_bytes())
            if begin == self._begin:
                self._runs, self._merged = [_Run(*run) for run in runs], merged
        if not self._runs:
            shutil.rmtree(self._folder, ignore_errors=True)  # of a load that has ended, or of an earlier release

    @property
    def is_begun(self) -> bool:
        """True if there are runs."""
        return bool(self._runs)

    @property
    def is_merging(self) -> bool:
        """True if no more runs can be added."""
        return bool(self._merged)

    def position(self) -> Position:
        """Return the position that the runs have reached."""
        return Position(self._runs[-1].end if self._runs else self._begin)

    def progress(self) -> int:
        """Return an offset that says how far it is; runs are half of the work, and it is at its end after `finish`."""
        end, rows = self.position().changelog, sum(run.rows for run in self._runs)
        share = (1 + sum(self._merged) / max(rows, 1)) / 2
        return max(self._begin, min(self._begin + int((end - self._begin) * share), end - 1))

    def load(self, batches: Iterable[tuple[Column, Column]], position: Position | Callable[[], Position]) -> None:
        """Add a run for each batch."""
        for keys, values in batches:
            reached = position() if callable(position) else position
            self._add(large_binary(keys), large_binary(values), reached.changelog)

    def commit(self, keys: Sequence[bytes], values: Sequence[Value], position: Position) -> None:
        """Add a run for the last changes, or none of them, up to a position."""
        if position.changelog > self.position().changelog:
            self._add(large_binary(keys), large_binary(values), position.changelog)

    def _add(self, keys: Column, values: Column, end: int) -> None:
        places, keys = last_places(keys)
        batch = pa.RecordBatch.from_arrays([keys, values.take(pa.array(places))], ["key", "value"])
        last = self._runs[-1] if self._runs else _Run(0, 0, 0, 0, 0)
        start = -(-(last.at + last.bytes) // _ALIGNED) * _ALIGNED
        path = self._folder / "entries"
        try:
            self._folder.mkdir(exist_ok=True)
            with path.open("ab") as file:
                file.truncate(start)  # what a killed process wrote without noting it
            with pa.OSFile(str(path), "ab") as sink, pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            with pa.memory_map(str(path)) as written:
                written.seek(start)
                content = written.read_buffer()
                crc = google_crc32c.value(np.frombuffer(content, np.uint8))
            self._runs.append(_Run(end, len(batch), start, len(content), crc))
            self._note()
        except OSError as error:
            raise disk_error(self._store.path, error) from error

    def _note(self) -> None:
        scratch = self._folder / "noted"
        scratch.write_text(json.dumps([self._begin, self._runs, self._merged]))
        scratch.replace(self._folder / _NOTED)

    def merge(self, is_over: Callable[[], bool]) -> bool:
        """Write entries to the store, until `is_over`; True if all are there. Raises StoreDamagedError."""
        with pa.memory_map(str(self._folder / "entries")) as file:
            batches = [self._batch(file, run) for run in self._runs]
            self._merged = self._merged or [0] * len(self._runs)
            entries = sum(run.rows for run in self._runs)
            size = max(_SLICE, _LEAST_OF_RUN * len(self._runs))
            rows = max(size * entries // sum(run.bytes for run in self._runs), 1)
            keys = [batch.column("key") for batch in batches]
            while any(start < len(column) for start, column in zip(self._merged, keys, strict=True)):
                ends = slice_ends(keys, self._merged, rows)
                pieces = [
                    batch.slice(start, end - start)
                    for batch, start, end in zip(batches, self._merged, ends, strict=True)
                ]
                table = pa.Table.from_batches(pieces)
                # A slice that a killed process wrote without noting it is written once more.
                self._store.load([(table["key"], table["value"])], Position(self._begin))
                self._merged = ends
                self._note()
                if is_over():
                    break
            return sum(self._merged) == entries

    def _batch(self, file: pa.ipc.RecordBatchFileReader, run: _Run) -> pa.RecordBatch:
        file.seek(run.at)
        content = file.read_buffer(run.bytes)
        if not self.is_merging and google_crc32c.value(np.frombuffer(content, np.uint8)) != run.crc:
            raise StoreDamagedError(self._store.path, "a sorted run does not have its checksum")
        return pa.ipc.open_stream(content).read_next_batch()

    def finish(self, keys: Sequence[bytes], values: Sequence[Value]) -> None:
        """Write last changes after `merge`, and advance the store to the end."""
        self._store.load([(keys, values)], self.position())
        shutil.rmtree(self._folder)


def slice_ends(keys: Sequence[pa.Array], starts: Sequence[int], rows: int) -> list[int]:
    """Return up to where each sorted column can be read so that no key below the others' ends is left out.

    keys: large binary columns, each without equal keys. rows: about how many to read in all.
    """
    left = [run for run, start in enumerate(starts) if start < len(keys[run])]
    first = {run: keys[run][starts[run]].as_py() for run in left}

    def bound(runs: Sequence[int], step: int) -> bytes | None:
        """Return the least of the keys `step` rows behind the runs' starts; None if they all end before."""
        behind = [(keys[run], starts[run] + step) for run in runs]
        return min((column[start].as_py() for column, start in behind if start < len(column)), default=None)

    upto = bound(left, max(rows // len(left), 1))
    if upto is None:
        return [len(column) for column in keys]
    # Few runs may have such small keys, as where a log is in the order of keys: these can give more.
    near = [run for run in left if first[run] < upto]
    step = max(rows // len(near), 1)
    wider = bound(near, step)
    others = [first[run] for run in left if first[run] >= upto]
    upto = min(others if wider is None else [wider, *others])
    ends = list(starts)
    for run in near:
        ends[run] = _first_from(keys[run], upto, starts[run], min(len(keys[run]), starts[run] + step))
    return ends


def _first_from(column: pa.Array, key: bytes, start: int, stop: int) -> int:
    """Return the first place between two of a sorted column that has this key or a greater one, else the last."""
    return bisect_left(range(stop), key, start, key=lambda place: column[place].as_py())
