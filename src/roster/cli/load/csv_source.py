"""CSV with a header as records."""

import contextlib
import csv
import io
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from roster.cli.errors import UserError, one_line
from roster.cli.load.files import unpacked
from roster.cli.load.json_rows import JSON_NUMBER
from roster.cli.load.source import Source

BLOCK_BYTES = 4 << 20
_BOOLEAN = r"^(true|false)$"
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")
"""Characters that the surrogateescape handler makes of bytes that are not UTF-8."""
_AFTER_THE_END = "\0end"
"""A line that stands for itself only if no quote is open before it."""


@dataclass
class CsvSource(Source):
    """CSV with a header. A column is numbers (or booleans) when every value of it is, otherwise text."""

    nulls: tuple[str, ...] = ()
    raw: frozenset[str] | None = field(default=None, init=False)
    """Columns that hold JSON, known once all rows are checked."""

    def _read(self) -> Iterator[tuple[pa.RecordBatch, Sequence[tuple[int, int]], int]]:
        """See Source; what it yields before all rows are checked are the rows themselves."""
        raw, patterns = self.raw, dict[str, str | None]()
        for batch, bad in self._parsed():
            if bad and not self.skip_bad:
                raise UserError(self._describe(bad[0]))
            # Of what type a column is is not known at first, so all are text here, two bytes more than a number.
            is_small = self.most is None or _most_bytes(batch) <= self.most
            large = [] if is_small else self._large(self._records(batch))
            if raw is None:
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    _narrow(patterns, name, column)
            yield batch if raw is None else self._records(batch, raw), large, len(bad)
        if raw is None:
            self._require_closed_quotes()
            self.raw = frozenset(name for name, pattern in patterns.items() if pattern is not None)

    def _parsed(self) -> Iterator[tuple[pa.RecordBatch, list[pacsv.InvalidRow]]]:
        """Yield rows as text, with the bad rows met since the last ones."""
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
                    met = len(bad)  # pyarrow may parse the next rows meanwhile, in a thread of its own
                    yield batch, bad[:met]
                    del bad[:met]
                if bad:  # found after the last good row, or without one
                    yield pa.RecordBatch.from_pylist([], schema=reader.schema), bad
            except pa.ArrowInvalid as error:
                self._require_utf8()
                raise UserError(f"FILE: {self.name}: {one_line(error)}") from error

    @contextlib.contextmanager
    def _text(self) -> Iterator[IO[str]]:
        """Open the file as text for Python's csv reader, which takes fields of more than 128 KiB meanwhile."""
        before = csv.field_size_limit(2**31 - 1)
        try:
            with unpacked(self.path) as stream:
                # The decoder reads ahead: it must not stop at an error on a later line.
                yield io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
        finally:
            csv.field_size_limit(before)

    def _header(self) -> list[str]:
        with self._text() as text:
            try:
                names = next(csv.reader(text), [])
            except csv.Error as error:
                raise UserError(f"FILE: {self.name} line 1: {one_line(error)}; expected a header line") from error
        if not names:
            raise UserError(f"FILE: {self.name} is empty; expected a CSV header line")
        if any(map(_ESCAPED_BYTE.search, names)):
            self._require_utf8()
        self._require_columns(names)
        return names

    def _require_utf8(self) -> None:
        """Complain about the first byte that is not UTF-8, which pyarrow names without its line."""
        with self._text() as text:
            for number, line in enumerate(text, 1):
                if bad := _ESCAPED_BYTE.search(line):
                    problem = f"the byte 0x{ord(bad[0]) - 0xDC00:02x} is not UTF-8; save the file as UTF-8"
                    raise UserError(f"FILE: {self.name} line {number}: {problem}")

    def _lines(self, more: Iterable[str] = ()) -> Iterator[tuple[int, list[str]]]:
        """Yield rows with the lines they start on, for errors: pyarrow does not count where values span lines."""
        with self._text() as text:
            reader, start = csv.reader(itertools.chain(text, more)), 1
            for fields in reader:
                yield start, fields
                start = reader.line_num + 1

    def _place(self, row: int) -> str:
        """See Source."""
        lines = self._lines()
        _, names = next(lines)
        good = (start for start, fields in lines if len(fields) == len(names))
        line = next(itertools.islice(good, row, None), None)
        return super()._place(row) if line is None else f"line {line}"

    def _describe(self, row: pacsv.InvalidRow) -> str:
        """Describe the first bad row with its line."""
        bad = (start for start, fields in self._lines() if fields and len(fields) != row.expected_columns)
        return (
            f"FILE: {self.name} line {next(bad, row.number)}: {row.actual_columns} columns, expected "
            f"{row.expected_columns}: {row.text[:80]!r}; correct the line or pass --skip-bad-rows"
        )

    def _require_closed_quotes(self) -> None:
        """Raise an error for a quote open at the end of the file: pyarrow takes everything after it for one value."""
        with unpacked(self.path) as stream:
            if sum(block.count(b'"') for block in iter(lambda: stream.read(BLOCK_BYTES), b"")) % 2 == 0:
                return
        # Odd may also be a quote in the middle of a value; only the end of a parse tells.
        line = 1
        for start, fields in self._lines(["\n", _AFTER_THE_END]):
            if fields == [_AFTER_THE_END]:
                return
            line = start
        raise UserError(f"FILE: {self.name} line {line}: a quote is opened and never closed; correct the line")


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
