"""Records of a topic by ranges of offsets, without joining a group or committing anything."""

from __future__ import annotations

import heapq
import logging
import time
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, cast

import click
from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as Assigned

from roster.cli.errors import Failure, one_line
from roster.cli.signals import deferred_interrupt
from roster.model import TopicPartition
from roster.security.librdkafka import librdkafka_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from roster.cli.options import Target

UNREACHABLE_PATIENCE_S = 10.0
"""How long an error of the connection may last before a read that has an end gives up."""
PATIENCE_S = 60.0
"""The same without an error: records are known to be there, and none comes."""
_POLL_S = 0.2
_BATCH = 500


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one partition, `end` excluded; None goes on for ever."""

    start: int
    end: int | None


class Reader:
    """Reads ranges of one cluster; `isolation_level` is Kafka's.

    A consumer of librdkafka must have a group id; this one never subscribes, so no group of that name comes to be.
    """

    def __init__(self, target: Target, isolation_level: str) -> None:
        self._trouble = ""
        silent = logging.Logger("roster.read")
        silent.addHandler(logging.NullHandler())
        self._settings = {
            **librdkafka_settings(target.security),
            "bootstrap.servers": target.bootstrap,
            "client.id": "roster-read",
            "group.id": "roster-topics-read",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation_level,
            "check.crcs": True,
            "error_cb": self._on_error,
            "logger": silent,
        }

    def _on_error(self, error: KafkaError) -> None:
        self._trouble = error.str()

    def read(self, ranges: Mapping[TopicPartition, Range]) -> Iterator[list[Message]]:
        """Yield records as they come: in order within a partition, partitions mixed.

        Raises:
            Failure: the cluster refused to be read, or could not be reached while records were still to come.

        """
        open_ranges = {tp: each for tp, each in ranges.items() if each.end is None or each.end > each.start}
        if not open_ranges:
            return
        consumer = Consumer(self._settings)
        try:
            consumer.assign([Assigned(*tp, each.start) for tp, each in open_ranges.items()])
            progress = time.monotonic()
            while open_ranges:
                with deferred_interrupt():
                    events = consumer.consume(_BATCH, _POLL_S)
                if events:
                    progress, self._trouble = time.monotonic(), ""
                else:
                    self._check_patience(time.monotonic() - progress, open_ranges)
                records = [event for event in events if _take(event, open_ranges, consumer)]
                if records:
                    yield records
        except KafkaException as error:
            raise Failure(f"cannot read: {one_line(error)}") from error
        finally:
            consumer.close()

    def _check_patience(self, idle: float, ranges: Mapping[TopicPartition, Range]) -> None:
        if all(each.end is None for each in ranges.values()):
            if self._trouble:
                click.echo(f"roster: waiting: {self._trouble}", err=True)
                self._trouble = ""
        elif idle > (UNREACHABLE_PATIENCE_S if self._trouble else PATIENCE_S):
            cause = self._trouble or f"{next(iter(ranges))} has records that do not come"
            raise Failure(f"nothing could be read for {idle:.0f} s: {cause}")

    def last(
        self, number: int, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> list[Message]:
        """Return the newest records before `ends`, at most `number` of all partitions together, the newest last.

        Offsets are not records where a topic is compacted or written in transactions, so a partition that yields too
        few is read again from further back.
        """
        newest: dict[TopicPartition, deque[Message]] = {}
        reach = number
        while wanting := [tp for tp in ends if tp not in newest]:
            found = {tp: deque[Message](maxlen=number) for tp in wanting}
            starts = {tp: max(begins[tp], ends[tp] - reach) for tp in wanting}
            for records in self.read({tp: Range(starts[tp], ends[tp]) for tp in wanting}):
                for record in records:
                    found[_place(record)].append(record)
            newest |= {tp: each for tp, each in found.items() if len(each) == number or starts[tp] == begins[tp]}
            reach *= 8
        backwards = heapq.merge(*map(reversed, newest.values()), key=lambda record: -record.timestamp()[1])
        return list(islice(backwards, number))[::-1]


def _place(event: Message) -> TopicPartition:
    return TopicPartition(cast("str", event.topic()), cast("int", event.partition()))


def _take(event: Message, ranges: dict[TopicPartition, Range], consumer: Consumer) -> bool:
    """Return whether the event is a record of a range; remove a range that is read to its end."""
    place, offset = _place(event), cast("int", event.offset())
    wanted = ranges.get(place)
    if wanted is None:
        return False
    error = event.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        raise Failure(f"cannot read {place}: {error.str()}")
    if wanted.end is not None and (error is not None or offset >= wanted.end - 1):
        del ranges[place]
        consumer.incremental_unassign([Assigned(*place)])
    return error is None and (wanted.end is None or offset < wanted.end)
