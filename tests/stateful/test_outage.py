"""An application that is dead for ten minutes of event time makes none of its rows late, nor anyone else's."""

from __future__ import annotations

import json
import random
import signal
from collections import Counter
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from roster.client import MemberDescription, UnknownGroupError
from roster.model import TopicPartition
from tests.sinks.test_transactional_kills import quick_broker
from tests.spark.backlog_rows import BEGIN, END, Rows, day, send
from tests.spark.programs import APPS, Application
from tests.spark.spark_topics import committed_records
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.gate, pytest.mark.timeout(600)]

TEN_MINUTES, PARTITIONS, SESSION_MS = 600, 4, 6_000
GRACE = 10
"""Seconds; of the windows of `outage.py`."""


def test_an_application_that_is_dead_for_ten_minutes_makes_no_row_late(tmp_path: Path) -> None:
    chance, sent = random.Random(3), list[Rows]()
    with ExitStack() as stack:
        topics, _ = stack.enter_context(quick_broker(tmp_path / "data"))
        topic, out = topics.create(PARTITIONS), topics.create(1)
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]

        def add(part: int) -> None:
            begin = part * TEN_MINUTES
            rows = [day(chance, 120, begin, begin + TEN_MINUTES) for _ in partitions]
            # No partition may be further ahead of one that has been read than the grace: its next rows would be late.
            send(topics, topic, rows, apart=GRACE)
            sent.extend(rows)

        def read() -> int:
            """How many partitions have been read to their ends."""
            ends, done = topics.admin.end_offsets(partitions), topics.admin.group_offsets("g")
            return sum(at in done and done[at].offset == ends[at] for at in partitions)

        def owned() -> list[list[TopicPartition]]:
            with suppress(UnknownGroupError):
                return shares(topics.admin.describe_group("g").members)
            return []

        def shares(members: Iterable[MemberDescription]) -> list[list[TopicPartition]]:
            return [[at for at in each.assignment if at.topic == topic] for each in members]

        def windows() -> Counter[tuple[str, int]]:
            found = Counter[tuple[str, int]]()
            for _, _, value in committed_records(topics, out):
                row = json.loads(value or b"")
                minute = (datetime.fromisoformat(row["window_start"]) - BEGIN) // timedelta(minutes=1)
                assert (row["k"], minute) not in found, "each window once"
                found[row["k"], minute] = row["n"]
            return found

        def start(name: str) -> Application:
            more = [str(SESSION_MS), "0", str(tmp_path / name), "0", "3"]
            arguments = [topics.bootstrap, "g", topic, out, *more]
            log = tmp_path / f"{name}.log"
            return stack.enter_context(Application(APPS / "outage.py", *arguments, log=log))

        one, two = start("one"), start("two")
        until(lambda: sorted(map(len, owned())) == [2, 2], 120, "two members with two partitions each")
        add(0)
        until(lambda: read() == PARTITIONS, 120, "the first ten minutes")
        one.signal(signal.SIGKILL)
        add(1)
        until(lambda: read() >= PARTITIONS // 2, 120, "those of the one that goes on")
        add(2)
        until(lambda: read() == PARTITIONS, 120, "all, by the one that goes on")
        send(topics, topic, [END] * PARTITIONS)
        wanted = Counter((region, at // 60) for rows in sent for region, at in rows)
        until(lambda: windows().total() >= wanted.total(), 120, "all windows")
        assert windows() == wanted
        assert two.process.poll() is None
