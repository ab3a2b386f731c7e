"""Results as JSON: times against Python's own, beyond its years against the same day of another era; objects and keys
by compiled loops against Python's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.pipeline.tasks.result_records import as_records
from roster.records.native import kernel
from roster.state import byte_slices
from roster.state.keys import decode_keys, encode_keys
from tests.examples_tried import examples

CALENDAR_S = 146_097 * 86_400
"""Seconds of 400 years, behind which days of months and leap years come again."""


def written(seconds: list[int | None], zone: str | None) -> list[str]:
    times = pa.array(seconds, pa.int64()).cast(pa.timestamp("s", zone))
    _, values = as_records(pa.table({"t": times}), [])
    return [value.as_py() for value in values]


@given(seconds=st.lists(st.none() | st.integers(-62_135_596_800, 253_402_300_799), max_size=3))
@pytest.mark.parametrize("zone", ["UTC", None])
def test_a_time_is_in_iso_8601(seconds: list[int | None], zone: str | None) -> None:
    times = [None if s is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=s) for s in seconds]
    texts = ["null" if t is None else f'"{t.replace(tzinfo=None).isoformat()}{"Z" if zone else ""}"' for t in times]
    assert written(seconds, zone) == [f'{{"t":{text}}}' for text in texts]


@given(second=st.integers(0, CALENDAR_S - 1), times=st.integers(80, 1_000))
def test_a_year_of_more_than_16_bits_is_itself(second: int, times: int) -> None:
    near = datetime(2000, 1, 1, tzinfo=UTC) + timedelta(seconds=second)
    at = int(near.timestamp()) + times * CALENDAR_S
    assert written([at], "UTC") == [f'{{"t":"{near.year + 400 * times}{near:-%m-%dT%H:%M:%SZ}"}}']


@pytest.fixture(scope="module")
def compiled() -> Iterator[None]:
    """The loops, as tasks have them."""
    byte_slices.use(kernel())
    yield
    byte_slices.use(None)


@settings(max_examples=examples(50))
@given(
    rows=st.lists(
        st.tuples(st.text(max_size=20) | st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False)),
        min_size=1,
        max_size=5,
    ),
    begin=st.integers(0, 3),
    are_some_null=st.booleans(),
)
def test_records_and_keys_of_many_rows_are_those_of_python(
    compiled: None, rows: list[tuple[str | None, int, float]], begin: int, are_some_null: bool
) -> None:
    many = [row if are_some_null else (row[0] or "", *row[1:]) for row in rows * 2000][: 4096 + 2 * len(rows)]
    names, kinds = ["name", "n", "x"], [pa.string(), pa.int64(), pa.float64()]
    columns = [pa.array(column, kind) for column, kind in zip(zip(*many, strict=True), kinds, strict=True)]
    table = pa.table(columns, names).slice(begin)
    expected = [dict(zip(names, row, strict=True)) for row in many[begin:]]
    keys, values = as_records(table, ["name", "n"])
    finite = [each | {"x": each["x"] if math.isfinite(each["x"]) else None} for each in expected]
    assert [json.loads(value) for value in values.to_pylist()] == finite
    assert [json.loads(key) for key in keys.to_pylist()] == [[each["name"], each["n"]] for each in expected]
    decoded = decode_keys(encode_keys(table, ["name", "n"]), kinds[:2])
    assert pa.table(decoded, names[:2]).to_pylist() == [{name: each[name] for name in names[:2]} for each in expected]
