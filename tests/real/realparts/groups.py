"""What tests of whole groups say again and again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.real.realparts.clients import Member
from tests.real.realparts.cluster import Cluster, Partition
from tests.waiting import until


def partitions(topic: str, count: int) -> set[Partition]:
    """All partitions of a topic."""
    return {(topic, partition) for partition in range(count)}


def none_failed(members: Sequence[Member]) -> None:
    """Every member still goes on; AssertionError with what ended it."""
    failed = [(member.id, member.error) for member in members if member.error is not None]
    assert not failed, failed


def shared_out(members: Sequence[Member], wanted: Iterable[Partition], timeout: float = 90.0) -> None:
    """Wait until the members own these partitions, each exactly one, as evenly as counts allow."""
    everything = set(wanted)
    low, extra = divmod(len(everything), len(members))

    def fair() -> bool:
        none_failed(members)
        owned = [partition for member in members for partition in member.owned]
        counts = {len(member.owned) for member in members}
        return sorted(owned) == sorted(everything) and counts <= {low, low + bool(extra)}

    until(fair, timeout, lambda: f"sharing {len(everything)} partitions: {list(members)}")


def consumed_up_to(members: Sequence[Member], ends: dict[Partition, int], timeout: float = 90.0) -> None:
    """Wait until the members, whichever it was, have consumed each partition up to that offset."""

    def done() -> bool:
        none_failed(members)
        reached: dict[Partition, int] = {}
        for member in members:
            for partition, position in list(member.positions.items()):
                reached[partition] = max(position, reached.get(partition, 0))
        return all(reached.get(partition) == end for partition, end in ends.items())

    until(done, timeout, lambda: [(member.id, sorted(member.positions.items())) for member in members])


def commit_all(cluster: Cluster, group: str, members: Sequence[Member], ends: dict[Partition, int]) -> None:
    """Let every member commit (kcat does by itself) until the group's offsets are these.

    An owner that took a partition over may still be on its way to the end when it is first asked.
    """

    def committed() -> bool:
        for member in members:
            if member.kind != "kcat":
                member.commit()
        return cluster.committed(group) == ends

    until(committed, 60, lambda: cluster.committed(group))


def consumed_since(members: Sequence[Member], marks: dict[str, int]) -> list[tuple[str, int, int, int]]:
    """What the members consumed since `marks_of`."""
    return [piece for member in members for piece in member.consumed[marks.get(member.id, 0) :]]


def marks_of(members: Sequence[Member]) -> dict[str, int]:
    """Where each member's story stands now."""
    return {member.id: len(member.consumed) for member in members}
