"""Python consumers under remote control: one JSON command a line on stdin, one JSON event a line on stdout.

Run as a program. Speaks the same commands and events as java/ConsumerHost.java; a consumer's `kind` names its library.
"""

from __future__ import annotations

import json
import os
import queue
import re
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

_stdout_lock = threading.Lock()


def emit(identity: str, name: str, **fields: Any) -> None:
    """One event to whoever started us."""
    line = json.dumps({"id": identity, "event": name, **fields})
    with _stdout_lock:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def pairs(partitions: Iterable[Any] | None) -> list[list[Any]]:
    """JSON form of topic partitions of any library."""
    return sorted([p.topic, p.partition] for p in partitions or ())


def ranges_of(records: Iterable[Any]) -> list[list[Any]]:
    """[topic, partition, first offset, next offset] for each partition among (topic, partition, offset) triples."""
    found: dict[tuple[str, int], list[int]] = {}
    for topic, partition, offset in records:
        span = found.setdefault((topic, partition), [offset, offset + 1])
        span[0], span[1] = min(span[0], offset), max(span[1], offset + 1)
    return [[*partition, *span] for partition, span in found.items()]


class Consumer(ABC):
    """One member of a group by one library, polled by one thread."""

    def __init__(self, identity: str, config: dict[str, Any]) -> None:
        self.identity = identity
        self.config = config
        self.commands: queue.Queue[str] = queue.Queue()
        self.reported: list[list[Any]] | None = None

    @abstractmethod
    def open(self) -> None:
        """Create the client and subscribe."""

    @abstractmethod
    def poll(self) -> list[list[Any]]:
        """Fetch for a twentieth of a second; return ranges of what came."""

    @abstractmethod
    def owned(self) -> list[list[Any]]:
        """The partitions owned now."""

    @abstractmethod
    def commit(self) -> list[list[Any]]:
        """Commit the positions of all owned partitions, synchronously; [[topic, partition, offset]]."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group and close."""

    def assigned(self, partitions: Iterable[Any]) -> None:
        emit(self.identity, "assigned", partitions=pairs(partitions))

    def revoked(self, partitions: Iterable[Any]) -> None:
        self.reported = None
        emit(self.identity, "revoked", partitions=pairs(partitions))

    def lost(self, partitions: Iterable[Any]) -> None:
        self.reported = None
        emit(self.identity, "lost", partitions=pairs(partitions))

    def run(self) -> None:
        """Serve commands and poll between them until `close`."""
        try:
            self.open()
            self._serve()
        except Exception as e:  # whatever a library throws is an event for the test to judge
            emit(self.identity, "error", error=f"{type(e).__name__}: {e}")
        emit(self.identity, "closed")

    def _serve(self) -> None:
        polling = True
        while True:
            try:
                command = self.commands.get_nowait() if polling else self.commands.get()
            except queue.Empty:
                ranges = self.poll()
                owned = self.owned()
                if owned != self.reported:
                    self.reported = owned
                    emit(self.identity, "owns", partitions=owned)
                if ranges:
                    emit(self.identity, "records", ranges=ranges)
                continue
            if command == "commit":
                self._commit()
            elif command in ("pause", "resume"):
                polling = command == "resume"
            elif command == "close":
                self.close()
                return

    def _commit(self) -> None:
        try:
            emit(self.identity, "committed", offsets=self.commit(), error=None)
        except Exception as e:
            emit(self.identity, "committed", offsets=[], error=f"{type(e).__name__}: {e}")


class KafkaPython(Consumer):
    def open(self) -> None:
        import kafka
        from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
        from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

        # Beside this file, which runs as a program of its own.
        from kafka_python import KafkaConsumer, RangePartitionAssignor, RoundRobinPartitionAssignor

        known = {
            "range": RangePartitionAssignor,
            "roundrobin": RoundRobinPartitionAssignor,
            "sticky": StickyPartitionAssignor,
            "cooperative-sticky": CooperativeStickyAssignor,
        }
        config = self.config
        member = self

        class Listener(kafka.ConsumerRebalanceListener):
            def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
                member.assigned(assigned)

            def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
                member.revoked(revoked)

            def on_partitions_lost(self, lost: Iterable[Any]) -> None:
                member.lost(lost)

        self.consumer = KafkaConsumer(
            bootstrap_servers=config["bootstrap"],
            group_id=config["group"],
            client_id=config["client_id"],
            group_instance_id=config.get("instance"),
            partition_assignment_strategy=[known[name] for name in config["assignors"]],
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=config["session_ms"],
            heartbeat_interval_ms=config["heartbeat_ms"],
            max_poll_interval_ms=config["rebalance_ms"],
            metadata_max_age_ms=config["metadata_ms"],
        )
        if config.get("pattern"):
            self.consumer.subscribe(pattern=config["pattern"], listener=Listener())
        else:
            self.consumer.subscribe(config["topics"], listener=Listener())

    def poll(self) -> list[list[Any]]:
        batches = self.consumer.poll(timeout_ms=50)
        return ranges_of((r.topic, r.partition, r.offset) for batch in batches.values() for r in batch)

    def owned(self) -> list[list[Any]]:
        return pairs(self.consumer.assignment())

    def commit(self) -> list[list[Any]]:
        from kafka import OffsetAndMetadata

        offsets = {p: OffsetAndMetadata(self.consumer.position(p), "", -1) for p in self.consumer.assignment()}
        self.consumer.commit(offsets)
        return [[p.topic, p.partition, o.offset] for p, o in offsets.items()]

    def close(self) -> None:
        self.consumer.close(autocommit=False)


class AioKafka(Consumer):
    def open(self) -> None:
        import asyncio

        import aiokafka
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor
        from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
        from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

        known = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}
        # The library keeps sticky state on the class: give each consumer a class of its own.
        known["sticky"] = type("OwnSticky", (StickyPartitionAssignor,), {})
        config = self.config
        member = self

        class Listener(aiokafka.ConsumerRebalanceListener):
            async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
                member.assigned(assigned)

            async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
                member.revoked(revoked)

        self.loop = asyncio.new_event_loop()

        async def start() -> None:
            self.consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=config["bootstrap"],
                group_id=config["group"],
                client_id=config["client_id"],
                group_instance_id=config.get("instance"),
                partition_assignment_strategy=[known[name] for name in config["assignors"]],
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                session_timeout_ms=config["session_ms"],
                heartbeat_interval_ms=config["heartbeat_ms"],
                rebalance_timeout_ms=config["rebalance_ms"],
                max_poll_interval_ms=config["rebalance_ms"],
                metadata_max_age_ms=config["metadata_ms"],
            )
            self.consumer.subscribe(topics=config["topics"] or (), pattern=config.get("pattern"), listener=Listener())
            await self.consumer.start()

        self.loop.run_until_complete(start())

    def poll(self) -> list[list[Any]]:
        batches = self.loop.run_until_complete(self.consumer.getmany(timeout_ms=50))
        return ranges_of((r.topic, r.partition, r.offset) for batch in batches.values() for r in batch)

    def owned(self) -> list[list[Any]]:
        return pairs(self.consumer.assignment())

    def commit(self) -> list[list[Any]]:
        async def commit() -> dict[Any, int]:
            offsets = {p: await self.consumer.position(p) for p in self.consumer.assignment()}
            await self.consumer.commit(offsets)
            return offsets

        return [[p.topic, p.partition, o] for p, o in self.loop.run_until_complete(commit()).items()]

    def close(self) -> None:
        self.loop.run_until_complete(self.consumer.stop())
        self.loop.close()


class Confluent(Consumer):
    def open(self) -> None:
        import confluent_kafka

        config = self.config
        settings = {
            "bootstrap.servers": config["bootstrap"],
            "group.id": config["group"],
            "client.id": config["client_id"],
            "group.protocol": config["protocol"],
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "max.poll.interval.ms": config["rebalance_ms"],
            "topic.metadata.refresh.interval.ms": config["metadata_ms"],
            "metadata.max.age.ms": max(3 * config["metadata_ms"], 1000),
            "fetch.wait.max.ms": 100,
        }
        if config["protocol"] == "classic":
            settings |= {
                "partition.assignment.strategy": ",".join(config["assignors"]),
                "session.timeout.ms": config["session_ms"],
                "heartbeat.interval.ms": config["heartbeat_ms"],
            }
        if config.get("instance"):
            settings["group.instance.id"] = config["instance"]
        self.errors = (confluent_kafka.KafkaException,)
        self.consumer = confluent_kafka.Consumer(settings)
        topics = [f"^{config['pattern']}"] if config.get("pattern") else config["topics"]
        self.consumer.subscribe(
            topics,
            on_assign=lambda _consumer, partitions: self.assigned(partitions),
            on_revoke=lambda _consumer, partitions: self.revoked(partitions),
            on_lost=lambda _consumer, partitions: self.lost(partitions),
        )

    def poll(self) -> list[list[Any]]:
        messages = self.consumer.consume(500, timeout=0.05)
        failures = [m.error() for m in messages if m.error() and m.error().fatal()]
        if failures:
            raise RuntimeError(str(failures[0]))
        return ranges_of((m.topic(), m.partition(), m.offset()) for m in messages if not m.error())

    def owned(self) -> list[list[Any]]:
        return pairs(self.consumer.assignment())

    def commit(self) -> list[list[Any]]:
        positions = [p for p in self.consumer.position(self.consumer.assignment()) if p.offset >= 0]
        if positions:
            self.consumer.commit(offsets=positions, asynchronous=False)
        return [[p.topic, p.partition, p.offset] for p in positions]

    def close(self) -> None:
        self.consumer.close()


class Roster(Consumer):
    """Roster's own member; it has no record loop, so "consuming" a partition means moving to its end offset."""

    def open(self) -> None:
        from roster.client import GroupMember

        config = self.config
        self.member = GroupMember(
            config["bootstrap"],
            config["group"],
            re.compile(config["pattern"]) if config.get("pattern") else config["topics"],
            assignors=config["assignors"],
            session_timeout_ms=config["session_ms"],
            heartbeat_interval_ms=config["heartbeat_ms"],
            rebalance_timeout_ms=config["rebalance_ms"],
            metadata_max_age_ms=config["metadata_ms"],
            client_id=config["client_id"],
            group_instance_id=config.get("instance"),
        )
        self.member.start(timeout=30)
        self.view = self.member.ownership()
        self.positions: dict[Any, int] = {}
        self.seen: frozenset[Any] = frozenset()

    def poll(self) -> list[list[Any]]:
        self.view = self.member.wait(self.view.epoch, 0.05)
        if self.view.error is not None:
            raise self.view.error
        held = self.view.partitions
        if self.view.lost & self.seen:
            self.lost(self.view.lost & self.seen)
        elif self.seen - held:
            self.revoked(self.seen - held)
        if held - self.seen:
            self.assigned(held - self.seen)
        self.seen = held
        self.positions = {p: offset for p, offset in self.positions.items() if p in held}
        if self.view.revoking:
            self.member.release(self.view.revoking)
        from roster.client import ClientError

        try:
            return self._advance(held - self.view.revoking)
        except ClientError as e:
            if not e.retriable:
                raise
            return []

    def _advance(self, working: frozenset[Any]) -> list[list[Any]]:
        fresh = [p for p in working if p not in self.positions]
        if fresh:
            beginnings = self.member.beginning_offsets(fresh)
            committed = self.member.committed(fresh)
            for p in fresh:
                offset = committed.get(p)
                self.positions[p] = beginnings[p] if offset is None else offset.offset
        if not working:
            return []
        ranges = []
        for p, end in self.member.end_offsets(list(working)).items():
            if end > self.positions[p]:
                ranges.append([p.topic, p.partition, self.positions[p], end])
                self.positions[p] = end
        return ranges

    def owned(self) -> list[list[Any]]:
        return pairs(self.view.partitions)

    def commit(self) -> list[list[Any]]:
        from roster.client import OffsetAndMetadata

        view = self.member.ownership()
        offsets = {p: offset for p, offset in self.positions.items() if p in view.partitions}
        self.member.commit({p: OffsetAndMetadata(offset) for p, offset in offsets.items()}, view)
        return [[p.topic, p.partition, offset] for p, offset in offsets.items()]

    def close(self) -> None:
        self.member.close()


KINDS: dict[str, type[Consumer]] = {
    "kafka-python": KafkaPython,
    "aiokafka": AioKafka,
    "confluent": Confluent,
    "roster": Roster,
}


def main() -> None:
    members: dict[str, Consumer] = {}
    emit("", "ready")
    for line in sys.stdin:
        command = json.loads(line)
        identity = command["id"]
        if command["do"] == "open":
            config = command["config"]
            members[identity] = KINDS[config["kind"]](identity, config)
            threading.Thread(target=members[identity].run, name=identity, daemon=True).start()
        else:
            members[identity].commands.put(command["do"])
    os._exit(0)


if __name__ == "__main__":
    main()
