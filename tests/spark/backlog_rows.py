"""Days of rows that wait in a topic, and final windows of half an hour by region, computed plainly."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tests.librdkafka import idempotent_producer
from tests.spark.spark_topics import Topics, committed_records

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
DAY, HALF_HOUR = 86_400, 1_800
END = [(f"end {number}", 2 * DAY) for number in range(20)]
"""Last rows of a partition, which close all other windows, also those of other regions' tasks."""
Rows = list[tuple[str, int]]
"""Regions and seconds behind BEGIN, in the order of a partition's records."""
Windows = Counter[tuple[str, int]]
"""Rows by region and number of the half hour."""


def day(chance: random.Random, count: int, begin: int = 0, until: int = DAY) -> Rows:
    """Rows in the order of their times."""
    return [(f"r{chance.randrange(7)}", at) for at in sorted(chance.randrange(begin, until) for _ in range(count))]


def whole_day(chance: random.Random) -> list[Rows]:
    """A day in four partitions."""
    return [day(chance, 2_500) for _ in range(4)]


def hours_ahead(chance: random.Random) -> list[Rows]:
    """Two partitions, of which one is six hours ahead."""
    ahead = 6 * 3_600
    return [day(chance, 3_000, ahead, DAY + ahead), day(chance, 3_000)]


def empty(chance: random.Random) -> list[Rows]:
    """Three partitions, of which one has no records."""
    return [day(chance, 800), [], day(chance, 800)]


def send(topics: Topics, topic: str, partitions: Iterable[Rows], apart: int = 30 * DAY) -> None:
    """Append rows to the partitions. apart: seconds of event time that one is ahead of another at most."""
    producer, given = idempotent_producer(topics.bootstrap, {"linger.ms": 20}), [*partitions]
    for begin in range(0, max(at for rows in given for _, at in rows) + 1, apart):
        for partition, rows in enumerate(given):
            for region, at in rows:
                if begin <= at < begin + apart:
                    time = (BEGIN + timedelta(seconds=at)).isoformat().replace("+00:00", "Z")
                    value = json.dumps({"region": region, "at": time, "second": at}, separators=(",", ":"))
                    producer.produce(topic, value, f"c{at % 97}", partition)
            producer.poll(0)
        assert producer.flush(120) == 0


def counted(partitions: Iterable[Rows]) -> Windows:
    """Return the counts of all windows but the last ones."""
    rows = (row for rows in partitions for row in rows)
    return Counter((region, at // HALF_HOUR) for region, at in rows if not region.startswith("end"))


def found(topics: Topics, out: str) -> list[tuple[tuple[str, int], int]]:
    """Return the windows among the results, and their counts."""
    rows = [json.loads(value or b"") for _, _, value in committed_records(topics, out)]
    starts = [datetime.fromisoformat(row["window_start"]) - BEGIN for row in rows]
    parts = zip(rows, starts, strict=True)
    windows = [((row["region"], start // timedelta(seconds=HALF_HOUR)), row["n"]) for row, start in parts]
    return [each for each in windows if not each[0][0].startswith("end")]
