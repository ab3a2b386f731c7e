"""A driver that stood still at any step of any sink's commit while another took its place: each record counts once.

The drivers are the loop, the member and the sink alone. `ROSTER_FENCE_ROUNDS` drivers of each sink are frozen, in turns
before each step; the one in its place has then worked, or has nothing left to do, when the frozen one goes on.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from roster.testing.broker import running_broker
from tests.deploy.bare_driver import NUMBERS, REPLACED, RESULTS, catalog, drive
from tests.deploy.frozen_driver import STEPS, owner_of
from tests.librdkafka import idempotent_producer
from tests.real.realparts.databases import Postgres, asking, running
from tests.spark.spark_topics import Topics, committed_records
from tests.waiting import until

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext

PARTITIONS = 2
SINKS = ("kafka", "parquet", "delta", "iceberg", pytest.param("postgres", marks=pytest.mark.real))
PATIENCE = 120
SEED = int(os.environ.get("ROSTER_KILL_SEED", "1"))

pytestmark = [pytest.mark.process, pytest.mark.gate, pytest.mark.timeout(1800)]


def forking() -> ForkServerContext:
    """Makes processes that are forks of one that has imported what they need, which takes seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pyiceberg.catalog.sql", "pyiceberg.io.pyarrow", "tests.deploy.bare_driver"])
    return context


class Driver:
    """A driver with the identity of all others of its sink."""

    def __init__(self, kind: str, bootstrap: str, place: str, folder: Path, step: int) -> None:
        number = len(list(folder.glob("*.log")))
        self._log, self._freeze = folder / f"{number}.log", folder / f"freeze-{number}"
        self._log.touch()
        arguments = (kind, bootstrap, place, step, str(self._freeze), str(self._log))
        self.process: BaseProcess = forking().Process(target=drive, args=arguments, daemon=True)
        self.process.start()
        self.told = STEPS[kind][step].told

    def said(self) -> str:
        return f"{self.told}: {self._log.read_text()}"

    def freeze(self) -> None:
        """Have it stand still at its step of the next batch."""
        self._freeze.touch()

    def is_frozen(self) -> bool:
        assert self.process.is_alive(), self.said()
        status = Path(f"/proc/{self.process.pid}/stat").read_text()
        return status.rpartition(")")[2].split()[0] == "T"

    def thaw(self) -> None:
        if self.process.is_alive():
            os.kill(self.process.pid or 0, signal.SIGCONT)

    def check_replaced(self) -> None:
        self.process.join(PATIENCE)
        assert self.process.exitcode == REPLACED, self.said()
        assert self._log.read_text().splitlines()[-1].startswith("this driver has been replaced: "), self.said()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


class Written:
    """What the sink has, as a reader sees it."""

    def __init__(self, kind: str, topics: Topics, place: str) -> None:
        self._kind, self._topics, self._place = kind, topics, place

    def numbers(self) -> Counter[int]:
        """How often each number is there."""
        return Counter(self._numbers())

    def _numbers(self) -> Iterator[int]:
        import pyarrow.dataset
        from deltalake import DeltaTable
        from pyiceberg.catalog import load_catalog

        found: Any = None
        if self._kind == "kafka":
            yield from (int(value) for _, _, value in committed_records(self._topics, RESULTS))
        elif self._kind == "postgres":
            with asking(self._place).connect() as connection:
                if connection.exec_driver_sql("select to_regclass('numbers')").scalar() is not None:
                    yield from connection.exec_driver_sql("select number from numbers").scalars()
        elif self._kind == "parquet":
            if files := [str(file) for file in Path(self._place).glob("*.parquet")]:
                found = pyarrow.dataset.dataset(files).to_table()
        elif self._kind == "delta":
            if DeltaTable.is_deltatable(self._place):
                found = DeltaTable(self._place).to_pyarrow_table()
        elif load_catalog("default", **catalog(self._place)).table_exists("fence.numbers"):
            found = load_catalog("default", **catalog(self._place)).load_table("fence.numbers").scan().to_arrow()
        yield from found["number"].to_pylist() if found is not None else ()


def test_each_step_is_at_a_function_that_there_is() -> None:
    missing = [step.at for steps in STEPS.values() for step in steps if not hasattr(*owner_of(step))]
    assert not missing


@pytest.mark.parametrize("kind", SINKS)
def test_a_driver_frozen_at_a_step_of_its_commit_writes_nothing_twice_and_says_that_it_was_replaced(
    kind: str, tmp_path: Path
) -> None:
    rounds, chance, counter = int(os.environ.get("ROSTER_FENCE_ROUNDS", "2")), random.Random(SEED), itertools.count()
    place = str(tmp_path / "output")
    if kind == "iceberg":
        Path(place).mkdir()
    if kind == "postgres":
        place = running(Postgres).create()
    first = chance.randrange(len(STEPS[kind]))
    logs = tmp_path / "logs"
    logs.mkdir()
    with running_broker() as broker, Topics(broker.bootstrap) as topics, contextlib.ExitStack() as stack:
        for topic in (NUMBERS, RESULTS):
            topics.admin.create_topic(topic, PARTITIONS)
        written = Written(kind, topics, place)

        def send() -> int:
            """Send some numbers; return how many there are."""
            producer = idempotent_producer(topics.bootstrap, {"linger.ms": 5})
            sent = [next(counter) for _ in range(50)]
            for number in sent:
                producer.produce(NUMBERS, str(number), partition=number % PARTITIONS)
            assert producer.flush(60) == 0
            return sent[-1] + 1

        def started(number: int) -> Driver:
            driver = Driver(kind, topics.bootstrap, place, logs, (first + number) % len(STEPS[kind]))
            stack.callback(driver.kill)
            return driver

        drivers = [started(0)]
        total = send()
        until(lambda: len(written.numbers()) == total, PATIENCE, drivers[0].said)
        for number in range(rounds):
            frozen, is_early = drivers[-1], (number + number // len(STEPS[kind]) + SEED) % 2 == 0
            frozen.freeze()
            send()
            until(frozen.is_frozen, PATIENCE, frozen.said)
            before = sum(written.numbers().values())
            drivers.append(started(number + 1))
            total = send()
            if is_early:
                until(lambda before=before: sum(written.numbers().values()) > before, PATIENCE, drivers[-1].said)
                frozen.thaw()
                total = send()
            until(lambda total=total: len(written.numbers()) == total, PATIENCE, drivers[-1].said)
            frozen.thaw()
            frozen.check_replaced()
            assert written.numbers() == Counter(range(total)), frozen.said()
        total = send()
        until(lambda: len(written.numbers()) == total, PATIENCE, drivers[-1].said)
        assert written.numbers() == Counter(range(total))
