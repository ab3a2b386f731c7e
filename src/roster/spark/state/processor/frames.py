"""A processor that works with pandas DataFrames, as given to PySpark's `transformWithStateInPandas`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from roster.spark.state.processor.code import Given, ProcessorCode
from roster.spark.state.processor.handle import SchemaReader
from roster.state.processor.results import column_of
from roster.state.store import StateError


class FrameCode(ProcessorCode):
    """Passes DataFrames of all columns; takes DataFrames of the output schema."""

    def __init__(self, given: Given, reader: SchemaReader | None = None) -> None:
        super().__init__(given, FrameResults(given.output, given.zone), reader)
        self._frames: Frames

    @override
    def give(self, table: pa.Table) -> None:
        self._frames = Frames(table, self._given.zone, widen=True)

    @override
    def given(self, begin: int, end: int) -> Iterator[pd.DataFrame]:
        return iter([self._frames.part(begin, end)])

    @override
    def initial(self, table: pa.Table) -> Iterator[pd.DataFrame]:
        return iter([Frames(table, self._given.zone, widen=True).part(0, len(table))] if len(table) else [])


class Frames:
    """A table as DataFrames by Spark's rules: times are in the session's zone and without one.

    widen: integers and floats have 64 bits. Otherwise types depend on the rows of each part: integers become floats if
    one is null.
    """

    def __init__(self, table: pa.Table, zone: str, *, widen: bool) -> None:
        self._table, self._zone = table, zone
        self._frame = _frame(table, zone)
        if widen:
            kinds = {name: _widened(kind) for name, kind in self._frame.dtypes.items() if _widened(kind) != kind}
            self._frame = self._frame.astype(kinds)
        self._by_part = not widen and any(
            column.null_count and (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type))
            for column in table.columns
        )

    @property
    def empty(self) -> pd.DataFrame:
        """A DataFrame without rows and types."""
        return pd.DataFrame(columns=self._frame.columns)

    def part(self, begin: int, end: int) -> pd.DataFrame:
        """Return the rows from `begin` up to before `end`, numbered from 0."""
        if self._by_part:
            return _frame(self._table.slice(begin, end - begin), self._zone)
        part = self._frame.iloc[begin:end].copy()
        part.index = pd.RangeIndex(end - begin)
        return part


def _frame(table: pa.Table, zone: str) -> pd.DataFrame:
    frame = table.to_pandas(date_as_object=True)
    for field in table.schema:
        if pa.types.is_timestamp(field.type):
            column = frame[field.name]
            local = column.dt.tz_convert(zone).dt.tz_localize(None) if field.type.tz else column
            frame[field.name] = local.astype("datetime64[ns]")
    return frame


def _widened(kind: Any) -> Any:
    wide = {"i": "int64", "f": "float64"}
    return np.dtype(wide[kind.kind]) if isinstance(kind, np.dtype) and kind.kind in wide else kind


class FrameResults:
    """Collects DataFrames by columns.

    Columns are found by name, or by position if their labels are not text. With `exact` there must be as many as in the
    schema. Raises StateError for frames that do not fit.
    """

    def __init__(self, schema: pa.Schema, zone: str, *, exact: bool = False) -> None:
        self._schema, self._zone, self._exact = schema, zone, exact
        self._parts: list[list[Any]] = [[] for _ in schema]

    def extend(self, frames: Any) -> None:
        """Take the DataFrames that a call returned."""
        if frames is None or isinstance(frames, (str, pd.DataFrame)) or not hasattr(frames, "__iter__"):
            raise StateError(f"it returned a {type(frames).__name__}, not an iterator of pandas DataFrames")
        for frame in frames:
            if not isinstance(frame, pd.DataFrame):
                raise StateError(f"it returned a {type(frame).__name__}, not a pandas DataFrame")
            if len(frame):
                self._add(frame)
            elif self._exact and len(frame.columns) not in (0, len(self._schema)):
                self._refuse(frame)

    def _add(self, frame: pd.DataFrame) -> None:
        labels: Sequence[Any] = list(frame.columns)
        has_names = any(isinstance(label, str) for label in labels)
        names = self._schema.names
        wrong = self._exact or not has_names
        if (wrong and len(labels) != len(names)) or (has_names and not set(names).issubset(labels)):
            self._refuse(frame)
        for place, (name, parts) in enumerate(zip(names, self._parts, strict=True)):
            column = frame[name] if has_names else frame.iloc[:, place]
            parts.append(column.to_numpy())

    def _refuse(self, frame: pd.DataFrame) -> None:
        given = ", ".join(map(str, frame.columns))
        raise StateError(
            f"it returned a DataFrame of ({given}), the output schema has ({', '.join(self._schema.names)})"
        )

    def table(self) -> pa.Table:
        """Return all rows."""
        columns = [self._column(parts, field) for parts, field in zip(self._parts, self._schema, strict=True)]
        return pa.table(columns, schema=self._schema)

    def clear(self) -> None:
        """Forget all rows."""
        self._parts = [[] for _ in self._schema]

    def _column(self, parts: list[Any], field: pa.Field) -> pa.Array:
        values = _joined(parts)
        if values.dtype.kind == "M" and pa.types.is_timestamp(field.type) and field.type.tz:
            naive = pa.array(values, from_pandas=True)
            moments = pc.assume_timezone(naive, self._zone, ambiguous="earliest", nonexistent="earliest")
            return moments.cast(field.type, safe=False)
        try:
            return column_of(values, field, from_pandas=True)
        except StateError:
            if values.dtype.kind not in "biufM":
                raise
            # Another type, cast as Spark does if that loses nothing.
            try:
                return column_of(pa.array(values, from_pandas=True).cast(field.type), field)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise StateError(f"column {field.name!r} of the output schema is {field.type}: {error}") from None


def _joined(parts: list[Any]) -> Any:
    if not parts:
        return np.array([], object)
    if len({part.dtype for part in parts}) > 1:
        parts = [part.astype(object) for part in parts]
    return np.concatenate(parts)
