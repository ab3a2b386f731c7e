"""CSV with a header as records."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from roster.cli.errors import UserError, one_line
from roster.cli.load.json_rows import JSON_NUMBER
from roster.cli.load.source import Checked, FileOptions, arrow_records, beyond, oversize, require_columns, without
from roster.cli.load.unpack import unpacked

BLOCK_BYTES = 4 << 20
_BOOLEAN = r"^(true|false)$"
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")
"""Characters that the surrogateescape handler makes of bytes that are not UTF-8."""


@dataclass
class CsvSource(FileOptions):
    """CSV with a header. A column is numbers (or booleans) when every value of it is, otherwise text."""

    nulls: tuple[str, ...] = ()
    raw: frozenset[str] | None = field(default=None, init=False)

    def check(self, most: int | None = None) -> Checked:
        """See Source."""
        self.most = most
        rows, first_bad, bad, too_large = 0, None, 0, 0
        patterns: dict[str, str | None] = {}
        for batch, bad_rows in self._read():
            large = self._too_large(batch)
            if large and not self.skip_bad:
                row, size = large[0]
                raise UserError(oversize(f"{self.name} line {self._line_of(rows + row)}", size, self.most))
            rows += batch.num_rows
            first_bad = first_bad or next(iter(bad_rows), None)
            bad = len(bad_rows)
            too_large += len(large)
            if first_bad is not None and not self.skip_bad:
                raise UserError(self._describe(first_bad))
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                _narrow(patterns, name, column)
        self._require_closed_quotes()
        self.raw = frozenset(name for name, pattern in patterns.items() if pattern is not None)
        return Checked(rows - too_large, bad + too_large)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """See Source."""
        for batch, _ in self._read():
            large = dict(self._too_large(batch))
            yield without(arrow_records(batch, self.key, self.raw or frozenset()), large)

    def _too_large(self, batch: pa.RecordBatch) -> list[tuple[int, int]]:
        """(index, size) of the rows that make too large a record.

        What the columns are is not known at first, so a number is always taken for text, two bytes more.
        """
        if self.most is None or _most_bytes(batch) <= self.most:
            return []
        return beyond(arrow_records(batch, self.key, frozenset()), self.most)

    def _line_of(self, row: int) -> int:
        """Find the line on which a good row starts; rows count from 0."""
        with self._text("replace") as text:
            reader = csv.reader(text)
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
                if bad:  # found after the last good row, or there is no good row
                    yield pa.RecordBatch.from_pylist([], schema=reader.schema), bad
            except pa.ArrowInvalid as error:
                self._require_utf8()
                raise UserError(f"FILE: {self.name}: {one_line(error)}") from error

    @contextlib.contextmanager
    def _text(self, errors: str) -> Iterator[IO[str]]:
        """Open the file as text for Python's csv reader, which takes fields of any size meanwhile."""
        with unpacked(self.path) as stream, _fields_of_any_size():
            yield io.TextIOWrapper(stream, encoding="utf-8-sig", errors=errors, newline="")

    def _header(self) -> list[str]:
        # The decoder reads ahead: it must not stop at an error on a later line.
        with self._text("surrogateescape") as text:
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
        with self._text("surrogateescape") as text:
            for number, line in enumerate(text, 1):
                if bad := _ESCAPED_BYTE.search(line):
                    byte = ord(bad[0]) - 0xDC00
                    raise UserError(
                        f"FILE: {self.name} line {number}: the byte 0x{byte:02x} is not UTF-8; save the file as UTF-8"
                    )

    def _require_closed_quotes(self) -> None:
        """Raise an error for a quote open at the end of the file: pyarrow takes everything after it for one value."""
        with unpacked(self.path) as stream:
            if sum(block.count(b'"') for block in iter(lambda: stream.read(BLOCK_BYTES), b"")) % 2 == 0:
                return
        # Odd may also be a quote in the middle of a value; only the end of a parse tells.
        with self._text("replace") as text:
            reader, start = csv.reader(itertools.chain(text, ["\n", _AFTER_THE_END])), 1
            for fields in reader:
                if fields == [_AFTER_THE_END]:
                    return
                last, start = start, reader.line_num + 1
        raise UserError(f"FILE: {self.name} line {last}: a quote is opened and never closed; correct the line")

    def _describe(self, row: pacsv.InvalidRow) -> str:
        """Describe the first bad row with its line, which pyarrow does not count where values span lines."""
        with self._text("replace") as text:
            reader = csv.reader(text)
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


def _most_bytes(batch: pa.RecordBatch) -> int:
    """Bound the size of key and value of any row: each byte may be escaped as six, in the value and in the key."""
    if not batch.num_rows:
        return 0
    sizes = pa.array([0] * batch.num_rows, pa.int64())
    for column in batch.columns:
        sizes = pc.add(sizes, pc.fill_null(pc.binary_length(column), 4))
    names = sum(6 * len(name.encode()) + 16 for name in batch.schema.names)
    return 12 * int(pc.max(sizes).as_py()) + names
