"""Committed offsets in records of `__consumer_offsets`, from Arrow columns to Arrow columns."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roster.model.arrays import Bool, UInt8
from roster.wire.columns import offsets_layout as layout
from roster.wire.columns.kernel import Kernel
from roster.wire.columns.writer import binary_parts


class OffsetRecords(NamedTuple):
    """Kinds of records of `__consumer_offsets`, and the commits among them."""

    kinds: UInt8
    """For each record COMMIT, REMOVED, GROUP, OTHER, NEWER or DAMAGED, of `roster.wire.columns.offsets_layout`."""
    commits: pa.RecordBatch
    """The records of kind COMMIT and REMOVED: group, topic, partition, offset, leader_epoch, metadata, committed_at and
    expires_at (wall-clock ms). After a tombstone all but the first three are null, as are an absent leader epoch and
    expiry."""


def offset_records(kernel: Kernel, keys: pa.Array, values: pa.Array) -> OffsetRecords:
    """Read columns of binary keys and values; a record that cannot be read is of a kind that says so."""
    rows = len(keys)
    key_ends, key_bytes, key_valid = binary_parts(keys)
    value_ends, value_bytes, value_valid = binary_parts(values)
    kinds, numbers = np.empty(rows, np.uint8), np.empty((rows, layout.FIELDS), np.int64)
    ends = [np.zeros(rows + 1, np.int32) for _ in range(3)]
    key_size, value_size = (int(ends_of[-1]) - int(ends_of[0]) for ends_of in (key_ends, value_ends))
    texts = [np.empty(size, np.uint8) for size in (key_size, key_size, value_size)]
    outputs = [array for pair in zip(ends, texts, strict=True) for array in pair]
    commits = kernel.offset_commits(
        *(rows, key_ends, key_bytes, key_valid, value_ends, value_bytes, value_valid, kinds, numbers.reshape(-1)),
        *outputs,
    )
    numbers = numbers[:commits]
    removed = kinds[(kinds == layout.COMMIT) | (kinds == layout.REMOVED)] == layout.REMOVED
    group, topic, metadata = (
        pa.Array.from_buffers(
            pa.string(), commits, [None, pa.py_buffer(end[: commits + 1]), pa.py_buffer(data[: end[commits]])]
        )
        for end, data in zip(ends, texts, strict=True)
    )
    if removed.any():
        metadata = pc.if_else(pa.array(~removed), metadata, None)

    def column(index: int, kind: pa.DataType, is_null: Bool) -> pa.Array:
        return pa.array(numbers[:, index], mask=is_null | removed).cast(kind, safe=False)

    never = np.zeros(commits, bool)
    columns = {
        "group": group,
        "topic": topic,
        "partition": pa.array(numbers[:, layout.PARTITION]).cast(pa.int32(), safe=False),
        "offset": column(layout.OFFSET, pa.int64(), never),
        "leader_epoch": column(layout.LEADER_EPOCH, pa.int32(), numbers[:, layout.LEADER_EPOCH] == -1),
        "metadata": metadata,
        "committed_at": column(layout.COMMITTED_AT, pa.int64(), never),
        "expires_at": column(layout.EXPIRES_AT, pa.int64(), numbers[:, layout.EXPIRES_AT] == -1),
    }
    return OffsetRecords(kinds, pa.RecordBatch.from_pydict(columns))
