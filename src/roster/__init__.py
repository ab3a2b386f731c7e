"""Roster: a PySpark application as an ordinary member of a Kafka consumer group."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from roster._version import __version__

if TYPE_CHECKING:
    from roster.assignors import Assignor

__all__ = ["__version__", "lead"]


def lead(
    assignor: str | Assignor,
    subscriptions: Mapping[str, bytes],
    partitions: Mapping[str, int],
    *,
    instance_ids: Mapping[str, str | None] | None = None,
    racks: Mapping[str, Sequence[Collection[str]]] | None = None,
    generation: int | None = None,
    offsets: Mapping[str, Mapping[int, tuple[int, int, int | None]]] | None = None,
    auto_offset_reset: str = "latest",
) -> dict[str, bytes]:
    """Do a group leader's whole duty: {member id: subscription bytes} to {member id: assignment bytes}.

    See `roster.member.assign_group.lead`, which this calls; it is loaded, and numpy with it, on the first call.
    """
    duty = import_module("roster.member.assign_group")  # by name: the package itself depends on none of its rooms
    assigned: dict[str, bytes] = duty.lead(
        assignor,
        subscriptions,
        partitions,
        instance_ids=instance_ids,
        racks=racks,
        generation=generation,
        offsets=offsets,
        auto_offset_reset=auto_offset_reset,
    )
    return assigned
