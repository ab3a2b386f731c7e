"""Rows as bytes: what was encoded is decoded, wrong values are named, unlike rows have unlike bytes."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.state import StateError
from roster.state.processor.codec import RowCodec
from tests.examples_tried import examples

NESTED = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])
KINDS = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=6)),
    (pa.binary(), st.binary(max_size=6)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.duration("us"), st.timedeltas(timedelta(days=-(10**8)), timedelta(days=10**8))),
    (pa.decimal128(12, 3), st.decimals(-99_999_999, 99_999_999, places=3)),
    (pa.list_(pa.int32()), st.lists(st.none() | st.integers(-5, 5), max_size=3)),
    (pa.map_(pa.string(), pa.int32()), st.dictionaries(st.text("ab", max_size=2), st.none() | st.integers(-5, 5))),
    (NESTED, st.tuples(st.none() | st.integers(-5, 5), st.none() | st.lists(st.text("ab", max_size=2), max_size=2))),
]
columns = st.lists(st.sampled_from(range(len(KINDS))), min_size=1, max_size=11)


@given(st.data(), columns)
@settings(max_examples=examples(100))
def test_a_row_is_read_as_it_was_written(data, kinds):
    codec = RowCodec([pa.field(f"f{place}", KINDS[kind][0]) for place, kind in enumerate(kinds)])
    row = st.tuples(*(st.none() | KINDS[kind][1] for kind in kinds))
    one, other = data.draw(row), data.draw(row)
    assert codec.decode(codec.encode(one)) == one
    behind = codec.encode(one) + codec.encode(other)
    assert codec.decode_next(behind, 0) == (one, len(codec.encode(one)))
    assert codec.decode(behind, len(codec.encode(one))) == other
    zeros = any(value == 0 and isinstance(value, float) for value in one)
    assert (codec.encode(one) == codec.encode(other)) == (one == other) or zeros or len(kinds) > 1


def test_moments_have_the_zone_of_the_process_as_in_pyspark():
    from pyspark.sql.types import TimestampType

    codec, spark = RowCodec([pa.field("t", pa.timestamp("us", "UTC"))]), TimestampType()
    for moment in (
        datetime(2026, 1, 1, 2, 3, 4, 567, tzinfo=UTC),
        datetime(2026, 7, 1, 2, 3, 4, 999_999),  # noqa: DTZ001 - a time without a zone is meant
        datetime(1950, 1, 1),  # noqa: DTZ001 - as above
    ):
        assert codec.decode(codec.encode((moment,))) == (spark.fromInternal(spark.toInternal(moment)),)


def test_structs_are_made_and_may_be_given_by_name():
    codec = RowCodec([pa.field("s", NESTED)], lambda names, values: dict(zip(names, values, strict=True)))
    assert codec.decode(codec.encode(({"b": ["x"]},))) == ({"a": None, "b": ["x"]},)
    assert codec.decode(codec.encode(((1, None),))) == ({"a": 1, "b": None},)


def test_a_count_has_nine_bytes():
    assert len(RowCodec(pa.schema([("n", pa.int64())])).encode((5,))) == 9


def test_decimals_are_rounded_to_their_scale_and_kept_within_their_precision():
    codec = RowCodec([pa.field("d", pa.decimal128(4, 2))])
    assert codec.decode(codec.encode((Decimal("1.235"),))) == (Decimal("1.24"),)
    with pytest.raises(StateError, match=r"field 'd': Decimal\('100'\) is no decimal128\(4, 2\)"):
        codec.encode((Decimal(100),))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int32(), 2**31),
        (pa.int64(), "1"),
        (pa.int64(), 1.5),
        (pa.bool_(), 1),
        (pa.string(), 1),
        (pa.binary(), "x"),
        (pa.binary(), 3),
        (pa.date32(), 3),
        (pa.timestamp("us", "UTC"), 3),
        (pa.list_(pa.int32()), ["x"]),
        (pa.map_(pa.string(), pa.int32()), [1]),
        (NESTED, ("x", None)),
        (NESTED, 3),
    ],
)
def test_what_does_not_fit_is_named(kind, value):
    codec = RowCodec([pa.field("good", pa.int32()), pa.field("bad", kind)])
    with pytest.raises(StateError, match="field 'bad'"):
        codec.encode((1, value))


def test_rows_of_another_width_and_other_types_are_refused():
    codec = RowCodec([pa.field("a", pa.int32()), pa.field("b", pa.int32())])
    for row in ((1,), (1, 2, 3), 7, {"a": 1, "b": 2}):
        with pytest.raises(StateError, match=r"is not a row of \(a, b\)"):
            codec.encode(row)
    with pytest.raises(StateError, match="field 'x': a state variable cannot have the type uint64"):
        RowCodec([pa.field("x", pa.uint64())])


def test_a_float_that_is_no_number_stays_one():
    codec = RowCodec([pa.field("f", pa.float64())])
    (found,) = codec.decode(codec.encode((math.nan,)))
    assert math.isnan(found)
    assert codec.decode(codec.encode((-0.0,)))[0].hex() == "-0x0.0p+0"
    assert RowCodec([pa.field("d", pa.duration("us"))]).decode(
        RowCodec([pa.field("d", pa.duration("us"))]).encode((timedelta(days=-1),))
    ) == (timedelta(days=-1),)
    assert RowCodec([pa.field("d", pa.date32())]).decode(
        RowCodec([pa.field("d", pa.date32())]).encode((date(1, 1, 1),))
    ) == (date(1, 1, 1),)
