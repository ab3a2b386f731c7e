"""One member on a stage: the test plays the coordinator, the clock and the application."""

from __future__ import annotations

from random import Random
from typing import Any, TypeVar

from roster.member import Member, MemberConfig
from roster.member.events import (
    Assign,
    Assigned,
    CommitDone,
    CommitRequested,
    Disconnect,
    Event,
    Publish,
    Released,
    Report,
    Responded,
    Send,
    Started,
    Stopped,
    TimerExpired,
)
from roster.member.timers import TimerName
from roster.model import CancelTimer, OffsetAndMetadata, SetTimer, TopicPartition
from roster.wire import ErrorCode, Message
from roster.wire.consumer.messages import Assignment, Subscription, by_topic, decode_subscription, encode_assignment
from roster.wire.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

R = TypeVar("R", bound=Message)


def parts(text: str) -> frozenset[TopicPartition]:
    """Partitions from "t-0 t-1"."""
    pairs = (name.rpartition("-") for name in text.split())
    return frozenset(TopicPartition(topic, int(number)) for topic, _, number in pairs)


def assignment(text: str, user_data: bytes | None = None) -> bytes:
    return encode_assignment(Assignment(assigned_partitions=by_topic(sorted(parts(text))), user_data=user_data))


def metadata(counts: dict[str, int], internal: tuple[str, ...] = ()) -> MetadataResponse:
    topics = [
        MetadataResponse.Topic(
            name=name,
            is_internal=name in internal,
            partitions=[MetadataResponse.Partition(partition_index=number) for number in range(count)],
        )
        for name, count in counts.items()
    ]
    return MetadataResponse(topics=topics)


class Stage:
    """Carries out a member's effects into plain fields; nothing happens that the test does not ask for."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("group", "g")
        options.setdefault("selection", frozenset({"t"}))
        self.config = MemberConfig(**options)
        self.member = Member(self.config, Random(0))
        self.now = 0
        self.open: dict[int, Send] = {}
        self.timers: dict[TimerName, int] = {}
        self.owns = Publish(epoch=0)
        self.commits: dict[int, CommitDone] = {}
        self.reports: list[Report] = []
        self.work: list[Assign] = []
        self.disconnected = 0
        self.stopped = False

    def step(self, event: Event) -> None:
        for effect in self.member.step(event, self.now):
            match effect:
                case Send():
                    self.open[effect.id] = effect
                case SetTimer(name, deadline):
                    assert deadline >= self.now
                    self.timers[name] = deadline
                case CancelTimer(name):
                    self.timers.pop(name, None)
                case Publish():
                    assert effect.epoch == self.owns.epoch + 1
                    assert not (effect.partitions & effect.revoking)
                    assert not (effect.partitions | effect.revoking) & effect.lost
                    self.owns = effect
                case CommitDone(token):
                    assert token not in self.commits, "a commit was answered twice"
                    self.commits[token] = effect
                case Report():
                    self.reports.append(effect)
                case Assign():
                    self.work.append(effect)
                case Disconnect():
                    self.disconnected += 1
                case Stopped():
                    assert not self.stopped
                    self.stopped = True

    def wait(self, ms: int) -> None:
        """Let time pass; timers fire on the way."""
        end = self.now + ms
        while self.timers:
            name = min(self.timers, key=lambda n: (self.timers[n], str(n)))
            if self.timers[name] > end:
                break
            self.now = max(self.now, self.timers.pop(name))
            self.step(TimerExpired(name))
        self.now = end

    def request(self, kind: type[R]) -> R:
        """The open request of this kind; there must be exactly one."""
        return self._find(kind)[1]

    def has(self, kind: type[Message]) -> bool:
        return any(isinstance(send.message, kind) for send in self.open.values())

    def _find(self, kind: type[R]) -> tuple[int, R]:
        found = [(number, send.message) for number, send in self.open.items() if isinstance(send.message, kind)]
        assert len(found) == 1, f"{len(found)} open {kind.__name__}; open: {self.kinds()}"
        return found[0]  # type: ignore[return-value]

    def kinds(self) -> list[str]:
        return [type(send.message).__name__ for send in self.open.values()]

    def answer(self, kind: type[Message], response: Message) -> None:
        number, _ = self._find(kind)
        del self.open[number]
        self.step(Responded(number, response))

    # Whole passages.

    def find_coordinator(self, error: ErrorCode = ErrorCode.NONE) -> None:
        found = FindCoordinatorResponse.Coordinator(key="g", node_id=1, host="h", port=9, error_code=error)
        self.answer(FindCoordinatorRequest, FindCoordinatorResponse(coordinators=[found]))

    def start(self) -> None:
        self.step(Started())
        self.find_coordinator()

    def joined(self, generation: int = 1, *, leader: str = "other", protocol: str | None = None, **more: Any) -> None:
        """Answer the open JoinGroup with success, as member "m"."""
        self.answer(
            JoinGroupRequest,
            JoinGroupResponse(
                generation_id=generation,
                protocol_type="consumer",
                protocol_name=protocol or next(iter(self.config.assignors_by_name)),
                leader=leader,
                member_id="m",
                **more,
            ),
        )

    def synced(self, text: str) -> None:
        self.answer(SyncGroupRequest, SyncGroupResponse(assignment=assignment(text)))

    def stable(self, text: str, generation: int = 1) -> None:
        """From the start to STABLE as a follower that owns `text`."""
        self.start()
        self.joined(generation)
        self.synced(text)

    def heartbeat(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """Let the next heartbeat go out and answer it."""
        if not self.has(HeartbeatRequest):
            self.wait(self.config.heartbeat_interval_ms)
        self.answer(HeartbeatRequest, HeartbeatResponse(error_code=error))

    def release(self, text: str) -> None:
        self.step(Released(parts(text)))

    def commit(self, text: str, *, token: int = 1, epoch: int | None = None, offset: int = 7) -> None:
        offsets = {partition: OffsetAndMetadata(offset) for partition in parts(text)}
        self.step(CommitRequested(token, offsets, self.owns.epoch if epoch is None else epoch))

    def committed(self, error: ErrorCode = ErrorCode.NONE) -> None:
        request = self.request(OffsetCommitRequest)
        topics = [
            OffsetCommitResponse.Topic(
                name=topic.name,
                partitions=[
                    OffsetCommitResponse.Partition(partition_index=p.partition_index, error_code=error)
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        self.answer(OffsetCommitRequest, OffsetCommitResponse(topics=topics))

    def know(self, counts: dict[str, int], internal: tuple[str, ...] = ()) -> None:
        self.answer(MetadataRequest, metadata(counts, internal))

    def assigned(self, *, withholds: bool = False, **texts: str) -> None:
        """The leader's computation ends with these assignments."""
        task = self.work.pop()
        self.step(Assigned(task.id, {member: assignment(text) for member, text in texts.items()}, withholds))

    def claims(self) -> Subscription:
        """What the open JoinGroup says about this member under its first assignor."""
        return decode_subscription(self.request(JoinGroupRequest).protocols[0].metadata)


def group_of(**topics: str) -> list[JoinGroupResponse.Member]:
    """Members of a JoinGroup answer to a leader: member id → topics."""
    from roster.wire.consumer.messages import encode_subscription

    return [
        JoinGroupResponse.Member(member_id=member, metadata=encode_subscription(Subscription(topics=names.split())))
        for member, names in topics.items()
    ]
