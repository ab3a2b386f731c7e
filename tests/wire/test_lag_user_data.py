"""The header that lag-aware members put in front of their user data."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roster.wire.consumer.topic_index import TopicIndex
from roster.wire.consumer.user_data import (
    MAGIC,
    decode_sticky_user_data,
    encode_lag_user_data,
    encode_sticky_user_data,
    split_lag_user_data,
)


def test_the_layout():
    data = encode_lag_user_data(b"rest", capacity=40, settling=True)
    assert data.hex(" ") == "52 4c 41 47 00 01 00 0d 01 00 00 00 28 72 65 73 74"


@given(st.none() | st.binary(max_size=9), st.integers(1, 1 << 20), st.booleans())
def test_what_is_written_is_read(rest, capacity, settling):
    rests, capacities, anyone = split_lag_user_data([encode_lag_user_data(rest, capacity=capacity, settling=settling)])
    assert (rests, capacities.tolist(), anyone) == ([rest or b""], [capacity], settling)


@given(st.none() | st.binary(max_size=30) | st.binary(max_size=12).map(MAGIC.__add__))
def test_foreign_bytes_are_no_capacity(data):
    rests, capacities, _ = split_lag_user_data([data])
    assert 1 <= capacities[0] <= 1 << 20
    if data is None or not data.startswith(MAGIC):
        assert (rests, capacities.tolist()) == ([data], [1])


@pytest.mark.parametrize("capacity", [-5, 0])
def test_a_capacity_below_one_is_one(capacity):
    data = bytearray(encode_lag_user_data(b"", capacity=7, settling=False))
    data[9:13] = capacity.to_bytes(4, "big", signed=True)
    assert split_lag_user_data([bytes(data)])[1].tolist() == [1]


def test_a_later_version_may_add_fields():
    data = bytearray(encode_lag_user_data(b"new fields|rest", capacity=7, settling=False))
    data[5], data[7] = 2, data[7] + len("new fields|")
    assert split_lag_user_data([bytes(data)])[0] == [b"rest"]


@pytest.mark.parametrize(("version", "length"), [(0, 13), (1, 12), (1, 200), (-1, 13)])
def test_an_unsound_header_is_none(version, length):
    data = MAGIC + version.to_bytes(2, "big", signed=True) + length.to_bytes(2, "big") + b"\0\0\0\0\x09"
    assert split_lag_user_data([data])[1].tolist() == [1]


def test_neither_kind_of_user_data_is_taken_for_the_other():
    sticky = encode_sticky_user_data({"t": [0, 1]}, 3)
    assert split_lag_user_data([sticky])[0] == [sticky]
    ours = encode_lag_user_data(sticky, capacity=2, settling=False)
    claims, generation = decode_sticky_user_data([ours], TopicIndex(["t"]))
    assert (len(claims.member), generation.tolist()) == (0, [-1])
