"""Offsets: of a partition's log, and as committed by a group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
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


class OffsetSpec(IntEnum):
    """Special timestamps of ListOffsets; a timestamp from 0 up asks for the first record at or after it (ms)."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    """The first record with the newest timestamp (KIP-734)."""
    EARLIEST_LOCAL = -4
    """The first offset on the broker's own disk (KIP-405)."""
    LATEST_TIERED = -5
    """The last offset in remote storage (KIP-1005)."""


class AutoOffsetReset(StrEnum):
    """Start of a group in a partition without a committed offset (Kafka's `auto.offset.reset`)."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"


def check_auto_offset_reset(value: str) -> None:
    """Raise ValueError unless `value` is one of `AutoOffsetReset`."""
    if value not in tuple(AutoOffsetReset):
        raise ValueError(f"auto_offset_reset must be {', '.join(list(AutoOffsetReset)[:-1])} or none, not {value!r}")
