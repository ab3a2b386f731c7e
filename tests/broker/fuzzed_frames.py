"""Random frames from one seed: requests with random values, most of them then damaged. Also a program:

    python -m tests.broker.fuzzed_frames --frames 1000000 --seed 1 [--codec]

sends them to a broker in a process of its own, or with --codec gives them to the decoder only, and says how many it
tried and how the memory changed, at the end without the topics and groups that valid frames have made; exit code 1 if
the broker died, hung or grew.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import socket
import struct
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roster.broker.request_limits import SERVED
from roster.client import Admin, ClientError
from roster.testing.broker import BrokerProcess
from roster.wire import WireError, request_class
from roster.wire.frames import decode_request, encode_request
from roster.wire.messages import ApiVersionsRequest
from tests.broker.rawclient import RawClient

if TYPE_CHECKING:
    from collections.abc import Iterator

_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_TEXTS = ("", "t", "g", "orders", "__consumer_offsets", "a" * 300, "é", "x\0y", "..", "User:a")
_NUMBERS = (-1, 0, 1, 2, 7, 100, 50_001)
_FRAMES_OF_A_CONNECTION = 20
"""Few enough for the socket's buffers: a request that waits for others holds up those behind it."""
_CONNECTIONS_AT_ONCE = 8
PATIENCE = 120.0
PART = 50_000
"""Frames between two lines about the memory; each part has a seed of its own."""
GROWTH_BYTES = 32 << 20
"""How much a broker's memory may grow: full tables, and what the allocator keeps."""


def frames(seed: int) -> Iterator[bytes]:
    """Endless frames without their sizes, the same for the same seed."""
    chance = random.Random(seed)
    keys = sorted(SERVED)
    while True:
        key = chance.choice(keys)
        version = chance.choice(list(SERVED[key]))
        message = random_message(request_class(key), version, chance)
        try:
            frame = encode_request(message, version, chance.getrandbits(31), chance.choice(("fuzz", None)))[4:]
        except WireError:  # a value that this version cannot carry
            continue
        yield frame if chance.random() < 0.3 else _damaged(frame, chance)


def random_message(cls: Any, version: int, chance: random.Random) -> Any:
    values = {name: _value(f, version, chance) for name, f in cls.__table__.fields if version in f.versions}
    return cls(**values)


def _value(field: Any, version: int, chance: random.Random) -> Any:
    if version in field.nullable and chance.random() < 0.2:
        return None
    match field.kind:
        case "bool":
            return chance.random() < 0.5
        case "uuid":
            return chance.randbytes(16)
        case "string":
            return chance.choice(_TEXTS)
        case "bytes" | "records":
            return chance.randbytes(chance.choice((0, 3, 61, 200)))
        case "float64":
            return chance.random()
        case "uint16":
            return chance.getrandbits(16)
        case "struct":
            return random_message(field.struct, version, chance)
        case "array":
            return [_value(field.element, version, chance) for _ in range(chance.choice((0, 1, 1, 2, 3)))]
        case kind:
            bits = _BITS[kind] - 1
            number = chance.choice((*_NUMBERS, 2**bits - 1, -(2**bits)))
            return number if -(2**bits) <= number < 2**bits else 0


def _damaged(frame: bytes, chance: random.Random) -> bytes:
    data = bytearray(frame)
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(data)) if data else 0
        match chance.randrange(6):
            case 0 if data:
                data[at] ^= 1 << chance.randrange(8)
            case 1 if data:
                data[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                del data[at:]
            case 3:
                data[at:at] = chance.randbytes(chance.choice((1, 2, 4, 40)))
            case 4:
                data[at : at + 4] = struct.pack(">i", chance.choice((-2, -1, 0, 2**31 - 1, 1 << 20, 60_000)))
            case _:
                del data[at : at + chance.choice((1, 2, 4, 16))]
    return bytes(data)


def decode_all(seed: int, count: int) -> int:
    """Give frames to the decoder, which may raise nothing but WireError; return how many it could read."""
    read = 0
    for _, frame in zip(range(count), frames(seed), strict=False):
        try:
            decode_request(frame)
        except WireError:
            continue
        read += 1
    return read


class Volley:
    """Some frames on a connection of their own, which ends behind them; the broker reads them all and ends it too.

    Only the last may be one that the decoder refuses: what follows it would not be read.
    """

    def __init__(self, address: tuple[str, int], frames: list[bytes]) -> None:
        self._socket = socket.create_connection(address, timeout=PATIENCE)
        self._socket.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )  # the port is free at once
        with contextlib.suppress(OSError):  # to close the connection is the broker's right
            self._socket.sendall(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))
            self._socket.shutdown(socket.SHUT_WR)

    def finish(self) -> None:
        """Throw the answers away until the broker ends the connection; TimeoutError if it does not."""
        with contextlib.suppress(ConnectionError):
            while self._socket.recv(1 << 18):
                pass
        self._socket.close()


def volleys(stream: Iterator[bytes], chance: random.Random) -> Iterator[list[bytes]]:
    """Frames for one connection after another."""
    some: list[bytes] = []
    limit = chance.randint(1, _FRAMES_OF_A_CONNECTION)
    for frame in stream:
        some.append(frame)
        if len(some) == limit or not is_readable(frame):
            yield some
            some, limit = [], chance.randint(1, _FRAMES_OF_A_CONNECTION)
    if some:
        yield some


def is_readable(frame: bytes) -> bool:
    """Return True if the decoder takes a frame, so that the broker reads the next one."""
    try:
        decode_request(frame)
    except WireError:
        return False
    return True


def ask_alive(address: tuple[str, int]) -> None:
    """Raise OSError unless the broker answers another client."""
    with RawClient(address, PATIENCE) as client:
        assert client.ask(ApiVersionsRequest(), 0).error_code == 0


def send_all(address: tuple[str, int], seed: int, count: int, *, check_every: int = 1_000) -> int:
    """Send frames; return the number of connections that took. Raises OSError if the broker hangs or is gone."""
    chance = random.Random(seed)
    under_way: deque[Volley] = deque()
    connections = sent = checked = 0
    for some in volleys(itertools.islice(frames(seed), count), chance):
        under_way.append(Volley(address, some))
        connections += 1
        sent += len(some)
        if len(under_way) >= _CONNECTIONS_AT_ONCE:
            under_way.popleft().finish()
        if sent - checked >= check_every:
            ask_alive(address)
            checked = sent
    for volley in under_way:
        volley.finish()
    ask_alive(address)
    return connections


def clear(bootstrap: str) -> str:
    """Delete topics and groups; return how many there were."""
    with contextlib.closing(Admin(bootstrap)) as admin:
        topics = admin.list_topics()
        for topic in topics:
            admin.delete_topic(topic)
        groups = [listing.group_id for listing in admin.list_groups()]
        for group in groups:
            with contextlib.suppress(ClientError):  # one of members, whose sessions have not ended
                admin.delete_group(group)
    return f"{len(topics)} topics of {sum(topics.values())} partitions and {len(groups)} groups"


def resident_bytes(pid: int) -> int:
    """Memory of a process, on Linux."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--codec", action="store_true")
    chosen = parser.parse_args()
    began = time.monotonic()
    if chosen.codec:
        read = decode_all(chosen.seed, chosen.frames)
        print(f"{chosen.frames} frames decoded, {read} of them valid, in {time.monotonic() - began:.0f} s")
        return 0
    with tempfile.TemporaryDirectory(prefix="roster-fuzz-") as directory:
        limits = ("--group-max-pending-members", "100", "--auto-create-topics", "--log-level", "error")
        with BrokerProcess(Path(directory) / "data", *limits) as broker:
            host, port = broker.bootstrap.rsplit(":", 1)
            address = (host, int(port))
            send_all(address, chosen.seed, 5_000)  # so that code and caches are there
            before = resident_bytes(broker.pid)
            connections = 0
            for part in range(0, chosen.frames, PART):
                connections += send_all(address, chosen.seed + 1 + part, min(PART, chosen.frames - part))
                so_far = f"{min(part + PART, chosen.frames)} frames after {time.monotonic() - began:.0f} s"
                print(f"{so_far}: memory {resident_bytes(broker.pid) >> 20} MiB", flush=True)
            last = resident_bytes(broker.pid)
            cleared = clear(broker.bootstrap)
            time.sleep(10)  # files and timers go later
            grown = resident_bytes(broker.pid) - before
            errors = [line for line in broker.log.read_text().splitlines() if "internal error" in line]
    print(
        f"{chosen.frames} frames over {connections} connections in {time.monotonic() - began:.0f} s: "
        f"memory {before >> 20} MiB, then {last >> 20} MiB, without {cleared} {(before + grown) >> 20} MiB; "
        f"{len(errors)} internal errors"
    )
    return 1 if grown > GROWTH_BYTES or errors else 0


if __name__ == "__main__":
    sys.exit(main())
