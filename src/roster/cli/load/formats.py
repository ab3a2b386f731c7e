"""The source of a file, by its format: CSV in `csv_source`, JSON lines and Parquet here; each in constant memory."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from roster.cli import strict_json
from roster.cli.errors import UserError, one_line
from roster.cli.load.csv_source import CsvSource
from roster.cli.load.files import format_of, unpacked
from roster.cli.load.source import BATCH_ROWS, Source, make_records


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
        problem = "a directory" if path.is_dir() else "not there"
        raise UserError(f"FILE: {path} is {problem}; give a CSV, JSON lines or Parquet file")
    form = form or format_of(path)
    common = (path, name or str(path), key, skip_bad)
    if form == "csv":
        return CsvSource(*common, nulls)
    if form == "jsonl":
        return JsonLinesSource(*common)
    if path.suffix in (".gz", ".zip"):
        raise UserError(f"FILE: {path} is packed Parquet; unpack it first, Parquet compresses its own columns")
    return ParquetSource(*common)


@dataclass
class ParquetSource(Source):
    """Parquet; its schema says what each column is."""

    def _read(self) -> Iterator[tuple[pa.RecordBatch, Sequence[tuple[int, int]], int]]:
        try:
            with pq.ParquetFile(self.path) as file:
                self._require_columns(file.schema_arrow.names)
                for batch in file.iter_batches(batch_size=BATCH_ROWS):
                    records = self._records(batch)
                    yield records, self._large(records), 0
        except pa.ArrowException as error:
            raise UserError(f"FILE: {self.name} is not readable as Parquet ({one_line(error)})") from error


@dataclass
class JsonLinesSource(Source):
    """One JSON object a line; values are sent as the bytes of their line."""

    def _read(self) -> Iterator[tuple[pa.RecordBatch, Sequence[tuple[int, int]], int]]:
        keys, values, bad = list[bytes | None](), list[bytes](), 0
        with unpacked(self.path) as stream:
            for number, whole in enumerate(stream, 1):
                line = (whole if number > 1 else whole.removeprefix(b"\xef\xbb\xbf")).strip()
                if not line:
                    continue
                try:
                    keys.append(self._key(f"line {number}", line))
                    values.append(line)
                except UserError:
                    if not self.skip_bad:
                        raise
                    bad += 1
                if len(values) == BATCH_ROWS:
                    yield make_records(keys, values), (), bad
                    keys, values, bad = [], [], 0
        yield make_records(keys, values), (), bad

    def _key(self, place: str, line: bytes) -> bytes | None:
        """Return the key of the record that the line makes."""
        hint = "correct the line or pass --skip-bad-rows"
        try:
            value = strict_json.parse(line)
        except strict_json.InputError as error:
            raise UserError(f"FILE: {self.name} {place}: {error}; {hint}") from error
        if not isinstance(value, dict):
            raise UserError(f"FILE: {self.name} {place}: expected a JSON object, got {line[:40]!r}; {hint}")
        missing = [name for name in self.key if name not in value]
        if missing:
            raise UserError(f"--key: no field {', '.join(missing)} in {self.name} {place}; it has {', '.join(value)}")
        texts = [_text(value[name]) for name in self.key]
        joined = json.dumps(texts, ensure_ascii=False) if len(texts) > 1 else texts[0] if texts else None
        key = None if joined is None else joined.encode()
        size = len(line) + len(key or b"")
        if self.most is not None and size > self.most:
            raise self._oversize(place, size)
        return key


def _text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
