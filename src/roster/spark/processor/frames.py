"""A processor that works with pandas DataFrames, as given to PySpark's `transformWithStateInPandas`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql.pandas.types import (
    _create_converter_from_pandas,
    _create_converter_to_pandas,
    from_arrow_type,
)
from typing_extensions import override

from roster.spark.processor.code import Given, ProcessorCode
from roster.spark.processor.handle import SchemaReader
from roster.state.processor.batch import Key
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
    """A table as DataFrames, by PySpark's own conversion: times are in the session's zone and without one.

    widen: integers and floats have 64 bits, and types depend on all rows. Otherwise they depend on the rows of each
    part: integers become floats if one is null.
    """

    def __init__(self, table: pa.Table, zone: str, *, widen: bool) -> None:
        self._table = table
        self._converters = [(field.name, _to_series(field.type, zone)) for field in table.schema]
        self._frame = self._converted(table)
        if widen:
            kinds = {name: _widened(kind) for name, kind in self._frame.dtypes.items() if _widened(kind) != kind}
            self._frame = self._frame.astype(kinds)
        varying = [field.name for field in table.schema if _varies(table[field.name].combine_chunks())]
        self._by_part = varying and not widen
        self._flags = [name for name in varying if widen and pa.types.is_boolean(table.schema.field(name).type)]

    def _converted(self, table: pa.Table) -> pd.DataFrame:
        series = {}
        for name, convert in self._converters:
            try:
                series[name] = convert(table[name])
            except (ValueError, OverflowError) as error:
                raise StateError(f"column {name!r} does not fit pandas, use rows instead: {error}") from None
        return pd.DataFrame(series)

    @property
    def empty(self) -> pd.DataFrame:
        """A DataFrame without rows and types."""
        return pd.DataFrame(columns=self._frame.columns)

    def part(self, begin: int, end: int) -> pd.DataFrame:
        """Return the rows from `begin` up to before `end`, numbered from 0."""
        if self._by_part:
            return self._converted(self._table.slice(begin, end - begin))
        part = self._frame.iloc[begin:end].copy()
        part.index = pd.RangeIndex(end - begin)
        for name in self._flags:
            part[name] = part[name].infer_objects()
        return part


def keys_in_pandas(columns: Sequence[pa.Array], zone: str, *, in_numpy: bool) -> list[Key]:
    """Return keys of Python's values, or with `in_numpy` of NumPy's; times and nulls are those of pandas."""
    return list(zip(*(_key_values(column, zone, in_numpy) for column in columns), strict=True))


def _key_values(column: pa.Array, zone: str, in_numpy: bool) -> list[object]:
    convert = _to_series(column.type, zone)

    def values(part: pa.Array) -> Iterator[Any]:
        series = convert(pa.chunked_array([part]))
        return iter(series.to_numpy() if in_numpy and series.dtype.kind in "biuf" else series)

    # Apart from each other, as integers beside a null would be floats.
    present = values(column.drop_null())
    null = next(values(pa.nulls(1, column.type))) if column.null_count else None
    return [next(present) if has else null for has in column.is_valid().to_pylist()]


def _to_series(kind: pa.DataType, zone: str) -> Callable[[pa.ChunkedArray], pd.Series]:
    """Return what converts columns of a type: integers inside nested values stay integers beside null."""
    options = {
        "date_as_object": True,
        "coerce_temporal_nanoseconds": True,
        "integer_object_nulls": pa.types.is_nested(kind),
    }

    def convert(column: pa.ChunkedArray, **lists: bool) -> pd.Series:
        spark_type = from_arrow_type(kind, prefer_timestamp_ntz=True)
        converter = _create_converter_to_pandas(spark_type, timezone=zone, struct_in_pandas="dict", **lists)
        return converter(column.to_pandas(**options))

    def convert_or_as_lists(column: pa.ChunkedArray) -> pd.Series:
        try:
            return convert(column)
        except ValueError:
            # PySpark's makes no array of arrays of times that differ in length.
            return convert(column, ndarray_as_list=True)

    return convert_or_as_lists if pa.types.is_nested(kind) else convert


def _varies(column: pa.Array) -> bool:
    """Return True if types in pandas depend on which rows are together: of integers and booleans beside null."""
    if pa.types.is_map(column.type):
        return _varies(column.keys) or _varies(column.items)
    if pa.types.is_nested(column.type):
        parts = column.flatten()
        return any(map(_varies, parts if isinstance(parts, list) else [parts]))
    return bool(column.null_count and (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)))


def _widened(kind: object) -> object:
    wide = {"i": "int64", "f": "float64"}
    return np.dtype(wide[kind.kind]) if isinstance(kind, np.dtype) and kind.kind in wide else kind


class FrameResults:
    """Collects DataFrames by columns, which PySpark's own conversion makes columns of the output schema.

    Columns are found by name, or by position if their labels are not text. With `exact` there must be as many as in the
    schema. Raises StateError for frames that do not fit.
    """

    def __init__(self, schema: pa.Schema, zone: str, *, exact: bool = False) -> None:
        self._schema, self._zone, self._exact = schema, zone, exact
        self._parts: list[list[pd.Series]] = [[] for _ in schema]

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
        labels: Sequence[object] = list(frame.columns)
        has_names = any(isinstance(label, str) for label in labels)
        names = self._schema.names
        wrong = self._exact or not has_names
        if (wrong and len(labels) != len(names)) or (has_names and not set(names).issubset(labels)):
            self._refuse(frame)
        for place, (name, parts) in enumerate(zip(names, self._parts, strict=True)):
            column = frame[name] if has_names else frame.iloc[:, place]
            # The caller may change the frame after it is given.
            parts.append(column.copy())

    def _refuse(self, frame: pd.DataFrame) -> None:
        returned = ", ".join(map(str, frame.columns))
        raise StateError(
            f"it returned a DataFrame of ({returned}), the output schema has ({', '.join(self._schema.names)})"
        )

    def table(self) -> pa.Table:
        """Return all rows."""
        columns = [self._column(parts, field) for parts, field in zip(self._parts, self._schema, strict=True)]
        return pa.table(columns, schema=self._schema)

    def clear(self) -> None:
        """Forget all rows."""
        self._parts = [[] for _ in self._schema]

    def _column(self, parts: list[pd.Series], field: pa.Field) -> pa.ChunkedArray:
        """Return a column of the parts; neighbours of one dtype are converted together."""
        chunks: list[pa.Array] = []
        for _, run in groupby(parts, key=lambda part: part.dtype):
            same = list(run)
            try:
                chunks += self._converted(pd.concat(same, ignore_index=True), field.type)
            except Exception:  # of PySpark's converters or Arrow; the parts may fit one by one
                chunks += [chunk for part in same for chunk in self._checked(part, field)]
        column = pa.chunked_array(chunks, field.type)
        if not field.nullable and column.null_count:
            raise StateError(f"column {field.name!r} of the output schema has a null, but is not nullable")
        return column

    def _checked(self, series: pd.Series, field: pa.Field) -> list[pa.Array]:
        try:
            return self._converted(series, field.type)
        except Exception as error:
            problem = " ".join(str(error).split())
            raise StateError(f"column {field.name!r} of the output schema is {field.type}: {problem}") from None

    def _converted(self, series: pd.Series, kind: pa.DataType) -> list[pa.Array]:
        if isinstance(series.dtype, pd.CategoricalDtype):
            series = series.astype(series.dtype.categories.dtype)
        if pa.types.is_decimal(kind) and pd.api.types.is_integer_dtype(series.dtype):
            series = series.map(Decimal, na_action="ignore")
        convert = _create_converter_from_pandas(
            from_arrow_type(kind, prefer_timestamp_ntz=True), timezone=self._zone, error_on_duplicated_field_names=False
        )
        series = convert(series)
        mask = None if hasattr(series.array, "__arrow_array__") else series.isnull()
        # As in Spark nanoseconds are cut; what else would be lost is an error.
        safe = not pa.types.is_timestamp(kind)
        try:
            array = pa.Array.from_pandas(series, mask=mask, type=kind, safe=safe)
        except pa.ArrowInvalid:
            array = pa.Array.from_pandas(series, mask=mask).cast(kind, safe=safe)
        return array.chunks if isinstance(array, pa.ChunkedArray) else [array]
