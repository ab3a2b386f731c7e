"""A committed position."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """The next offset to read, the leader epoch it was read in (-1: unknown), and a text of the application's own."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
