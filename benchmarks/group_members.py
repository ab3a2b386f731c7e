"""Members of one group as raw frames, many in a process: the load of `benchmarks.group_load`.

A member is a connection and four kinds of frames, packed by hand, so that the generator costs little beside the broker.
"""

from __future__ import annotations

import math
import selectors
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe

JOIN, HEARTBEAT, LEAVE, SYNC, COMMIT, FIND_COORDINATOR, API_VERSIONS = 11, 12, 13, 14, 8, 10, 18
VERSIONS = {JOIN: 5, HEARTBEAT: 3, LEAVE: 3, SYNC: 3, COMMIT: 7}
NAMES = {JOIN: "JoinGroup", HEARTBEAT: "Heartbeat", LEAVE: "LeaveGroup", SYNC: "SyncGroup", COMMIT: "OffsetCommit"}
ERROR_AT = {JOIN: 8, HEARTBEAT: 8, SYNC: 8, LEAVE: 8, COMMIT: -2}
"""Where the error code is in a response: behind correlation id and throttle time, of a commit at its end."""
MEMBER_ID_REQUIRED, REBALANCE_IN_PROGRESS, UNKNOWN_MEMBER_ID = 79, 27, 25
TRY_AGAIN = {14, 15, 16}
"""The coordinator loads, is not available or is not this broker: the same request again, as clients do."""
AGAIN_SECONDS = 0.1
SESSION_MS, REBALANCE_MS = 300_000, 300_000
SUBSCRIPTION_BYTES = 200
ASSIGNMENT = bytes(100)
LOOK_SECONDS = 1.0
"""Between two heartbeats of a member that waits for the others, for each thousand of them."""


def text(value: str | None) -> bytes:
    data = b"" if value is None else value.encode()
    return struct.pack(">h", -1 if value is None else len(data)) + data


def blob(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def request(key: int, version: int, body: bytes) -> bytes:
    head = struct.pack(">hhi", key, version, 1) + text("load")
    return struct.pack(">i", len(head) + len(body)) + head + body


def subscription(number: int) -> bytes:
    """A subscription of version 0 without topics, which differs by its user data; Apache Kafka parses it."""
    user_data = number.to_bytes(8, "big").ljust(SUBSCRIPTION_BYTES - 10, b"\0")
    return struct.pack(">hi", 0, 0) + blob(user_data)


class StuckError(Exception):
    """A wait that is longer than the patience of the run, with what the members wait for."""


def find_coordinator(address: tuple[str, int], group: str, patience: float) -> None:
    """Return once the group has a coordinator; a new Apache Kafka creates `__consumer_offsets` when asked for it."""
    deadline = time.monotonic() + patience
    reason: object = "errors only"
    try:
        with socket.create_connection(address, patience) as sock:
            while time.monotonic() < deadline:
                sock.sendall(request(FIND_COORDINATOR, 0, text(group)))
                size = int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "big")
                if not int.from_bytes(sock.recv(size, socket.MSG_WAITALL)[4:6], "big"):
                    return
                time.sleep(0.1)
    except OSError as error:
        reason = error
    raise StuckError(f"no coordinator of group {group} at {address} after {patience:.1f} s: {reason}")


class Member:
    """One member: what it sends next follows from what it was answered."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.id = ""
        self.generation = -1
        self.stable = False
        load.unstable += 1
        self.sent = 0
        self.frame = b""
        """The last request, to be sent again."""
        self.buffer = bytearray()
        self.connect()

    def connect(self) -> None:
        """Connect and ask for ApiVersions, as clients do: a connection without a request is closed after a while."""
        self.sock = socket.create_connection(self.load.address, self.load.patience)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.sendall(request(API_VERSIONS, 0, b""))
        size = int.from_bytes(self.sock.recv(4, socket.MSG_WAITALL), "big")
        if not size or len(self.sock.recv(size, socket.MSG_WAITALL)) < size:
            raise ConnectionError("the broker closed a connection instead of answering ApiVersions")
        self.buffer.clear()
        self.load.selector.register(self.sock, selectors.EVENT_READ, self)

    def close(self) -> None:
        self.load.selector.unregister(self.sock)
        self.sock.close()

    def ask(self, key: int, body: bytes) -> None:
        self.load.outstanding += not self.sent
        self.sent = key
        self.frame = request(key, VERSIONS[key], body)
        self.sock.sendall(self.frame)

    def join(self) -> None:
        self.load.unstable += self.stable
        self.stable = False
        protocol = text("range") + blob(subscription(self.load.command))
        times = struct.pack(">ii", SESSION_MS, REBALANCE_MS)
        rest = text(self.id) + text(None) + text("consumer") + struct.pack(">i", 1) + protocol
        self.ask(JOIN, text(self.load.group) + times + rest)

    def sync(self, members: list[bytes]) -> None:
        parts = [struct.pack(">i", len(members)), *(each + blob(ASSIGNMENT) for each in members)]
        self.ask(SYNC, self.head() + text(None) + b"".join(parts))

    def head(self) -> bytes:
        return text(self.load.group) + struct.pack(">i", self.generation) + text(self.id)

    def heartbeat(self) -> None:
        self.ask(HEARTBEAT, self.head() + text(None))

    def leave(self) -> None:
        self.ask(LEAVE, text(self.load.group) + struct.pack(">i", 1) + text(self.id) + text(None))

    def commit(self) -> None:
        row = struct.pack(">iqi", 0, 5, -1) + text("")
        topic = struct.pack(">i", 1) + text(self.load.topic) + struct.pack(">i", 1) + row
        self.ask(COMMIT, self.head() + text(None) + topic)

    def readable(self) -> None:
        data = self.sock.recv(1 << 18)
        if not data:
            raise ConnectionError("the broker closed a connection")
        self.buffer += data
        if len(self.buffer) >= 4 and len(self.buffer) - 4 >= (size := int.from_bytes(self.buffer[:4], "big")):
            frame = bytes(self.buffer[4 : 4 + size])
            del self.buffer[: 4 + size]
            self.answered(frame)

    def answered(self, frame: bytes) -> None:
        self.load.answers += 1
        key, at = self.sent, ERROR_AT[self.sent]
        error = int.from_bytes(frame[at:][:2], "big", signed=True)
        if error in TRY_AGAIN:
            self.load.errors[error] += 1
            self.load.again.append((time.monotonic() + AGAIN_SECONDS, self))
            return
        self.sent = 0
        self.load.outstanding -= 1
        if key == JOIN and error in (0, MEMBER_ID_REQUIRED):
            self.joined(frame, error)
        elif key == SYNC and error == 0:
            self.load.unstable -= not self.stable
            self.stable = True
        elif error == REBALANCE_IN_PROGRESS:
            self.join()
        elif error:
            self.load.errors[error] += 1
            if error == UNKNOWN_MEMBER_ID:
                self.id = ""  # any other error leaves the member in the group, which would wait for its old id
            self.join()
        elif key in (HEARTBEAT, COMMIT):
            self.load.idle(self)

    def joined(self, frame: bytes, error: int) -> None:
        def string(pos: int) -> tuple[str, int]:
            size = int.from_bytes(frame[pos : pos + 2], "big", signed=True)
            return frame[pos + 2 : pos + 2 + max(size, 0)].decode(), pos + 2 + max(size, 0)

        self.generation = int.from_bytes(frame[10:14], "big", signed=True)
        _, pos = string(14)
        leader, pos = string(pos)
        self.id, pos = string(pos)
        if error:
            self.join()
            return
        members = []
        if leader == self.id:
            (count,) = struct.unpack_from(">i", frame, pos)
            pos += 4
            for _ in range(count):
                _, end = string(pos)
                members.append(frame[pos:end])
                _, pos = string(end)
                pos += 4 + int.from_bytes(frame[pos : pos + 4], "big")
        self.sync(members)


class Load:
    """The members of one process, told by a pipe what to do."""

    def __init__(self, bootstrap: str, group: str, topic: str, pipe: Pipe, patience: float) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.address = (host, int(port))
        find_coordinator(self.address, group, patience)
        self.patience = patience
        """The longest time of a command, in seconds."""
        self.deadline = 0.0
        self.group, self.topic, self.pipe = group, topic, pipe
        self.command = 0
        """Number of the command under way, which replies name."""
        self.look_at = 0.0
        self.held = False
        """True while members do nothing: their broker is about to be killed."""
        self.selector = selectors.DefaultSelector()
        self.members: list[Member] = []
        self.unstable = 0
        """Members that have not got the assignment of their generation."""
        self.outstanding = 0
        """Members that wait for an answer."""
        self.answers = 0
        self.errors: Counter[int] = Counter()
        self.again: deque[tuple[float, Member]] = deque()
        """Members that send their last request once more, and when."""
        self.idle: Callable[[Member], None] = lambda member: None

    def turn(self, timeout: float) -> None:
        """Handle answers, send requests again that are due; StuckError once the command has taken too long."""
        for key, _ in self.selector.select(timeout):
            key.data.readable()
        now = time.monotonic()
        if now > self.deadline:
            raise self.stuck()
        while self.again and self.again[0][0] <= now:
            _, member = self.again.popleft()
            member.sock.sendall(member.frame)

    def stuck(self) -> StuckError:
        """What the members wait for."""
        waits = dict(Counter(NAMES[member.sent] for member in self.members if member.sent))
        generations = dict(Counter(member.generation for member in self.members))
        return StuckError(
            f"not done after {self.patience:.0f} s: of {len(self.members)} members in one process {self.unstable} have "
            f"no assignment; they wait for {waits}, generations are {generations}, errors were {dict(self.errors)}"
        )

    def until_settled(self, told: int, act: Callable[[Member], None] | None = None) -> None:
        """Serve until the main process has seen the same generation everywhere, a later one than it was `told`."""
        for member in self.members if act is not None else ():
            act(member)
        while True:
            if self.pipe.poll():
                self.command, _ = self.pipe.recv()
                break
            self.serve(0.001)
            if not self.unstable and self.members[0].generation > told:
                generations = {member.generation for member in self.members}
                if len(generations) == 1:
                    told = max(generations)
                    self.reply((told, time.monotonic()))
        self.until_answered()

    def until_answered(self) -> None:
        """Serve until no member waits for an answer."""
        while self.outstanding:
            self.serve(0.01)

    def serve(self, timeout: float) -> None:
        """Handle answers; now and then have every idle member send a heartbeat, by which it learns of a rebalance."""
        self.turn(timeout)
        if time.monotonic() < self.look_at:
            return
        self.look_at = time.monotonic() + LOOK_SECONDS * max(len(self.members) / 1_000, 1)
        for member in self.members:
            if member.stable and not member.sent:
                member.heartbeat()

    def closed_loop(self, act: Callable[[Member], None], seconds: float) -> None:
        """Every member asks again as soon as it is answered; reply with answers a second, and all that were given."""
        begin = time.monotonic()
        end = begin + seconds
        self.answers = 0
        self.idle = lambda member: act(member) if time.monotonic() < end else None
        for member in self.members:
            act(member)
        while time.monotonic() < end:
            self.turn(0.05)
        rate = self.answers / (time.monotonic() - begin)
        self.until_answered()
        self.reply((rate, self.answers))
        self.idle = lambda member: None

    # Commands of the main process

    def add(self, count: int) -> None:
        self.members += [Member(self) for _ in range(count)]
        self.reply(None)

    def join(self, told: int) -> None:
        self.until_settled(told, Member.join)

    def join_new(self, told: int) -> None:
        self.until_settled(told, lambda member: member.heartbeat() if member.stable else member.join())

    def leave_one(self, told: int) -> None:
        gone = self.members.pop()
        gone.leave()
        while gone.sent:
            self.turn(0.01)
        self.unstable -= not gone.stable
        gone.close()
        self.watch(told)

    def watch(self, told: int) -> None:
        self.until_settled(told, Member.heartbeat)

    def heartbeat(self, seconds: float) -> None:
        self.closed_loop(Member.heartbeat, seconds)

    def commit(self, seconds: float) -> None:
        self.closed_loop(Member.commit, seconds)

    def hold(self) -> None:
        self.held = True
        self.reply(None)

    def reconnect(self) -> None:
        """Connect again as soon as the broker listens, and have every heartbeat answered."""
        for member in self.members:
            member.close()
        self.again.clear()
        while not self.is_listening():
            if time.monotonic() > self.deadline:
                raise StuckError(f"the broker does not listen {self.patience:.0f} s after it was killed")
            time.sleep(0.05)
        for member in self.members:
            member.connect()
        self.held = False
        for member in self.members:
            member.heartbeat()
        self.until_answered()
        self.reply((time.monotonic(), self.errors))

    def is_listening(self) -> bool:
        """Return True if the broker takes connections."""
        try:
            socket.create_connection(self.address, self.patience).close()
        except OSError:
            return False
        return True

    def run(self) -> None:
        """Obey until told to stop; members go on meanwhile."""
        while True:
            self.deadline = math.inf
            while not self.held and not self.pipe.poll():
                self.serve(0.005)
            self.command, (what, *arguments) = self.pipe.recv()
            if what == "stop":
                return
            self.deadline = time.monotonic() + self.patience
            if what != "reconnect":  # whose broker may be gone
                self.until_answered()
            getattr(self, what)(*arguments)

    def reply(self, value: object) -> None:
        self.pipe.send((self.command, value))


def process(bootstrap: str, group: str, topic: str, pipe: Pipe, core: int | None, patience: float) -> None:
    """Entry of a process of the generator; a failure is the reply to whatever command is under way."""
    import os  # noqa: PLC0415

    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        Load(bootstrap, group, topic, pipe, patience).run()
    except (StuckError, OSError) as error:
        pipe.send((None, str(error)))
