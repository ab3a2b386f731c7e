"""The empty assignment that a Roster leader sends, with the reason, if it cannot compute one.

SyncGroup has no field for an error of the leader. So every member gets an empty assignment whose user data is
`FAILURE_MAGIC` followed by the reason in UTF-8. Roster's coordinator and members recognise it; for any other client it
is an empty assignment.
"""

from __future__ import annotations

from roster.wire.consumer.messages import Assignment, decode_assignment, encode_assignment
from roster.wire.errors import WireError

FAILURE_MAGIC = b"\xffroster-assignment-failure\x00"
"""Its first byte begins neither UTF-8 text nor a plausible count."""
MAX_FAILURE_BYTES = 4096


def failure_assignment(reason: str) -> bytes:
    """Encode an empty assignment with the reason."""
    text = reason.encode(errors="replace")[:MAX_FAILURE_BYTES].decode(errors="ignore")
    return encode_assignment(Assignment(assigned_partitions=[], user_data=FAILURE_MAGIC + text.encode()))


def failure_reason(assignment: bytes) -> str | None:
    """Return the reason in such an assignment; None for any other assignment."""
    if FAILURE_MAGIC not in assignment:
        return None
    try:
        user_data = decode_assignment(assignment).user_data
    except WireError:
        return None
    if user_data is None or not user_data.startswith(FAILURE_MAGIC):
        return None
    return user_data[len(FAILURE_MAGIC) :].decode(errors="replace")
