"""The transactional half of a broker process: the real transaction coordinator over simulated logs.

It does what the broker's shell does: checks of partitions and epochs before a write, markers after a decision.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from roster.broker.log.producer_state import NO_TRANSACTION, ProducerTable, SequenceError
from roster.coordinator.events import Event as GroupEvent
from roster.coordinator.events import TransactionEnd, TransactionEnded
from roster.coordinator.offset_commit import transactional_commit_response
from roster.coordinator_common import (
    PartitionLoaded,
    PartitionLoading,
    PartitionUnloaded,
    RequestReceived,
    TimerExpired,
    Write,
    WriteCompleted,
)
from roster.model import TopicPartition
from roster.transactions import (
    AddPartitions,
    Event,
    MarkersWritten,
    ProducerIdGiven,
    TimerName,
    TransactionConfig,
    TransactionCoordinator,
    WriteMarkers,
)
from roster.transactions.events import Effects
from roster.wire import ErrorCode, Message
from roster.wire.control_records import read_marker
from roster.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
    TxnOffsetCommitRequest,
)
from roster.wire.records import read_batch, read_header
from tests.simulation.clock import Timers
from tests.simulation.disk import Batch, control_batch, record_batch
from tests.simulation.exactly_once import OUTPUT_TOPIC, TRANSACTIONS
from tests.simulation.setting import OFFSETS, Fate, Setting

TRANSACTIONAL = (
    InitProducerIdRequest,
    AddPartitionsToTxnRequest,
    AddOffsetsToTxnRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
    EndTxnRequest,
)
"""Requests of transactional producers."""
IMPLICIT_PRODUCE_FROM, IMPLICIT_OFFSETS_FROM, EPOCH_BUMP_FROM = 12, 5, 5
"""Versions of Produce, TxnOffsetCommit and EndTxn of transactions version 2 (KIP-890)."""
GROUP_PARTITION = TopicPartition(OFFSETS, 0)
MARKER_RETRY_MS = 500
LOADING_RETRY_MS = 100

Added = Callable[[ErrorCode], None]


class Host(Protocol):
    """The broker process around it."""

    world: Setting
    name: str
    life: int
    epoch: int
    synced_at: int
    """When the last write of the group ends."""

    def wall(self) -> int:
        """Wall clock, ms."""

    def answer(self, token: int, message: Message) -> None:
        """Answer a request."""

    def coordinate(self, token: int) -> None:
        """Give a request to the group coordinator."""

    def step(self, event: GroupEvent) -> None:
        """Give an event to the group coordinator."""

    @property
    def is_loaded(self) -> bool:
        """True once the group is loaded."""

    def crash_at_write(self, fate: Fate, *, is_group: bool) -> None:
        """Die at a write."""


class Transactions:
    """The transaction coordinator of one broker, and what each partition knows of producers."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.world = host.world
        self.coordinator: TransactionCoordinator | None = None
        self.tables: dict[str, ProducerTable] = {}
        self._timers: Timers[TimerName] = Timers(self.world.scheduler, self._timer_expired)
        self._synced_at: dict[str, int] = {}
        self._adding: dict[int, Added] = {}
        self._requests: dict[int, Message] = {}
        self._under_way: dict[int, Added] = {}
        """What waits for a write."""
        self._dies_next = False

    # -- processes -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process; it leads nothing yet."""
        longest = 60_000
        self.coordinator = TransactionCoordinator(
            TransactionConfig(partitions=1, offsets_partitions=1, max_timeout_ms=longest)
        )

    def crash(self) -> None:
        """Lose everything in memory."""
        self.coordinator = None
        self._timers.clear()
        self.tables.clear()
        self._adding.clear()
        self._requests.clear()
        self._under_way.clear()

    def lead(self) -> None:
        """Read what the logs say of producers, and begin to load the decisions."""
        if self.world.scenario.transactions is None:
            return
        self._fail_writes()
        self.tables = {name: _table_of(log) for name, log in self.world.logs.items()}
        self._step(PartitionLoading(0))
        records = [each for each in self.world.logs[TRANSACTIONS].load() if isinstance(each, tuple)]
        loaded = PartitionLoaded(0, tuple(records), self.host.wall())
        self._later(self.world.network.delay(), lambda: self._step(loaded))

    def step_down(self) -> None:
        """Lead no more."""
        self.tables.clear()
        if self.world.scenario.transactions is not None:
            self._fail_writes()
            self._step(PartitionUnloaded(0))

    def _fail_writes(self) -> None:
        under_way, self._under_way = self._under_way, {}
        for done in under_way.values():
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def jump(self, ms: int) -> None:
        """Set the monotonic clock forward."""
        self._timers.jump(ms)

    def _later(self, ms: int, then: Callable[[], None]) -> None:
        """Do something in `ms`, if the process then still leads as it does now."""
        host, now = self.host, (self.host.life, self.host.epoch)
        self.world.scheduler.after(ms, lambda: then() if (host.life, host.epoch) == now else None)

    # -- requests ------------------------------------------------------------------------------------------------

    def handle(self, token: int, version: int, message: Message) -> None:
        """Serve a request of a producer."""
        match message:
            case ProduceRequest():
                self._produce(token, version, message)
            case TxnOffsetCommitRequest():
                self._commit_offsets(token, version, message)
            case _:
                self._requests[token] = message
                self._step(RequestReceived(token, version, "", "host", self.host.wall(), message))

    def _add(
        self, name: str, producer: tuple[int, int], where: frozenset[TopicPartition], *, verify: bool, then: Added
    ) -> None:
        token = self.world.new_token()
        self._adding[token] = then
        self._step(AddPartitions(token, name, *producer, where, self.host.wall(), verify_only=verify))

    def _produce(self, token: int, version: int, request: ProduceRequest) -> None:
        batches = {row.index: bytes(row.records or b"") for row in request.topic_data[0].partition_data}
        headers = {index: read_header(data) for index, data in batches.items()}
        header = next(iter(headers.values()))
        producer = (header.producer_id, header.producer_epoch)
        unknown = [
            index
            for index in batches
            if (table := self.tables.get(f"{OUTPUT_TOPIC}-{index}")) is None
            or table.begins_at(*producer) == NO_TRANSACTION
        ]

        def added(error: ErrorCode) -> None:
            if error:
                self._produced(token, dict.fromkeys(batches, error))
            else:
                self._write_outputs(token, batches)

        if not self.tables:
            added(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif not unknown:
            added(ErrorCode.NONE)
        else:
            where = frozenset(TopicPartition(OUTPUT_TOPIC, index) for index in unknown)
            verify = version < IMPLICIT_PRODUCE_FROM
            self._add(request.transactional_id or "", producer, where, verify=verify, then=added)

    def _write_outputs(self, token: int, batches: dict[int, bytes]) -> None:
        results: dict[int, ErrorCode] = {}

        def done(index: int, error: ErrorCode) -> None:
            results[index] = error
            if len(results) == len(batches):
                self._produced(token, results)

        for index, data in batches.items():
            name, header = f"{OUTPUT_TOPIC}-{index}", read_header(data)
            if name not in self.tables:
                done(index, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                continue
            try:
                repeated = self.tables[name].check(header)
            except SequenceError as refused:
                done(index, refused.code)
                continue
            if repeated is not None:
                self.world.counts["repeated batch answered, not written"] += 1
                ms = max(self._synced_at.get(name, 0) - self.world.scheduler.now, 0)
                kept = partial(self._still_leads, name)
                self._outcome(ms, lambda error, index=index: done(index, error), kept)  # type: ignore[misc]
                continue
            records = tuple((record.key or b"", record.value) for record in read_batch(data))
            batch = Batch(data, records, producer=(header.producer_id, header.producer_epoch))
            self._append(name, batch, lambda error, index=index: done(index, error))  # type: ignore[misc]

    def _produced(self, token: int, errors: dict[int, ErrorCode]) -> None:
        rows = [ProduceResponse.Topic.Partition(index=index, error_code=code) for index, code in errors.items()]
        self.host.answer(
            token, ProduceResponse(responses=[ProduceResponse.Topic(name=OUTPUT_TOPIC, partition_responses=rows)])
        )

    def _commit_offsets(self, token: int, version: int, request: TxnOffsetCommitRequest) -> None:
        producer = (request.producer_id, request.producer_epoch)
        sizes = self.world.topics
        missing = any(
            each.partition_index >= sizes.get(topic.name, 0) for topic in request.topics for each in topic.partitions
        )

        def added(error: ErrorCode) -> None:
            if error:
                self.host.answer(token, transactional_commit_response(request, error))
            else:
                self.host.coordinate(token)

        if missing:
            added(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif OFFSETS not in self.tables:
            added(ErrorCode.NOT_COORDINATOR)
        elif self.tables[OFFSETS].begins_at(*producer) != NO_TRANSACTION:
            added(ErrorCode.NONE)
        else:
            verify = version < IMPLICIT_OFFSETS_FROM
            self._add(request.transactional_id, producer, frozenset({GROUP_PARTITION}), verify=verify, then=added)

    # -- the coordinator -----------------------------------------------------------------------------------------

    def _step(self, event: Event) -> None:
        if self.coordinator is None:
            return
        self._note(event)
        self._carry_out(self.coordinator.step(event, self._timers.now))

    def _note(self, event: Event) -> None:
        """Count an event by the state that it meets, and add it to the history."""
        assert self.coordinator is not None
        found = self.coordinator.transaction(name_of(event))
        state = "none" if found is None else f"{found.current.state.label}{', writing' if found.pending else ''}"
        self.world.coverage.transaction(state, label_of(event))
        if self.world.history.wanted:
            self.world.history.step(self.host.name, state, f"{label_of(event)} {name_of(event)}")

    def _carry_out(self, effects: Effects) -> None:
        life = self.host.life
        for timer in effects.timers:
            self._timers.apply(timer)
        for write in effects.writes:
            self._write(write)
        for marker in effects.markers:
            self._write_markers(marker, sorted(marker.partitions))
        for number in effects.producer_ids:
            self._give_producer_id(number)
        for reply in effects.replies:
            if self.host.life == life:
                self._answer(reply.token, reply.message)
        for added in effects.added:
            if self.host.life == life and added.token in self._adding:
                self._adding.pop(added.token)(max(added.errors.values()))

    def _answer(self, token: int, message: Message) -> None:
        request = self._requests.pop(token, None)
        judge = self.world.exactly_once
        match request, message:
            case InitProducerIdRequest(), InitProducerIdResponse(error_code=ErrorCode.NONE):
                judge.instance_begins(message.producer_id, message.producer_epoch)
            case EndTxnRequest(), EndTxnResponse(error_code=ErrorCode.NONE):
                judge.end_answered(request.transactional_id, committed=request.committed)
        self.host.answer(token, message)

    def _timer_expired(self, name: TimerName) -> None:
        self._step(TimerExpired(name, self.host.wall()))

    def _give_producer_id(self, number: int) -> None:
        producer = self.world.new_producer_id()
        self._later(self.world.network.delay(), lambda: self._step(ProducerIdGiven(number, producer, self.host.wall())))

    def _write(self, write: Write) -> None:
        self._append(
            TRANSACTIONS,
            record_batch(write.records),
            lambda error: self._step(WriteCompleted(write.id, self.host.wall(), error)),
        )

    # -- markers -------------------------------------------------------------------------------------------------

    def _write_markers(self, marker: WriteMarkers, partitions: list[TopicPartition]) -> None:
        """Write a transaction's markers, however often it takes."""
        left = dict.fromkeys(partitions)
        again: list[TopicPartition] = []

        def done(where: TopicPartition, error: ErrorCode) -> None:
            del left[where]
            if error is ErrorCode.KAFKA_STORAGE_ERROR:
                again.append(where)
            elif not error and where == GROUP_PARTITION:
                end = TransactionEnd(marker.producer_id, marker.committed)
                self.host.step(TransactionEnded(0, end, self.host.wall()))
            if left:
                return
            if again:
                self._later(MARKER_RETRY_MS, lambda: self._write_markers(marker, sorted(again)))
                return
            self._step(
                MarkersWritten(marker.transactional_id, marker.producer_id, marker.producer_epoch, self.host.wall())
            )

        if not partitions:
            self._later(
                0,
                lambda: self._step(
                    MarkersWritten(marker.transactional_id, marker.producer_id, marker.producer_epoch, self.host.wall())
                ),
            )
        for where in partitions:
            self._write_marker(marker, where, lambda error, where=where: done(where, error))  # type: ignore[misc]

    def _write_marker(self, marker: WriteMarkers, where: TopicPartition, done: Added) -> None:
        if where == GROUP_PARTITION and not self.host.is_loaded:
            self._later(LOADING_RETRY_MS, lambda: self._write_marker(marker, where, done))
            return
        name = OFFSETS if where == GROUP_PARTITION else f"{where.topic}-{where.partition}"
        if name not in self.tables:
            return  # it does not lead any more
        batch = control_batch(TransactionEnd(marker.producer_id, marker.committed), marker.producer_epoch)
        header, content = read_header(batch.data), read_marker(batch.data)
        try:
            assert content is not None
            self.tables[name].check_marker(header, content)
        except SequenceError as refused:
            code = refused.code
            self._outcome(0, done, lambda: code)
            return
        self._append(name, batch, done)

    # -- logs ----------------------------------------------------------------------------------------------------

    def check_epoch(self, producer: tuple[int, int] | None) -> ErrorCode:
        """Return the error for offsets of a producer that is fenced in the group's partition, or NONE."""
        if producer is None or OFFSETS not in self.tables:
            return ErrorCode.NONE
        try:
            self.tables[OFFSETS].check_epoch(read_header(record_batch(((b"", b""),), producer).data))
        except SequenceError as refused:
            return refused.code
        return ErrorCode.NONE

    def appended(self, name: str, batch: Batch) -> None:
        """Remember what a batch says of its producer, and have it judged."""
        if batch.producer is None:
            return
        judge = self.world.exactly_once
        _learn(self.tables[name], batch)
        if batch.end is not None:
            judge.marker_written(batch.end.producer_id, committed=batch.end.committed)
        else:
            judge.written(*batch.producer)

    def _append(self, name: str, batch: Batch, done: Added) -> None:
        world, log = self.world, self.world.logs[name]
        if world.disk_refuses(is_group=False, is_transaction=True):
            world.counts["write of a transaction refused by the disk"] += 1
            self._outcome(1, done, lambda: ErrorCode.KAFKA_STORAGE_ERROR)
        elif not log.append(batch, self.host.epoch):
            self._outcome(1, done, lambda: ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            self.appended(name, batch)
            now = world.scheduler.now
            earlier = self.host.synced_at if name == OFFSETS else 0  # the writes of one log end in their order
            self._synced_at[name] = max(self._synced_at.get(name, 0), earlier, now + world.sync_ms())
            self._outcome(self._synced_at[name] - now, done, lambda: self._sync(name, batch))

    def _still_leads(self, name: str) -> ErrorCode:
        """Return the error for a batch appended before: a new leader may have lost it, which an old one cannot know."""
        leads = self.host.epoch == self.world.logs[name].epoch
        return ErrorCode.NONE if leads else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _outcome(self, ms: int, done: Added, sync: Callable[[], ErrorCode | None]) -> None:
        """Have a write end in `ms`, as `sync` says; None for the end of the process."""
        token = self.world.new_token()
        self._under_way[token] = done

        def end() -> None:
            if token not in self._under_way:
                return
            life = self.host.life
            error = sync()
            if error is not None and self.host.life == life:
                self._under_way.pop(token)(error)
                self._crash_if_answered()

        self._later(ms, end)

    def _sync(self, name: str, batch: Batch) -> ErrorCode | None:
        fate = self.world.take_fate(is_group=False)
        if fate is Fate.LOST:
            self.host.crash_at_write(fate, is_group=False)
            return None
        is_stored = self.world.logs[name].sync(batch)
        if fate is Fate.STORED:
            self.host.crash_at_write(fate, is_group=False)
            return None
        self._dies_next = fate is Fate.ANSWERED
        return ErrorCode.NONE if is_stored else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _crash_if_answered(self) -> None:
        if self._dies_next:
            self._dies_next = False
            self.host.crash_at_write(Fate.ANSWERED, is_group=False)


def name_of(event: Event) -> str:
    """Return the transactional id that an event is about, or nothing."""
    about: object = event
    if isinstance(event, RequestReceived):
        about = event.message
    elif isinstance(event, TimerExpired):
        about = event.name
    return getattr(about, "transactional_id", getattr(about, "v3_and_below_transactional_id", "")) or ""


def label_of(event: Event) -> str:
    """Name an event, for histories and the table of coverage."""
    match event:
        case RequestReceived():
            return type(event.message).__name__.removesuffix("Request")
        case TimerExpired():
            return f"{event.name.kind.value} timer"
        case WriteCompleted() if event.error:
            return "write failed"
    return type(event).__name__


def _learn(table: ProducerTable, batch: Batch) -> None:
    """Have the table of a partition take in a batch of a producer."""
    header = read_header(batch.data)
    if batch.end is None:
        table.add(header, batch.offset, 0)
    elif (marker := read_marker(batch.data)) is not None:
        table.end(header, marker, batch.offset, 0)


def _table_of(log: object) -> ProducerTable:
    """Read what a log says of its producers."""
    table = ProducerTable()
    for batch in log:  # type: ignore[attr-defined]
        if batch.producer is not None:
            _learn(table, batch)
    return table
