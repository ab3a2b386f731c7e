"""Topics with records in them, on any cluster."""

from __future__ import annotations

import itertools
from typing import Any, Self

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Assigned

from roster.client import Admin
from roster.model import TopicPartition
from tests.librdkafka import idempotent_producer

_NUMBERS = itertools.count()


class Topics:
    """Makes topics of unique names and fills them."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = Admin(bootstrap)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.admin.close()

    def create(self, partitions: int, records: int = 0, *, name: str = "t") -> str:
        """A topic with `records` records, dealt round to the partitions."""
        topic = f"{name}-{next(_NUMBERS)}"
        self.admin.create_topic(topic, partitions)
        self.fill(topic, partitions, records)
        return topic

    def fill(self, topic: str, partitions: int, records: int, **more: Any) -> None:
        """Append records with values b"0", b"1", …; `key` is the number modulo 7."""
        # A producer of its own: an older one may not know a topic's newest partitions.
        producer = idempotent_producer(self.bootstrap, {"linger.ms": 20})
        for number in range(records):
            producer.produce(topic, b"%d" % number, b"k%d" % (number % 7), partition=number % partitions, **more)
            if number % 1000 == 0:
                producer.poll(0)
        assert producer.flush(120) == 0

    def fill_one(self, topic: str, partition: int, records: int) -> None:
        """Append so many records to one partition."""
        producer = idempotent_producer(self.bootstrap, {"linger.ms": 20})
        for number in range(records):
            producer.produce(topic, b"%d" % number, partition=partition)
        assert producer.flush(120) == 0

    def ends(self, topic: str) -> dict[TopicPartition, int]:
        count = self.admin.list_topics()[topic]
        return self.admin.end_offsets([TopicPartition(topic, number) for number in range(count)])

    def everything(self, topic: str) -> list[tuple[int, int]]:
        """Each record's partition and offset, sorted."""
        return sorted((p.partition, offset) for p, end in self.ends(topic).items() for offset in range(end))

    def exists(self, group: str) -> bool:
        return any(listing.group_id == group for listing in self.admin.list_groups())

    def committed(self, group: str) -> dict[TopicPartition, int]:
        return {p: found.offset for p, found in self.admin.group_offsets(group).items()}


def committed_records(topics: Topics, topic: str, seconds: float = 60) -> list[tuple[int, bytes | None, bytes | None]]:
    """Each record so far that librdkafka reads at read_committed: partition, key, value; by partition in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": topics.bootstrap,
            "group.id": f"reader-{next(_NUMBERS)}",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    found: list[tuple[int, bytes | None, bytes | None]] = []
    for partition, end in sorted(topics.ends(topic).items()):
        consumer.assign([Assigned(topic, partition.partition, 0)])
        while True:
            message = consumer.poll(seconds)
            assert message is not None, f"{partition} is held up by an open transaction"
            # A log that others write to may never be read to its end.
            if message.error() is not None or (message.offset() or 0) >= end:
                break
            found.append((message.partition(), message.key(), message.value()))
    consumer.close()
    return found
