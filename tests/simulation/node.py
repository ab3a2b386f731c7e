"""A broker process: it serves requests byte for byte and runs the real coordinator over the simulated disk."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from roster.coordinator import Coordinator, CoordinatorConfig
from roster.coordinator.events import Effects, Event, LoadedRecord, TimerName, TopicsDeleted
from roster.coordinator_common import (
    PartitionLoaded,
    PartitionLoading,
    PartitionUnloaded,
    RequestReceived,
    TimerExpired,
    Write,
    WriteCompleted,
)
from roster.wire import ErrorCode, Message, WireError
from roster.wire.frames import RequestHeader, decode_request, encode_response
from roster.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    InitProducerIdRequest,
    JoinGroupRequest,
    MetadataRequest,
    MetadataResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    ProduceRequest,
    TopicErrors,
    TxnOffsetCommitRequest,
)
from roster.wire.offsets_topic import GroupMetadataKey, decode_key
from tests.simulation.clock import Timers
from tests.simulation.disk import Batch, record_batch
from tests.simulation.network import Connection, Direction, is_whole
from tests.simulation.setting import OFFSETS, Fate, Setting
from tests.simulation.transactions import (
    EPOCH_BUMP_FROM,
    IMPLICIT_OFFSETS_FROM,
    IMPLICIT_PRODUCE_FROM,
    TRANSACTIONAL,
    Transactions,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.books import Books

PARTITION = 0
MANY_KEYS_FROM = 4
"""FindCoordinator version from which one request asks for many keys."""


@dataclass(slots=True, eq=False)
class Call:
    """A request that the node has not answered."""

    connection: Connection
    header: RequestHeader
    message: Message
    since: int
    refused: list[TopicErrors] = field(default_factory=list)
    """Partitions that do not exist, which the coordinator does not see."""


class Node:
    """A broker; at any time at most one leads the partition with the group, but an old leader may not know yet."""

    def __init__(self, world: Setting, books: Books, number: int, crash: Callable[[Node, Fate, bool], None]) -> None:
        self.world = world
        self.books = books
        self.number = number
        self.name = f"node{number}"
        self.up = False
        self.is_loaded = False
        self.life = 0
        self.epoch = -1
        self.wall_ahead = 0
        self.coordinator: Coordinator | None = None
        self.calls: dict[int, Call] = {}
        self.connections: dict[Connection, None] = {}
        self._timers: Timers[TimerName] = Timers(world.scheduler, self._timer_expired)
        self._writes: deque[tuple[Write, Batch | None, ErrorCode]] = deque()
        self.synced_at = 0
        self._crash_at_write = crash
        self.transactions = Transactions(self)

    # -- processes -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process; it leads nothing yet."""
        world = self.world
        self.up = True
        self.life += 1
        config = CoordinatorConfig(
            partitions=1,
            initial_rebalance_delay_ms=world.scenario.initial_delay_ms,
            min_session_timeout_ms=1_000,
            new_member_join_timeout_ms=world.scenario.new_member_join_timeout_ms,
            max_pending_members=50,
        )
        self.coordinator = Coordinator(config, world.new_id, self.is_connected)
        self.transactions.start()

    def crash(self) -> None:
        """Kill -9: connections break, and nothing of its memory is left."""
        self.up = self.is_loaded = False
        self.life += 1
        self.epoch = -1
        self.coordinator = None
        self._timers.clear()
        self._writes.clear()
        self.transactions.crash()
        self.calls.clear()
        for connection in list(self.connections):
            self.world.network.close_node(connection)
        self.connections.clear()
        self.books.node_crashed(self)

    def crash_at_write(self, fate: Fate, *, is_group: bool) -> None:
        """Die at a write of the group's record, or at one of a transaction."""
        self._crash_at_write(self, fate, is_group)

    def lead(self, epoch: int) -> None:
        """Begin to load the partition."""
        self.epoch = epoch
        self.is_loaded = False
        self.transactions.lead()
        self.step(PartitionLoading(PARTITION))
        records = self.world.disk.load()
        self.world.scheduler.after(self.world.network.delay(), self._loaded, self.life, epoch, records)

    def _loaded(self, life: int, epoch: int, records: tuple[LoadedRecord, ...]) -> None:
        if (life, epoch) == (self.life, self.epoch):
            self.is_loaded = True
            self.step(PartitionLoaded(PARTITION, records, self.wall()))

    def step_down(self, life: int, epoch: int) -> None:
        """Learn that another node leads now."""
        if (life, epoch) == (self.life, self.epoch):
            self.epoch = -1
            self.is_loaded = False
            self._writes.clear()
            self.transactions.step_down()
            self.step(PartitionUnloaded(PARTITION))

    def topics_deleted(self, names: tuple[str, ...]) -> None:
        """Remove the offsets of deleted topics."""
        self.step(TopicsDeleted(names, self.wall()))

    def jump(self, ms: int) -> None:
        """Set the monotonic clock forward."""
        self.books.clock_jumped(self, ms)
        self._timers.jump(ms)
        self.transactions.jump(ms)

    @property
    def now(self) -> int:
        """Monotonic time of the process."""
        return self._timers.now

    def wall(self) -> int:
        """Wall clock of the process, ms."""
        return self.world.scheduler.now + self.wall_ahead

    # -- requests ------------------------------------------------------------------------------------------------

    def frame_received(self, connection: Connection, frame: bytes) -> None:
        """Queue a request behind those of its connection."""
        if self.up and is_whole(frame):
            connection.queue.append(frame)
            self._serve(connection)

    def connection_lost(self, connection: Connection) -> None:
        """Forget a connection; requests that are parked stay with the coordinator."""
        connection.queue.clear()
        self.connections.pop(connection, None)

    def _serve(self, connection: Connection) -> None:
        """Serve the next requests of a connection, each when the one before has been answered.

        What `is_harmful_when_late` is left out on a connection that its client has closed meanwhile.
        """
        while connection.serving is None and connection.queue and connection.node_open and self.up:
            frame = connection.queue.popleft()
            try:
                header, message = decode_request(frame[4:])
            except WireError:
                self.world.counts["malformed request refused"] += 1
                self.world.network.reset(connection)
                return
            if not connection.client_open and is_harmful_when_late(message, header.api_version):
                self.world.counts["request that its client had given up, not served"] += 1
                continue
            token = self.world.new_token()
            connection.serving = token
            self.connections[connection] = None
            call = self.calls[token] = Call(connection, header, message, self.world.scheduler.now)
            self._handle(token, call)

    def _handle(self, token: int, call: Call) -> None:
        match call.message:
            case FindCoordinatorRequest():
                self.answer(token, self._find_coordinator(call.header.api_version))
            case MetadataRequest():
                self.answer(token, self._metadata(call.message))
            case message if isinstance(message, TRANSACTIONAL):
                self.transactions.handle(token, call.header.api_version, message)
            case OffsetCommitRequest():
                self._take_unknown(call, call.message)
                if call.message.topics:
                    self.coordinate(token)
                else:
                    self.answer(token, OffsetCommitResponse())
            case _:
                self.coordinate(token)

    def coordinate(self, token: int) -> None:
        """Give a request to the group coordinator."""
        call = self.calls[token]
        client = call.header.client_id or ""
        self.step(RequestReceived(token, call.header.api_version, client, "host", self.wall(), call.message))

    def _find_coordinator(self, version: int) -> Message:
        number = self.world.leader_known_to(self.number)
        host, port = f"node{number}", 9092
        if version < MANY_KEYS_FROM:
            return FindCoordinatorResponse(node_id=number, host=host, port=port)
        found = FindCoordinatorResponse.Coordinator(key=self.world.group_id, node_id=number, host=host, port=port)
        return FindCoordinatorResponse(coordinators=[found])

    def _metadata(self, request: MetadataRequest) -> Message:
        topics = self.world.topics
        names = sorted(topics) if request.topics is None else [topic.name or "" for topic in request.topics]
        rows = []
        for name in names:
            size = topics.get(name)
            code = ErrorCode.NONE if size is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            partitions = [MetadataResponse.Partition(partition_index=index) for index in range(size or 0)]
            rows.append(MetadataResponse.Topic(name=name, error_code=code, partitions=partitions))
        return MetadataResponse(topics=rows)

    def _take_unknown(self, call: Call, request: OffsetCommitRequest) -> None:
        """Take partitions that do not exist out of a commit, as the broker's shell does."""
        known = []
        for topic in request.topics:
            size = self.world.topics.get(topic.name, 0)
            unknown = [each for each in topic.partitions if not 0 <= each.partition_index < size]
            if unknown:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                rows = [
                    TopicErrors.Partition(partition_index=each.partition_index, error_code=code) for each in unknown
                ]
                call.refused.append(TopicErrors(name=topic.name, partitions=rows))
            rest = [each for each in topic.partitions if 0 <= each.partition_index < size]
            if rest:
                known.append(OffsetCommitRequest.Topic(name=topic.name, partitions=rest))
        request.topics = known

    def answer(self, token: int, message: Message) -> None:
        """Answer a request."""
        call = self.calls.pop(token, None)
        self.books.every_request_is_answered_once(token, answered=call is not None)
        if call is None:
            return
        waited = call.since < self.world.scheduler.now
        self.books.answering(self, call.header.api_version, call.message, message, waited=waited)
        if isinstance(message, OffsetCommitResponse) and call.refused:
            message = OffsetCommitResponse(topics=call.refused + message.topics)
        connection = call.connection
        connection.serving = None
        frame = encode_response(message, call.header.api_version, call.header.correlation_id)
        if self.world.history.wanted:
            self.world.history.answer(self.name, connection.client.name, message, frame)
        if connection.node_open:
            self.world.network.send(connection, Direction.TO_CLIENT, frame)
            self._serve(connection)

    def is_connected(self, token: int) -> bool:
        """Return True while the client of a request waits on an open connection."""
        call = self.calls.get(token)
        return call is not None and call.connection.node_open

    # -- the coordinator -----------------------------------------------------------------------------------------

    def step(self, event: Event) -> None:
        """Give the coordinator an event and carry out the effects."""
        if self.coordinator is None:
            return
        before = self.books.before_step(self, event)
        effects = self.coordinator.step(event, self._timers.now)
        self.books.after_step(self, event, before, effects)
        self._carry_out(effects)

    def _carry_out(self, effects: Effects) -> None:
        life = self.life
        for timer in effects.timers:
            self._timers.apply(timer)
        for write in effects.writes:
            self._write(write)
        for reply in effects.replies:
            if self.life == life:
                self.answer(reply.token, reply.message)

    def _timer_expired(self, name: TimerName) -> None:
        self.step(TimerExpired(name, self.wall()))

    def _write(self, write: Write) -> None:
        world = self.world
        appended = record_batch(write.records, write.producer)
        batch: Batch | None = None
        error = self.transactions.check_epoch(write.producer)
        if error:
            pass
        elif world.disk_refuses(is_group=writes_group(write), is_transaction=write.producer is not None):
            world.counts["write refused by the disk"] += 1
            error = ErrorCode.NOT_ENOUGH_REPLICAS
        elif not world.disk.append(appended, self.epoch):
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        else:
            batch = appended
            self.transactions.appended(OFFSETS, batch)
        self._writes.append((write, batch, error))
        self.synced_at = max(self.synced_at, world.scheduler.now + world.sync_ms())
        world.scheduler.at(self.synced_at, self._write_done, self.life, write.id)

    def _write_done(self, life: int, write_id: int) -> None:
        if life != self.life or not self._writes or self._writes[0][0].id != write_id:
            return
        write, batch, error = self._writes[0]
        is_group = writes_group(write)
        is_fateful = batch is not None and (is_group or write.producer is not None)
        fate = self.world.take_fate(is_group=is_group) if is_fateful else None
        if fate is Fate.LOST:
            self.crash_at_write(fate, is_group=is_group)
            return
        self._writes.popleft()
        if batch is not None:
            error = ErrorCode.NONE if self.world.disk.sync(batch) else ErrorCode.NOT_LEADER_OR_FOLLOWER
        if fate is Fate.STORED:
            self.crash_at_write(fate, is_group=is_group)
            return
        self.step(WriteCompleted(write.id, self.wall(), error))
        if fate is Fate.ANSWERED:
            self.crash_at_write(fate, is_group=is_group)


def writes_group(write: Write) -> bool:
    """Return True for a write with a record of the group itself, not of offsets."""
    return any(isinstance(decode_key(key), GroupMetadataKey) for key, _ in write.records)


def is_harmful_when_late(message: Message, version: int) -> bool:
    """Return True for a request that Kafka's protocol cannot tell from a newer one once its client has given it up.

    A commit would undo the commits that came after. The first JoinGroup of a static member would take its place from
    the one that the same process sent next, and so fence it.
    The first version of the protocol of transactions has the same epoch in many of them: what comes late of one would
    become part of the next. A first InitProducerId would fence the process that sent it.
    """
    match message:
        case JoinGroupRequest():
            return message.group_instance_id is not None and not message.member_id
        case ProduceRequest():
            return version < IMPLICIT_PRODUCE_FROM
        case TxnOffsetCommitRequest():
            return version < IMPLICIT_OFFSETS_FROM
        case EndTxnRequest():
            return version < EPOCH_BUMP_FROM
    return isinstance(
        message, OffsetCommitRequest | InitProducerIdRequest | AddPartitionsToTxnRequest | AddOffsetsToTxnRequest
    )
