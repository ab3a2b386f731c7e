"""The history of one run as readable lines, and its hash."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING
from zlib import crc32

from roster.wire.messages import JoinGroupRequest, JoinGroupResponse, SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    from roster.wire import Message

BYTES_SHOWN = 60


class History:
    """Lines of what happened, kept only if they are wanted: writing them takes longer than the run."""

    def __init__(self, clock: Callable[[], int], *, wanted: bool) -> None:
        self.wanted = wanted
        self.lines: list[str] = []
        self._clock = clock

    def note(self, who: str, text: str) -> None:
        """Add a line."""
        if self.wanted:
            self.lines.append(f"{self._clock():>7} ms  {who:<10} {text}")

    def request(self, client: str, node: str, message: Message, frame: bytes) -> None:
        """Add a request that is sent."""
        self.note(client, f"→ {node}  {described(message)}  #{crc32(frame):08x}")

    def answer(self, node: str, client: str, message: Message, frame: bytes) -> None:
        """Add a response that is sent."""
        self.note(node, f"→ {client}  {described(message)}  #{crc32(frame):08x}")

    def step(self, node: str, state: str, event: str) -> None:
        """Add a step of a coordinator."""
        self.note(node, f"[{state}] {event}")

    @property
    def digest(self) -> str:
        """Hash of all lines, which have a checksum of each frame."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()[:16]


def described(message: Message) -> str:
    """Describe a message in one line, without the bytes of metadata and assignments."""
    name = type(message).__name__
    match message:
        case JoinGroupRequest():
            protocols = ", ".join(protocol.name for protocol in message.protocols)
            instance = f" instance={message.group_instance_id}" if message.group_instance_id else ""
            return f"{name} member={message.member_id!r}{instance} [{protocols}] {message.reason or ''}"
        case JoinGroupResponse():
            leads = " leads" if message.leader == message.member_id and message.member_id else ""
            return (
                f"{name} {error_of(message)}generation={message.generation_id} member={message.member_id!r} "
                f"protocol={message.protocol_name}{leads}"
            )
        case SyncGroupRequest():
            return f"{name} generation={message.generation_id} member={message.member_id!r} {len(message.assignments)}"
        case SyncGroupResponse():
            return f"{name} {error_of(message)}{len(message.assignment)} bytes"
    text = repr(message)
    return text if len(text) <= 4 * BYTES_SHOWN else text[: 4 * BYTES_SHOWN] + "…"


def error_of(message: JoinGroupResponse | SyncGroupResponse) -> str:
    """Return the error of a response, if it has one."""
    return f"error={message.error_code} " if message.error_code else ""
