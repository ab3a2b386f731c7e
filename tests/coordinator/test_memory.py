"""Members that come and go leave nothing behind in the coordinator."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import pytest

from roster.coordinator import Coordinator, CoordinatorConfig
from roster.coordinator_common import PartitionLoaded, RequestReceived, TimerExpired, WriteCompleted
from roster.model import SetTimer
from roster.wire import Message
from roster.wire.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    SyncGroupRequest,
)

GROUPS = 20
PROTOCOL = JoinGroupRequest.Protocol(name="range", metadata=b"x" * 50)
SESSION_MS = 10_000


class Shell:
    """A coordinator whose writes are durable at once, and whose timers expire when they are due."""

    def __init__(self) -> None:
        ids = itertools.count()
        self.coordinator = Coordinator(
            CoordinatorConfig(initial_rebalance_delay_ms=0, partitions=1), lambda: f"{next(ids):032d}"
        )
        self.now = 0
        self.tokens = itertools.count(1)
        self.timers: dict[Any, int] = {}
        self.step(PartitionLoaded(0, (), 0))

    def step(self, event: Any) -> list[Any]:
        effects = self.coordinator.step(event, self.now)
        for timer in effects.timers:
            if isinstance(timer, SetTimer):
                self.timers[timer.name] = timer.deadline
            else:
                self.timers.pop(timer.name, None)
        replies = [reply.message for reply in effects.replies]
        for write in effects.writes:
            replies += self.step(WriteCompleted(write.id, 0))
        return replies

    def ask(self, message: Message, version: int) -> Any:
        return self.step(RequestReceived(next(self.tokens), version, "c", "host", self.now, message))[-1]

    def wait(self, milliseconds: int) -> None:
        self.now += milliseconds
        for name in [name for name, deadline in self.timers.items() if deadline <= self.now]:
            if self.timers.pop(name, None) is not None:
                self.step(TimerExpired(name, self.now))

    def join(self, group: str, member_id: str = "") -> Any:
        times = {"session_timeout_ms": SESSION_MS, "rebalance_timeout_ms": SESSION_MS}
        request = JoinGroupRequest(
            group_id=group, member_id=member_id, protocol_type="consumer", protocols=[PROTOCOL], **times
        )
        return self.ask(request, 5)

    def life(self, number: int) -> None:
        """Let a member join, commit and leave; every other one expires, and some never use their id."""
        group = f"g{number % GROUPS}"
        member_id = self.join(group).member_id
        if number % 7 == 0:
            self.wait(SESSION_MS)
            return
        generation = self.join(group, member_id).generation_id
        who = {"group_id": group, "generation_id": generation, "member_id": member_id}
        assert self.ask(SyncGroupRequest(**who), 3).error_code == 0
        assert self.ask(HeartbeatRequest(**who), 3).error_code == 0
        partition = OffsetCommitRequest.Topic.Partition(partition_index=number % 3, committed_offset=number)
        self.ask(
            OffsetCommitRequest(
                group_id=group,
                generation_id_or_member_epoch=generation,
                member_id=member_id,
                topics=[OffsetCommitRequest.Topic(name="t", partitions=[partition])],
            ),
            7,
        )
        if number % 2:
            self.ask(LeaveGroupRequest(group_id=group, members=[LeaveGroupRequest.Member(member_id=member_id)]), 4)
        else:
            self.wait(SESSION_MS)


@pytest.fixture
def no_collector() -> Any:
    gc.disable()
    yield
    gc.enable()


def test_members_that_come_and_go_leave_nothing_behind(no_collector: None) -> None:
    shell = Shell()
    for number in range(10 * GROUPS):
        shell.life(number)
    gc.collect()
    before, timers = len(gc.get_objects()), len(shell.timers)
    for number in range(10 * GROUPS, 60 * GROUPS):
        shell.life(number)
    gc.collect()
    assert len(gc.get_objects()) - before < 500, "1,000 members left objects behind"
    assert len(shell.timers) <= timers + 1
