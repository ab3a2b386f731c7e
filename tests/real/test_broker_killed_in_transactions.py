"""`kill -9` of Roster's broker while librdkafka and Java write transactions: none is half visible, lost or double."""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from roster.testing.broker import BrokerProcess
from tests.real.realparts.clients import AdminError, Host
from tests.real.realparts.cluster import Cluster, unique
from tests.waiting import until

KILLS = int(os.environ.get("ROSTER_BROKER_KILLS", "4"))
PARTITIONS = 3
COPIES = 2
"""Records of one transaction in each partition."""
SECONDS = 120

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


@pytest.fixture
def mortal_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", "--log-level", "error") as broker:
        yield broker


class Writer:
    """Transactions one after the other in a thread, and what the producer was told of the end of each."""

    def __init__(self, name: str, cluster: Cluster, topic: str, seed: int) -> None:
        self.name, self.cluster, self.topic = name, cluster, topic
        self.random = random.Random(seed)
        self.ended = 0
        self.told: dict[str, bool] = {}
        """By the value of a transaction's records: committed or aborted. Neither where the client did not learn it."""
        self.ending = threading.Event()
        """Set whenever a transaction is about to end."""
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            value = ""
            while not self._stop.is_set() or value not in self.told:  # the last one's end is known: nothing stays open
                value = f"{self.name}-{self.ended}"
                self.transaction(value, commits=self.random.random() < 0.75)
                self.ended += 1
        except BaseException as error:
            self.failure = error

    def transaction(self, value: str, *, commits: bool) -> None:
        raise NotImplementedError

    def goes_on(self) -> None:
        """Wait for the ends of two more transactions, of which one began after this call."""
        before = self.ended

        def went_on() -> bool:
            assert self.failure is None, repr(self.failure)
            return self.ended >= before + 2

        until(went_on, SECONDS, lambda: f"{self.name} stands still: {self.failure}")

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()
        assert self.failure is None, repr(self.failure)


class Librdkafka(Writer):
    """A producer that asks again what may be asked again, aborts what must be aborted, and is replaced otherwise."""

    _producer: Producer | None = None

    def _opened(self) -> Producer:
        if self._producer is None:
            settings = {"bootstrap.servers": self.cluster.bootstrap, "transactional.id": f"{self.topic}-{self.name}"}
            self._producer = Producer({**settings, "linger.ms": 0, "log_level": 0, "reconnect.backoff.max.ms": 200})
            self._attempt(lambda producer: producer.init_transactions(SECONDS))
        return self._producer

    def transaction(self, value: str, *, commits: bool) -> None:
        try:
            producer = self._opened()
            producer.begin_transaction()
            for number in range(PARTITIONS * COPIES):
                producer.produce(self.topic, value, partition=number % PARTITIONS)
            if not commits:
                producer.flush(SECONDS)
            self.ending.set()
            if commits:
                self._attempt(lambda producer: producer.commit_transaction(SECONDS))
            else:
                self._attempt(lambda producer: producer.abort_transaction(SECONDS))
            self.told[value] = commits
        except KafkaException as error:
            if error.args[0].txn_requires_abort():
                self._attempt(lambda producer: producer.abort_transaction(SECONDS))
                self.told[value] = False
            else:
                self._producer = None

    def _attempt(self, call: Callable[[Producer], object]) -> None:
        while True:
            try:
                call(self._producer)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
            else:
                return


class Java(Writer):
    """Java's producer in its host, which is replaced after any error."""

    _handle = ""

    def __init__(self, host: Host, *arguments: object) -> None:
        self._host = host
        super().__init__(*arguments)  # type: ignore[arg-type]

    def _step(self, step: str, **more: object) -> None:
        known = {"bootstrap": self.cluster.bootstrap, "handle": self._handle}
        self._host.ask(2 * SECONDS, operation="transaction", step=step, **known, **more)

    def transaction(self, value: str, *, commits: bool) -> None:
        try:
            if not self._handle:
                self._handle = unique("producer")
                self._step("open", name=f"{self.topic}-{self.name}", timeout_ms=60_000)
            self._step("begin")
            for partition in range(PARTITIONS):
                self._step("send", topic=self.topic, partition=partition, values=[value] * COPIES)
            self.ending.set()
            self._step("commit" if commits else "abort")
            self.told[value] = commits
        except AdminError:
            self._step("close")
            self._handle = ""

    def finish(self) -> None:
        super().finish()
        if self._handle:
            self._step("close")


def visible(cluster: Cluster, topic: str) -> list[list[str]]:
    """The values of each partition as a reader of committed records sees them."""
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": unique("reader"), "enable.partition.eof": True}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "auto.offset.reset": "earliest"})
    partitions = [TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)]
    with_open = Consumer({**settings, "isolation.level": "read_uncommitted"})

    def decided() -> bool:
        pairs = [[each.get_watermark_offsets(p, SECONDS)[1] for each in (consumer, with_open)] for p in partitions]
        return all(one == other for one, other in pairs)

    until(decided, SECONDS, "a transaction stays open")
    with_open.close()
    consumer.assign(partitions)
    found: list[list[str]] = [[] for _ in range(PARTITIONS)]
    at_end: set[int] = set()
    try:
        while len(at_end) < PARTITIONS:
            message = consumer.poll(SECONDS)
            assert message is not None, "neither records nor the ends of the partitions"
            if message.error() is None:
                found[message.partition()].append(message.value().decode())
            elif message.error().code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition())
    finally:
        consumer.close()
    return found


def test_no_transaction_is_half_visible_lost_or_double(mortal_broker: BrokerProcess, java_host: Host) -> None:
    seed = int(os.environ.get("ROSTER_SEED", "10"))
    chance = random.Random(seed)
    cluster = Cluster("roster", mortal_broker.bootstrap)
    topic = cluster.create_topic(partitions=PARTITIONS)
    writers: list[Writer] = [
        Librdkafka("librdkafka-1", cluster, topic, seed),
        Librdkafka("librdkafka-2", cluster, topic, seed + 1),
        Java(java_host, "java", cluster, topic, seed + 2),
    ]
    for writer in writers:
        writer.goes_on()
    for number in range(KILLS):
        aimed = writers[number % len(writers)]
        aimed.ending.clear()
        assert aimed.ending.wait(SECONDS)
        threading.Event().wait(chance.choice((0, 0.001, 0.003, 0.01)))  # into the commit, its markers, or behind them
        mortal_broker.kill()
        mortal_broker.start()
        for writer in writers:
            writer.goes_on()
    for writer in writers:
        writer.finish()
    mortal_broker.kill()
    mortal_broker.start()
    told = {value: committed for writer in writers for value, committed in writer.told.items()}
    assert Counter(told.values())[True] > KILLS
    whole = Counter[str]()
    for values in visible(Cluster("roster", mortal_broker.bootstrap), topic):
        counts = Counter(values)
        assert set(counts.values()) == {COPIES}, f"half or double with seed {seed}"
        whole.update(counts.keys())
    assert set(whole.values()) == {PARTITIONS}, f"half visible with seed {seed}"
    lost = {value for value, committed in told.items() if committed} - whole.keys()
    assert not lost, f"committed and not there with seed {seed}"
    shown = {value for value, committed in told.items() if not committed} & whole.keys()
    assert not shown, f"aborted and there with seed {seed}"
