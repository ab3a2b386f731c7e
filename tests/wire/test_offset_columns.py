"""Records of `__consumer_offsets` as columns: held against the tables of the format, record by record."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from roster.records import native
from roster.wire import WireError
from roster.wire.columns import offsets_kernel
from roster.wire.columns.offsets import offset_records
from roster.wire.columns.offsets_layout import COMMIT, DAMAGED, GROUP, NEWER, OTHER, REMOVED
from roster.wire.offsets_topic import (
    OffsetCommitKey,
    OffsetCommitValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from tests.wire.plain_kernel import PlainKernel

NATIVE = native.kernel(None, native.OFFSETS)
PLAIN = PlainKernel(offsets_kernel)

Record = tuple[bytes | None, bytes | None]
INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=8) | st.integers(100, 300).map("x".__mul__)


def told(record: Record) -> tuple[int, tuple[Any, ...] | None]:
    """A record's kind and columns by the tables of the format."""
    key, value = record
    if key is None:
        return DAMAGED, None
    try:
        about = decode_key(key)
    except WireError:
        # The group's own records are read by the tables, which then say what is wrong.
        return (GROUP if key[:2] == b"\0\2" else DAMAGED), None
    if not isinstance(about, OffsetCommitKey):
        return (GROUP if about is not None or int.from_bytes(key[:2]) <= 8 else OTHER), None
    where = (about.group, about.topic, about.partition)
    if value is None:
        return REMOVED, (*where, None, None, None, None, None)
    if int.from_bytes(value[:2], signed=True) > 4 and len(value) >= 2:
        return NEWER, None
    try:
        found = decode_value(about, value)
    except WireError:
        return DAMAGED, None
    assert isinstance(found, OffsetCommitValue)
    epoch, expires = (None if each == -1 else each for each in (found.leader_epoch, found.expire_timestamp))
    return COMMIT, (*where, found.offset, epoch, found.metadata, found.commit_timestamp, expires)


def check(records: list[Record], kernel: Any) -> None:
    keys = pa.array([key for key, _ in records], pa.binary())
    values = pa.array([value for _, value in records], pa.binary())
    found = offset_records(kernel, keys, values)
    found.commits.validate(full=True)
    expected = [told(record) for record in records]
    assert found.kinds.tolist() == [kind for kind, _ in expected]
    rows = list(zip(*(column.to_pylist() for column in found.commits.columns), strict=True))
    assert rows == [row for _, row in expected if row is not None]


@st.composite
def commits(draw: st.DrawFn) -> Record:
    key = encode_key(OffsetCommitKey(group=draw(TEXT), topic=draw(TEXT), partition=draw(INT32)))
    version = draw(st.integers(0, 4))
    fields: dict[str, Any] = {"offset": draw(INT64), "metadata": draw(TEXT), "commit_timestamp": draw(INT64)}
    if version >= 3:
        fields["leader_epoch"] = draw(INT32)
    if version == 1:
        fields["expire_timestamp"] = draw(st.just(-1) | INT64)
    if version == 4 and draw(st.booleans()):
        fields["topic_id"] = draw(st.binary(min_size=16, max_size=16))
    return key, encode_value(OffsetCommitValue(**fields), version)


@st.composite
def mutated(draw: st.DrawFn) -> Record:
    """A commit of which some bytes are others, more or fewer."""
    record = [bytearray(part or b"") for part in draw(commits())]
    for _ in range(draw(st.integers(1, 3))):
        part = record[draw(st.integers(0, 1))]
        place = draw(st.integers(0, len(part)))
        if draw(st.booleans()):
            part[place : place + 1] = draw(st.binary(max_size=3))
        else:
            del part[place:]
    return bytes(record[0]), bytes(record[1])


ANY = st.one_of(
    commits(),
    mutated(),
    commits().map(lambda record: (record[0], None)),
    st.tuples(st.none() | st.binary(max_size=40), st.none() | st.binary(max_size=40)),
    st.tuples(st.sampled_from(range(26)).map(lambda kind: kind.to_bytes(2) + b"\0\1g"), st.just(b"\0\0")),
)


@pytest.mark.parametrize("kernel", [NATIVE, PLAIN], ids=["compiled", "plain"])
@given(st.lists(ANY, max_size=12))
@example([])
def test_records_are_what_the_tables_of_the_format_say(kernel: Any, records: list[Record]) -> None:
    check(records, kernel)


@given(st.lists(ANY, min_size=3, max_size=12), st.data())
def test_columns_that_are_slices_of_others_are_read_from_their_place(
    records: list[Record], data: st.DataObject
) -> None:
    first = data.draw(st.integers(1, len(records) - 1))
    keys, values = (pa.array([record[i] for record in records], pa.binary()).slice(first) for i in (0, 1))
    found = offset_records(NATIVE, keys, values)
    assert found.kinds.tolist() == [told(record)[0] for record in records[first:]]
    assert found.commits.column("group").to_pylist() == [
        row[0] for _, row in map(told, records[first:]) if row is not None
    ]


@given(st.binary(max_size=6))
@example("ü".encode())
@example(b"\xed\xa0\x80")
@example(b"\xf4\x90\x80\x80")
@example(b"\xc0\x80")
def test_text_is_utf_8_where_python_says_so(data: bytes) -> None:
    try:
        data.decode()
    except UnicodeDecodeError:
        expected = 0
    else:
        expected = 1
    assert PLAIN.is_utf8(np.frombuffer(data, np.uint8), 0, len(data)) == expected


def test_tagged_fields_that_are_not_known_are_skipped_and_wrong_ones_are_damage() -> None:
    key = encode_key(OffsetCommitKey(group="g", topic="t", partition=0))
    front = encode_value(OffsetCommitValue(offset=1, metadata="m", commit_timestamp=2), 4)[:-1]
    sections = [b"\1\5\2ab", b"\2\3\0\5\1x", b"\2\5\0\3\0", b"\1\0\2ab", b"\3\0\0", b"\1\5\x80\x80\x80\x80\x10"]
    check([(key, front + section) for section in sections], NATIVE)
    check([(key, front + section) for section in sections], PLAIN)
