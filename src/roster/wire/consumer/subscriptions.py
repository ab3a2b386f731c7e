"""Subscriptions of a whole group, decoded into columns with no Python loop per partition.

    Subscription   int16 version · topics [string] · user data bytes? · v1+ owned [topic string, [int32]]
                   · v2+ generation int32 · v3+ rack string?

Non-flexible, big-endian; a version above 3 is read as 3 without its additional bytes (ConsumerProtocolSubscription).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from roster.model import NO_GENERATION
from roster.model.arrays import Bool, Int32, Int64
from roster.wire.consumer.entries import ListedPartitions, listed_partitions, read_lists
from roster.wire.consumer.messages import HIGHEST_VERSION
from roster.wire.consumer.topic_index import TopicIndex, WordBuffer

_WINDOWS = (16, 64, 1024)
"""Prefix lengths that group identical topic lists, one per pass. The remaining lists, and mostly distinct ones, are
decoded one by one."""


@dataclass(frozen=True, slots=True, eq=False)
class SubscriptionColumns:
    """Subscriptions of a group as columns, with members in the given order and topics as indices into the given names.

    sections: distinct topic lists as topic indices, without unknown topics. section_of: [members] index of its list.
    user_data: per member, None where null.
    owned: entries of the v1+ field. generation: [members] the v2+ field, -1 if absent.
    racks: the v3 field of each member, None if absent or empty.
    readable: [members] False if the subscription cannot be decoded; the member then has no topics and no partitions.
    """

    sections: list[Int32]
    section_of: Int32
    user_data: list[bytes | None]
    owned: ListedPartitions
    generation: Int32
    racks: list[str | None]
    readable: Bool


def decode_subscriptions(subscriptions: Sequence[bytes], names: TopicIndex) -> SubscriptionColumns:
    """Decode the subscriptions of a group's members. Never raises; invalid ones are not `readable`."""
    buffer = WordBuffer(subscriptions)
    size = np.fromiter(map(len, subscriptions), dtype=np.int64, count=len(subscriptions))
    end = np.cumsum(size)
    start = end - size
    long_enough = size >= 2
    version = np.full(len(size), -1, dtype=np.int64)
    version[long_enough] = buffer.int16[start[long_enough]]
    readable = version >= 0
    version = np.minimum(version, HIGHEST_VERSION)

    sections, section_of, after = _topic_sections(subscriptions, readable, buffer, start, end, names)
    user_data, position = _user_data(buffer, after, end)
    lists_owned = np.flatnonzero((position >= 0) & (version >= 1))
    entries, after_owned = read_lists(buffer, position[lists_owned], end[lists_owned], with_numbers=True)
    position[lists_owned] = after_owned
    generation, racks = _tails(buffer, version, position, end)
    readable = position >= 0
    section_of[~readable] = 0
    generation[~readable] = NO_GENERATION
    for m in np.flatnonzero(~readable).tolist():
        user_data[m] = racks[m] = None
    entries = replace(entries, row=lists_owned[entries.row].astype(np.int32))
    if not readable.all():
        keep = readable[entries.row]
        entries = entries.where(keep)
    return SubscriptionColumns(
        sections, section_of, user_data, listed_partitions(buffer, entries, names), generation, racks, readable
    )


def _topic_sections(
    subscriptions: Sequence[bytes], readable: Bool, buffer: WordBuffer, start: Int64, end: Int64, names: TopicIndex
) -> tuple[list[Int32], Int32, Int64]:
    """Return distinct topic lists, each member's list, and the position after it (-1 if invalid). List 0 is empty.

    Most members send the same list. Of members whose lists have the same prefix, one list is decoded, and its bytes are
    compared with the others; those that differ are read in the next round.
    """
    sections: list[Int32] = [np.zeros(0, dtype=np.int32)]
    section_of, after = [0] * len(start), [-1] * len(start)
    starts = start.tolist()
    waiting = np.flatnonzero(readable).tolist()
    for window in (*_WINDOWS, None):
        if not waiting:
            break
        alike: dict[bytes | int, list[int]] = {}
        if window is not None:
            for m in waiting:
                alike.setdefault(subscriptions[m][2 : 2 + window], []).append(m)
        if window is None or 2 * len(alike) > len(waiting):
            alike = {m: [m] for m in waiting}
        readers = np.array([group[0] for group in alike.values()], dtype=np.int64)
        entries, ends = read_lists(buffer, start[readers] + 2, end[readers], with_numbers=False)
        topic = names.find(buffer, entries.name, entries.name_length)
        row, topic = entries.row[topic >= 0], topic[topic >= 0]
        topic = topic[np.argsort(row, kind="stable")]
        bounds = [0, *np.cumsum(np.bincount(row, minlength=len(readers))).tolist()]
        waiting = []
        for group, position, (begin, stop) in zip(alike.values(), ends.tolist(), pairwise(bounds), strict=True):
            reader = group[0]
            if position < 0:
                waiting += group[1:]
                continue
            length = position - starts[reader]
            section = subscriptions[reader][2:length]
            number = len(sections)
            sections.append(topic[begin:stop])
            for m in group:
                if subscriptions[m].startswith(section, 2):
                    section_of[m] = number
                    after[m] = starts[m] + length
                else:
                    waiting.append(m)
    return sections, np.array(section_of, dtype=np.int32), np.array(after, dtype=np.int64)


def _user_data(buffer: WordBuffer, begin: Int64, end: Int64) -> tuple[list[bytes | None], Int64]:
    """Return the user data at `begin`, None where it is null, and the position after it, -1 where it is invalid."""
    user_data: list[bytes | None] = [None] * len(begin)
    intact = np.flatnonzero((begin >= 0) & (begin + 4 <= end))
    length = np.maximum(buffer.int32[begin[intact]].astype(np.int64), -1)
    position = np.full(len(begin), -1, dtype=np.int64)
    position[intact] = begin[intact] + 4 + np.maximum(length, 0)
    position[position > end] = -1
    for m, size in zip(intact[length >= 0].tolist(), length[length >= 0].tolist(), strict=True):
        after = int(position[m])
        if after >= 0:
            user_data[m] = buffer.data[after - size : after]
    return user_data, position


def _tails(buffer: WordBuffer, version: Int64, position: Int64, end: Int64) -> tuple[Int32, list[str | None]]:
    """Return the generations and racks after the owned partitions; set the position to -1 where they are invalid."""
    generation = np.full(len(version), NO_GENERATION, dtype=np.int32)
    racks: list[str | None] = [None] * len(version)
    position[(position >= 0) & (position + 4 * (version >= 2) + 2 * (version >= 3) > end)] = -1
    dated = np.flatnonzero((position >= 0) & (version >= 2))
    generation[dated] = np.maximum(buffer.int32[position[dated]], NO_GENERATION)
    racked = np.flatnonzero((position >= 0) & (version >= 3))
    rack = position[racked] + 6
    length = buffer.int16[rack - 2].astype(np.int64)
    position[racked[rack + length > end[racked]]] = -1
    named = length > 0
    for m, begin, size in zip(*(column[named].tolist() for column in (racked, rack, length)), strict=True):
        if position[m] >= 0:
            racks[m] = buffer.data[begin : begin + size].decode("utf-8", "replace")
    return generation, racks
