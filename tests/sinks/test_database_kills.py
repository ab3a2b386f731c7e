"""Tables of a database after SIGKILLs of the application, a Python worker, the database and the broker, at random.

The table is compared with what was sent, row by row. ROSTER_DATABASE_KILLS sets the number of blows for each case,
ROSTER_KILL_SEED the first seed.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import signal
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from roster.spark import PostgresSink
from tests.real.realparts.databases import Postgres, asking
from tests.sinks.table_worker import KEYS, forking, latest, uncommitted, upserted, work
from tests.sinks.test_transactional_kills import Feed, caught_up, quick_broker
from tests.spark.programs import APPS, Application
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.spark.spark_topics import Topics

BLOWS = int(os.environ.get("ROSTER_DATABASE_KILLS", "4"))
SEED = int(os.environ.get("ROSTER_KILL_SEED", "1"))
PROGRAM = APPS / "database.py"
PARTITIONS, IDS = 4, 50
SIZE = 37
WAIT = 180

pytestmark = [pytest.mark.process, pytest.mark.timeout(300 + 60 * BLOWS)]


class Rows:
    """Rows by number, each with an id whose records are all in one partition."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []
        self._chance = random.Random(SEED)

    def __call__(self, number: int) -> tuple[bytes, int]:
        of = self._chance.randrange(IDS)
        self.sent.append((of, number))
        return json.dumps({"id": of, "n": number}).encode(), of % PARTITIONS


def is_done(application: Application, topics: Topics, group: str, ends: dict[Any, int]) -> bool:
    assert application.process.poll() is None, Path(application._log.name).read_text()[-4000:]
    return caught_up(topics, group, ends)


def workers(parent: int) -> list[int]:
    """The Python workers of an application: those below its JVM, and the one that stays."""
    below: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            below.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
    found, left = [], [parent]
    while left:
        pid = left.pop()
        left += below.get(pid, [])
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if pid not in below and (b"pyspark.worker" in command or b"jobs.worker_main" in command):
                found.append(pid)
    return found


@contextlib.contextmanager
def server() -> Iterator[Postgres]:
    """A server that no other test has."""
    started = Postgres()
    try:
        yield started
    finally:
        started.stop()


@pytest.mark.real
@pytest.mark.gate
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_the_table_is_exact_whatever_befalls_application_worker_database_and_broker(tmp_path: Path, mode: str) -> None:
    chance, group = random.Random(SEED), f"kills-{uuid.uuid4().hex[:8]}"
    with quick_broker(tmp_path / "data") as (topics, restart), server() as database:
        url = database.create()
        topic, rows = topics.create(PARTITIONS), Rows()
        started = 0

        def start() -> Application:
            nonlocal started
            started += 1
            arguments = [topics.bootstrap, group, topic, url, mode]
            return Application(PROGRAM, *arguments, log=tmp_path / f"app-{started}.log")

        application, kinds = start(), ["worker", "database", "broker", "application"]
        dealt = Counter[str]()
        try:
            with Feed(topics.bootstrap, topic, rows, pause=0.15):
                for number in range(BLOWS):
                    ends = topics.ends(topic)
                    until(functools.partial(is_done, application, topics, group, ends), WAIT, f"round {number}")
                    time.sleep(chance.uniform(0, 1.0))
                    struck = kinds[number] if number < len(kinds) else chance.choice(kinds)
                    dealt[struck] += 1
                    if struck == "application":
                        application.__exit__()
                        application = start()
                    elif struck == "broker":
                        restart()
                    elif struck == "database":
                        database.kill()
                        time.sleep(chance.uniform(0, 2.0))
                        database.start()
                    elif of := workers(application.process.pid):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(chance.choice(of), signal.SIGKILL)
            ends = topics.ends(topic)
            until(lambda: is_done(application, topics, group, ends), WAIT, "the end")
        finally:
            application.__exit__()
        with asking(url).connect() as connection:
            found = Counter((row.id, row.n) for row in connection.execute(sa.text("select id, n from results")))
        wanted = rows.sent if mode == "append" else dict(rows.sent).items()
        assert found == Counter(wanted)
        print(f"{mode}: {len(rows.sent)} records, {len(found)} rows, {dict(dealt)}", flush=True)


def sink_of(url: str, mode: str) -> PostgresSink:
    return PostgresSink(url, "results", mode=mode, keys=KEYS if mode == "upsert" else ())


def writer(url: str, mode: str, member: str, end: Any) -> None:
    """A driver that writes up to an end that moves; two of them have the same partitions."""
    write: Callable[..., Any] = upserted if mode == "upsert" else uncommitted
    while True:
        work(lambda: sink_of(url, mode), member, [0, 1], lambda: end.value, SIZE, write)
        time.sleep(0.5)


@pytest.mark.real
@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.sampled(1)
def test_two_writers_of_the_same_partitions_are_killed_with_their_database(mode: str) -> None:
    chance, context = random.Random(SEED), forking()
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(server())
        url = database.create()
        end = context.Value("q", 0)

        def start(number: int) -> Any:
            process = context.Process(target=writer, args=[url, mode, f"m{number}", end], daemon=True)
            process.start()
            return process

        def done() -> bool:
            assert all(process.is_alive() for process in writers)
            try:
                with asking(url).connect() as connection:
                    found = connection.execute(sa.text("select next_offset from roster_positions")).scalars().all()
            except sa.exc.DBAPIError:
                return False
            return len(found) == 2 and min(found) >= end.value

        writers = [start(0), start(1)]
        stack.callback(lambda: [process.kill() for process in writers])
        for number in range(BLOWS):
            end.value += 150
            time.sleep(chance.uniform(0.1, 0.8))
            victim = number % 3
            if victim == 2:
                database.kill()
                time.sleep(chance.uniform(0, 0.5))
                database.start()
            else:
                writers[victim].kill()
                writers[victim].join()
                writers[victim] = start(victim)
            until(done, WAIT, f"round {number}")
        with asking(url).connect() as connection:
            rows = [tuple(row) for row in connection.execute(sa.text("select * from results"))]
    if mode == "upsert":
        assert sorted(rows, key=repr) == latest({0: end.value, 1: end.value})
    else:
        assert sorted(row[:2] for row in rows) == [(p, at) for p in (0, 1) for at in range(end.value)]
