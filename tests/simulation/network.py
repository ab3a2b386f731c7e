"""TCP as processes see it: whole frames in order on each connection, and every way in which that ends."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from enum import IntEnum
from random import Random
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tests.simulation.clock import Scheduler


class Direction(IntEnum):
    """The way a frame travels."""

    TO_NODE = 0
    TO_CLIENT = 1


class Peer(Protocol):
    """One end of connections."""

    @property
    def name(self) -> str:
        """Name in histories."""

    def frame_received(self, connection: Connection, frame: bytes) -> None:
        """Take in what came in one piece; a frame that was cut off is shorter than it says."""

    def connection_lost(self, connection: Connection) -> None:
        """Note that the other end closed the connection, or that it was reset."""


@dataclass(slots=True)
class NetworkFaults:
    """How a network misbehaves: chances from 0 to 1 for each frame, delays in ms."""

    delay: int = 20
    """Longest ordinary delay of a frame."""
    slow: float = 0.0
    """Chance of a frame that takes up to `SLOW_MS`."""
    drop: float = 0.0
    """Chance that a frame and all after it in its direction are lost, while the connection looks open."""
    duplicate: float = 0.0
    """Chance that a request arrives twice."""
    reset: float = 0.0
    """Chance of a connection reset in the middle of a frame."""


SLOW_MS = 3_000


class Connection:
    """A TCP connection; each end learns separately that it is closed."""

    __slots__ = ("arrivals", "channel", "client", "client_open", "lost", "node", "node_open", "queue", "serving")

    def __init__(self, client: Peer, node: Peer, channel: str) -> None:
        self.client = client
        self.node = node
        self.channel = channel
        self.client_open = self.node_open = True
        self.arrivals = [0, 0]
        self.lost = [False, False]
        self.queue: deque[bytes] = deque()
        """Requests that arrived and wait for the one before them to be answered."""
        self.serving: int | None = None
        """Token of the request that the node works on."""


class Network:
    """Carries frames between processes; draws every delay and fault from one seeded generator."""

    def __init__(self, scheduler: Scheduler, chance: Random, counts: Counter[str]) -> None:
        self.faults = NetworkFaults()
        self._scheduler = scheduler
        self._chance = chance
        self._counts = counts
        self._partitions: dict[tuple[str, str, Direction], int] = {}
        self._latest: dict[str, int] = {}
        self.last_arrival = 0
        """When the last frame arrives that is on its way."""

    def partition(self, client: str, node: str, direction: Direction, ms: int) -> None:
        """Hold back everything in one direction between two processes for `ms`; TCP sends it again then."""
        key = (client, node, direction)
        self._partitions[key] = max(self._partitions.get(key, 0), self._scheduler.now + ms)

    def heal(self) -> None:
        """End every fault."""
        self.faults = NetworkFaults()
        self._partitions.clear()

    def delay(self) -> int:
        """Draw an ordinary delay."""
        return int(self._chance.random() * (self.faults.delay + 1))

    def send(self, connection: Connection, direction: Direction, frame: bytes, *, repeatable: bool = False) -> None:
        """Send a frame; faults decide when it arrives, whether, and how often."""
        faults, chance = self.faults, self._chance
        if faults.drop and chance.random() < faults.drop:
            self._counts["frame dropped"] += 1
            connection.lost[direction] = True
        if connection.lost[direction]:
            return
        if faults.reset and chance.random() < faults.reset:
            self._counts["reset in the middle of a frame"] += 1
            cut = chance.randrange(len(frame))
            self._arrive_later(connection, direction, frame[:cut])
            connection.lost = [True, True]
            self._scheduler.after(self.delay(), self.reset, connection)
            return
        self._arrive_later(connection, direction, frame)
        if repeatable and faults.duplicate and chance.random() < faults.duplicate:
            self._counts["request duplicated"] += 1
            self._arrive_later(connection, direction, frame)

    def _arrive_later(self, connection: Connection, direction: Direction, frame: bytes) -> None:
        faults, arrivals = self.faults, connection.arrivals
        delay = int(self._chance.random() * (faults.delay + 1))
        if faults.slow and self._chance.random() < faults.slow:
            self._counts["frame delayed"] += 1
            delay = self._chance.randint(delay, SLOW_MS)
        time = self._departure(connection, direction) + delay
        time = max(time, arrivals[direction])
        arrivals[direction] = time
        self.last_arrival = max(self.last_arrival, time)
        client = connection.client.name
        if time < self._latest.get(client, 0):
            self._counts["frames reordered across connections"] += 1
        else:
            self._latest[client] = time
        self._scheduler.at(time, self._arrive, connection, direction, frame)

    def _departure(self, connection: Connection, direction: Direction) -> int:
        if not self._partitions:
            return self._scheduler.now
        held = self._partitions.get((connection.client.name, connection.node.name, direction), 0)
        return max(self._scheduler.now, held)

    def _arrive(self, connection: Connection, direction: Direction, frame: bytes) -> None:
        if direction is Direction.TO_NODE:
            if connection.node_open:
                connection.node.frame_received(connection, frame)
        elif connection.client_open:
            connection.client.frame_received(connection, frame)

    def close_client(self, connection: Connection) -> None:
        """Close the client's end; the node learns of it when the FIN arrives."""
        if connection.client_open:
            connection.client_open = False
            time = max(connection.arrivals[0], self._departure(connection, Direction.TO_NODE) + self.delay())
            self._scheduler.at(time, self._close_node, connection)

    def close_node(self, connection: Connection) -> None:
        """Close the node's end; the client learns of it later, and not at all if frames to it are lost."""
        if connection.node_open:
            connection.node_open = False
            if not connection.lost[Direction.TO_CLIENT]:
                time = max(connection.arrivals[1], self._departure(connection, Direction.TO_CLIENT) + self.delay())
                self._scheduler.at(time, self._lose_client, connection)

    def reset(self, connection: Connection) -> None:
        """Break the connection for both ends at once."""
        self._close_node(connection)
        self._lose_client(connection)

    def _close_node(self, connection: Connection) -> None:
        if connection.node_open:
            connection.node_open = False
            connection.node.connection_lost(connection)

    def _lose_client(self, connection: Connection) -> None:
        if connection.client_open:
            connection.client_open = False
            connection.client.connection_lost(connection)


def is_whole(frame: bytes) -> bool:
    """Return True if a frame has the size that it begins with."""
    return len(frame) >= 4 and int.from_bytes(frame[:4], "big") == len(frame) - 4
