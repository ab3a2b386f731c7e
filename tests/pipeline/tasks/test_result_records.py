"""Times in results, held against Python's own; beyond its years, against the same day of another era."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roster.pipeline.tasks.result_records import as_records

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
