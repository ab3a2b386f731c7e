"""Files as records: what every format shares.

A source is read twice: `check` looks at every row before anything is sent, so that a bad row in the middle does not
leave half a file in the topic, and learns the row count and which CSV columns are numbers; `batches` then yields them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roster.cli.errors import UserError
from roster.cli.load.json_rows import json_keys, json_rows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

BATCH_ROWS = 8192


def make_records(keys: pa.Array | list[bytes | None], values: pa.Array | list[bytes]) -> pa.RecordBatch:
    """Return records ready to send: binary columns `key` and `value`."""
    columns = [pa.array(column, pa.binary()) if isinstance(column, list) else column for column in (keys, values)]
    return pa.RecordBatch.from_arrays(columns, names=["key", "value"])


def beyond(records: pa.RecordBatch, most: int) -> list[tuple[int, int]]:
    """(index, size) of the records whose key and value have more than `most` bytes together."""
    key, value = (pc.fill_null(pc.binary_length(records.column(name)), 0) for name in ("key", "value"))
    sizes = np.add(key.to_numpy(), value.to_numpy(), dtype=np.int64)
    found = np.flatnonzero(sizes > most)
    return list(zip(found.tolist(), sizes[found].tolist(), strict=True))


def without(records: pa.RecordBatch, left_out: Collection[int]) -> pa.RecordBatch:
    """Return the records but those at these indexes."""
    if not left_out:
        return records
    kept = np.ones(records.num_rows, bool)
    kept[list(left_out)] = False
    return records.filter(pa.array(kept))


@dataclass(frozen=True, slots=True)
class Checked:
    """Result of checking every row: how many are good, how many bad ones are left out."""

    rows: int
    bad: int


@dataclass
class FileOptions:
    """Options that every format has; `most` is the largest record that the topic takes, in bytes, set by `check`."""

    path: Path
    name: str
    key: tuple[str, ...]
    skip_bad: bool = False
    most: int | None = field(default=None, init=False)


class Source(Protocol):
    """A file of records. `check` must come before `batches`."""

    def check(self, most: int | None = None) -> Checked:
        """Check every row; a bad one is a UserError that names its line, unless bad rows are skipped.

        A row whose key and value have more than `most` bytes together is a bad one too.
        """

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the records (`make_records`) in file order."""


def require_columns(key: tuple[str, ...], names: list[str], file: str) -> None:
    """Complain about key columns the file does not have and about names it has twice."""
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise UserError(f"FILE: {file} has the column {', '.join(doubled)} more than once; rename one")
    missing = [name for name in key if name not in names]
    if missing:
        raise UserError(f"--key: no column {', '.join(missing)} in {file}; it has {', '.join(names)}")


def arrow_records(batch: pa.RecordBatch, key: tuple[str, ...], raw: frozenset[str]) -> pa.RecordBatch:
    """Make the records of a batch; string columns named in `raw` already hold JSON."""
    keys = json_keys([batch.column(name) for name in key]) if key else pa.nulls(batch.num_rows, pa.binary())
    return make_records(keys.cast(pa.binary()), json_rows(batch, raw).cast(pa.binary()))


def oversize(where: str, size: int, most: int | None) -> str:
    """Return the error about a row whose record is larger than the topic takes."""
    return (
        f"FILE: {where}: makes a record of {size} bytes, the topic takes {most} (max.message.bytes); "
        "shorten it, raise the setting or pass --skip-bad-rows"
    )
