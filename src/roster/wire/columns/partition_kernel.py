"""The loop that chooses the partition of each row, as Kafka's Java client does, and sorts rows by it.

A key decides by its murmur2 hash; rows without a key fill one partition after the other. Columns are as in
`encode_kernel`.

Source: KIP-480, KIP-794.
"""

from numba import njit
from numpy import int64

from roster.wire.columns import encode_layout as layout
from roster.wire.columns.decode_kernel import OPTIONS
from roster.wire.columns.murmur2 import murmur2 as plain_murmur2

_function = njit(**OPTIONS)


murmur2 = _function(plain_murmur2)


@_function
def place(
    rows,
    key_ends,
    keys,
    key_valid,
    value_ends,
    values,
    value_valid,
    with_headers,
    header_ends,
    header_valid,
    name_ends,
    names,
    data_ends,
    datas,
    data_valid,
    given,
    partitions,
    sticky_bytes,
    state,
    places,
    sizes,
    starts,
    order,
):
    """Fill `places` (partitions), `sizes` (maximum size of each record), and `order` (rows by partition, then as
    given).

    A given partition (not negative) stays; rows with a key go to the partition of its hash; rows without fill one
    partition with `sticky_bytes`, then the next. `starts` (one more than `partitions`) gets the begin of each
    partition's rows in `order`. Returns DONE, or BAD_PARTITION with the row in the state.
    """
    for partition in range(partitions + 1):
        starts[partition] = 0
    for row in range(rows):
        size = int64(layout.RECORD_OVERHEAD)
        if key_valid[row]:
            size += int64(key_ends[row + 1]) - int64(key_ends[row])
        if value_valid[row]:
            size += int64(value_ends[row + 1]) - int64(value_ends[row])
        if with_headers and header_valid[row]:
            for header in range(header_ends[row], header_ends[row + 1]):
                size += layout.HEADER_OVERHEAD + int64(name_ends[header + 1]) - int64(name_ends[header])
                if data_valid[header]:
                    size += int64(data_ends[header + 1]) - int64(data_ends[header])
        sizes[row] = size
        chosen = int64(given[row])
        if chosen >= partitions:
            state[layout.PLACE_DETAIL] = row
            return layout.BAD_PARTITION
        if chosen < 0:
            if key_valid[row]:
                chosen = (murmur2(keys, int64(key_ends[row]), int64(key_ends[row + 1])) & 0x7FFFFFFF) % partitions
            else:
                if state[layout.STICKY_LEFT] <= 0:
                    state[layout.STICKY] = (state[layout.STICKY] + 1) % partitions
                    state[layout.STICKY_LEFT] = sticky_bytes
                state[layout.STICKY_LEFT] -= size
                chosen = int64(state[layout.STICKY])
        places[row] = chosen
        starts[chosen + 1] += 1
    for partition in range(partitions):
        starts[partition + 1] += starts[partition]
    for row in range(rows):
        order[starts[places[row]]] = row
        starts[places[row]] += 1
    for partition in range(partitions, 0, -1):
        starts[partition] = starts[partition - 1]
    starts[0] = 0
    return layout.DONE
