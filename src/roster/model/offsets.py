"""Offsets of a partition's log, and committed offsets."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NamedTuple, TypeAlias

from roster._json import loads

PartitionOffsets: TypeAlias = Mapping[str, Mapping[int, tuple[int, int, int | None]]]
"""offsets[topic][partition] = (log start offset, log end offset, committed offset or None)."""


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A position to commit.

    `offset` is the next offset to read. `leader_epoch` is the leader epoch of the last record read (-1: unknown).
    `metadata` is any text of the application.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class Arrival(NamedTuple):
    """Records that a broker sent when they arrived: record batches of a partition from `start` up to before `next`.

    end: the log end, with `is_committed` the last stable offset. aborted: producer id and first offset of aborted
    transactions.
    """

    topic: str
    partition: int
    start: int
    next: int
    end: int
    is_committed: bool
    records: bytes = b""
    aborted: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """Offsets of a group's partition; None for those that are unknown or not committed."""

    committed: int | None
    end: int | None
    begin: int | None = None
    metadata: str = ""
    """The metadata committed with the offset."""

    @property
    def lag(self) -> int | None:
        """Number of records still to be read; None if unknown.

        Without a committed offset a member may start at either end of the log, so the lag is known only if it is empty.
        """
        if self.end is None:
            return None
        if self.committed is not None:
            return max(0, self.end - self.committed)
        return 0 if self.begin == self.end else None

    @property
    def lost(self) -> int:
        """Number of offsets that the log has deleted before they were read; 0 if unknown."""
        return 0 if self.committed is None or self.begin is None else max(0, self.begin - self.committed)


class OffsetSpec(IntEnum):
    """Special timestamps of ListOffsets. A timestamp of 0 or more (ms) asks for the first record at or after it."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    """The first record with the newest timestamp (KIP-734)."""
    EARLIEST_LOCAL = -4
    """The first offset on the broker's own disk (KIP-405)."""
    LATEST_TIERED = -5
    """The last offset in remote storage (KIP-1005)."""


class AutoOffsetReset(StrEnum):
    """Where a group starts in a partition without a committed offset (Kafka's `auto.offset.reset`).

    For the computation of lag, all values except `latest` mean the whole log.
    """

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"


AUTO_OFFSET_RESETS = "earliest, latest, none or by_duration: and an ISO 8601 duration, as in by_duration:PT1H"
_BY_DURATION = re.compile(r"by_duration:P(?=.)(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?", re.IGNORECASE | re.ASCII)


def is_auto_offset_reset(value: object) -> bool:
    """Return True for a value of Kafka's `auto.offset.reset`: one of `AutoOffsetReset`, or a duration (KIP-1106)."""
    return isinstance(value, str) and (value in tuple(AutoOffsetReset) or bool(_BY_DURATION.fullmatch(value)))


def check_auto_offset_reset(value: str) -> None:
    """Raise ValueError unless `is_auto_offset_reset`."""
    if not is_auto_offset_reset(value):
        raise ValueError(f"auto_offset_reset must be {AUTO_OFFSET_RESETS}, not {value!r}")


_REPARTITION = "state.repartition"


def repartition_note(folder: str) -> str:
    """Return the metadata of a group's offsets while `roster state repartition` changes its topics."""
    return json.dumps({_REPARTITION: folder})


def repartition_folder(metadata: str) -> str | None:
    """Return the folder that the metadata of an offset notes, None for other metadata."""
    try:
        folder = loads(metadata)[_REPARTITION]
    except (ValueError, KeyError, TypeError):
        return None
    return folder if isinstance(folder, str) else None
