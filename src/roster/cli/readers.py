"""Files as records: CSV (with a header), JSON lines and Parquet, plain, gzipped or alone in a zip, in constant memory.

A source is read twice: `check` looks at every row before anything is sent, so that a bad row in the middle does not
leave half a file in the topic, and learns the row count and which CSV columns are numbers; `batches` then yields them.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import itertools
import json
import re
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from roster.cli import strict_json
from roster.cli.encode import JSON_NUMBER, json_keys, json_rows
from roster.cli.errors import UserError, one_line

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

FORMATS = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}
BLOCK_BYTES = 4 << 20
BATCH_ROWS = 8192
_BOOLEAN = r"^(true|false)$"
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")
"""What the surrogateescape handler makes of a byte that is not UTF-8."""


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
        """The records but for those with these indexes."""
        if not left_out:
            return self
        kept = [index for index in range(len(self.values)) if index not in left_out]
        return Records([self.keys[index] for index in kept], [self.values[index] for index in kept])


@dataclass(frozen=True, slots=True)
class Checked:
    """What a look at every row found: how many are good, how many bad ones are left out."""

    rows: int
    bad: int


class Source(Protocol):
    """A file of records. `check` must come before `batches`."""

    def check(self, most: int | None = None) -> Checked:
        """Look at every row; a bad one is a UserError that names its line, unless bad rows are skipped.

        A row whose key and value have more than `most` bytes together is a bad one too.
        """

    def batches(self) -> Iterator[Records]:
        """The records in file order."""


def open_source(
    path: Path,
    key: tuple[str, ...],
    form: str | None = None,
    *,
    skip_bad: bool = False,
    nulls: tuple[str, ...] = (),
    name: str | None = None,
) -> Source:
    """The source for a file, by `form` or by its name (`.csv`, `.jsonl`, `.parquet`, followed by `.gz` or `.zip`).

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
    """The format a file's name promises."""
    inner = Path(_member_of(path)) if path.suffix == ".zip" else path.with_suffix("") if path.suffix == ".gz" else path
    form = FORMATS.get(inner.suffix.lower())
    if form is None:
        raise UserError(f"FILE: cannot tell the format of {path} by its name; add --format csv, jsonl or parquet")
    return form


def _member_of(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX/")]
    except zipfile.BadZipFile as error:
        raise UserError(f"FILE: {path} is not a zip archive ({one_line(error)})") from error
    if len(names) != 1:
        raise UserError(f"FILE: {path} holds {len(names)} files; expected exactly one")
    return names[0]


@contextlib.contextmanager
def unpacked(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes as a stream, without its .gz or .zip."""
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive, archive.open(_member_of(path)) as stream:
                yield stream
        elif path.suffix == ".gz":
            with gzip.open(path) as stream:
                yield cast("IO[bytes]", stream)
        else:
            with path.open("rb") as stream:
                yield stream
    except (EOFError, gzip.BadGzipFile, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"FILE: {path} is damaged or cut short ({one_line(error)})") from error


def require_columns(key: tuple[str, ...], names: list[str], file: str) -> None:
    """Complain about key columns the file does not have and about names it has twice."""
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise UserError(f"FILE: {file} has the column {', '.join(doubled)} more than once; rename one")
    missing = [name for name in key if name not in names]
    if missing:
        raise UserError(f"--key: no column {', '.join(missing)} in {file}; it has {', '.join(names)}")


def _records(batch: pa.RecordBatch, key: tuple[str, ...], raw: frozenset[str]) -> Records:
    keys = _as_bytes(json_keys([batch.column(name) for name in key])) if key else [None] * batch.num_rows
    return Records(keys, _as_bytes(json_rows(batch, raw)))


def _most_bytes(batch: pa.RecordBatch) -> int:
    """A bound on key and value of any row of a batch of text: each byte escaped as six, in the value and in the key."""
    if not batch.num_rows:
        return 0
    sizes = pa.array([0] * batch.num_rows, pa.int64())
    for column in batch.columns:
        sizes = pc.add(sizes, pc.fill_null(pc.binary_length(column), 4))
    names = sum(6 * len(name.encode()) + 16 for name in batch.schema.names)
    return 12 * int(pc.max(sizes).as_py()) + names


def _oversize(where: str, size: int, most: int | None) -> str:
    return (
        f"FILE: {where}: makes a record of {size} bytes, the topic takes {most} (max.message.bytes); "
        "shorten it, raise the setting or pass --skip-bad-rows"
    )


def _as_bytes(strings: pa.Array) -> list[Any]:
    result: list[Any] = strings.cast(pa.binary()).to_pylist()
    return result


@dataclass
class CsvSource:
    """CSV with a header. A column is numbers (or booleans) when every value of it is, otherwise text."""

    path: Path
    name: str
    key: tuple[str, ...]
    skip_bad: bool = False
    nulls: tuple[str, ...] = ()
    most: int | None = field(default=None, init=False)
    raw: frozenset[str] | None = field(default=None, init=False)

    def check(self, most: int | None = None) -> Checked:
        """See Source."""
        self.most = most
        rows, first_bad, bad, oversize = 0, None, 0, 0
        patterns: dict[str, str | None] = {}
        for batch, bad_rows in self._read():
            large = self._too_large(batch)
            if large and not self.skip_bad:
                row, size = large[0]
                raise UserError(_oversize(f"{self.name} line {self._line_of(rows + row)}", size, self.most))
            rows += batch.num_rows
            first_bad = first_bad or next(iter(bad_rows), None)
            bad = len(bad_rows)
            oversize += len(large)
            if first_bad is not None and not self.skip_bad:
                raise UserError(self._describe(first_bad))
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                _narrow(patterns, name, column)
        self._require_closed_quotes()
        self.raw = frozenset(name for name, pattern in patterns.items() if pattern is not None)
        return Checked(rows - oversize, bad + oversize)

    def batches(self) -> Iterator[Records]:
        """See Source."""
        for batch, _ in self._read():
            large = dict(self._too_large(batch))
            yield _records(batch, self.key, self.raw or frozenset()).without(large)

    def _too_large(self, batch: pa.RecordBatch) -> list[tuple[int, int]]:
        """(index, size) of the rows that make too large a record.

        What the columns are is not known at first, so a number is always taken for text, two bytes more.
        """
        if self.most is None or _most_bytes(batch) <= self.most:
            return []
        return _records(batch, self.key, frozenset()).beyond(self.most)

    def _line_of(self, row: int) -> int:
        """The line on which a good row starts, the first row being 0."""
        with unpacked(self.path) as stream, _fields_of_any_size():
            reader = csv.reader(io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline=""))
            columns, start = len(next(reader)), reader.line_num + 1
            for fields in reader:
                if len(fields) == columns:
                    if not row:
                        break
                    row -= 1
                start = reader.line_num + 1
        return start

    def _read(self) -> Iterator[tuple[pa.RecordBatch, list[pacsv.InvalidRow]]]:
        names = self._header()
        bad: list[pacsv.InvalidRow] = []

        def skip(row: pacsv.InvalidRow) -> str:
            bad.append(row)
            return "skip"

        with unpacked(self.path) as stream:
            try:
                reader = pacsv.open_csv(
                    stream,
                    read_options=pacsv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
                    parse_options=pacsv.ParseOptions(invalid_row_handler=skip, newlines_in_values=True),
                    convert_options=pacsv.ConvertOptions(
                        column_types=dict.fromkeys(names, pa.string()),
                        strings_can_be_null=True,
                        quoted_strings_can_be_null=False,
                        null_values=["", *self.nulls],
                    ),
                )
                for batch in reader:
                    yield batch, bad
                if bad:  # found behind the last good row, or there is no good row
                    yield pa.RecordBatch.from_pylist([], schema=reader.schema), bad
            except pa.ArrowInvalid as error:
                self._require_utf8()
                raise UserError(f"FILE: {self.name}: {one_line(error)}") from error

    def _header(self) -> list[str]:
        with unpacked(self.path) as stream:
            # The decoder reads ahead: it must not stop at what is wrong on a later line.
            text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
            try:
                names = next(csv.reader(text), [])
            except csv.Error as error:
                raise UserError(f"FILE: {self.name} line 1: {one_line(error)}; expected a header line") from error
        if not names:
            raise UserError(f"FILE: {self.name} is empty; expected a CSV header line")
        if any(map(_ESCAPED_BYTE.search, names)):
            self._require_utf8()
        require_columns(self.key, names, self.name)
        return names

    def _require_utf8(self) -> None:
        """Complain about the first byte that is not UTF-8, which pyarrow names without its line."""
        with unpacked(self.path) as stream:
            text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
            for number, line in enumerate(text, 1):
                if bad := _ESCAPED_BYTE.search(line):
                    byte = ord(bad[0]) - 0xDC00
                    raise UserError(
                        f"FILE: {self.name} line {number}: the byte 0x{byte:02x} is not UTF-8; save the file as UTF-8"
                    )

    def _require_closed_quotes(self) -> None:
        """Complain about a quote open at the end of the file: pyarrow takes all behind it for one value."""
        with unpacked(self.path) as stream:
            if sum(block.count(b'"') for block in iter(lambda: stream.read(BLOCK_BYTES), b"")) % 2 == 0:
                return
        # Odd may also be a quote in the middle of a value; only the end of a parse tells.
        with unpacked(self.path) as stream, _fields_of_any_size():
            text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline="")
            reader, start = csv.reader(itertools.chain(text, ["\n", _AFTER_THE_END])), 1
            for fields in reader:
                if fields == [_AFTER_THE_END]:
                    return
                last, start = start, reader.line_num + 1
        raise UserError(f"FILE: {self.name} line {last}: a quote is opened and never closed; correct the line")

    def _describe(self, row: pacsv.InvalidRow) -> str:
        """The first bad row by its line in the file, which pyarrow does not count when values span lines."""
        with unpacked(self.path) as stream, _fields_of_any_size():
            reader = csv.reader(io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline=""))
            start = 1
            for fields in reader:
                if fields and len(fields) != row.expected_columns:
                    break
                start = reader.line_num + 1
        return (
            f"FILE: {self.name} line {start}: {row.actual_columns} columns, expected {row.expected_columns}: "
            f"{row.text[:80]!r}; correct the line or pass --skip-bad-rows"
        )


@contextlib.contextmanager
def _fields_of_any_size() -> Iterator[None]:
    """Let Python's csv reader take fields of more than 128 KiB."""
    before = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(before)


_AFTER_THE_END = "\0end"
"""A line that stands for itself only if no quote is open before it."""


def _narrow(patterns: dict[str, str | None], name: str, column: pa.Array) -> None:
    """Keep the pattern every value so far matches: a JSON number, a boolean, or none (then it is text)."""
    values = column.drop_null()
    if not len(values):
        return
    candidates = [patterns[name]] if name in patterns else [JSON_NUMBER, _BOOLEAN]
    patterns[name] = next(
        (p for p in candidates if p is not None and pc.all(pc.match_substring_regex(values, p)).as_py()), None
    )


@dataclass
class JsonLinesSource:
    """One JSON object a line; values are sent as the bytes of their line."""

    path: Path
    name: str
    key: tuple[str, ...]
    skip_bad: bool = False
    most: int | None = field(default=None, init=False)

    def check(self, most: int | None = None) -> Checked:
        """See Source."""
        self.most = most
        rows = bad = 0
        for number, line in self._lines():
            try:
                self._record(number, line)
                rows += 1
            except UserError:
                if not self.skip_bad:
                    raise
                bad += 1
        return Checked(rows, bad)

    def batches(self) -> Iterator[Records]:
        """See Source."""
        keys: list[bytes | None] = []
        values: list[bytes] = []
        for number, line in self._lines():
            try:
                keys.append(self._record(number, line))
            except UserError:
                if not self.skip_bad:
                    raise
                continue
            values.append(line)
            if len(values) == BATCH_ROWS:
                yield Records(keys, values)
                keys, values = [], []
        if values:
            yield Records(keys, values)

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        with unpacked(self.path) as stream:
            for number, line in enumerate(stream, 1):
                stripped = line.strip() if number > 1 else line.removeprefix(b"\xef\xbb\xbf").strip()
                if stripped:
                    yield number, stripped

    def _record(self, number: int, line: bytes) -> bytes | None:
        """The key of the record that the line makes."""
        key = self._key(self._parse(number, line))
        size = len(line) + len(key or b"")
        if self.most is not None and size > self.most:
            raise UserError(_oversize(f"{self.name} line {number}", size, self.most))
        return key

    def _parse(self, number: int, line: bytes) -> dict[str, Any]:
        hint = "correct the line or pass --skip-bad-rows"
        try:
            value = strict_json.parse(line)
        except strict_json.ConstantError as error:
            raise UserError(f"FILE: {self.name} line {number}: {error}, {hint}") from error
        except (ValueError, RecursionError) as error:
            raise UserError(f"FILE: {self.name} line {number}: not JSON ({one_line(error)}); {hint}") from error
        if not isinstance(value, dict):
            raise UserError(f"FILE: {self.name} line {number}: expected a JSON object, got {line[:40]!r}; {hint}")
        missing = [name for name in self.key if name not in value]
        if missing:
            raise UserError(
                f"--key: no field {', '.join(missing)} in {self.name} line {number}; it has {', '.join(value)}"
            )
        return value

    def _key(self, value: dict[str, Any]) -> bytes | None:
        if not self.key:
            return None
        texts = [_text(value[name]) for name in self.key]
        if len(texts) == 1:
            return None if texts[0] is None else texts[0].encode()
        return json.dumps(texts, ensure_ascii=False).encode()


def _text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@dataclass
class ParquetSource:
    """Parquet; its schema says what each column is."""

    path: Path
    name: str
    key: tuple[str, ...]
    skip_bad: bool = False
    most: int | None = field(default=None, init=False)

    def check(self, most: int | None = None) -> Checked:
        """See Source."""
        self.most = most
        with self._open() as file:
            require_columns(self.key, file.schema_arrow.names, self.name)
            rows = bad = 0
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                found = [] if most is None else _records(batch, self.key, frozenset()).beyond(most)
                if found and not self.skip_bad:
                    row, size = found[0]
                    raise UserError(_oversize(f"{self.name} row {rows + row + 1}", size, self.most))
                rows += batch.num_rows
                bad += len(found)
            return Checked(rows - bad, bad)

    def batches(self) -> Iterator[Records]:
        """See Source."""
        with self._open() as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                records = _records(batch, self.key, frozenset())
                large = {} if self.most is None else dict(records.beyond(self.most))
                yield records.without(large)

    @contextlib.contextmanager
    def _open(self) -> Iterator[pq.ParquetFile]:
        try:
            with pq.ParquetFile(self.path) as file:
                yield file
        except pa.ArrowException as error:
            raise UserError(f"FILE: {self.name} is not readable as Parquet ({one_line(error)})") from error
