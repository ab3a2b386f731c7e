"""Offsets: of a partition's log, and as committed by a group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

PartitionOffsets: TypeAlias = Mapping[str, Mapping[int, tuple[int, int, int | None]]]
"""offsets[topic][partition] = (log start offset, log end offset, committed offset or None)."""


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A position to commit.

    `offset` is the next offset to read, `leader_epoch` the epoch it was read in (-1: unknown), `metadata` a text of
    the application's own.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
