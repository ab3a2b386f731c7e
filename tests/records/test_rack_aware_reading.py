"""Reading from a replica in the reader's rack (KIP-392), on two brokers of Apache Kafka."""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING

import pytest

from roster.client import ClientError
from roster.model.address import parse_addresses
from roster.records import fetch
from roster.records.fetch import read_ranges
from roster.records.fetch_decisions import Settings
from tests.real.realparts.apache import ApacheKafka, free_ports
from tests.real.realparts.cluster import Cluster
from tests.spark.spark_topics import Topics
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

RACKS = {1: "rack-a", 2: "rack-b"}
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
CLUSTER_ID = "Q2x1c3RlcldpdGhSYWNrcw"


class Racked(ApacheKafka):
    """One of two brokers: the first is the controller too."""

    def __init__(self, directory: Path, first: Racked | None = None) -> None:
        directory.mkdir()
        self.directory, self.log_path = directory, directory / "broker.log"
        self.number = 1 if first is None else 2
        self.port, own_controller_port = free_ports(2)
        self.controller_port = own_controller_port if first is None else first.controller_port
        address, controller = f"127.0.0.1:{self.port}", f"127.0.0.1:{self.controller_port}"
        settings = {
            "process.roles": "broker,controller" if first is None else "broker",
            "node.id": self.number,
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{address}" + (f",CONTROLLER://{controller}" if first is None else ""),
            "advertised.listeners": f"PLAINTEXT://{address}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": directory / "log",
            "offsets.topic.replication.factor": 1,
            "broker.rack": RACKS[self.number],
            "replica.selector.class": SELECTOR,
            "num.network.threads": 2,
            "num.io.threads": 2,
            "log.cleaner.enable": "false",
        }
        self.settings = directory / "server.properties"
        self.settings.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self._format(self.settings, cluster_id=CLUSTER_ID)
        self._launch(self.settings)
        Cluster.__init__(self, "apache", address)


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[dict[int, Racked]]:
    first = Racked(tmp_path / "one")
    try:
        second = Racked(tmp_path / "two", first)
        try:
            first._await_ready()
            second._await_ready()
            yield {1: first, 2: second}
        finally:
            second.process.kill()
            second.process.wait()
    finally:
        first.process.kill()
        first.process.wait()


@pytest.mark.gate
def test_records_come_from_the_replica_in_the_rack_and_without_it_from_the_leader(brokers: dict[int, Racked]) -> None:
    with Topics(f"{brokers[1].bootstrap},{brokers[2].bootstrap}") as topics:
        topic = f"rack-{uuid.uuid4().hex[:8]}"

        def created() -> bool:
            with contextlib.suppress(ClientError):  # the second broker is not registered yet
                topics.admin.create_topic(topic, 2, replication=2)
            return topic in topics.admin.list_topics()

        until(created, 120, "both brokers are there")
        topics.fill(topic, 2, 1000)
        wanted = topics.everything(topic)
        leaders = {p.partition: p.leader for p in topics.admin.describe_topic(topic).partitions}

        def read(rack: str) -> dict[int, int]:
            """The replica that each partition was read from, where it was another than the leader."""
            name = f"reader-{rack}"
            settings, ranges = Settings(rack=rack), [(topic, number, 0, 500) for number in range(2)]
            addresses = parse_addresses(topics.bootstrap)
            found = read_ranges(addresses, name, ranges, settings, timeout=60)
            rows = [(b.column("partition"), b.column("offset")) for b in found]
            pairs = [pair for p, o in rows for pair in zip(p.to_pylist(), o.to_pylist(), strict=True)]
            assert sorted(pairs) == wanted
            (session,) = (session for known, session in fetch._sessions.items() if name in known)
            return {partition: replica for (_, partition), replica in session.knowledge.replicas.items()}

        for number, rack in RACKS.items():
            elsewhere = {partition: number for partition, leader in leaders.items() if leader != number}
            until(lambda rack=rack, elsewhere=elsewhere: read(rack) == elsewhere, 120, f"reads in {rack}")
        assert read("") == read("rack-of-nobody") == {}
        brokers[2].process.kill()
        brokers[2].process.wait()
        until(lambda: {p.leader for p in topics.admin.describe_topic(topic).partitions} == {1}, 120, "a new leader")
        assert read("rack-b") == {}
