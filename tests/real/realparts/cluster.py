"""A cluster as a test sees it, Apache's or Roster's: topics, records, and what the coordinator says about a group."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Mapping
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.librdkafka import idempotent_producer
from tests.waiting import until

Partition = tuple[str, int]

_numbers = itertools.count(1)


def unique(stem: str) -> str:
    """A topic or group name no other test of this or another run uses."""
    return f"{stem}-{os.getpid():x}-{next(_numbers)}"


class Cluster:
    """Where a broker listens, and the plain questions tests ask of it (through librdkafka's admin client)."""

    def __init__(self, kind: str, bootstrap: str) -> None:
        self.kind = kind
        self.bootstrap = bootstrap
        silent = logging.getLogger("tests.real.silent")
        silent.propagate = False
        self._config: dict[str, Any] = {"bootstrap.servers": bootstrap, "logger": silent}
        self._admin: AdminClient | None = None
        self._producer: Producer | None = None

    @property
    def admin(self) -> AdminClient:
        """librdkafka's admin client on this cluster."""
        if self._admin is None:
            self._admin = AdminClient(self._config)
        return self._admin

    def answers(self, timeout: float) -> bool:
        """Whether a broker tells its metadata."""
        try:
            return bool(self.admin.list_topics(timeout=timeout).brokers)
        except KafkaException:
            return False

    def create_topic(self, stem: str = "topic", partitions: int = 4, records: int = 0) -> str:
        """A new topic under a name of its own, with `records` records in each partition."""
        name = unique(stem)
        self.admin.create_topics([NewTopic(name, partitions, 1)])[name].result(60)
        until(
            lambda: len(self.admin.list_topics(topic=name, timeout=30).topics[name].partitions) == partitions,
            what=f"{name} is not in the metadata",
        )
        if records:
            self.produce({(name, partition): records for partition in range(partitions)})
        return name

    def add_partitions(self, topic: str, total: int) -> None:
        """Grow a topic to `total` partitions."""
        self.admin.create_partitions([NewPartitions(topic, total)])[topic].result(60)
        self._producer = None  # one that knows the topic would refuse the new partitions

    def produce(self, counts: Mapping[Partition, int]) -> None:
        """Append that many records to each partition and wait until all are acknowledged."""
        failures: list[object] = []

        def delivered(error: object, _message: object) -> None:
            if error is not None:
                failures.append(error)

        if self._producer is None:  # librdkafka waits half a second for the first producer id
            self._producer = idempotent_producer(self.bootstrap, {**self._config, "linger.ms": 5})
        producer = self._producer
        for (topic, partition), count in counts.items():
            for index in range(count):
                value = f"{topic}-{partition}-{index}"
                producer.produce(topic, partition=partition, value=value, on_delivery=delivered)
        assert producer.flush(60) == 0, "records were not acknowledged in time"
        assert not failures, failures[:3]

    def group(self, group: str) -> Any:
        """librdkafka's description of a group."""
        return self.admin.describe_consumer_groups([group])[group].result(60)

    def group_state(self, group: str) -> str:
        """The group's state in words: STABLE, EMPTY, …"""
        return str(self.group(group).state.name)

    def owners(self, group: str) -> dict[Partition, list[str]]:
        """Who owns each partition, by client id, as the coordinator tells it."""
        owned: dict[Partition, list[str]] = {}
        for member in self.group(group).members:
            for part in member.assignment.topic_partitions if member.assignment else ():
                owned.setdefault((part.topic, part.partition), []).append(member.client_id)
        return owned

    def committed(self, group: str) -> dict[Partition, int]:
        """The offsets the group committed; a coordinator that still loads them is asked again."""

        def loaded() -> Any:
            asked = self.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
            try:
                return asked[group].result(60)
            except KafkaException as failure:
                if failure.args[0].code() != KafkaError.COORDINATOR_LOAD_IN_PROGRESS:
                    raise
                return None

        found = until(loaded, 120, f"the coordinator has not loaded {group}")
        return {(part.topic, part.partition): part.offset for part in found.topic_partitions}
