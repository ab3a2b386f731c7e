"""`kill -9` of Roster's broker while clients of every kind write, read and commit: what was acknowledged stays."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from roster.testing.broker import BrokerProcess
from tests.real.realparts.clients import Member
from tests.real.realparts.cluster import Cluster, Partition, unique
from tests.real.realparts.groups import none_failed, partitions, shared_out
from tests.waiting import until

KILLS = int(os.environ.get("ROSTER_BROKER_KILLS", "2"))
KINDS = ("java", "kafka-python", "aiokafka", "confluent", "roster")
SECONDS = 120.0
PAUSE_SECONDS = 0.01
LONGEST_LIFE_SECONDS = 0.5
"""At most this long after everything goes on the next kill comes."""

pytestmark = [pytest.mark.real, pytest.mark.timeout(max(600, 60 * KILLS))]


@pytest.fixture
def mortal_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = ("--initial-rebalance-delay-ms", "150", "--min-session-timeout-ms", "1000", "--log-level", "error")
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        yield broker


class Repeated:
    """Work done over and over in a thread; `count` is how often it succeeded."""

    def __init__(self, name: str) -> None:
        self.name, self.count = name, 0
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.wait(PAUSE_SECONDS):
                self.work()
        except BaseException as error:
            self.failure = error

    def work(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(SECONDS)
        assert not self._thread.is_alive(), self.name
        assert self.failure is None, (self.name, self.failure)


class Writer(Repeated):
    """Numbered records, and where the broker acknowledged them."""

    def __init__(self, cluster: Cluster, topic: str, count: int) -> None:
        super().__init__("writer")
        self.acknowledged: dict[tuple[int, int], str] = {}
        self._topic, self._partitions, self._next = topic, count, 0
        settings = {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 0}
        self._producer = Producer({**settings, "log_level": 0, "reconnect.backoff.max.ms": 200})

    def work(self) -> None:
        for partition in range(self._partitions):
            self._producer.produce(self._topic, str(self._next), partition=partition, on_delivery=self._delivered)
            self._next += 1
        self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: object) -> None:
        if error is None:
            self.acknowledged[message.partition(), message.offset()] = message.value().decode()  # type: ignore[attr-defined]
            self.count += 1

    def finish(self) -> None:
        super().finish()
        assert self._producer.flush(SECONDS) == 0, "records are still not acknowledged"


class Committer(Repeated):
    """Commits of one member, and the highest offsets that the group acknowledged."""

    def __init__(self, member: Member, acknowledged: dict[Partition, int], lock: threading.Lock) -> None:
        super().__init__(member.id)
        self.member, self._acknowledged, self._lock = member, acknowledged, lock

    def work(self) -> None:
        done = self.member.try_commit(SECONDS)
        if done["error"] is None and done["offsets"]:
            with self._lock:
                for topic, partition, offset in done["offsets"]:
                    self._acknowledged[topic, partition] = max(offset, self._acknowledged.get((topic, partition), 0))
            self.count += 1


def all_go_on(workers: list[Repeated], members: list[Member]) -> None:
    """Wait until each has succeeded twice more: what was under way before may have been acknowledged before."""
    before = {worker.name: worker.count for worker in workers}

    def went_on() -> bool:
        none_failed(members)
        failures = [(worker.name, worker.failure) for worker in workers if worker.failure is not None]
        assert not failures, failures
        return all(worker.count >= before[worker.name] + 2 for worker in workers)

    until(went_on, SECONDS, lambda: [(worker.name, worker.count - before[worker.name]) for worker in workers])


def written(cluster: Cluster, topic: str, count: int) -> dict[tuple[int, int], str]:
    """Every record there is, by partition and offset."""
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": unique("reader"), "enable.partition.eof": True}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(count)])
    found: dict[tuple[int, int], str] = {}
    at_end: set[int] = set()
    while len(at_end) < count:
        message = consumer.poll(SECONDS)
        assert message is not None, "neither records nor the ends of the partitions"
        if message.error() is None:
            found[message.partition(), message.offset()] = message.value().decode()
        elif message.error().code() == KafkaError._PARTITION_EOF:
            at_end.add(message.partition())
    consumer.close()
    return found


@pytest.mark.gate
def test_nothing_acknowledged_is_lost(mortal_broker: BrokerProcess, client: Callable[..., Member]) -> None:
    seed = int(os.environ.get("ROSTER_SEED", "12"))
    chance = random.Random(seed)
    cluster = Cluster("roster", mortal_broker.bootstrap)
    count = len(KINDS)
    topic, group = cluster.create_topic(partitions=count, records=5), unique("group")
    members = [client(kind, cluster, group, topics=[topic], session_ms=20_000, rebalance_ms=60_000) for kind in KINDS]
    shared_out(members, partitions(topic, count))
    acknowledged: dict[Partition, int] = {}
    lock = threading.Lock()
    writer = Writer(cluster, topic, count)
    workers: list[Repeated] = [writer, *(Committer(member, acknowledged, lock) for member in members)]
    for worker in workers:
        worker.start()
    all_go_on(workers, members)
    for number in range(KILLS):
        threading.Event().wait(chance.uniform(0, LONGEST_LIFE_SECONDS))
        mortal_broker.kill()
        with lock:
            known = dict(acknowledged)
        mortal_broker.start()
        stored = Cluster("roster", mortal_broker.bootstrap).committed(group)
        lost = {key: (offset, stored.get(key)) for key, offset in known.items() if stored.get(key, -1) < offset}
        assert not lost, f"acknowledged commits lost at kill {number} with seed {seed}: {lost}"
        all_go_on(workers, members)
        print(f"kill {number + 1} of {KILLS} with seed {seed}: {len(known)} partitions' commits kept", flush=True)
    for worker in workers:
        worker.finish()
    records = written(Cluster("roster", mortal_broker.bootstrap), topic, count)
    lost_records = {key: value for key, value in writer.acknowledged.items() if records.get(key) != value}
    assert not lost_records, f"acknowledged records lost with seed {seed}: {lost_records}"
    own = [value for (_, offset), value in records.items() if offset >= 5]
    assert len(own) == len(set(own)), f"an idempotent producer's records are there twice with seed {seed}"
    ends = {(topic, partition): 1 + max(o for p, o in records if p == partition) for partition in range(count)}
    stored = Cluster("roster", mortal_broker.bootstrap).committed(group)
    assert all(acknowledged[key] <= stored[key] <= ends[key] for key in ends), (acknowledged, stored, ends)
    print(f"{KILLS} kills: {len(writer.acknowledged)} records and {sum(w.count for w in workers[1:])} commits kept")
