"""`roster groups describe` on a group of tasks that lives."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress

import pytest

from roster.broker import Broker
from roster.client import Admin
from roster.client.errors import TopicExistsError
from roster.model import TopicPartition
from roster.state.source_times import HELD, SOURCES_KEY, Known, source_of
from roster.testing.broker import running_broker
from tests.client.task_application import TASKS, Application, applications
from tests.librdkafka import idempotent_producer
from tests.waiting import until


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker() as running, Admin(running.bootstrap) as admin:
        admin.create_topic("orders", 4)
        yield running


def tasks_of(shell) -> dict[str, tuple[str, list[tuple[str, int]]]]:
    _, out, _ = shell("groups", "describe", "g", "--json")
    return {
        each["task"]: (each["owner"], [(copy["member_id"], copy["gap_at_join"]) for copy in each["standbys"]])
        for each in json.loads(out)["tasks"]
    }


def hold(broker: Broker, by: TopicPartition | None, seconds: int) -> None:
    """Write what a task's store has while a partition holds its time back, behind other entries."""
    with Admin(broker.bootstrap) as admin, suppress(TopicExistsError):
        admin.create_topic("g-totals-changelog", 2)
    times = {source_of("orders", number): (100 - number) * 1_000_000 for number in range(2)}
    ended = dict.fromkeys(times, 1)
    if by is not None:
        times |= {source_of(*by): (100 - seconds) * 1_000_000, HELD: (100 - seconds) * 1_000_000}
        ended[HELD] = source_of(*by)
    producer = idempotent_producer(broker.bootstrap)
    for key, value in ((SOURCES_KEY, Known(times, ended, {}).encode()), *((b"key", b"value") for _ in range(100))):
        producer.produce("g-totals-changelog", value, key, 1)
    assert producer.flush(60) == 0


def is_stable(shell) -> bool:
    _, out, _ = shell("groups", "describe", "g", "--json")
    return json.loads(out)["state"] == "Stable"


def test_owners_copies_and_gaps_are_shown(broker, shell):
    names = sorted(map(str, TASKS))
    with applications() as running:
        running.append(Application(broker.bootstrap, "g", "orders"))
        running.append(Application(broker.bootstrap, "g", "orders", dict.fromkeys(TASKS, 500)))
        first, second = running[0].member, running[1].member
        until(lambda: len(second.tasks().restoring) == 4 and is_stable(shell), what="the copies are behind")
        ids = [member.ownership().member_id for member in (first, second)]
        assert tasks_of(shell) == {task: (ids[0], [(ids[1], 500)]) for task in names}
        code, out, _ = shell("groups", "describe", "g")
        rows = [line.split() for line in out.splitlines() if line[:3] in names]
        assert (code, [(row[0], row[-1]) for row in rows]) == (0, [(task, "500") for task in names])
        assert re.search(r"^task +owner +standby +gap at join$", out, re.MULTILINE)
        assert "time held by" not in out
        hold(broker, TopicPartition("orders", 2), 65)
        _, out, _ = shell("groups", "describe", "g")
        assert [line.split() for line in out.splitlines()[-2:]] == [
            ["changelog", "task", "time", "held", "by", "behind"],
            ["g-totals-changelog", "1", "orders-2", "65", "s"],
        ]
        _, out, _ = shell("groups", "describe", "g", "--json")
        held = {"changelog": "g-totals-changelog", "partition": 1, "held_by": "orders-2", "held_ms": 65_000}
        assert json.loads(out)["held_times"] == [held]
        hold(broker, None, 0)
        _, out, _ = shell("groups", "describe", "g", "--json")
        assert json.loads(out)["held_times"] == []

        running[1].restore()
        until(lambda: is_stable(shell) and len(second.tasks().active) == 2, what="tasks have moved to the copies")
        owners = [owner for owner, _ in tasks_of(shell).values()]
        assert sorted(owners) == sorted(ids * 2)
