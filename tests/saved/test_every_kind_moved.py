"""All kinds of stores in a group that gets other numbers of partitions: each is a plain computation of what was read.

ROSTER_MOVE_KILL_ROUNDS sets behind how many of its steps a repartition is killed.
"""

from __future__ import annotations

import os
import signal
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from roster.spark.state import export, import_state, repartition_state
from tests.librdkafka import idempotent_producer
from tests.saved.groups_with_state import rows
from tests.saved.test_export_kills import check_kinds, passed, sums, waiting
from tests.sinks.test_transactional_kills import Application, caught_up, quick_broker
from tests.sinks.test_transactional_kills import check as check_running
from tests.spark.apps import every_operator as every
from tests.spark.apps import importing
from tests.spark.apps.stateful import KEYS
from tests.spark.programs import START_SECONDS
from tests.spark.programs import Application as Program
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from roster.spark.state import Export
    from tests.spark.spark_topics import Topics

STEPS = ("topics", "commit", "records", "note", "partitions")
KILLED_BEHIND = STEPS[: int(os.environ.get("ROSTER_MOVE_KILL_ROUNDS", "2"))]
pytestmark = [
    pytest.mark.process,
    pytest.mark.spark,
    pytest.mark.gate,
    pytest.mark.timeout(400 + 90 * len(KILLED_BEHIND)),
]


class Moved:
    """A topic with numbers from 0 on, placed by their key, and groups that read it."""

    def __init__(self, topics: Topics, place: Path, partitions: int) -> None:
        self._topics, self._place, self._out = topics, place, topics.create(1)
        self.topic, self.sent = topics.create(partitions), 0

    def send(self, count: int) -> None:
        producer = idempotent_producer(self._topics.bootstrap, {"partitioner": "murmur2_random"})
        for n in range(self.sent, self.sent + count):
            producer.produce(self.topic, str(n), str(n % KEYS))
        assert producer.flush(60) == 0
        self.sent += count

    def start(self, group: str, open_seconds: float = 0) -> Application:
        program, log = [str(Path(every.__file__)), str(self._place / "state")], self._place / f"log-{uuid.uuid4().hex}"
        return Application(
            program, self._topics.bootstrap, group, self.topic, self._out, log, open_seconds=open_seconds
        )

    def read(self, group: str) -> None:
        """Let an application of the group read all."""
        application, ends = self.start(group), self._topics.ends(self.topic)
        try:
            until(lambda: check_running([application]) and caught_up(self._topics, group, ends))  # type: ignore[arg-type]
        finally:
            application.end()

    def read_what_was_before(self, group: str) -> None:
        """Let applications of the group read what the earlier number of partitions has placed, and kill one."""
        before, killed = self._topics.committed(group), self.start(group, open_seconds=1)

        def worked() -> bool:
            now = self._topics.committed(group)
            return any(now[at] > offset for at, offset in before.items() if at.topic == self.topic)

        until(lambda: check_running([killed]) and worked())
        killed.end(signal.SIGKILL)
        assert "run `roster state repartition`" in self.refused(group)

    def refused(self, group: str) -> str:
        """Return what an application of the group that does not start says."""
        application = self.start(group)
        try:
            assert application.process.wait(START_SECONDS) != 0
        finally:
            application.end()
        return application.log.read_text()

    def check(self, spark: SparkSession, group: str, partitions: int) -> Export:
        found = export(spark, self._topics.bootstrap, group, str(self._place / uuid.uuid4().hex))
        read = list(range(self.sent))
        check_kinds(found, read)
        totals = {row["g"]: (row["count"], row["sum"]) for row in rows(found, "totals")}
        assert totals == sums(passed(read, waiting(found, every.COLUMNS)), lambda n: n % every.GROUPS)
        counts = {name: store.partitions for name, store in found.manifest.stores.items()}
        assert counts == dict.fromkeys(counts, partitions) | {"totals": 4}
        assert len(counts) == 7
        return found


def test_all_kinds_of_stores_are_moved(spark: SparkSession, tmp_path: Path) -> None:
    with quick_broker(tmp_path / "data") as (topics, _):
        moved, (old, new, small) = Moved(topics, tmp_path, 4), (f"moved-{uuid.uuid4().hex[:8]}" for _ in range(3))
        moved.send(600)
        moved.read(old)
        moved.send(100)
        topics.admin.create_partitions(moved.topic, 6)
        moved.send(100)
        moved.read_what_was_before(old)
        place = str(tmp_path / "grown")
        for step in sorted(KILLED_BEHIND, key=["note", *importing.STEPS].index):
            program = Path(importing.__file__)
            arguments = (topics.bootstrap, old, place, step, "repartition")
            with Program(program, *arguments, log=tmp_path / f"log-{step}") as killed:
                assert killed.process.wait(200) == -signal.SIGKILL, (tmp_path / f"log-{step}").read_text()[-3000:]
            if step != "commit":
                assert f"roster state repartition {old} --to {place}" in moved.refused(old)
        if "commit" not in KILLED_BEHIND:
            repartition_state(spark, topics.bootstrap, old, place)
        moved.read(old)
        moved.check(spark, old, 6)
        moved.send(300)
        moved.read(old)
        found = moved.check(spark, old, 6)

        topics.admin.create_partitions(moved.topic, 12)
        moved.send(200)
        import_state(spark, topics.bootstrap, new, found.folder.place)
        moved.read(new)
        found = moved.check(spark, new, 12)

        topics.admin.delete_topic(moved.topic)
        topics.admin.create_topic(moved.topic, 5)
        moved.send(200)
        import_state(spark, topics.bootstrap, small, found.folder.place, offsets="earliest")
        moved.read(small)
        moved.check(spark, small, 5)
