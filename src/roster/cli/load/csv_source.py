"""CSV with a header as records."""

import csv
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from roster.cli.errors import UserError, one_line
from roster.cli.load.json_rows import JSON_NUMBER
from roster.cli.load.source import Source

_BLOCK_BYTES = 4 << 20
_BOOLEAN = r"^(true|false)$"
_AFTER_THE_END = "\0end"
"""A line that stands for itself only if no quote is open before it."""


@dataclass
class CsvSource(Source):
    """CSV with a header. A column is numbers (or booleans) when every value of it is, otherwise text."""

    nulls: tuple[str, ...] = ()
    raw: frozenset[str] = field(default=frozenset(), init=False)
    """Columns that hold JSON, known once all rows are checked."""

    def check(self) -> int:
        """See Source."""
        rows, patterns = 0, dict[str, str | None]()
        for batch in self._parsed():
            rows += batch.num_rows
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                _narrow(patterns, name, column)
        self._require_closed_quotes()
        self.raw = frozenset(name for name, pattern in patterns.items() if pattern is not None)
        return rows

    def batches(self) -> Iterator[pa.RecordBatch]:
        """See Source."""
        for batch in self._parsed():
            yield self._records(batch, self.raw)

    def _parsed(self) -> Iterator[pa.RecordBatch]:
        """Yield rows as text."""
        with self._text() as text:
            names = next(csv.reader(text), [])
        if not names:
            raise UserError(f"FILE: {self.name} is empty; expected a CSV header line")
        if any("\ufffd" in name for name in names):
            raise UserError(f"FILE: {self.name} line 1: it is not UTF-8; save the file as UTF-8")
        self._require_columns(names)
        try:
            yield from pacsv.open_csv(
                self.path,
                read_options=pacsv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
                parse_options=pacsv.ParseOptions(newlines_in_values=True),
                convert_options=pacsv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()),
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                    null_values=["", *self.nulls],
                ),
            )
        except pa.ArrowInvalid as error:
            raise UserError(f"FILE: {self.name}: {one_line(error)}") from error

    def _text(self) -> IO[str]:
        """Open the file for Python's csv reader; bytes that are not UTF-8 become U+FFFD."""
        return self.path.open(encoding="utf-8-sig", errors="replace", newline="")

    def _require_closed_quotes(self) -> None:
        """Raise an error for a quote open at the end of the file: pyarrow takes everything after it for one value."""
        with self.path.open("rb") as file:
            if sum(block.count(b'"') for block in iter(lambda: file.read(_BLOCK_BYTES), b"")) % 2 == 0:
                return
        # Odd may also be a quote in the middle of a value; only the end of a parse tells.
        csv.field_size_limit(2**31 - 1)
        start = line = 1
        with self._text() as text:
            reader = csv.reader(itertools.chain(text, ["\n", _AFTER_THE_END]))
            for fields in reader:
                if fields == [_AFTER_THE_END]:
                    return
                start, line = line, reader.line_num + 1
        raise UserError(f"FILE: {self.name} line {start}: a quote is opened and never closed; correct the line")


def _narrow(patterns: dict[str, str | None], name: str, column: pa.Array) -> None:
    """Keep the pattern every value so far matches: a JSON number, a boolean, or none (then it is text)."""
    values = column.drop_null()
    if not len(values):
        return
    candidates = [patterns[name]] if name in patterns else [JSON_NUMBER, _BOOLEAN]
    patterns[name] = next(
        (p for p in candidates if p is not None and pc.all(pc.match_substring_regex(values, p)).as_py()), None
    )
