"""`GroupSnapshot`: the leader's checked input when it computes the assignment."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from roster.model import AutoOffsetReset, PartitionOffsets
from roster.model.offsets import check_auto_offset_reset
from roster.model.problem import MAX_PARTITIONS

_INTEGER = (int, np.integer)
_COLUMNS_OF_OFFSETS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSnapshot:
    """A group's members and topics. Raises ValueError that names the field.

    subscriptions: {member id: subscription bytes}, as in the JoinGroup response.
    partitions: {topic: number of partitions}; topics missing here are not assigned.
    instance_ids: {member id: instance id} of static members.
    racks: `racks[topic][partition]`, the racks that hold a replica (KIP-881).
    generation: the generation being formed. Claims of this generation or a later one are from before the group's
    generations restarted, and yield to every other claim.
    offsets: `offsets[topic][partition]` = (log start, log end, committed or None); None if they are not available.
    auto_offset_reset: where members start without a committed offset, as `is_auto_offset_reset` knows it.
    """

    subscriptions: Mapping[str, bytes]
    partitions: Mapping[str, int]
    instance_ids: Mapping[str, str | None] | None = None
    racks: Mapping[str, Sequence[Collection[str]]] | None = None
    generation: int | None = None
    offsets: PartitionOffsets | None = None
    auto_offset_reset: str = AutoOffsetReset.LATEST

    def __post_init__(self) -> None:
        _check_mapping("subscriptions", self.subscriptions, (bytes,), "bytes")
        _check_partitions(self.partitions)
        if self.instance_ids is not None:
            _check_mapping("instance_ids", self.instance_ids, (str, type(None)), "text or None")
        if self.racks is not None:
            _check_racks(self.racks)
        if self.generation is not None and not _is_integer(self.generation):
            raise ValueError(f"generation must be a whole number or None, not {_shown(self.generation)}")
        if self.offsets is not None:
            _check_offsets(self.offsets)
        check_auto_offset_reset(self.auto_offset_reset)


def _check_mapping(field: str, value: object, kinds: tuple[type, ...], wanted: str) -> None:
    if not isinstance(value, Mapping):
        raise ValueError(f"{field} must be a mapping, not {_shown(value)}")
    for key, item in value.items():
        if not isinstance(key, str):
            raise ValueError(f"{field}: {_shown(key)} must be text")
        if not isinstance(item, kinds):
            raise ValueError(f"{field}[{key!r}] must be {wanted}, not {_shown(item)}")


def _check_partitions(partitions: Mapping[str, int]) -> None:
    _check_mapping("partitions", partitions, (object,), "")
    total = 0
    for topic, count in partitions.items():
        if not _is_integer(count) or count < 0:
            raise ValueError(f"partitions[{topic!r}] must be a whole number from 0 up, not {_shown(count)}")
        total += int(count)
    if total > MAX_PARTITIONS:
        raise ValueError(f"partitions: {total} in all; at most {MAX_PARTITIONS} can be assigned")


def _check_racks(racks: Mapping[str, Sequence[Iterable[object]]]) -> None:
    _check_mapping("racks", racks, (Sequence,), "a list of the racks of each partition")
    for topic, replicas in racks.items():
        if isinstance(replicas, str | bytes):
            raise ValueError(f"racks[{topic!r}] must be a list of the racks of each partition, not {_shown(replicas)}")
        for kind in _types(replicas):
            if issubclass(kind, str | bytes) or not issubclass(kind, Collection):
                raise ValueError(f"racks[{topic!r}] must have a set of racks per partition, not a {kind.__name__}")


def _check_offsets(offsets: Mapping[str, Mapping[int, object]]) -> None:
    _check_mapping("offsets", offsets, (Mapping,), "a mapping of partitions")
    for topic, known in offsets.items():
        for partition, entry in known.items():
            if not _is_integer(partition):
                raise ValueError(f"offsets[{topic!r}]: {_shown(partition)} must be a partition number")
            if not _is_offsets(entry):
                raise ValueError(
                    f"offsets[{topic!r}][{partition}] must be (log start, log end, committed or None),"
                    f" not {_shown(entry)}"
                )


def _is_offsets(entry: object) -> bool:
    if not isinstance(entry, tuple | list) or len(entry) != _COLUMNS_OF_OFFSETS:
        return False
    start, end, committed = entry
    return _is_integer(start) and _is_integer(end) and (committed is None or _is_integer(committed))


def _is_integer(value: object) -> bool:
    return isinstance(value, _INTEGER) and not isinstance(value, bool)


def _types(values: Iterable[object]) -> set[type]:
    return set(map(type, values))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
