"""A heartbeat like the one before it is answered without being read again: as any other would be."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from roster.broker.coordinator_shell import CoordinatorShell
from roster.broker.direct_requests import RepeatedHeartbeat
from roster.broker.hooks import Hooks
from roster.testing.broker import BrokerThread, quick_config, running_broker
from roster.wire import ErrorCode
from roster.wire.frames import decode_request, encode_request, encode_response
from roster.wire.messages import HeartbeatRequest, HeartbeatResponse, LeaveGroupRequest
from tests.broker.test_direct_requests import a_member, join, settled

if TYPE_CHECKING:
    from pathlib import Path

    from roster.coordinator import Coordinator
    from roster.coordinator.events import Effects, Event

VERSIONS = list(HeartbeatRequest.__table__.versions)


@pytest.fixture
def short_ways(monkeypatch: pytest.MonkeyPatch) -> list[ErrorCode]:
    """What the heartbeats that were not read were answered."""
    seen: list[ErrorCode] = []
    beat = CoordinatorShell.beat

    def watched(self: CoordinatorShell, request: HeartbeatRequest) -> ErrorCode:
        seen.append(beat(self, request))
        return seen[-1]

    monkeypatch.setattr(CoordinatorShell, "beat", watched)
    return seen


@pytest.mark.parametrize("version", VERSIONS)
def test_only_the_correlation_id_may_differ(version: int) -> None:
    chance = random.Random(version)
    request = HeartbeatRequest(group_id="g", generation_id=3, member_id="member")
    kept, first = RepeatedHeartbeat(), encode_request(request, version, 1, "client")
    assert not kept.is_same(first)
    kept.remember(first, request, version)
    for _ in range(200):
        correlation = chance.randrange(-(2**31), 2**31)
        again = encode_request(request, version, correlation, "client")
        assert kept.is_same(again)
        error = chance.choice((ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.FENCED_INSTANCE_ID))
        assert kept.reply(again, error) == encode_response(HeartbeatResponse(error_code=error), version, correlation)
        damaged = bytearray(again)
        damaged[chance.choice([*range(8), *range(12, len(again))])] ^= 1 << chance.randrange(8)
        assert not kept.is_same(bytes(damaged))
        assert not kept.is_same(again[: chance.randrange(len(again))])
    _, read = decode_request(first[4:])
    assert read == request


@pytest.mark.parametrize("version", VERSIONS)
def test_each_is_answered_by_the_group_as_it_is_then(tmp_path: Path, short_ways: list[ErrorCode], version: int) -> None:
    with running_broker(tmp_path) as broker, settled(broker) as first, settled(broker) as second:
        member_id = a_member(first, "g")
        beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member_id)

        def beats() -> list[ErrorCode]:
            return [ErrorCode(first.ask(beat, version).error_code) for _ in range(3)]

        assert beats() == [ErrorCode.NONE] * 3
        other = second.ask(join("g"), 5).member_id
        second.send(join("g", other), 5)
        joined = first.ask(join("g", member_id), 5)
        assert joined.generation_id == 2
        assert beats() == [ErrorCode.ILLEGAL_GENERATION] * 3
        leave = LeaveGroupRequest(group_id="g", members=[LeaveGroupRequest.Member(member_id=member_id)])
        assert first.ask(leave, 4).error_code == 0
        assert beats() == [ErrorCode.UNKNOWN_MEMBER_ID] * 3
    assert set(short_ways) == {ErrorCode.NONE, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID}


def test_a_test_kit_sees_every_heartbeat(tmp_path: Path, short_ways: list[ErrorCode]) -> None:
    seen: list[str] = []

    def observe(coordinator: Coordinator, event: Event, effects: Effects) -> None:
        seen.append(type(getattr(event, "message", event)).__name__)

    with BrokerThread(quick_config(tmp_path), Hooks(observe=observe)) as thread, settled(thread.broker) as client:
        member_id = a_member(client, "g")
        for _ in range(5):
            assert client.ask(HeartbeatRequest(group_id="g", generation_id=1, member_id=member_id), 3).error_code == 0
    assert seen.count("HeartbeatRequest") == 5
    assert not short_ways
