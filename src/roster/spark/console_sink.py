"""Batches on standard output."""

from __future__ import annotations

from pyspark.sql import DataFrame
from typing_extensions import override

from roster.pipeline.batch import Batch
from roster.pipeline.sink import Sink


class ConsoleSink(Sink):
    """Prints the first rows of each batch; at least once.

    `rows` is the number of rows, `truncate` as in `DataFrame.show`: True cuts values after 20 characters, a number
    after that many.
    """

    def __init__(self, rows: int = 20, *, truncate: bool | int = True) -> None:
        self._rows, self._truncate = rows, truncate

    @override
    def write(self, df: DataFrame, batch: Batch) -> None:
        print(f"batch {batch.number}, generation {batch.generation}")  # noqa: T201 - printing is this sink's work
        df.show(self._rows, truncate=self._truncate)
