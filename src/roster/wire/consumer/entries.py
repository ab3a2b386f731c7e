"""Lists of topics and partitions in many byte strings at once, read as columns.

Lists of unknown length are read in lock-step: one numpy step reads the next entry of every member. When few members are
left, the rest is read one by one. Every count and length is first compared with the remaining bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct

import numpy as np

from roster.model.arrays import Bool, Int32, Int64
from roster.wire.consumer.topic_index import TopicIndex, WordBuffer

_LOCKSTEP_MIN = 48
"""Below this many members a Python loop over entries is faster than numpy steps over members."""

_int16 = Struct(">h")
_int32 = Struct(">i")


@dataclass(frozen=True, slots=True, eq=False)
class ListedPartitions:
    """Rows of topic-partition lists: in row i, `member[i]` lists partition `number[i]` of topic `topic[i]`."""

    member: Int32
    topic: Int32
    number: Int32


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Entries of many lists: the list (row) of each, the position of its name and of its partition numbers."""

    row: Int32
    name: Int64
    name_length: Int64
    numbers: Int64
    number_count: Int64

    def where(self, keep: Bool) -> "Entries":
        """Return the entries where `keep` is True."""
        return Entries(
            self.row[keep], self.name[keep], self.name_length[keep], self.numbers[keep], self.number_count[keep]
        )


def read_lists(buffer: WordBuffer, start: Int64, end: Int64, *, with_numbers: bool) -> tuple[Entries, Int64]:
    """Read one list per row, of names or of names with partition numbers; return entries and the position after each.

    The list of row i starts at `start[i]` with its count and must end by `end[i]`; if it does not, its position is -1.
    """
    fixed = 6 if with_numbers else 2
    rows = len(start)
    after = np.full(rows, -1, dtype=np.int64)
    row = np.flatnonzero(start + 4 <= end)
    left = buffer.int32[start[row]].astype(np.int64)
    sane = (left >= 0) & (left * fixed <= end[row] - start[row] - 4)
    row, left = row[sane], left[sane]
    position, limit = start[row] + 4, end[row]
    nothing = np.zeros(len(row), dtype=np.int64)
    steps: list[tuple[Int64, Int64, Int64, Int64, Int64]] = []
    while True:
        if not left.all():
            more = left > 0
            after[row[~more]] = position[~more]
            row, left, position, limit = row[more], left[more], position[more], limit[more]
        if len(row) < _LOCKSTEP_MIN:
            break
        length = buffer.int16[position].astype(np.int64)
        name = position + 2
        numbers = name + length
        intact = (length >= 0) & (numbers + fixed - 2 <= limit)
        count = nothing[: len(row)]
        if with_numbers:
            count = buffer.int32[np.where(intact, numbers, 0)].astype(np.int64)
            numbers += 4
            intact &= (count >= 0) & (numbers + 4 * count <= limit)
        if not intact.all():
            row, left, limit = row[intact], left[intact], limit[intact]
            name, length, numbers, count = name[intact], length[intact], numbers[intact], count[intact]
        steps.append((row, name, length, numbers, count))
        position = numbers + 4 * count if with_numbers else numbers
        left = left - 1
    tail = _read_one_by_one(buffer.data, row, left, position, limit, after, with_numbers=with_numbers)
    if steps:
        columns = [np.concatenate(column) for column in zip(*steps, strict=True)]
        columns = [np.concatenate((a, b)) for a, b in zip(columns, tail, strict=True)] if len(tail[0]) else columns
    else:
        columns = list(tail)
    entries = Entries(columns[0].astype(np.int32), *columns[1:])
    intact_rows = after >= 0
    if not intact_rows.all():
        entries = entries.where(intact_rows[entries.row])
    return entries, after


def listed_topics(messages: Sequence[bytes], *, with_numbers: bool) -> set[str]:
    """Return the names in the lists after the versions of subscriptions, or of assignments (`with_numbers`).

    Lists that cannot be read are passed over.
    """
    buffer = WordBuffer(messages)
    end = np.cumsum(np.fromiter(map(len, messages), dtype=np.int64, count=len(messages)))
    start = np.append(0, end)[:-1] + 2
    entries, _ = read_lists(buffer, start, end, with_numbers=with_numbers)
    spans = zip(entries.name.tolist(), (entries.name + entries.name_length).tolist(), strict=True)
    return {name.decode("utf-8", "replace") for name in {buffer.data[begin:stop] for begin, stop in spans}}


def _read_one_by_one(
    data: bytes, rows: Int64, counts: Int64, positions: Int64, limits: Int64, after: Int64, *, with_numbers: bool
) -> tuple[Int64, Int64, Int64, Int64, Int64]:
    """Read the lists of a few rows entry by entry; write `after` for those that are intact."""
    rows_read: list[tuple[int, int, int, int, int]] = []
    count = 0
    for row, left, begin, limit in zip(*(a.tolist() for a in (rows, counts, positions, limits)), strict=True):
        position = begin
        for _ in range(left):
            if position + 2 > limit:
                break
            length = _int16.unpack_from(data, position)[0]
            name = position + 2
            position = name + length
            if length < 0 or position > limit:
                break
            if with_numbers:
                if position + 4 > limit:
                    break
                count = _int32.unpack_from(data, position)[0]
                position += 4
                if count < 0 or position + 4 * count > limit:
                    break
            rows_read.append((row, name, length, position, count))
            position += 4 * count
        else:
            after[row] = position
    columns = np.array(rows_read, dtype=np.int64).reshape(-1, 5).T
    return columns[0], columns[1], columns[2], columns[3], columns[4]


def listed_partitions(buffer: WordBuffer, entries: Entries, names: TopicIndex) -> ListedPartitions:
    """Return every partition number of the entries with its member and topic; unknown topics are left out."""
    topic = names.find(buffer, entries.name, entries.name_length)
    known = topic >= 0
    row, start, count = entries.row, entries.numbers, entries.number_count
    if not known.all():
        row, start, count, topic = row[known], start[known], count[known], topic[known]
    if len(count) and (count == 1).all():
        return ListedPartitions(row, topic, buffer.int32[start].astype(np.int32))
    index = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    number = buffer.int32[np.repeat(start, count) + 4 * index].astype(np.int32)
    return ListedPartitions(np.repeat(row, count), np.repeat(topic, count), number)
