"""Values as a user's code gets and returns them, against PySpark's own conversion: no JVM is needed."""

# ruff: noqa: DTZ001 - Spark gives times without a zone
from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_type

from roster.spark.processor.frames import FrameResults, Frames, keys_in_pandas
from roster.spark.processor.operator import in_zone
from roster.state.processor.results import Rows
from roster.state.store import StateError
from tests.examples_tried import examples

conversion = pytest.importorskip("pyspark.sql.conversion", reason="PySpark 4.1 brought it")
if not hasattr(conversion, "ArrowBatchTransformer"):
    pytest.skip("PySpark 4.2 brought it", allow_module_level=True)

ZONES = ["UTC", "Asia/Kolkata", "America/New_York", "Europe/Berlin"]
INSTANTS = st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1), timezones=st.just(UTC))
HIDDEN = [datetime(2025, 11, 2, 5, 30, tzinfo=UTC), datetime(2025, 10, 26, 0, 30, tzinfo=UTC)]
"""Instants whose local time comes twice in New York and in Berlin."""
NOON = pd.Timestamp("2020-02-29 12:00")
SIMPLE: list[tuple[spark.DataType, st.SearchStrategy[Any]]] = [
    (spark.BooleanType(), st.booleans()),
    (spark.ByteType(), st.integers(-128, 127)),
    (spark.ShortType(), st.integers(-(2**15), 2**15 - 1)),
    (spark.IntegerType(), st.integers(-(2**31), 2**31 - 1)),
    (spark.LongType(), st.sampled_from([2**53 + 1, -(2**63), 2**63 - 1]) | st.integers(-5, 5)),
    (spark.FloatType(), st.floats(width=32)),
    (spark.DoubleType(), st.floats()),
    (spark.DecimalType(20, 3), st.integers(-(10**19), 10**19).map(lambda n: Decimal(n).scaleb(-3))),
    (spark.StringType(), st.text(max_size=3)),
    (spark.BinaryType(), st.binary(max_size=3)),
    (spark.DateType(), st.dates(date(1500, 1, 1), date(2500, 1, 1))),
    (spark.TimestampType(), INSTANTS | st.sampled_from(HIDDEN)),
    (spark.TimestampNTZType(), st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1))),
    (spark.DayTimeIntervalType(), st.timedeltas(timedelta(-9999), timedelta(9999))),
]
KEYS = [(kind, values) for kind, values in SIMPLE if not isinstance(kind, (spark.FractionalType, spark.BinaryType))]


class Typed(NamedTuple):
    """A type and values of it."""

    kind: spark.DataType
    values: st.SearchStrategy[Any]


def or_null(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


def nested(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    lists = inner.map(lambda of: Typed(spark.ArrayType(of.kind), st.lists(or_null(of.values), max_size=3)))
    structs = st.tuples(inner, inner).map(
        lambda of: Typed(
            spark.StructType([spark.StructField("a", of[0].kind), spark.StructField("b", of[1].kind)]),
            st.fixed_dictionaries({"a": or_null(of[0].values), "b": or_null(of[1].values)}),
        )
    )
    maps = st.tuples(st.sampled_from(KEYS), inner).map(
        lambda of: Typed(
            spark.MapType(of[0][0], of[1].kind), st.dictionaries(of[0][1], or_null(of[1].values), max_size=3)
        )
    )
    return lists | structs | maps


FLAT = st.sampled_from([Typed(*each) for each in SIMPLE])
TYPES = FLAT | nested(FLAT) | nested(FLAT | nested(FLAT))


class Given(NamedTuple):
    """Rows by column, and how many of them each key has."""

    schema: spark.StructType
    columns: list[list[Any]]
    sizes: list[int]
    zone: str

    def table(self, zone: str) -> pa.Table:
        """The rows as a table whose times are in a zone: in Spark the session's, in Roster UTC."""
        kinds = [to_arrow_type(field.dataType, **timezone(zone)) for field in self.schema]
        return pa.table(
            [pa.array(as_arrow(values), kind) for values, kind in zip(self.columns, kinds, strict=True)],
            self.schema.names,
        )

    @property
    def spans(self) -> list[tuple[int, int]]:
        ends = np.cumsum(self.sizes).tolist()
        return list(zip([0, *ends[:-1]], ends, strict=True))


def timezone(zone: str) -> dict[str, Any]:
    return {"timezone": zone}


def as_arrow(value: Any) -> Any:
    """Dictionaries with the keys of a struct stay, those of maps become pairs."""
    if isinstance(value, dict):
        if value.keys() == {"a", "b"}:
            return {name: as_arrow(each) for name, each in value.items()}
        return [(key, as_arrow(each)) for key, each in value.items()]
    return [as_arrow(each) for each in value] if isinstance(value, list) else value


@st.composite
def tables(draw: st.DrawFn) -> Given:
    kinds = draw(st.lists(TYPES, min_size=1, max_size=3))
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    count = sum(sizes)
    columns = [draw(st.lists(or_null(of.values), min_size=count, max_size=count)) for of in kinds]
    schema = spark.StructType([spark.StructField(f"c{place}", of.kind) for place, of in enumerate(kinds)])
    return Given(schema, columns, sizes, draw(st.sampled_from(ZONES)))


def told(value: Any) -> Any:
    """A value with all its types, comparable."""
    if isinstance(value, np.ndarray):
        return "ndarray", str(value.dtype), [told(each) for each in value]
    if isinstance(value, dict):
        return "dict", [(told(key), told(each)) for key, each in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [told(each) for each in value]
    return type(value).__name__, repr(value)


def frame_told(frame: pd.DataFrame) -> Any:
    """All of a frame; nothing but nulls of an interval's column are times in Spark, by chance."""
    return {
        name: ("all NaT" if frame[name].dtype.kind in "mM" and frame[name].isna().all() else str(frame[name].dtype))
        + str([told(each) for each in frame[name]])
        for name in frame
    }


def series_of_spark(table: pa.Table, zone: str) -> list[pd.Series]:
    try:
        made: list[pd.Series] = conversion.ArrowBatchTransformer.to_pandas(table, timezone=zone)
    except ValueError as error:
        # Arrays of arrays of times that differ in length, at which PySpark's own conversion fails.
        assume("inhomogeneous" not in str(error))
        raise
    return made


@settings(max_examples=examples(80))
@given(tables())
def test_frames_of_processors_are_those_of_spark(given: Given) -> None:
    here = Frames(given.table("UTC"), given.zone, widen=True)
    whole = pd.concat(series_of_spark(given.table(given.zone), given.zone), axis=1)
    rows = list(whole.itertuples(index=False))
    for begin, end in given.spans:
        assert frame_told(here.part(begin, end)) == frame_told(pd.DataFrame(rows[begin:end]))


@settings(max_examples=examples(80))
@given(tables())
def test_frames_of_functions_with_group_state_are_those_of_spark(given: Given) -> None:
    here = Frames(given.table("UTC"), given.zone, widen=False)
    there = given.table(given.zone)
    for begin, end in given.spans:
        series = series_of_spark(there.slice(begin, end - begin), given.zone)
        assert frame_told(here.part(begin, end)) == frame_told(pd.concat(series, axis=1))


@settings(max_examples=examples(80))
@given(tables())
def test_rows_are_those_of_spark(given: Given) -> None:
    here, there = in_zone(given.table("UTC"), given.zone), given.table(given.zone)
    assert [told(column.to_pylist()) for column in here.columns] == [
        told([value.as_py() for value in column]) for column in there.columns
    ]


def returned_to_spark(frame: pd.DataFrame, given: Given) -> pa.StructArray:
    """What Spark's worker makes of a frame that is returned; raises its errors."""
    batch = conversion.PandasToArrowConversion.convert(
        [frame],
        spark.StructType([spark.StructField("_0", given.schema)]),
        timezone=given.zone,
        safecheck=True,
        arrow_cast=True,
        assign_cols_by_name=True,
    )
    return batch.column(0)


def in_utc(values: Any) -> Any:
    """The moments of values, whatever their zone."""
    if isinstance(values, dict):
        return {in_utc(key): in_utc(each) for key, each in values.items()}
    if isinstance(values, (list, tuple)):
        return type(values)(map(in_utc, values))
    if isinstance(values, datetime) and values.tzinfo is not None:
        return values.astimezone(UTC)
    return "nan" if isinstance(values, float) and math.isnan(values) else values


@settings(max_examples=examples(80))
@given(tables(), st.booleans())
def test_a_frame_that_is_returned_as_it_came_is_read_as_by_spark(given: Given, widen: bool) -> None:
    output = pa.schema(zip(given.schema.names, given.table("UTC").schema.types, strict=True))
    here = FrameResults(output, given.zone)
    frames = Frames(given.table("UTC"), given.zone, widen=widen)
    parts = [frames.part(begin, end) for begin, end in given.spans]
    try:
        there = [row for part in parts for row in returned_to_spark(part, given).to_pylist()]
    except Exception:
        with pytest.raises(StateError, match=r"^column 'c\d' of the output schema is "):
            here.extend(iter(parts)), here.table()
        return
    here.extend(iter(parts))
    assert in_utc(here.table().to_pylist()) == in_utc(there)


def test_arrays_of_arrays_of_times_are_lists_where_pysparks_conversion_fails() -> None:
    of = pa.list_(pa.list_(pa.timestamp("us", "UTC")))
    table = pa.table({"t": pa.array([[[HIDDEN[0]], None, []]], of)})
    frame = Frames(table, "Asia/Kolkata", widen=True).part(0, 1)
    assert frame["t"].tolist() == [[[pd.Timestamp("2025-11-02 11:00")], None, []]]
    results = FrameResults(table.schema, "Asia/Kolkata")
    results.extend([frame])
    assert results.table() == table


def test_a_time_beyond_those_of_pandas_is_an_error_that_names_its_column() -> None:
    table = pa.table({"t": pa.array([datetime(1600, 1, 1)], pa.timestamp("us"))})
    with pytest.raises(StateError, match=r"^column 't' does not fit pandas, use rows instead: .*out of bounds"):
        Frames(table, "UTC", widen=True)


def test_a_time_that_a_clock_shows_twice_is_the_second_one_and_one_it_never_shows_is_refused() -> None:
    output = pa.schema([("t", pa.timestamp("us", "UTC"))])
    results = FrameResults(output, "Europe/Berlin")
    results.extend([pd.DataFrame({"t": [pd.Timestamp("2025-10-26 02:30")]})])
    assert results.table()["t"].to_pylist() == [datetime(2025, 10, 26, 1, 30, tzinfo=ZoneInfo("UTC"))]
    results.extend([pd.DataFrame({"t": [pd.Timestamp("2025-03-30 02:30")]})])
    with pytest.raises(StateError, match=r"column 't' of the output schema is .*2025-03-30 02:30"):
        results.table()


LOOSE = st.sampled_from(
    [
        (spark.LongType(), [1, 2.0, "3", True, None, 2**53 + 1, np.int8(4)]),
        (spark.DoubleType(), [1, 2.5, "3", None, True, float("nan"), 2**53 + 1]),
        (spark.StringType(), ["a", None, 5, b"b", 1.5]),
        (spark.BooleanType(), [True, None, 0, "true", np.bool_(True)]),
        (
            spark.DateType(),
            [date(2020, 2, 29), None, datetime(2020, 2, 29), NOON, 5, "2020-02-29"],
        ),
        (
            spark.TimestampType(),
            [HIDDEN[0], None, pd.NaT, datetime(2020, 2, 29, 12), NOON, 5],
        ),
        (spark.DecimalType(10, 2), [Decimal("1.25"), None, "1.5", 1.5, Decimal("1E+9")]),
        (spark.ArrayType(spark.LongType()), [[1, None], (2,), np.array([3, 4]), None, [1.0, 2.0], "ab", 5]),
        (spark.MapType(spark.StringType(), spark.LongType()), [{"a": 1}, {}, None, [("a", 1)], {"b": 2.0}]),
        (
            spark.StructType([spark.StructField("a", spark.LongType()), spark.StructField("b", spark.TimestampType())]),
            [{"a": 1, "b": datetime(2020, 2, 29)}, (1, None), Row(a=1, b=None), {"b": HIDDEN[0]}, None, 5],
        ),
    ]
)


@st.composite
def loose_frames(draw: st.DrawFn) -> tuple[Given, list[pd.DataFrame]]:
    """Frames of what users return, some of which does not fit."""
    kind, values = draw(LOOSE)
    parts = draw(st.lists(st.lists(st.sampled_from(values), min_size=1, max_size=3), min_size=1, max_size=3))
    given = Given(spark.StructType([spark.StructField("c0", kind)]), [[]], [], draw(st.sampled_from(ZONES)))
    labels = draw(st.sampled_from(["c0", 0]))
    try:
        return given, [pd.DataFrame({labels: part}) for part in parts]
    except ValueError:
        assume(False)
        raise


@settings(max_examples=examples(80))
@given(loose_frames())
def test_frames_of_any_values_are_read_or_refused_as_by_spark(drawn: tuple[Given, list[pd.DataFrame]]) -> None:
    given, frames = drawn
    here = FrameResults(pa.schema([("c0", given.table("UTC").schema.types[0])]), given.zone)
    here.extend(iter(frames))
    try:
        there = [row for frame in frames for row in returned_to_spark(frame, given).to_pylist()]
    except Exception:
        with pytest.raises(StateError, match=r"^column 'c0' of the output schema is "):
            here.table()
        return
    assert in_utc(here.table().to_pylist()) == in_utc(there)


def test_frames_of_other_types_keep_their_values() -> None:
    """One call returns times, another none."""
    results = FrameResults(pa.schema([("t", pa.timestamp("us", "UTC")), ("n", pa.int64())]), "UTC")
    results.extend([pd.DataFrame({"t": [pd.Timestamp("2020-02-29 12:00")], "n": [2**53 + 1]})])
    results.extend([pd.DataFrame({"t": [None], "n": [float("nan")]})])
    noon = datetime(2020, 2, 29, 12, tzinfo=UTC)
    assert results.table().to_pylist() == [{"t": noon, "n": 2**53 + 1}, {"t": None, "n": None}]


def test_whole_numbers_become_decimals() -> None:
    """Spark does it with its setting for that; it loses nothing, so Roster always does it."""
    results = FrameResults(pa.schema([("d", pa.decimal128(4, 1))]), "UTC")
    results.extend([pd.DataFrame({"d": [1, -2]})])
    assert results.table()["d"].to_pylist() == [Decimal("1.0"), Decimal("-2.0")]
    results.extend([pd.DataFrame({"d": [1000]})])
    with pytest.raises(StateError, match=r"column 'd'"):
        results.table()


@settings(max_examples=examples(80))
@given(tables())
def test_rows_that_are_returned_as_they_came_are_read_as_by_spark(given: Given) -> None:
    there = given.table(given.zone)
    names = given.schema.names
    rows = [Row(**row) for row in zip_rows(there)]
    here = Rows(pa.schema(zip(names, given.table("UTC").schema.types, strict=True)))
    here.extend(rows)
    wanted = pa.RecordBatch.from_pylist([row.asDict(True) for row in rows], schema=given.table("UTC").schema)
    assert in_utc(here.table().to_pylist()) == in_utc(wanted.to_pylist())


def zip_rows(table: pa.Table) -> list[dict[str, Any]]:
    columns = [[value.as_py() for value in column] for column in table.columns]
    return [dict(zip(table.schema.names, values, strict=True)) for values in zip(*columns, strict=True)]


@settings(max_examples=examples(80))
@given(st.sampled_from(KEYS), st.data(), st.sampled_from(ZONES))
def test_keys_are_those_of_spark(of: tuple[Any, Any], data: st.DataObject, zone: str) -> None:
    values = data.draw(st.lists(of[1], min_size=1, max_size=4))
    given = Given(spark.StructType([spark.StructField("k", of[0])]), [[*values, None]], [], zone)
    here, there = given.table("UTC")["k"].combine_chunks(), given.table(zone)
    rows = list(pd.concat(series_of_spark(there.slice(0, len(values)), zone), axis=1).itertuples(index=False))
    null = next(pd.concat(series_of_spark(there.slice(len(values)), zone), axis=1).itertuples(index=False))
    assert told(keys_in_pandas([here], zone, in_numpy=False)) == told([tuple(row) for row in [*rows, null]])
    firsts = [(series_of_spark(there.slice(place, 1), zone)[0][0],) for place in range(len(here))]
    assert told(keys_in_pandas([here], zone, in_numpy=True)) == told(firsts)
