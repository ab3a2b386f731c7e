"""Parquet as records."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from roster.cli.errors import UserError, one_line
from roster.cli.load.source import (
    BATCH_ROWS,
    Checked,
    FileOptions,
    arrow_records,
    beyond,
    oversize,
    require_columns,
    without,
)


@dataclass
class ParquetSource(FileOptions):
    """Parquet; its schema says what each column is."""

    def check(self, most: int | None = None) -> Checked:
        """See Source."""
        self.most = most
        with self._open() as file:
            require_columns(self.key, file.schema_arrow.names, self.name)
            rows = bad = 0
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                found = [] if most is None else beyond(arrow_records(batch, self.key, frozenset()), most)
                if found and not self.skip_bad:
                    row, size = found[0]
                    raise UserError(oversize(f"{self.name} row {rows + row + 1}", size, self.most))
                rows += batch.num_rows
                bad += len(found)
            return Checked(rows - bad, bad)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """See Source."""
        with self._open() as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                records = arrow_records(batch, self.key, frozenset())
                large = {} if self.most is None else dict(beyond(records, self.most))
                yield without(records, large)

    @contextlib.contextmanager
    def _open(self) -> Iterator[pq.ParquetFile]:
        try:
            with pq.ParquetFile(self.path) as file:
                yield file
        except pa.ArrowException as error:
            raise UserError(f"FILE: {self.name} is not readable as Parquet ({one_line(error)})") from error
