"""Files as records: what every format shares.

A source is read twice: `check` looks at every row before anything is sent, so that a bad row in the middle does not
leave half a file in the topic, and learns the row count and which CSV columns are numbers; `batches` then yields them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roster.cli.errors import UserError
from roster.cli.load.json_rows import json_keys, json_rows

BATCH_ROWS = 8192


@dataclass(frozen=True, slots=True)
class Checked:
    """Result of checking every row: how many are good, how many bad ones are left out."""

    rows: int
    bad: int


@dataclass
class Source:
    """A file of records; `name` is what errors call it. `check` must come before `batches`."""

    path: Path
    name: str
    key: tuple[str, ...]
    skip_bad: bool = False
    most: int | None = field(default=None, init=False)
    """Bytes of the largest record that the topic takes, None if all are taken; set by `check`."""

    def check(self, most: int | None = None) -> Checked:
        """Check every row; a bad one is a UserError that names its line, unless bad rows are skipped.

        A row whose key and value have more than `most` bytes together is a bad one too.
        """
        self.most = most
        good = bad = 0
        for rows, large, skipped in self._read():
            if large and not self.skip_bad:
                index, size = large[0]
                raise self._oversize(self._place(good + index), size)
            good += rows.num_rows - len(large)
            bad += skipped + len(large)
        return Checked(good, bad)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the records (`make_records`) in file order."""
        for records, large, _ in self._read():
            if large:
                kept = np.ones(records.num_rows, bool)
                kept[[index for index, _ in large]] = False
                yield records.filter(pa.array(kept))
            else:
                yield records

    def _read(self) -> Iterator[tuple[pa.RecordBatch, Sequence[tuple[int, int]], int]]:
        """Yield the records of a number of rows, (index, size) of those too large, and how many bad rows have none.

        Raises UserError for a row that has none, unless bad rows are skipped.
        """
        raise NotImplementedError

    def _place(self, row: int) -> str:
        """Name the place of a row that has a record; they count from 0."""
        return f"row {row + 1}"

    def _large(self, records: pa.RecordBatch) -> list[tuple[int, int]]:
        """(index, size) of the records whose key and value have too many bytes together."""
        if self.most is None:
            return []
        key, value = (pc.fill_null(pc.binary_length(records.column(name)), 0) for name in ("key", "value"))
        sizes = np.add(key.to_numpy(), value.to_numpy(), dtype=np.int64)
        large = np.flatnonzero(sizes > self.most)
        return list(zip(large.tolist(), sizes[large].tolist(), strict=True))

    def _oversize(self, place: str, size: int) -> UserError:
        return UserError(
            f"FILE: {self.name} {place}: makes a record of {size} bytes, the topic takes {self.most} "
            "(max.message.bytes); shorten it, raise the setting or pass --skip-bad-rows"
        )

    def _require_columns(self, names: list[str]) -> None:
        """Complain about key columns the file does not have and about names it has twice."""
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise UserError(f"FILE: {self.name} has the column {', '.join(doubled)} more than once; rename one")
        missing = [name for name in self.key if name not in names]
        if missing:
            raise UserError(f"--key: no column {', '.join(missing)} in {self.name}; it has {', '.join(names)}")

    def _records(self, batch: pa.RecordBatch, raw: frozenset[str] = frozenset()) -> pa.RecordBatch:
        """Make the records of a batch; string columns named in `raw` already hold JSON."""
        keys = json_keys([batch.column(name) for name in self.key]) if self.key else pa.nulls(batch.num_rows)
        return make_records(keys.cast(pa.binary()), json_rows(batch, raw).cast(pa.binary()))


def make_records(keys: pa.Array | list[bytes | None], values: pa.Array | list[bytes]) -> pa.RecordBatch:
    """Return records ready to send: binary columns `key` and `value`."""
    columns = [pa.array(column, pa.binary()) if isinstance(column, list) else column for column in (keys, values)]
    return pa.RecordBatch.from_arrays(columns, names=["key", "value"])
