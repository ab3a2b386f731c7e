"""Files as records: what every format shares.

A source is read twice: `check` looks at every row before anything is sent, so that a bad row in the middle does not
leave half a file in the topic, and learns the row count and which CSV columns are numbers; `batches` then yields them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from roster.cli.errors import UserError
from roster.cli.load.json_rows import json_keys, json_rows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

BATCH_ROWS = 8192


@dataclass(frozen=True, slots=True)
class Records:
    """A batch of records ready to send; keys and values are UTF-8 and of equal length."""

    keys: list[bytes | None]
    values: list[bytes]

    def beyond(self, most: int) -> list[tuple[int, int]]:
        """(index, size) of the records whose key and value have more than `most` bytes together."""
        sizes = (len(key or b"") + len(value) for key, value in zip(self.keys, self.values, strict=True))
        return [(index, size) for index, size in enumerate(sizes) if size > most]

    def without(self, left_out: Collection[int]) -> Records:
        """Return the records without those at these indexes."""
        if not left_out:
            return self
        kept = [index for index in range(len(self.values)) if index not in left_out]
        return Records([self.keys[index] for index in kept], [self.values[index] for index in kept])


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

    def batches(self) -> Iterator[Records]:
        """Yield the records in file order."""


def require_columns(key: tuple[str, ...], names: list[str], file: str) -> None:
    """Complain about key columns the file does not have and about names it has twice."""
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise UserError(f"FILE: {file} has the column {', '.join(doubled)} more than once; rename one")
    missing = [name for name in key if name not in names]
    if missing:
        raise UserError(f"--key: no column {', '.join(missing)} in {file}; it has {', '.join(names)}")


def arrow_records(batch: pa.RecordBatch, key: tuple[str, ...], raw: frozenset[str]) -> Records:
    """Make the records of a batch; string columns named in `raw` already hold JSON."""
    keys = _as_bytes(json_keys([batch.column(name) for name in key])) if key else [None] * batch.num_rows
    return Records(keys, _as_bytes(json_rows(batch, raw)))


def _as_bytes(strings: pa.Array) -> list[Any]:
    result: list[Any] = strings.cast(pa.binary()).to_pylist()
    return result


def oversize(where: str, size: int, most: int | None) -> str:
    """Return the error about a row whose record is larger than the topic takes."""
    return (
        f"FILE: {where}: makes a record of {size} bytes, the topic takes {most} (max.message.bytes); "
        "shorten it, raise the setting or pass --skip-bad-rows"
    )
