"""The driver's part of a transactional batch on both brokers, without Spark: both versions, and every kind of owner."""

from __future__ import annotations

import re
import uuid
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AclBinding, AclOperation, ResourceType
from pyspark.sql.types import StructType

from roster.client import ClaimedBy, ClientError, CommitRetriable, GroupMember, OffsetAndMetadata, UnknownTopicError
from roster.client import transactional_producer as producer_module
from roster.client.transactional_producer import TransactionalProducer
from roster.model import TopicPartition, parse_addresses
from roster.pipeline.batch import Batch, Owner, Range
from roster.pipeline.batch_sink import Source
from roster.pipeline.errors import SinkFencedError
from roster.records.connections import Connections
from roster.records.encoding import EncodedBatch, EncodingWriter
from roster.records.produce import KafkaWriter, WriteError
from roster.security import PLAINTEXT, parse_security
from roster.sinks import kafka_transactions
from roster.sinks.kafka_transactions import TransactionalSink, started_producer, transactional_id
from roster.sinks.tasks.shuffle import ExchangeWriter
from roster.spark import KafkaSink, PipelineError
from roster.wire.messages import ProduceRequest
from tests.broker.secured import secured_broker
from tests.broker.test_secured_clients import SECONDS, acl, confluent_admin
from tests.spark.spark_topics import Topics, committed_records
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.real.realparts.cluster import Cluster

pytestmark = pytest.mark.timeout(300)

P0, P1 = 0, 1


class Application:
    """One member of the group with its transactions."""

    def __init__(self, topics: Topics, group: str, topic: str, out: str, stack: ExitStack) -> None:
        self.topic, self.group = topic, group
        self._writer = KafkaWriter(tuple(parse_addresses(topics.bootstrap)), out)
        self.member = stack.enter_context(
            GroupMember(topics.bootstrap, group, [topic], heartbeat_interval_ms=100, session_timeout_ms=30_000)
        )
        source = Source(topics.bootstrap, group)
        self.producer = started_producer(source, topics.bootstrap, PLAINTEXT, 60_000)
        stack.callback(self.producer.close)
        sink = KafkaSink(topics.bootstrap, out)
        self.transactions = TransactionalSink(sink, self.producer, group, self._writer, ())

    @property
    def owner(self) -> Owner:
        now = self.member.ownership()
        return Owner(self.group, now.generation, now.member_id)

    def claim(self) -> None:
        now = self.member.ownership()
        metadata = self.transactions.offset_metadata(self.owner)
        self.member.commit({p: OffsetAndMetadata(0, metadata=metadata) for p in now.partitions}, now)

    def write(self, offset: int, *values: bytes, early: bool = False) -> Batch:
        """A batch over all partitions that ends at an offset; records go to the first two partitions in turn.

        early: its offsets are sent before its records.
        """
        partitions = pa.array([number % 2 for number in range(len(values))], pa.int32())
        output = EncodingWriter(self._writer).open()
        output.write(pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary()), "partition": partitions}))
        encoded: list[EncodedBatch] = output.close() or []
        owned = self.member.ownership().partitions
        batch = self.batch(self.owner, {p: Range(0, offset) for p in owned})
        if early:
            self.transactions.begin(batch)
        self.transactions.collect(EncodingWriter(self._writer), [encoded], batch)
        return batch

    def batch(self, owner: Owner, ranges: Mapping[TopicPartition, Range]) -> Batch:
        """A batch with the group's offsets behind it, which name this application's transactional id."""
        metadata = self.transactions.offset_metadata(owner)
        offsets = {p: OffsetAndMetadata(span.end, metadata=metadata) for p, span in ranges.items()}
        return Batch(0, owner, ranges, group_offsets=offsets)

    def offsets(self, topics: Topics) -> set[int]:
        return {found.offset for found in topics.admin.group_offsets(self.group).values()}


@pytest.fixture
def topics(cluster: Cluster) -> Iterator[Topics]:
    with Topics(cluster.bootstrap) as made:
        yield made


@pytest.fixture
def start(topics: Topics) -> Iterator[Callable[[], Application]]:
    """Starts applications of one group, all over the same topics."""
    group, topic, out = f"g-{uuid.uuid4().hex[:8]}", topics.create(2), topics.create(2)
    with ExitStack() as stack:
        yield lambda: Application(topics, group, topic, out, stack)


def values(topics: Topics, application: Application) -> Counter[bytes | None]:
    return Counter(value for _, _, value in committed_records(topics, application._writer.topic or "", 30))


def one_version_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the cluster had not finalized transaction.version 2."""
    monkeypatch.setattr(producer_module, "TRANSACTION_VERSION", "no.such.feature")
    monkeypatch.setattr(producer_module, "_VERIFIES", 0)


def test_a_batch_that_rewrites_state_is_written_by_tasks_however_few_its_offsets(
    topics: Topics, start: Callable[[], Application]
) -> None:
    application = start()
    application.claim()
    few = Batch(0, application.owner, {TopicPartition(application.topic, 0): Range(0, 1)})

    def chosen(batch: Batch) -> type:
        return type(application.transactions.task_writer(batch, StructType().add("value", "binary")))

    assert chosen(few) is EncodingWriter
    assert chosen(replace(few, rewrites_state=True)) is ExchangeWriter


@pytest.mark.parametrize(("version", "early"), [(1, False), (1, True), (2, False), (2, True)])
def test_committed_transactions_count_and_aborted_ones_do_not(
    topics: Topics, start: Callable[[], Application], version: int, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if version == 1:
        one_version_1(monkeypatch)
    application = start()
    application.claim()
    for number in range(1, 5):
        batch = application.write(number, *[b"%d-%d" % (number, index) for index in range(10)], early=early)
        if number == 3:
            application.transactions.abort(None, batch)
        else:
            ends = application.transactions.commit_batch(None, batch)
            until(lambda ends=ends: topics.admin.stable_offsets(ends) == ends, 30)
            assert topics.admin.end_offsets(ends) == ends
    expected = Counter(b"%d-%d" % (number, index) for number in (1, 2, 4) for index in range(10))
    assert values(topics, application) == expected
    application.member.committed(application.member.ownership().partitions)  # waits until offsets are stable
    assert application.offsets(topics) == {4}


@pytest.mark.parametrize(("has_offsets", "early"), [(True, False), (False, False), (False, True)])
def test_a_new_owner_ends_what_a_dead_one_has_open(
    topics: Topics, start: Callable[[], Application], has_offsets: bool, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = start()
    dead.claim()
    batch = dead.write(1, b"counts")
    dead.transactions.commit_batch(None, batch)
    batch = dead.write(2, b"does not", early=early)
    if has_offsets:

        def unsent() -> Any:
            raise RuntimeError  # in place of EndTxn: the process ends here

        producer = dead.producer
        with monkeypatch.context() as patch:
            patch.setattr(producer._state, "end", unsent)
            with pytest.raises(RuntimeError):
                dead.transactions.commit_batch(None, batch)
    dead.member.close()
    heir = start()
    partitions = heir.member.ownership().partitions
    assert len(partitions) == 2
    heir.transactions.take_over(partitions, heir.owner)
    assert {p: found and found.offset for p, found in heir.member.committed(partitions).items()} == dict.fromkeys(
        partitions, 1
    )
    assert values(topics, heir) == {b"counts": 1}, "readers of committed records are not held up"
    with pytest.raises(SinkFencedError):
        dead.transactions.commit_batch(None, batch)
    heir.transactions.commit_batch(None, heir.write(5, b"goes on"))
    assert values(topics, heir) == {b"counts": 1, b"goes on": 1}


def test_an_owner_that_left_nothing_open_is_not_said_to_have(
    topics: Topics, start: Callable[[], Application], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "roster.pipeline")
    names = []
    for number, leaves_open in enumerate((False, True, False), 1):
        application = start()
        partitions = application.member.ownership().partitions
        application.transactions.take_over(partitions, application.owner)
        names.append(application.producer.transactional_id)
        application.claim()
        application.transactions.commit_batch(None, application.write(number, b"counts"))
        if leaves_open:
            application.write(number, b"does not")
        else:
            application.producer.close()
        application.member.close()
    said = [message for message in caplog.messages if "ended what an earlier owner had open" in message]
    assert [message.partition("transactional_id=")[2] for message in said] == [names[1]]


def test_a_member_that_the_group_has_removed_fences_no_other(topics: Topics, start: Callable[[], Application]) -> None:
    owner = start()
    owner.claim()
    batch = owner.write(1, b"counts")
    stale = start()
    removed = Owner(owner.group, batch.owner.generation, "thawed")
    with pytest.raises(CommitRetriable):
        stale.transactions.take_over(batch.ranges.keys(), removed)
    owner.transactions.commit_batch(None, owner.batch(owner.owner, batch.ranges))
    assert values(topics, owner) == {b"counts": 1}


def test_partitions_that_a_live_member_handed_over_cost_it_nothing(
    topics: Topics, start: Callable[[], Application]
) -> None:
    owner = start()
    owner.claim()
    batch = owner.write(1, b"counts")
    owner.transactions.commit_batch(None, batch)
    other = start()
    owner.member.committed(batch.ranges.keys())
    other.transactions.take_over(batch.ranges.keys(), other.owner)
    epoch = owner.producer._state.epoch
    owner.transactions.commit_batch(None, owner.batch(owner.owner, owner.write(2, b"goes on").ranges))
    assert owner.producer._state.epoch.producer_id == epoch.producer_id
    assert values(topics, owner) == {b"counts": 1, b"goes on": 1}


def test_offsets_of_another_generation_or_member_do_not_count(topics: Topics, start: Callable[[], Application]) -> None:
    application = start()
    application.claim()
    batch = application.write(7, b"does not count")
    now = application.owner
    with pytest.raises(ClientError) as found:
        application.transactions.commit_batch(None, replace(batch, owner=replace(now, generation=now.generation + 1)))
    assert found.value.retriable
    with pytest.raises(SinkFencedError):
        application.transactions.commit_batch(None, replace(batch, owner=replace(now, member_id="nobody")))
    application.transactions.abort(None, batch)
    assert not values(topics, application)
    assert application.offsets(topics) == {0}


def test_offsets_that_were_sent_early_are_sent_again_in_the_generation_of_the_commit_where_they_must(
    topics: Topics, start: Callable[[], Application], monkeypatch: pytest.MonkeyPatch
) -> None:
    application = start()
    application.claim()
    transactions, now = application.transactions, application.owner
    batch = application.write(1, b"a", early=True)

    def committed() -> set[int]:
        application.member.committed(batch.ranges)  # waits until offsets are stable
        return application.offsets(topics)

    transactions.commit_batch(None, replace(batch, owner=Owner(now.group, now.generation + 1, now.member_id)))
    assert committed() == {1}, "they were in the transaction before there was another generation"
    next_owner = replace(now, generation=now.generation + 1)
    early = application.batch(next_owner, {p: Range(1, 2) for p in batch.ranges})
    transactions.begin(early)
    transactions.collect(EncodingWriter(application._writer), [[]], early)
    transactions.commit_batch(None, replace(early, owner=now))
    assert committed() == {2}
    transactions.begin(replace(early, owner=now))
    transactions.collect(EncodingWriter(application._writer), [[]], early)
    transactions.commit_batch(None, application.batch(now, {p: Range(2, 3) for p in batch.ranges}))
    assert committed() == {3}, "others than those that were sent"
    monkeypatch.setattr(kafka_transactions, "_LONGEST_BEGUN", -1.0)
    transactions.commit_batch(None, application.write(4, b"b", early=True))
    assert values(topics, application) == {b"a": 1, b"b": 1}
    assert committed() == {4}, "it took too long: the transaction was begun anew"


def test_records_follow_the_offsets_that_are_on_their_way_and_nobody_asks_the_broker_to_wait(
    topics: Topics, start: Callable[[], Application], monkeypatch: pytest.MonkeyPatch
) -> None:
    application = start()
    application.claim()
    application.transactions.commit_batch(None, application.write(1, b"a"))
    steps, send, until_done = list[str](), Connections.send, TransactionalProducer._until_done

    def sent(self: Connections, broker: int, address: Any, request: Any) -> None:
        steps.append(type(request).__name__)
        send(self, broker, address, request)

    async def asked(self: TransactionalProducer, coordinators: Any, key: str, request: Any, *more: Any) -> Any:
        answer = await until_done(self, coordinators, key, request, *more)
        steps.append(type(answer).__name__)
        return answer

    monkeypatch.setattr(Connections, "send", sent)
    monkeypatch.setattr(TransactionalProducer, "_until_done", asked)
    for number in (2, 3):
        application.transactions.commit_batch(None, application.write(number, b"b", early=True))
    names = ["AddOffsetsToTxnResponse", "TxnOffsetCommitResponse", "ProduceRequest", "EndTxnResponse"]
    assert steps == 2 * names


def test_the_records_of_all_partitions_are_one_request(
    topics: Topics, start: Callable[[], Application], monkeypatch: pytest.MonkeyPatch
) -> None:
    application = start()
    application.claim()
    sent, send = list[Any](), Connections.send

    def noted(self: Connections, broker: int, address: Any, request: Any) -> None:
        if isinstance(request, ProduceRequest):  # a refresh of metadata may come at any time
            sent.append(request)
        send(self, broker, address, request)

    application.transactions.commit_batch(None, application.write(1, b"a"))  # leaders are known from here on
    monkeypatch.setattr(Connections, "send", noted)
    application.transactions.commit_batch(None, application.write(2, b"b", b"c", b"d"))
    (request,) = sent
    assert [len(topic.partition_data) for topic in request.topic_data] == [2]


def test_an_output_topic_that_was_deleted_is_named(topics: Topics, start: Callable[[], Application]) -> None:
    application = start()
    application.claim()
    application.transactions.commit_batch(None, application.write(1, b"a"))
    out = application._writer.topic or ""
    topics.admin.delete_topic(out)
    with pytest.raises((UnknownTopicError, WriteError), match=f"no such topic: {out}"):
        application.write(2, b"b")


def test_a_sink_without_rows_tells_at_the_second_look_that_its_topic_was_deleted(topics: Topics) -> None:
    out = topics.create(1)
    sink = KafkaSink(topics.bootstrap, out)
    sink.open(None, "g")  # type: ignore[arg-type]
    with closing(sink):
        sink.check_target()
        topics.admin.delete_topic(out)
        sink.check_target()
        with pytest.raises(PipelineError, match=f"KafkaSink: topic '{out}' was deleted"):
            sink.check_target()


def test_transactional_ids_begin_with_the_group_and_no_two_are_alike() -> None:
    static = [transactional_id(Source("b", "a", "b-c")), transactional_id(Source("b", "a-b", "c"))]
    assert len({*static, transactional_id(Source("b", "a")), transactional_id(Source("b", "a"))}) == 4
    assert static[0] == transactional_id(Source("b", "a", "b-c"))
    assert static[0].startswith("a-b-c-")


def test_the_owner_beside_offsets_is_read_back_from_the_cluster(
    topics: Topics, start: Callable[[], Application]
) -> None:
    application = start()
    application.claim()
    found = topics.admin.group_offsets(application.group)
    owner = ClaimedBy.of(found[TopicPartition(application.topic, 0)].metadata)
    assert owner is not None
    assert owner.member_id == application.owner.member_id


@pytest.mark.parametrize("stateful", [True, False])
def test_a_missing_right_to_transactions_is_named_with_the_command_that_grants_it(
    tmp_path: Path, stateful: bool
) -> None:
    with secured_broker(tmp_path) as secured:
        admin = confluent_admin(secured)

        def grant(*rights: AclBinding) -> None:
            for done in admin.create_acls(list(rights)).values():
                done.result(SECONDS)

        grant(acl("otto", ResourceType.GROUP, "g", AclOperation.READ))
        settings = secured.settings("otto")
        sink = KafkaSink(secured.bootstrap, "t", security=settings, exactly_once=True)
        if stateful:
            sink.carry([])
        source = Source(secured.bootstrap, "g", security=parse_security(settings))
        with pytest.raises(PipelineError, match=r"no transactions: .*TRANSACTIONAL_ID_AUTHORIZATION_FAILED") as refused:
            sink.bind(source)
        assert ("leave exactly_once out" in str(refused.value)) == (not stateful)
        command = re.search(
            r"`kafka-acls\.sh --add --allow-principal User:NAME ((?:--operation \w+ )+)--transactional-id (\S+) "
            r"--resource-pattern-type prefixed`",
            str(refused.value),
        )
        assert command is not None
        operations = command[1].replace("--operation", "").upper().split()
        grant(*(acl("otto", ResourceType.TRANSACTIONAL_ID, command[2], AclOperation[each]) for each in operations))
        with closing(sink):
            assert sink.bind(source).commits_offsets
