"""Workers that stay on the hosts of a cluster: they do small batches at the stores, and may be killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import AuthenticationError
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import TaskContext

from roster.pipeline.tasks.accumulators import ByTask
from roster.spark.jobs import host_workers
from roster.spark.jobs.host_workers import Guests, HostWorkers
from roster.spark.jobs.worker_main import StartWorkers, connected
from roster.spark.jobs.workers import WorkerEndedError, WorkerError
from tests.spark.apps.standalone import Standalone
from tests.spark.programs import APPS, Application
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from tests.spark.spark_topics import Topics

PARTITIONS = 4


def counted(state: list[dict[str, Any]]) -> tuple[Counter[int], Counter[str]]:
    """Records by partition, and by who had them: a worker that stays as `roster… PID DIRECTORY`."""
    by_partition, by_process = Counter[int](), Counter[str]()
    for row in state:
        by_partition[row["partition"]] += row["n"]
        by_process[row["by"]] += row["n"]
    return by_partition, by_process


def workers(state: list[dict[str, Any]]) -> dict[int, str]:
    """Process id and directory of each worker that stays."""
    found = [by.split(" ") for by in counted(state)[1] if by.startswith("roster")]
    return {int(number): directory for _, number, directory in found}


def begun(begin: StartWorkers, numbers: Sequence[int]) -> list[int]:
    return [*begin(numbers)]


class OneHost:
    """In place of `Executors`: hosts by name, whose tasks all run in this process."""

    def __init__(self, *hosts: str) -> None:
        self.names = set(hosts)
        self.begins: Callable[[Any, Sequence[int]], list[int]] = begun
        self._ran: dict[int, str] = {}

    def hosts(self) -> set[str]:
        return self.names

    def ran_on(self, _: str) -> dict[int, str]:
        return self._ran

    def placed(self, items: Sequence[int], hosts: Sequence[Sequence[str]]) -> OneHost:
        self._ran = {item: preferred[0] for item, preferred in zip(items, hosts, strict=True)}
        return self

    def mapPartitions(self, begin: StartWorkers) -> OneHost:
        self._begin = begin
        return self

    def collect(self) -> list[int]:
        return self.begins(self._begin, [*self._ran])


@pytest.fixture
def made(spark: SparkSession) -> Iterator[tuple[HostWorkers, OneHost]]:
    workers = HostWorkers(spark.sparkContext)
    hosts: Any = OneHost("a", "b")
    workers._executors = hosts
    yield workers, hosts
    workers.close()


def looked(workers: HostWorkers) -> bool:
    """Look for hosts without a worker, and wait until theirs have connected or failed."""
    workers._next_look = 0.0
    workers.start()
    if workers._starting is not None:
        workers._starting.join(60)
    return workers.has_any


def told(tasks: Iterator[int]) -> list[Any]:
    (number,), context = tasks, TaskContext.get()
    assert context is not None
    return [(number, context.partitionId(), os.getpid())]


@pytest.mark.gate
def test_each_host_has_a_task_at_the_same_time_and_all_count_or_none(
    spark: SparkSession, made: tuple[HostWorkers, OneHost]
) -> None:
    workers, hosts = made
    assert not workers.are_on([None])
    assert looked(workers)
    assert workers.are_on(["b", "a"])
    assert workers.are_on([None])
    assert not workers.are_on(["a", "a"])
    assert not workers.are_on(["a", "elsewhere"])
    (*first, a), (*second, b) = workers.run(told, hosts=["a", "b"])
    assert (first, second) == ([0, 0], [1, 1])
    assert [process for *_, process in workers.run(told, hosts=["b", "a"])] == [b, a]
    count = spark.sparkContext.accumulator({}, ByTask())

    def fails(tasks: Iterator[int]) -> list[Any]:
        (number,) = tasks
        count.add({number: 1})
        return [1 // number]

    with pytest.raises(WorkerError, match="ZeroDivisionError"):
        workers.run(fails, hosts=["a", "b"])
    assert count.value == {}, "what one task counted would be counted again"
    assert [process for *_, process in workers.run(told, hosts=["a", "b"])] == [a, b], "no answer is left over"
    os.kill(a, signal.SIGKILL)
    with pytest.raises(WorkerEndedError):
        workers.run(told, hosts=["b", "a"])
    assert workers.are_on(["b"])
    assert not workers.are_on(["a"])
    assert looked(workers)
    assert workers.run(told, hosts=["a"])[0][2] not in {a, b}
    hosts.names.remove("b")
    assert looked(workers)
    until(lambda: not Path(f"/proc/{b}").exists() or is_defunct(b), 30)


def is_defunct(number: int) -> bool:
    """The test's process has not asked how it ended."""
    return Path(f"/proc/{number}/stat").read_text().split(") ")[1].startswith("Z")


def with_another_key(begin: StartWorkers, numbers: Sequence[int]) -> list[int]:
    """What somebody else starts."""
    return [*replace(begin, key=b"another")(numbers)]


KEY = b"k" * 32
_MESSAGES = [
    b"",
    b"GET / HTTP/1.1\r\nHost: driver\r\n\r\n",
    (1 << 31).to_bytes(4) + b"x",
    (4).to_bytes(4) + b"\xff\xff\xff\xff",
    b"\xff\xff\xff\xff" + (1 << 62).to_bytes(8),
    (60).to_bytes(4) + b"#CHALLENGE#" + b"c" * 49,
    (2).to_bytes(4) + b"no",
]


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_strangers_do_not_keep_workers_out(server: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    address = server.getsockname()
    strangers = [socket.create_connection(address, 60) for _ in range(2 * len(_MESSAGES) + 3)]
    for number, message in enumerate(_MESSAGES * 2):
        strangers[number].sendall(message)
        if number < len(_MESSAGES):
            strangers[number].shutdown(socket.SHUT_WR)
    strangers.pop().close()
    with ThreadPoolExecutor(2) as threads:
        wrong = threads.submit(connected, *address, 7, "/elsewhere", b"another")
        right = [threads.submit(connected, *address, number, f"/{number}", KEY) for number in (0, 1)]
        found = Guests(server, KEY).workers(2)
        assert {number: files for number, (_, files) in found.items()} == {0: "/0", 1: "/1"}
        with pytest.raises((AuthenticationError, OSError, EOFError)):
            wrong.result()
        for number, (guest, _) in found.items():
            guest.connection.send("task")
            assert right[number].result().recv() == "task"
            guest.connection.close()
            right[number].result().close()
    for stranger in strangers:
        with contextlib.suppress(ConnectionResetError), stranger:
            while stranger.recv(1000):  # the challenge, and then the end
                pass


@pytest.mark.parametrize(("name", "value"), [("_HANDSHAKE_SECONDS", 0.0), ("_MOST_GUESTS", 1)])
def test_who_is_silent_is_dropped_when_it_is_late_and_when_many_are(
    server: socket.socket, name: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_workers, name, value)
    monkeypatch.setattr(host_workers, "_LOOK_AT_GUESTS", 0.01)
    silent = [socket.create_connection(server.getsockname(), 60) for _ in range(3)]
    with ThreadPoolExecutor(1) as threads:
        looking = threads.submit(Guests(server, KEY).workers, 1)
        with silent[0]:
            while silent[0].recv(1000):
                pass
        assert not looking.done(), "a worker may come yet"
        monkeypatch.undo()
        with connected(*server.getsockname(), 3, "/3", KEY):
            assert looking.result().keys() == {3}
    for stranger in silent:
        stranger.close()


def test_only_what_has_the_key_becomes_a_worker(
    made: tuple[HostWorkers, OneHost], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    workers, hosts = made
    hosts.names.remove("b")
    hosts.begins = with_another_key
    assert not looked(workers)
    assert "small batches are Spark's jobs: no worker on a: " in caplog.text
    monkeypatch.setattr(host_workers, "CONNECT_SECONDS", 0.1)
    hosts.begins = lambda *_: []
    workers._avoided.clear()
    assert not looked(workers)
    hosts.begins = begun
    monkeypatch.undo()
    assert not looked(workers), "it is tried again after a pause"
    workers._avoided.clear()
    assert looked(workers)


@pytest.mark.gate
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_workers_on_two_hosts_do_small_batches_and_a_killed_one_is_replaced(topics: Topics, tmp_path: Path) -> None:
    topic, out, sent = topics.create(PARTITIONS), topics.create(1), 0
    program = APPS / "hosts.py"

    def heard(application: Application) -> list[dict[str, Any]]:
        """Send some records; return the state with them."""
        nonlocal sent
        topics.fill(topic, PARTITIONS, PARTITIONS)
        sent += PARTITIONS
        while True:
            state: list[dict[str, Any]] = application.hears("state")["state"]
            if sum(row["n"] for row in state) == sent:
                return state

    with Standalone(tmp_path, workers=2, hosts=True) as cluster:
        arguments = (topics.bootstrap, f"hosts-{uuid.uuid4().hex[:8]}", topic, out, cluster.master)
        with Application(program, *arguments, log=tmp_path / "log") as application:
            state = heard(application)
            while len(set(workers(state).values())) < 2:
                state = heard(application)
            application.said.clear()
            for _ in range(3):
                state = heard(application)
            assert sum(each["restored"] for each in application.said) == 0, "the stores are where the workers are"
            killed, _ = min(workers(state).items())
            os.kill(killed, signal.SIGKILL)
            before = workers(state)
            while not workers(state).keys() - before:
                state = heard(application)
            assert set(counted(state)[0].values()) == {sent // PARTITIONS}
            application.signal(signal.SIGKILL)
        for number in workers(state):
            until(lambda number=number: not Path(f"/proc/{number}").exists(), 30)
