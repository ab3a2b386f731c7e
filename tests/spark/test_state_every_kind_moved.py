"""All kinds of stores in a group that gets other numbers of partitions: each is a plain computation of what was read.

ROSTER_MOVE_KILL_ROUNDS sets how often `roster state repartition` is killed, ROSTER_KILL_SEED the seed of the moments.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from roster.model import TopicPartition
from roster.spark.state import export, import_state
from tests.librdkafka import idempotent_producer
from tests.spark import every_operator_app as every
from tests.spark.programs import environment
from tests.spark.stateful_app import KEYS
from tests.spark.test_state_export import rows
from tests.spark.test_state_export_kills import check_kinds, passed, sums, waiting
from tests.spark.test_transactional_kills import SEED, Application, caught_up, quick_broker
from tests.spark.test_transactional_kills import check as check_running
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from roster.spark.state import Export
    from tests.spark.spark_topics import Topics

ROUNDS = int(os.environ.get("ROSTER_MOVE_KILL_ROUNDS", "0"))
pytestmark = [pytest.mark.process, pytest.mark.spark, pytest.mark.gate, pytest.mark.timeout(400 + 90 * ROUNDS)]


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

    def start(self, group: str) -> Application:
        program, log = [str(Path(every.__file__)), str(self._place / "state")], self._place / f"log-{uuid.uuid4().hex}"
        return Application(program, self._topics.bootstrap, group, self.topic, self._out, log, open_seconds=0)

    def read(self, group: str) -> None:
        """Let an application of the group read all."""
        application, ends = self.start(group), self._topics.ends(self.topic)
        try:
            until(lambda: check_running([application]) and caught_up(self._topics, group, ends))  # type: ignore[arg-type]
        finally:
            application.end()

    def refused(self, group: str) -> str:
        """Return what an application of the group that does not start says."""
        application = self.start(group)
        try:
            assert application.process.wait(60) != 0
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


def command(topics: Topics, group: str, place: Path, log: Path) -> subprocess.Popen[bytes]:
    line = [sys.executable, "-m", "roster", "state", "repartition", group, "-b", topics.bootstrap, "--to", str(place)]
    with log.open("a") as to:
        return subprocess.Popen(line, stdout=to, stderr=to, env=environment(), start_new_session=True)


def test_all_kinds_of_stores_are_moved(spark: SparkSession, tmp_path: Path) -> None:
    with quick_broker(tmp_path / "data") as (topics, _):
        moved, (old, new, small) = Moved(topics, tmp_path, 4), (f"moved-{uuid.uuid4().hex[:8]}" for _ in range(3))
        moved.send(700)
        moved.read(old)
        topics.admin.create_partitions(moved.topic, 6)
        assert "roster state repartition" in moved.refused(old)
        place, log = tmp_path / "grown", tmp_path / "log"
        chance = random.Random(SEED)
        for _ in range(ROUNDS):
            killed = command(topics, old, place, log)
            try:
                killed.wait(chance.uniform(3, 25))
            except subprocess.TimeoutExpired:
                os.killpg(killed.pid, signal.SIGKILL)
            if killed.wait(30) == 0 or TopicPartition(moved.topic, 5) in topics.admin.group_offsets(old, stable=False):
                break  # its transaction has ended
            assert "roster state repartition" in moved.refused(old)
            if place.exists() and not (place / "manifest.json").exists():
                place = tmp_path / uuid.uuid4().hex
        else:
            assert command(topics, old, place, log).wait(200) == 0, log.read_text()[-3000:]
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
