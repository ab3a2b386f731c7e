"""The codec against kafka-python and kio: `python -m benchmarks wire`.

CPU time of one message, median of several rounds, all in one process. The last column is how many times faster
Roster is than the faster of the two; kio reads in Rust, the rest is Python.
"""

from __future__ import annotations

import gc
import importlib
import io
import statistics
import time
from collections.abc import Callable

import kio.serial
from kafka.protocol.consumer import HeartbeatRequest as KafkaPythonHeartbeat
from kafka.protocol.consumer import JoinGroupResponse as KafkaPythonJoin

from roster.wire import Message, decode, encode
from roster.wire.messages import HeartbeatRequest, JoinGroupResponse

ROUNDS = 9

JOIN = JoinGroupResponse(
    generation_id=5,
    protocol_name="cooperative-sticky",
    leader="member-0",
    member_id="member-0",
    members=[JoinGroupResponse.Member(member_id=f"member-{n}-{'x' * 36}", metadata=bytes(2000)) for n in range(2000)],
)
HEARTBEAT = HeartbeatRequest(group_id="flights", generation_id=5, member_id="member-0-" + "x" * 36)


def median(function: Callable[[], object], repeat: int) -> float:
    """Microseconds of CPU of one call, the median of several rounds."""
    function()
    rounds = []
    for _ in range(ROUNDS):
        gc.collect()
        gc.disable()
        start = time.process_time()
        for _ in range(repeat):
            function()
        rounds.append((time.process_time() - start) / repeat * 1e6)
        gc.enable()
    return statistics.median(rounds)


def compare(name: str, message: Message, version: int, kafka_python: type, kio_module: str, repeat: int) -> None:
    cls = type(message)
    data = encode(message, version)
    theirs = kafka_python.decode(data, version=version)
    theirs._header = None
    entity = getattr(importlib.import_module(kio_module), cls.__name__)
    read, write = kio.serial.entity_reader(entity), kio.serial.entity_writer(entity)
    value = read(data, 0)[0]

    def kio_encode() -> bytes:
        out = io.BytesIO()
        write(out, value)
        return out.getvalue()

    assert bytes(theirs.encode(version=version)) == data == kio_encode()
    for what, calls in (
        ("encode", (lambda: encode(message, version), lambda: theirs.encode(version=version), kio_encode)),
        (
            "decode",
            (
                lambda: decode(cls, version, data),
                lambda: kafka_python.decode(data, version=version),
                lambda: read(data, 0),
            ),
        ),
    ):
        ours, first, second = (median(call, repeat) for call in calls)
        ratio = min(first, second) / ours
        print(f"{name} v{version} {what:<8}{ours:>12.2f}{first:>16.2f}{second:>10.2f}{ratio:>9.1f}")


def run(*, quick: bool) -> None:
    """Print the table."""
    fewer = 5 if quick else 1
    print(f"{'microseconds':<44}{'Roster':>12}{'kafka-python':>16}{'kio':>10}{'ratio':>9}")
    for version in (5, 9):
        module = f"kio.schema.join_group.v{version}.response"
        compare("JoinGroupResponse, 2000 of 2 KB,", JOIN, version, KafkaPythonJoin, module, max(1, 5 // fewer))
    for version in (3, 4):
        module = f"kio.schema.heartbeat.v{version}.request"
        compare("HeartbeatRequest                ", HEARTBEAT, version, KafkaPythonHeartbeat, module, 5000 // fewer)
