"""A transactional producer beside a member: what it makes of the input and the input's positions commit together."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypedDict

from typing_extensions import override

from roster.wire import ApiKey, ErrorCode, Message
from roster.wire.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from roster.wire.records import Record, build_batch
from tests.simulation.client import Client
from tests.simulation.exactly_once import OUTPUT_PARTITIONS, OUTPUT_TOPIC, Output
from tests.simulation.scripted import Script, ScriptedClient

if TYPE_CHECKING:
    from roster.member import MemberConfig
    from roster.member.events import Publish
    from roster.model import TopicPartition
    from tests.simulation.setting import Setting

TRANSACTION_MS = 6_000
"""Timeout of every transaction."""
REQUEST_MS = 3_000
PATIENCE_MS = 9_000
"""Time for which a request is tried again."""
VERSIONS_OF_TRANSACTIONS: dict[int, dict[ApiKey, int]] = {
    1: {
        ApiKey.INIT_PRODUCER_ID: 4,
        ApiKey.ADD_PARTITIONS_TO_TXN: 3,
        ApiKey.ADD_OFFSETS_TO_TXN: 3,
        ApiKey.PRODUCE: 11,
        ApiKey.TXN_OFFSET_COMMIT: 4,
        ApiKey.END_TXN: 4,
    },
    2: {ApiKey.PRODUCE: 12, ApiKey.TXN_OFFSET_COMMIT: 5},
}
"""Versions of requests by the version of the protocol of transactions."""
TRY_AGAIN = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,
}
FENCED = {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH}

Work: TypeAlias = "Mapping[TopicPartition, tuple[int, int]]"
Asked: TypeAlias = Generator["Message | int", "Message | None", "tuple[ErrorCode | None, Message | None]"]
Done: TypeAlias = Generator["Message | int", "Message | None", bool]


class Worker(Protocol):
    """The process around it."""

    name: str
    config: MemberConfig
    owns: Publish
    stopped: bool
    paused_until: int

    def take_work(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return what to make of the input now, as start and end of positions."""

    def work_aborted(self, partitions: Iterable[TopicPartition]) -> None:
        """Take back work that was not committed."""

    def work_in_doubt(self, partitions: Iterable[TopicPartition]) -> None:
        """Find out what of the work was committed."""


class Identity(TypedDict):
    """Who asks, in every request of a transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class Producer(ScriptedClient):
    """Runs one transaction after another: outputs, offsets under the member's generation, the end.

    `fenced` is called when another instance has taken over.
    """

    def __init__(
        self,
        world: Setting,
        process: Worker,
        transactional_id: str,
        versions: Mapping[ApiKey, int],
        fenced: Callable[[], None],
    ) -> None:
        super().__init__(world, Client(world, f"{process.name}-tx", versions), self._live())
        self._fenced = fenced
        self.process = process
        self.transactional_id = transactional_id
        self.is_second_version = ApiKey.END_TXN not in versions
        self.busy = False
        """True while a transaction is open, as far as it knows."""
        self.begins = True
        """True until it has its epoch, for the first time or after a failure."""
        self.producer_id = self.epoch = -1
        self._sequences: dict[int, int] = {}
        self._node: int | None = None
        self._held: list[Message | None] = []
        """What the script waits for, in a process that is paused."""

    @override
    def stop(self) -> None:
        self.busy = self.begins = False
        super().stop()

    def wake(self) -> None:
        """Go on after a pause of the process."""
        while self._held:
            self._go_on(self._held.pop(0))

    @override
    def _go_on(self, response: Message | None, _reason: str = "") -> None:
        if self.alive and self.world.scheduler.now < self.process.paused_until:
            self._held.append(response)
        else:
            super()._go_on(response)

    @override
    def _send(self, request: Message) -> None:
        to = None if isinstance(request, FindCoordinatorRequest) else self._node
        self.client.request(to, "transactions", request, REQUEST_MS, self._go_on)

    # -- the script ----------------------------------------------------------------------------------------------

    def _live(self) -> Script:
        if not (yield from self._initialize()):
            return
        while not self.process.stopped:
            yield self.world.chance.randint(500, 3_000)
            work = {} if self.world.winding_up else self.process.take_work()
            if not work:
                continue
            self.busy = True
            if not (yield from self._run(work)):
                if not (yield from self._initialize()):
                    return
                self.process.work_in_doubt(work)
            self.busy = False

    def _initialize(self) -> Done:
        """Have an epoch given: a new instance fences the one before; later ones go on only from their own."""
        self.begins = True
        while True:
            request = InitProducerIdRequest(
                transactional_id=self.transactional_id,
                transaction_timeout_ms=TRANSACTION_MS,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
            )
            code, response = yield from self._ask(request)
            if code is ErrorCode.NONE and isinstance(response, InitProducerIdResponse):
                self.producer_id, self.epoch = response.producer_id, response.producer_epoch
                self._sequences.clear()
                self.begins = False
                return True
            if code is not None:
                self._fenced()
                return False

    def _run(self, work: Work) -> Done:
        """Run one transaction; False if the producer has to begin anew, since it failed or its end is not known."""
        owns, number = self.process.owns, self.world.new_transaction()
        records: dict[int, list[Output]] = {}
        for source, (start, end) in work.items():
            records.setdefault(source.partition % OUTPUT_PARTITIONS, []).append(Output(source, start, end, number))
        steps = [self._produce(records), self._offsets(work, owns.generation, owns.member_id)]
        if not self.is_second_version:
            steps.insert(0, self._partitions(sorted(records)))
            steps.insert(2, AddOffsetsToTxnRequest(group_id=self.world.group_id, **self._identity()))
        for step in steps:
            code, _ = yield from self._ask(step)
            if code is None or code in FENCED:
                return False
            if code is not ErrorCode.NONE:
                ended = yield from self._end(number, committed=False)
                if ended:
                    self.process.work_aborted(work)
                return ended
            if self.world.chance.random() < 0.1:
                yield self.world.chance.choice((200, 2_000))
        return (yield from self._end(number, committed=True))

    def _end(self, number: int, *, committed: bool) -> Done:
        code, response = yield from self._ask(EndTxnRequest(committed=committed, **self._identity()))
        if code is not ErrorCode.NONE or not isinstance(response, EndTxnResponse):
            return False
        self.world.exactly_once.ended(number, committed=committed)
        if self.is_second_version:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
            self._sequences.clear()
        return True

    # -- requests ------------------------------------------------------------------------------------------------

    def _ask(self, request: Message) -> Asked:
        """Send a request until it is answered for good; no code if that takes too long."""
        end = self.world.scheduler.now + PATIENCE_MS
        while self.world.scheduler.now < end:
            if self._node is None:
                found = yield FindCoordinatorRequest(coordinator_keys=[self.transactional_id], key_type=1)
                if isinstance(found, FindCoordinatorResponse) and found.coordinators:
                    self._node = found.coordinators[0].node_id
                else:
                    yield 200
                    continue
            response = yield request
            code = None if response is None else error_of(response)
            if code is None or code in (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_LEADER_OR_FOLLOWER):
                self._node = None
            if code is not None and code not in TRY_AGAIN:
                return code, response
            yield self.world.chance.choice((20, 100, 400))
        return None, None

    def _identity(self) -> Identity:
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }

    def _partitions(self, partitions: list[int]) -> Message:
        topic = AddPartitionsToTxnRequest.Topic(name=OUTPUT_TOPIC, partitions=partitions)
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[topic],
        )

    def _produce(self, records: Mapping[int, list[Output]]) -> Message:
        rows = []
        for index, outputs in sorted(records.items()):
            first = self._sequences.get(index, 0)
            self._sequences[index] = first + len(outputs)
            pairs = [output.encode() for output in outputs]
            batch = build_batch(
                [Record(timestamp=0, key=key, value=value) for key, value in pairs],
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                base_sequence=first,
                transactional=True,
            )
            rows.append(ProduceRequest.Topic.Partition(index=index, records=bytes(batch)))
        topic = ProduceRequest.Topic(name=OUTPUT_TOPIC, partition_data=rows)
        return ProduceRequest(
            transactional_id=self.transactional_id, acks=-1, timeout_ms=REQUEST_MS, topic_data=[topic]
        )

    def _offsets(self, work: Work, generation: int, member: str) -> Message:
        kind = TxnOffsetCommitRequest.Topic
        topics: dict[str, list[TxnOffsetCommitRequest.Topic.Partition]] = {}
        for source, (_, end) in work.items():
            row = kind.Partition(partition_index=source.partition, committed_offset=end)
            topics.setdefault(source.topic, []).append(row)
        return TxnOffsetCommitRequest(
            group_id=self.world.group_id,
            generation_id=generation,
            member_id=member,
            group_instance_id=self.process.config.group_instance_id,
            topics=[kind(name=name, partitions=rows) for name, rows in topics.items()],
            **self._identity(),
        )


def error_of(response: Message) -> ErrorCode:
    """Return the first error of a response, or NONE."""
    codes: list[int] = []
    match response:
        case InitProducerIdResponse() | AddOffsetsToTxnResponse() | EndTxnResponse():
            codes = [response.error_code]
        case AddPartitionsToTxnResponse():
            topics = response.results_by_topic_v3_and_below
            codes = [row.partition_error_code for topic in topics for row in topic.results_by_partition]
        case ProduceResponse():
            codes = [row.error_code for topic in response.responses for row in topic.partition_responses]
        case TxnOffsetCommitResponse():
            codes = [row.error_code for topic in response.topics for row in topic.partitions]
    return ErrorCode(next((code for code in codes if code), 0))
