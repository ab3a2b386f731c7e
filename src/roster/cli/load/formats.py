"""The format of a file, given or derived from its name, and the source that reads it in constant memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from roster.cli.errors import UserError
from roster.cli.load.csv_source import CsvSource
from roster.cli.load.json_lines_source import JsonLinesSource
from roster.cli.load.parquet_source import ParquetSource
from roster.cli.load.unpack import archive_member

if TYPE_CHECKING:
    from roster.cli.load.source import Source

FORMATS = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}


def open_source(
    path: Path,
    key: tuple[str, ...],
    form: str | None = None,
    *,
    skip_bad: bool = False,
    nulls: tuple[str, ...] = (),
    name: str | None = None,
) -> Source:
    """Open the source for a file, by `form` or by its name (`.csv`, `.jsonl`, `.parquet`, followed by `.gz` or `.zip`).

    Args:
        path: the file.
        key: columns whose text becomes the record key; () sends records without a key.
        form: "csv", "jsonl" or "parquet".
        skip_bad: leave rows out that cannot be read instead of refusing the file.
        nulls: CSV texts that mean null besides the empty one, such as "NA".
        name: what errors call the file, if not its path.

    Raises:
        UserError: no such file, not a known format, an archive that does not hold exactly one file.

    """
    if not path.is_file():
        raise UserError(
            f"FILE: {path} is {'a directory' if path.is_dir() else 'not there'}; give a CSV, JSON lines or Parquet file"
        )
    form = form or format_of(path)
    if form == "parquet":
        if path.suffix in (".gz", ".zip"):
            raise UserError(f"FILE: {path} is packed Parquet; unpack it first, Parquet compresses its own columns")
        return ParquetSource(path, name or str(path), key, skip_bad)
    if form == "csv":
        return CsvSource(path, name or str(path), key, skip_bad, nulls)
    return JsonLinesSource(path, name or str(path), key, skip_bad)


def format_of(path: Path) -> str:
    """Return the format that a file's name promises; for a .zip, the name of the file in it."""
    inner = path.with_suffix("") if path.suffix == ".gz" else path
    if path.suffix == ".zip":
        inner = Path(archive_member(path))
    form = FORMATS.get(inner.suffix.lower())
    if form is None:
        raise UserError(f"FILE: cannot tell the format of {path} by its name; add --format csv, jsonl or parquet")
    return form
