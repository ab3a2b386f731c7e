"""HostInfo of SubscriptionInfo and AssignmentInfo: the address at which a process answers queries."""

from __future__ import annotations

from typing import NamedTuple

from roster.wire.errors import WireError
from roster.wire.streams.java_data import Cursor, int32, utf

NO_PORT = -1
MOST_PORT = 65_535


class HostInfo(NamedTuple):
    """Address at which a process answers queries; its text is `host:port`, with an IPv6 host in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_host(text: str, where: str) -> HostInfo:
    """Parse `host:port`. Raises WireError for text without a host or without a port from 0 to 65535."""
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host or "\0" in host or not (port.isascii() and port.isdecimal() and int(port) <= MOST_PORT):
        raise WireError(f"{where}: {text!r} is not host:port")
    return HostInfo(host, int(port))


def read_host(cursor: Cursor, field: str) -> HostInfo:
    """Read a host: Java's `utf` and an int32."""
    return HostInfo(cursor.utf(f"{field}.host"), cursor.int32(f"{field}.port"))


def host_bytes(host: HostInfo, field: str) -> bytes:
    """Encode a host: Java's `utf` and an int32."""
    return utf(host.host, f"{field}.host") + int32(host.port, f"{field}.port of {host.host}")
