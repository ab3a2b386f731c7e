"""Checksums of entries by columns and one by one, and the order of keys, against plain Python."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.records.native import kernel
from roster.state import byte_slices, lmdb_snapshot
from roster.state.byte_slices import as_bytes, sorted_places
from tests.examples_tried import examples

KEYS = st.lists(st.binary(max_size=12) | st.binary(max_size=3).map(lambda end: b"shared by all" + end), max_size=200)


@pytest.fixture(params=["compiled", "plain"], scope="module", autouse=True)
def loops(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both ways, as a task and as a command compute them."""
    byte_slices.use(kernel() if request.param == "compiled" else None)
    yield
    byte_slices.use(None)


def entries(count: int) -> tuple[list[bytes], list[bytes]]:
    """Keys and values of many lengths, among them none."""
    return [b"%d" % number for number in range(count)], [
        bytes([number % 256]) * (number % 40) for number in range(count)
    ]


@pytest.mark.parametrize("count", [0, 1, 63, 64, 500])
def test_a_value_is_followed_by_the_crc_of_its_key_and_itself(count: int) -> None:
    keys, values = entries(count)
    # A slice, so that neither column begins at the start of its bytes.
    columns = [pa.array([b"before", *each], pa.large_binary()).slice(1) for each in (keys, values)]
    sums = [google_crc32c.value(key + value).to_bytes(4, "little") for key, value in zip(keys, values, strict=True)]
    sealed = lmdb_snapshot.sealed(*columns, np.arange(count))
    assert sealed == [value + each for value, each in zip(values, sums, strict=True)]
    assert lmdb_snapshot.are_sound(keys, sealed)
    back = np.arange(count)[::-1].copy()
    assert lmdb_snapshot.sealed(columns[0].take(pa.array(back)), columns[1], back) == sealed[::-1]


@pytest.mark.parametrize("count", [3, 100])
def test_every_flipped_bit_is_found(count: int) -> None:
    keys, values = entries(count)
    data = lmdb_snapshot.sealed(*(pa.array(each, pa.large_binary()) for each in (keys, values)), np.arange(count))
    place = count - 1
    for side in (keys, data):
        whole = side[place]
        for bit in range(8 * len(whole)):
            side[place] = bytes(byte ^ (1 << bit % 8) * (at == bit // 8) for at, byte in enumerate(whole))
            assert not lmdb_snapshot.are_sound(keys, data)
        side[place] = whole
    assert not lmdb_snapshot.are_sound([keys[1], keys[0], *keys[2:]], data), "a value of another key"


@settings(max_examples=examples(200))
@given(keys=KEYS, is_large=st.booleans(), begin=st.integers(0, 3))
def test_places_are_those_of_a_stable_sort(keys: list[bytes], is_large: bool, begin: int) -> None:
    column = pa.array([*[b"\xff"] * begin, *keys], pa.large_binary() if is_large else pa.binary()).slice(begin)
    assert sorted_places(column).tolist() == sorted(range(len(keys)), key=lambda place: (keys[place], place))


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string()])
@pytest.mark.parametrize("begin", range(4))
@pytest.mark.parametrize("count", range(4))
def test_a_part_of_a_column_has_the_bytes_between_its_offsets(kind: pa.DataType, begin: int, count: int) -> None:
    values = ["ab", "", "c"]
    for column in (pa.array(values, kind), pa.chunked_array([pa.array(values, kind)])):
        data, offsets = as_bytes(column.slice(begin, count))
        pieces = [bytes(data[start:end]) for start, end in pairwise(offsets)]
        assert pieces == [value.encode() for value in values[begin : begin + count]]
        assert len(offsets) == len(pieces) + 1
