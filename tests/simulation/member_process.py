"""A process with the real member and an application around it: it reads, commits, and releases what is revoked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from roster.member import Member, MemberConfig, MemberState
from roster.member.assign_group import assign_group
from roster.member.events import (
    Assign,
    Assigned,
    AssignFailed,
    Closed,
    CommitDone,
    CommitRequested,
    Disconnect,
    Event,
    FetchOffsets,
    OffsetsFetched,
    Publish,
    Released,
    RequestFailed,
    Responded,
    SelectionChanged,
    Send,
    Started,
    Stopped,
    TimerExpired,
)
from roster.member.timers import TimerName
from roster.member.types import FailureKind, Node
from roster.model import CancelTimer, OffsetAndMetadata, SetTimer, TopicPartition
from roster.wire import ApiKey, ErrorCode, Message
from roster.wire.messages import JoinGroupRequest, OffsetFetchRequest, OffsetFetchResponse
from tests.simulation.client import OFFSETS, Client
from tests.simulation.clock import Timers

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.books import Books
    from tests.simulation.producer import Producer
    from tests.simulation.setting import Setting
    from tests.simulation.tasks import TaskWork

RETRY_MS = 300


class MemberProcess:
    """A member and its application; positions come from OffsetFetch, and go back in commits."""

    def __init__(
        self,
        world: Setting,
        books: Books,
        name: str,
        config: MemberConfig,
        versions: Mapping[ApiKey, int],
        stepped: Callable[[MemberProcess], None],
    ) -> None:
        self.world = world
        self.books = books
        self.name = name
        self.config = config
        self.versions = versions
        self.member = Member(config, Random(world.chance.random()))
        self.client = Client(world, name, versions)
        self.alive = True
        self.stopped = False
        self.paused_until = 0
        self.owns = Publish(epoch=0)
        self.positions: dict[TopicPartition, int] = {}
        self._taken_at: dict[TopicPartition, int] = {}
        """Where the last work began, of partitions held since then."""
        self._timers: Timers[TimerName] = Timers(world.scheduler, lambda timer: self.feed(TimerExpired(timer)))
        self._backlog: list[Event] = []
        self._commits: dict[int, dict[TopicPartition, int]] = {}
        self._tokens = 0
        self._fetching = False
        self._stepped = stepped
        self.producer: Producer | None = None
        """Commits positions in transactions, with what was made of the records."""
        self.tasks: TaskWork | None = None
        """The stores of a process that runs tasks."""

    @property
    def held(self) -> frozenset[TopicPartition]:
        """Partitions that the application may work on."""
        return self.owns.partitions | self.owns.revoking

    @property
    def running(self) -> bool:
        """True for a member that takes part in its group, or tries to."""
        return self.alive and self.member.state not in (MemberState.LEFT, MemberState.FAILED)

    @property
    def fenced(self) -> bool:
        """True if another process with its instance id took its place."""
        failure = self.member.failure
        return failure is not None and failure.kind is FailureKind.FENCED_INSTANCE

    # -- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Join the group and begin to work."""
        self.feed(Started())
        if self.tasks is not None:
            self.tasks.start(self)
        if self.producer is None:
            self._tick()
        else:
            self.producer.start()

    def kill(self) -> None:
        """Kill -9."""
        self.alive = False
        self._timers.clear()
        self.client.shut()
        if self.producer is not None:
            self.producer.stop()

    def close(self, *, leave: bool) -> None:
        """Close the member."""
        self.feed(Closed(leave))

    def subscribe(self, topics: frozenset[str]) -> None:
        """Subscribe to other topics."""
        self.config = replace(self.config, selection=topics)
        self.feed(SelectionChanged(topics))

    def pause(self, ms: int) -> None:
        """Take nothing in for `ms`, as a process that was stopped or collects garbage."""
        self.paused_until = max(self.paused_until, self.world.scheduler.now + ms)
        self.world.scheduler.after(ms, self._wake)

    def jump(self, ms: int) -> None:
        """Set the clock forward."""
        self._timers.jump(ms)

    def wake(self) -> None:
        """End a pause."""
        self.paused_until = min(self.paused_until, self.world.scheduler.now)
        self._wake()

    def _wake(self) -> None:
        if self.world.scheduler.now >= self.paused_until and self.alive:
            self._work()  # what it was at before it learns that anything happened
            backlog, self._backlog = self._backlog, []
            for event in backlog:
                self.feed(event)
            if self.producer is not None:
                self.producer.wake()

    # -- the member ----------------------------------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        """Give the member an event and carry out the effects."""
        if not self.alive:
            return
        if self.world.scheduler.now < self.paused_until:
            self._backlog.append(event)
            return
        self.world.coverage.member(self.member.state.value, event)
        for effect in self.member.step(event, self._timers.now):
            self._carry_out(effect)
        self.books.member_stepped(self)
        self._stepped(self)

    def _carry_out(self, effect: object) -> None:
        match effect:
            case Send():
                self._send(effect)
            case SetTimer() | CancelTimer():
                self._timers.apply(effect)
            case Assign():
                delay = self.world.network.delay()
                self.world.scheduler.after(delay, self._assign, effect)
            case FetchOffsets():
                self.world.scheduler.after(self.world.network.delay(), self._offsets_fetched, effect)
            case Disconnect(node):
                self.client.disconnect(node.node_id)
            case Publish():
                self._published(effect)
            case CommitDone(token, failure):
                positions = self._commits.pop(token)
                if failure is None:
                    self.books.acknowledged(self, positions)
            case Stopped():
                self.stopped = True

    def _send(self, send: Send) -> None:
        to = None if send.to is None else send.to.node_id
        if self.tasks is not None and isinstance(send.message, JoinGroupRequest):
            self.books.joining(self.name, self.tasks, send.message)

        def answered(response: Message | None, reason: str) -> None:
            self.feed(RequestFailed(send.id, reason) if response is None else Responded(send.id, response))

        self.client.request(to, send.channel.value, send.message, send.timeout_ms, answered)

    def _assign(self, task: Assign) -> None:
        if not self.alive:
            return
        try:
            self.feed(Assigned(task.id, *assign_group(task.assignor, task.group)))
        except ValueError as error:
            self.feed(AssignFailed(task.id, str(error)))

    def _offsets_fetched(self, wanted: FetchOffsets) -> None:
        if self.world.chance.random() < self.world.failed_lookups:
            self.feed(OffsetsFetched(wanted.id, None, "timed out"))
        else:
            self.feed(OffsetsFetched(wanted.id, self.world.log_offsets(wanted.partitions)))

    def _published(self, news: Publish) -> None:
        before = self.held
        self.owns = news
        for gone in before - self.held:
            self.positions.pop(gone, None)
            self._taken_at.pop(gone, None)
        self.books.published(self, news)
        if self.held - self.positions.keys():
            self._fetch_positions()
        if news.revoking:
            slow = self.world.chance.random() < self.world.slow_release
            delay = 2 * self.config.rebalance_timeout_ms if slow else self.world.chance.randint(0, self.world.finish_ms)
            self.world.counts["revoked work not finished in time"] += slow
            self.world.scheduler.after(delay, self._finish, news.revoking, news.epoch)

    # -- the application -----------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self.alive and not self.stopped:
            if self.world.scheduler.now >= self.paused_until:
                self._work()
            self.world.scheduler.after(self.world.chance.randint(1_000, 4_000), self._tick)

    def _work(self) -> None:
        if self.producer is None:
            self._commit(self.owns.partitions, self.owns.epoch)

    def take_work(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return what to make of the input now, as start and end of positions, and go on behind it."""
        work = {}
        for partition in sorted(self.owns.partitions & self.positions.keys()):
            start = self._taken_at[partition] = self.positions[partition]
            self.positions[partition] += self.world.chance.randint(1, 3)
            work[partition] = (start, self.positions[partition])
        return work

    def work_aborted(self, partitions: Iterable[TopicPartition]) -> None:
        """Go back to where the work began: an old coordinator would give positions from before its end."""
        for partition in self._taken_at.keys() & set(partitions) & self.positions.keys():
            self.positions[partition] = self._taken_at.pop(partition)

    def work_in_doubt(self, partitions: Iterable[TopicPartition]) -> None:
        """Ask again for the positions of what may have been committed."""
        for partition in partitions:
            self.positions.pop(partition, None)
        self._again()

    def _finish(self, partitions: frozenset[TopicPartition], epoch: int) -> None:
        """Commit revoked work, then let go of it."""
        if self.alive:
            if self.producer is None:
                self._commit(partitions & self.owns.revoking, epoch)
            self.world.scheduler.after(self.world.chance.randint(0, 50), self.feed, Released(partitions))

    def _commit(self, partitions: frozenset[TopicPartition], epoch: int) -> None:
        mine = sorted(partitions & self.positions.keys())
        if not mine or self.stopped:
            return
        for partition in mine:
            self.positions[partition] += self.world.chance.randint(1, 3)
        self._tokens += 1
        offsets = self._commits[self._tokens] = {partition: self.positions[partition] for partition in mine}
        values = {partition: OffsetAndMetadata(offset) for partition, offset in offsets.items()}
        self.feed(CommitRequested(self._tokens, values, epoch))

    def _fetch_positions(self) -> None:
        coordinator = self.member.coordinator
        if self._fetching or not self.alive or self.stopped:
            return
        self._fetching = True
        if coordinator is None:
            self.world.scheduler.after(RETRY_MS, self._positions_fetched, self.owns.epoch, None, "")
            return
        self._ask_positions(coordinator)

    def _ask_positions(self, coordinator: Node) -> None:
        missing = sorted(self.held - self.positions.keys())
        topics: dict[str, list[int]] = {}
        for topic, number in missing:
            topics.setdefault(topic, []).append(number)
        kind = OffsetFetchRequest.Group
        wanted = kind(
            group_id=self.config.group,
            topics=[kind.Topic(name=topic, partition_indexes=numbers) for topic, numbers in topics.items()],
        )
        epoch = self.owns.epoch

        def answered(response: Message | None, reason: str) -> None:
            self._positions_fetched(epoch, response, reason)

        request = OffsetFetchRequest(groups=[wanted], require_stable=self.producer is not None)
        self.client.request(coordinator.node_id, OFFSETS, request, 4_000, answered)

    def _positions_fetched(self, epoch: int, response: Message | None, _reason: str) -> None:
        if self.world.scheduler.now < self.paused_until:
            self.world.scheduler.at(self.paused_until, self._positions_fetched, epoch, response, _reason)
            return
        self._fetching = False
        if not self.alive:
            return
        group = response.groups[0] if isinstance(response, OffsetFetchResponse) and response.groups else None
        if group is not None and group.error_code == ErrorCode.NONE and epoch == self.owns.epoch:
            for topic in group.topics:
                for row in topic.partitions:
                    partition = TopicPartition(topic.name, row.partition_index)
                    if partition in self.held and not row.error_code:
                        self.positions.setdefault(partition, max(row.committed_offset, 0))
        if self.held - self.positions.keys():
            self._fetching = True
            self.world.scheduler.after(RETRY_MS, self._again)

    def _again(self) -> None:
        self._fetching = False
        if self.held - self.positions.keys():
            self._fetch_positions()
