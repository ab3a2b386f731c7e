"""Committed offsets decoded from records of `__consumer_offsets`: by columns, and one by one."""

from __future__ import annotations

import time

import pyarrow as pa

from roster.records import native
from roster.wire.columns.offsets import offset_records
from roster.wire.offsets_topic import (
    OffsetCommitKey,
    OffsetCommitValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)

RECORDS = 1_000_000


def records(count: int) -> tuple[list[bytes], list[bytes]]:
    """Keys and values of commits of many groups, as a coordinator writes them."""
    keys = [
        encode_key(OffsetCommitKey(group=f"team{i % 20}.group-{i % 997}", topic=f"topic-{i % 31}", partition=i % 12))
        for i in range(count)
    ]
    values = [
        encode_value(OffsetCommitValue(offset=i, leader_epoch=3, metadata="", commit_timestamp=1_790_000_000_000 + i))
        for i in range(count)
    ]
    return keys, values


def run(*, quick: bool) -> None:
    """Print the rates."""
    count = RECORDS // 10 if quick else RECORDS
    keys, values = records(count)
    columns = pa.array(keys, pa.binary()), pa.array(values, pa.binary())
    kernel = native.kernel(None, native.OFFSETS)
    offset_records(kernel, *columns)
    best = min(_seconds(lambda: offset_records(kernel, *columns)) for _ in range(5))
    print(f"by columns  {count / best / 1e6:6.2f} million records/s of a core")
    few = count // 10
    one_by_one = _seconds(lambda: [decode_value(decode_key(keys[i]), values[i]) for i in range(few)])  # type: ignore[arg-type]
    print(f"one by one  {few / one_by_one / 1e6:6.2f}")


def _seconds(function: object) -> float:
    begin = time.process_time()
    function()  # type: ignore[operator]
    return time.process_time() - begin


if __name__ == "__main__":
    run(quick=False)
