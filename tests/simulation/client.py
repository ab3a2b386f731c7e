"""A client process's connections: requests in the versions it speaks, responses, timeouts, resets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from roster.client.connection import from_version, to_version
from roster.wire import API_VERSIONS, ApiKey, Message
from roster.wire.frames import decode_response, encode_request, response_class
from roster.wire.messages import InitProducerIdRequest, JoinGroupRequest
from tests.simulation.network import Connection, Direction, is_whole
from tests.simulation.setting import Setting

OFFSETS = "offsets"
"""The application's own connection, for OffsetFetch; a lost coordinator does not close it."""


@dataclass(slots=True, eq=False)
class Outstanding:
    """A request without an answer."""

    connection: Connection
    message: Message
    version: int
    answered: Callable[[Message | None, str], None]


class Client:
    """Connections of one process to the nodes, with its own view of api versions."""

    def __init__(self, world: Setting, name: str, versions: Mapping[ApiKey, int]) -> None:
        self.world = world
        self.name = name
        self.versions = versions
        self.alive = True
        self._connections: dict[tuple[int, str], Connection] = {}
        self._outstanding: dict[int, Outstanding] = {}
        self._next = 0

    def request(
        self,
        to: int | None,
        channel: str,
        message: Message,
        timeout_ms: int,
        answered: Callable[[Message | None, str], None],
    ) -> None:
        """Send a request to a node, or to any one (None); `answered` gets the response, or None and a reason."""
        world = self.world
        node = world.any_broker() if to is None else world.brokers[to]
        if node is None or not node.up:
            world.scheduler.after(world.network.delay(), answered, None, "connection refused")
            return
        key = (node.number, channel)
        connection = self._connections.get(key)
        if connection is None or not connection.client_open:
            connection = self._connections[key] = Connection(self, node, channel)
        api = message.__table__.key
        assert api is not None
        version = min(self.versions.get(api, 99), API_VERSIONS[api].high)
        self._next += 1
        number = self._next
        frame = encode_request(to_version(message, version), version, number, self.name)
        self._outstanding[number] = Outstanding(connection, message, version, answered)
        if world.history.wanted:
            world.history.request(self.name, node.name, message, frame)
        world.network.send(connection, Direction.TO_NODE, frame, repeatable=not introduces(message))
        world.scheduler.after(timeout_ms, self._timed_out, number)

    def disconnect(self, node: int) -> None:
        """Close every connection to a node; its requests get no answer."""
        for (number, channel), connection in list(self._connections.items()):
            if number == node and channel != OFFSETS:
                self._close(connection, "disconnected")

    def reset_all(self) -> None:
        """Break every connection."""
        for connection in list(self._connections.values()):
            self.world.network.reset(connection)

    def shut(self) -> None:
        """Close every connection, as the end of a process does."""
        self.alive = False
        self._outstanding.clear()
        for connection in self._connections.values():
            self.world.network.close_client(connection)

    def frame_received(self, connection: Connection, frame: bytes) -> None:
        """Match a response with its request."""
        if not self.alive or not is_whole(frame):
            return
        number = int.from_bytes(frame[4:8], "big")
        waiting = self._outstanding.pop(number, None)
        if waiting is None or waiting.connection is not connection:
            return
        api = waiting.message.__table__.key
        assert api is not None
        _, response = decode_response(response_class(api), waiting.version, frame[4:])
        waiting.answered(from_version(waiting.message, response, waiting.version), "")

    def connection_lost(self, connection: Connection) -> None:
        """Fail the requests of a connection."""
        self._fail(connection, "connection reset")

    def _timed_out(self, number: int) -> None:
        waiting = self._outstanding.get(number)
        if waiting is not None and self.alive:
            self.world.counts["request timed out"] += 1
            self._close(waiting.connection, "timed out")

    def _close(self, connection: Connection, reason: str) -> None:
        self.world.network.close_client(connection)
        self._fail(connection, reason)

    def _fail(self, connection: Connection, reason: str) -> None:
        failed = [number for number, each in self._outstanding.items() if each.connection is connection]
        for number in failed:
            waiting = self._outstanding.pop(number, None)
            if waiting is not None:
                waiting.answered(None, reason)


def introduces(message: Message) -> bool:
    """Return True for a request whose second arrival is another one: a first JoinGroup, a first InitProducerId."""
    if isinstance(message, InitProducerIdRequest):
        return message.producer_id < 0
    return isinstance(message, JoinGroupRequest) and not message.member_id
