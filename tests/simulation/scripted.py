"""Clients that misbehave, each as a script: what a coordinator has to bear without harm to the others."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, TypeAlias

from typing_extensions import override

from roster.member.subscription import ReceivedAssignment, assignment_bytes
from roster.wire import ErrorCode, Message
from roster.wire.consumer.messages import Subscription, encode_subscription
from roster.wire.messages import (
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    SyncGroupRequest,
)
from tests.simulation.client import Client
from tests.simulation.scenario import NEWEST

if TYPE_CHECKING:
    from tests.simulation.books import Books
    from tests.simulation.setting import Setting

Script: TypeAlias = Generator["Message | int", "Message | None", None]
"""Yields a request to send, and gets its response or None; or a number of ms to wait, and gets None."""
TIMEOUT_MS = 12_000


class ScriptedClient:
    """A client that follows a script, over connections like any other."""

    def __init__(self, world: Setting, client: Client, script: Script) -> None:
        self.world, self.client, self._script = world, client, script
        self.alive = True

    def start(self) -> None:
        """Begin."""
        self._go_on(None)

    def stop(self) -> None:
        """End the process."""
        if self.alive:
            self.alive = False
            self.client.shut()

    def _go_on(self, response: Message | None, _reason: str = "") -> None:
        if not self.alive:
            return
        try:
            wanted = self._script.send(response)
        except StopIteration:
            self.stop()
            return
        if isinstance(wanted, int):
            self.world.scheduler.after(wanted, self._go_on, None)
        else:
            self._send(wanted)

    def _send(self, request: Message) -> None:
        """Send a request, whose response goes to `_go_on`."""
        raise NotImplementedError


class Scripted(ScriptedClient):
    """A client that misbehaves."""

    def __init__(self, world: Setting, books: Books, name: str, kind: str) -> None:
        self.books, self.name = books, name
        super().__init__(world, Client(world, name, NEWEST), SCRIPTS[kind](self))

    @override
    def _send(self, request: Message) -> None:
        self.client.request(self.world.leader_number, "scripted", request, TIMEOUT_MS, self._go_on)

    # -- requests ------------------------------------------------------------------------------------------------

    def join(self, member: str = "", instance: str | None = None, metadata: bytes | None = None) -> JoinGroupRequest:
        """Build a JoinGroup with every assignor that the group may use."""
        scenario = self.world.scenario
        if metadata is None:
            metadata = encode_subscription(Subscription(topics=["t"]))
        names = sorted({name for policy in (*scenario.policies, *scenario.upgrade) for name in policy})
        return JoinGroupRequest(
            group_id=self.world.group_id,
            session_timeout_ms=scenario.session_ms,
            rebalance_timeout_ms=scenario.rebalance_ms,
            member_id=member,
            group_instance_id=instance,
            protocol_type="consumer",
            protocols=[JoinGroupRequest.Protocol(name=name, metadata=metadata) for name in names],
        )

    def sync(self, joined: JoinGroupResponse, assignments: dict[str, bytes]) -> SyncGroupRequest:
        """Build the SyncGroup that follows a JoinGroup."""
        return SyncGroupRequest(
            group_id=self.world.group_id,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            protocol_type="consumer",
            protocol_name=joined.protocol_name,
            assignments=[
                SyncGroupRequest.Assignment(member_id=member, assignment=data)
                for member, data in sorted(assignments.items())
            ],
        )

    def heartbeat(self, member: str, generation: int, instance: str | None = None) -> HeartbeatRequest:
        """Build a Heartbeat."""
        return HeartbeatRequest(
            group_id=self.world.group_id, generation_id=generation, member_id=member, group_instance_id=instance
        )

    def leave(self, member: str) -> LeaveGroupRequest:
        """Build a LeaveGroup."""
        return LeaveGroupRequest(group_id=self.world.group_id, members=[LeaveGroupRequest.Member(member_id=member)])

    def joined(
        self, metadata: bytes | None = None
    ) -> Generator[Message | int, Message | None, JoinGroupResponse | None]:
        """Join as a new dynamic member; None if that fails."""
        first = yield self.join(metadata=metadata)
        if not isinstance(first, JoinGroupResponse) or first.error_code != ErrorCode.MEMBER_ID_REQUIRED:
            return None
        second = yield self.join(first.member_id, metadata=metadata)
        if isinstance(second, JoinGroupResponse) and second.error_code == ErrorCode.NONE:
            return second
        return None


# -- scripts -----------------------------------------------------------------------------------------------------------


def joins_and_vanishes(self: Scripted) -> Script:
    """Close the connections while the JoinGroup is parked, or just after."""
    first = yield self.join()
    if isinstance(first, JoinGroupResponse):
        self.world.scheduler.after(self.world.chance.choice((50, 900, 4_000)), self.stop)
        yield self.join(first.member_id)


def never_syncs(self: Scripted) -> Script:
    """Stay with heartbeats, and never ask for an assignment."""
    joined = yield from self.joined()
    while joined is not None:
        yield 1_000
        response = yield self.heartbeat(joined.member_id, joined.generation_id)
        if response is None or getattr(response, "error_code", 0) not in (0, ErrorCode.REBALANCE_IN_PROGRESS):
            return


def leads_without_assigning(self: Scripted) -> Script:
    """Sync with no assignment, or with one for strangers; then leave."""
    joined = yield from self.joined()
    if joined is not None:
        stranger = {"stranger": assignment_bytes(ReceivedAssignment(frozenset()))}
        yield self.sync(joined, stranger if joined.leader == joined.member_id else {})
        yield 2_000
        yield self.leave(joined.member_id)


def sends_garbage(self: Scripted) -> Script:
    """Join with metadata that cannot be read; then leave."""
    metadata = self.world.chance.randbytes(self.world.chance.choice((0, 1, 7, 60)))
    joined = yield from self.joined(metadata)
    if joined is not None:
        yield self.sync(joined, {})
        yield 3_000
        yield self.leave(joined.member_id)


def commits_stale(self: Scripted) -> Script:
    """Commit under former generations, as members that are there and that are gone, under any instance id."""
    chance, books = self.world.chance, self.books
    for _ in range(6):
        known = [*books.instance, "ghost", ""]
        member = chance.choice(known)
        before = chance.choice((1, 2, 5)) if member in books.instance else chance.choice((-1, 0, 1))
        instance = chance.choice([None, books.instance.get(member), *books.holder])
        generation = max(books.highest - before, 0)
        if generation == books.highest and member in books.instance:
            continue
        row = OffsetCommitRequest.Partition(partition_index=chance.randint(0, 2), committed_offset=1_000_000)
        yield OffsetCommitRequest(
            group_id=self.world.group_id,
            generation_id_or_member_epoch=generation,
            member_id=member,
            group_instance_id=instance,
            topics=[OffsetCommitRequest.Topic(name="t", partitions=[row])],
        )
        yield chance.choice((10, 400, 1_500))


def asks_for_many_member_ids(self: Scripted) -> Script:
    """Have member ids reserved and use none."""
    for _ in range(8):
        yield self.join()
        yield 20


def repeats_requests(self: Scripted) -> Script:
    """Send JoinGroup, SyncGroup and Heartbeat again after they were answered."""
    joined = yield from self.joined()
    if joined is None:
        return
    for _ in range(2):
        assignments = {member.member_id: b"" for member in joined.members}
        yield self.sync(joined, assignments)
        yield self.heartbeat(joined.member_id, joined.generation_id)
        again = yield self.join(joined.member_id)
        if not isinstance(again, JoinGroupResponse) or again.error_code != ErrorCode.NONE:
            return
        joined = again
    yield self.sync(joined, {})
    yield self.leave(joined.member_id)


def administers(self: Scripted) -> Script:
    """Ask what an administrator asks, all the time."""
    for _ in range(5):
        yield DescribeGroupsRequest(groups=[self.world.group_id])
        yield ListGroupsRequest()
        yield 700


def impersonates_a_static_member(self: Scripted) -> Script:
    """Take the place of a static member for a while, and vanish."""
    if not self.books.holder:
        return
    instance = self.world.chance.choice(list(self.books.holder))
    self.world.impersonated.add(instance)
    joined = yield self.join(instance=instance)
    if isinstance(joined, JoinGroupResponse) and joined.error_code == ErrorCode.NONE:
        for _ in range(3):
            yield 1_000
            yield self.heartbeat(joined.member_id, joined.generation_id, instance)


SCRIPTS: dict[str, Callable[[Scripted], Script]] = {
    script.__name__.replace("_", " "): script
    for script in (
        joins_and_vanishes,
        never_syncs,
        commits_stale,
        sends_garbage,
        asks_for_many_member_ids,
        repeats_requests,
        leads_without_assigning,
        administers,
        impersonates_a_static_member,
    )
}
