"""Files as records: what every format shares, JSON lines and Parquet; CSV is in `csv_source`. Each in constant memory.

A source is read twice: `check` looks at every row before anything is sent, so that a bad row in the middle does not
leave half a file in the topic, and learns the row count and which CSV columns are numbers; `batches` then yields them.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from roster.cli import strict_json
from roster.cli.errors import UserError, one_line
from roster.cli.load.json_rows import json_keys, json_rows

_BATCH_ROWS = 8192


@dataclass
class Source:
    """A file of records; `name` is what errors call it. `check` must come before `batches`."""

    path: Path
    name: str
    key: tuple[str, ...]

    def check(self) -> int:
        """Check every row and return how many there are; a bad one is a UserError that names its place."""
        return sum(rows.num_rows for rows in self.batches())

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the records (`make_records`) in file order. Raises UserError for a row that has none."""
        raise NotImplementedError

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


@dataclass
class ParquetSource(Source):
    """Parquet; its schema says what each column is."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """See Source."""
        try:
            with pq.ParquetFile(self.path) as file:
                self._require_columns(file.schema_arrow.names)
                for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                    yield self._records(batch)
        except pa.ArrowException as error:
            raise UserError(f"FILE: {self.name} is not readable as Parquet ({one_line(error)})") from error


@dataclass
class JsonLinesSource(Source):
    """One JSON object a line; values are sent as the bytes of their line."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """See Source."""
        keys, values = list[bytes | None](), list[bytes]()
        with self.path.open("rb") as stream:
            for number, whole in enumerate(stream, 1):
                line = (whole if number > 1 else whole.removeprefix(b"\xef\xbb\xbf")).strip()
                if not line:
                    continue
                keys.append(self._key(f"{self.name} line {number}", line))
                values.append(line)
                if len(values) == _BATCH_ROWS:
                    yield make_records(keys, values)
                    keys, values = [], []
        yield make_records(keys, values)

    def _key(self, place: str, line: bytes) -> bytes | None:
        """Return the key of the record that the line makes."""
        try:
            value = strict_json.parse(line)
        except strict_json.InputError as error:
            raise UserError(f"FILE: {place}: {error}; correct the line") from error
        if not isinstance(value, dict):
            raise UserError(f"FILE: {place}: expected a JSON object, got {line[:40]!r}; correct the line")
        missing = [name for name in self.key if name not in value]
        if missing:
            raise UserError(f"--key: no field {', '.join(missing)} in {place}; it has {', '.join(value)}")
        texts = [_text(value[name]) for name in self.key]
        joined = json.dumps(texts, ensure_ascii=False) if len(texts) > 1 else texts[0] if texts else None
        return None if joined is None else joined.encode()


def _text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def make_records(keys: pa.Array | list[bytes | None], values: pa.Array | list[bytes]) -> pa.RecordBatch:
    """Return records ready to send: binary columns `key` and `value`."""
    columns = [pa.array(column, pa.binary()) if isinstance(column, list) else column for column in (keys, values)]
    return pa.RecordBatch.from_arrays(columns, names=["key", "value"])
