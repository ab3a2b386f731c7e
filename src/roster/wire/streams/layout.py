"""What SubscriptionInfo and AssignmentInfo share: the two layouts that version 5 has, tasks as rows, and HostInfo.

KIP-429 part II gives the number 5 to messages that Kafka Streams never shipped; Kafka Streams 2.4 gives it to others.
Readers here take the document's layout first and Kafka's where the bytes are none of the document's. As long as
sub-topologies, partitions, counts and dictionary indices stay below 65,536, no message of Kafka Streams with a
`host:port` endpoint (or without one) is read as the document's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, TypeVar

import numpy as np

from roster.wire.errors import WireError
from roster.wire.streams.java_data import Cursor, int32, utf

T = TypeVar("T")

TASK = np.dtype([("subtopology", ">i4"), ("partition", ">i4")])

NO_PORT = -1
MOST_PORT = 65_535


class Layout(Enum):
    """Who laid out a message of version 5; the versions below have one layout only."""

    KIP_429 = "KIP-429 part II"
    KAFKA_STREAMS = "Kafka Streams 2.4"


class HostInfo(NamedTuple):
    """Address at which a process answers queries; as text `host:port`, an IPv6 host in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_host(text: str, where: str) -> HostInfo:
    """Read `host:port`; raises WireError for text without a host or without a port from 0 to 65535."""
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host or "\0" in host or not (port.isascii() and port.isdecimal() and int(port) <= MOST_PORT):
        raise WireError(f"{where}: {text!r} is not host:port")
    return HostInfo(host, int(port))


def read_host(cursor: Cursor, field: str) -> HostInfo:
    """Read Java's text and an int32."""
    return HostInfo(cursor.utf(f"{field}.host"), cursor.int32(f"{field}.port"))


def host_bytes(host: HostInfo, field: str) -> bytes:
    """Java's text and an int32."""
    return utf(host.host, f"{field}.host") + int32(host.port, f"{field}.port of {host.host}")


def read_either(cursor: Cursor, kip_429: Callable[[], T], kafka: Callable[[], T]) -> T:
    """Read the rest of a message of version 5 in the document's layout, else in Kafka's; raises the former's error."""
    begin = cursor.at
    try:
        return kip_429()
    except WireError as error:
        cursor.at = begin
        with contextlib.suppress(WireError):
            return kafka()
        raise error from None
