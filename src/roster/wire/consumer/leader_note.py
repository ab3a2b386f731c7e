"""What only a group's leader knows of a rebalance: cause, phases, reasons of moves, proof; in its own assignment.

The note stands at the end of the user data of the leader's assignment, behind what the assignor put there:

    user data   the assignor's · note · length of the note int32 · "RLDR"

The coordinator stores assignments in `__consumer_offsets` and shows them in DescribeGroups, so whoever may read either
can read the note; no member but the leader receives it.
"""

from __future__ import annotations

from struct import Struct as Packing
from struct import error as StructError  # noqa: N812 - beside Struct of the codec

from roster.wire.codec.codec import decode, encode
from roster.wire.codec.fields import array, bytes_, int32, string
from roster.wire.codec.table import Message, Struct
from roster.wire.errors import WireError

MAGIC = b"RLDR"
MAX_SIZE = 16_384
"""Most bytes of moves in a note; with more they are counted only."""

_SHORT, _INT = Packing(">h"), Packing(">i")
_TAIL = Packing(">i4s")


class LeaderNote(Message, versions="0"):
    """A note on the generation that its leader assigned."""

    class Moves(Struct):
        """Partitions of a topic that change owner, this round or the next, for one reason.

        partitions: partition n is bit n % 8 of byte n // 8.
        """

        topic: str = string()
        why: str = string()
        partitions: bytes = bytes_()

    generation: int = int32()
    cause: str = string()
    """Value of `roster.member.causes.Cause`."""
    reason: str = string()
    """Why the leader joined again, in words; "" if because others did."""
    join_ms: int = int32()
    """From the leader's JoinGroup to its response."""
    assign_ms: int = int32()
    """From there to the leader's SyncGroup."""
    proof: str | None = string(nullable="0+", default=None)
    """"" if no plan is better, else what one would improve; None if it was not looked for."""
    moved: int = int32()
    moves: list[Moves] = array(Moves)
    """All partitions that change owner; empty if they take more than MAX_SIZE bytes."""


def append_note(assignment: bytes, note: LeaderNote) -> bytes:
    """Return an assignment with a note in its user data. Raises WireError."""
    begin, data = _user_data(assignment)
    body = encode(note, 0)
    user_data = b"".join((data or b"", body, _TAIL.pack(len(body), MAGIC)))
    return b"".join((assignment[:begin], _INT.pack(len(user_data)), user_data))


def read_note(assignment: bytes) -> LeaderNote | None:
    """Return the note in an assignment; None if there is none that can be read."""
    if not assignment.endswith(MAGIC):
        return None
    try:
        return split_note(_user_data(assignment)[1])[1]
    except WireError:
        return None


def split_note(user_data: bytes | None) -> tuple[bytes | None, LeaderNote | None]:
    """Return the assignor's user data, and the note behind it; None for each that is not there."""
    if user_data is None or not user_data.endswith(MAGIC) or len(user_data) < _TAIL.size:
        return user_data, None
    end = len(user_data) - _TAIL.size
    size, _ = _TAIL.unpack_from(user_data, end)
    if not 0 <= size <= end:
        return user_data, None
    try:
        note = decode(LeaderNote, 0, user_data[end - size : end])
    except WireError:
        return user_data, None
    return user_data[: end - size] or None, note


def _user_data(assignment: bytes) -> tuple[int, bytes | None]:
    """Return where the user data begin with their length, and themselves; no partition is looked at."""
    try:
        (topics,), position = _INT.unpack_from(assignment, 2), 6
        for _ in range(topics):
            for length, width in ((_SHORT, 1), (_INT, 4)):
                (count,) = length.unpack_from(assignment, position)
                if count < 0:
                    raise WireError(f"assignment: {count} at {position}")
                position += length.size + count * width
        (size,) = _INT.unpack_from(assignment, position)
    except StructError as error:
        raise WireError(f"assignment: {error}") from error
    begin = position + _INT.size
    if size > len(assignment) - begin:
        raise WireError(f"assignment: {size} bytes of user data at {position}, there are {len(assignment) - begin}")
    return position, None if size < 0 else assignment[begin : begin + size]
