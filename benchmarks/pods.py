"""How long partitions stand still when pods of deploy/kubernetes restart, come, go, die or freeze: as processes here.

    python -m benchmarks pods
    python -m benchmarks.pods [--broker roster|apache|HOST:PORT] [--event restart ...] [--bare]

Two pods, `totals-0` and `totals-1`, run the program of deploy/kubernetes with its settings, each with a disk of its
own, on a topic of 6 partitions that gets 400 orders a second. The group's committed offsets are looked at ten times a
second. A partition stands still from one time that its offset has moved to the next.

`its own`: the longest that a partition stood still whose owner changed, or was the pod that the event is about;
`others`: the same of all other partitions; `before`: of all, in ten seconds before the event.

With `--bare` a pod is the driver's loop with member and sink alone (`tests/deploy/bare_driver.py`), which copies
records exactly once: what the group costs, without the start of Python, Java and Spark, and without state.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from typing_extensions import override

from benchmarks.applications import Beside, kill_tree, tree
from benchmarks.fence import ORDERS, PROGRAM, RESULTS, Orders
from benchmarks.peers import MissingError
from benchmarks.pipeline import broker
from roster.client import Admin, ClientError
from roster.model import TopicPartition
from tests.deploy.bare_driver import RESULTS as COPIES
from tests.deploy.bare_driver import drive
from tests.real.realparts.apache import free_ports

GROUP, PARTITIONS = "totals", 6
CALM, QUIET_SECONDS = 3.0, 10.0
"""A partition that stands still for so long is not calm; how long all must be calm before an event and behind it."""
PATIENCE = 300.0


class Bare:
    """What `subprocess.Popen` is, of a driver without Spark."""

    def __init__(self, *arguments: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.deploy.bare_driver"])
        self._process = context.Process(target=drive, args=arguments, daemon=True)
        self._process.start()
        self.pid = self._process.pid or 0

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


class Pods:
    """Pods by their names, each a process with all that it starts."""

    def __init__(self, bootstrap: str, folder: Path, *, are_bare: bool) -> None:
        self._bootstrap, self._folder, self._are_bare = bootstrap, folder, are_bare
        self._client = folder / "client.properties"
        self._client.write_text(f"bootstrap.servers={bootstrap}\n")
        self.running: dict[str, Any] = {}
        self.started: list[Any] = []

    def start(self, name: str) -> None:
        if self._are_bare:
            log = str(self._folder / f"{name}.log")
            self.running[name] = Bare("kafka", self._bootstrap, "", None, "", log, name, GROUP, ORDERS)
            self.started.append(self.running[name])
            return
        (port,) = free_ports(1)
        given = {"KAFKA_CLIENT": str(self._client), "SPARK_MASTER": "local[2]", "STATE_DIR": str(self._folder / name)}
        given |= {"HTTP": f"127.0.0.1:{port}", "POD_NAME": name}
        with (self._folder / f"{name}.log").open("a") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, str(PROGRAM)],
                stderr=log,
                stdout=log,
                env=os.environ | given,
                start_new_session=True,
                text=True,
            )
        self.started.append(self.running[name])

    def terminate(self, name: str) -> None:
        """Return once it has ended."""
        self.running[name].send_signal(signal.SIGTERM)
        self.running.pop(name).wait(PATIENCE)

    def kill(self, name: str) -> None:
        kill_tree(self.running.pop(name))

    def freeze(self, name: str) -> None:
        for pid in tree(self.running.pop(name).pid):
            os.kill(pid, signal.SIGSTOP)


class Standing(Beside):
    """Looks how long each partition stands still, and who owns it."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self._bootstrap = bootstrap
        self._offsets: dict[TopicPartition, int] = {}
        self._moved_at: dict[TopicPartition, float] = {}
        self.longest: dict[TopicPartition, float] = {}
        self.owners: dict[TopicPartition, str | None] = {}
        self._calm_from = time.monotonic()

    def begin(self) -> None:
        """Count from now on."""
        self.longest = {}

    @override
    def _run(self) -> None:
        partitions = [TopicPartition(ORDERS, number) for number in range(PARTITIONS)]
        with closing(Admin(self._bootstrap)) as admin:
            while not self._ended.wait(0.1):
                try:
                    committed = admin.group_offsets(GROUP, partitions, stable=False)
                    members = admin.describe_group(GROUP).members
                except ClientError:  # there is no group yet
                    self._calm_from = time.monotonic()
                    continue
                now = time.monotonic()
                self.owners = {p: member.instance_id for member in members for p in member.assignment}
                for partition in partitions:
                    offset = committed[partition].offset if partition in committed else -1
                    if offset != self._offsets.get(partition):
                        self._offsets[partition] = offset
                        self._stood(partition, now)
                        self._moved_at[partition] = now
                late = [p for p in partitions if now - self._moved_at.get(p, 0.0) > CALM]
                if late or len(self.owners) < PARTITIONS:
                    self._calm_from = now

    def _stood(self, partition: TopicPartition, now: float) -> None:
        stood = now - self._moved_at.get(partition, now)
        self.longest[partition] = max(self.longest.get(partition, 0.0), stood)

    def wait(self, seconds: float = QUIET_SECONDS) -> None:
        """Wait until the group has been calm for so long."""
        deadline, asked = time.monotonic() + PATIENCE, time.monotonic()
        while time.monotonic() < max(self._calm_from, asked) + seconds:
            time.sleep(0.1)
            if time.monotonic() > deadline:
                raise RuntimeError("the group does not come to rest")


def restart(pods: Pods) -> None:
    pods.terminate("totals-1")
    pods.start("totals-1")


def dies_and_is_back(pods: Pods) -> None:
    pods.kill("totals-1")
    pods.start("totals-1")


def is_frozen_and_replaced(pods: Pods) -> None:
    pods.freeze("totals-1")
    pods.start("totals-1")


EVENTS: Mapping[str, tuple[str, Callable[[Pods], None]]] = {
    "restart": ("totals-1", restart),
    "scale-up": ("totals-2", lambda pods: pods.start("totals-2")),
    "scale-down": ("totals-2", lambda pods: pods.terminate("totals-2")),
    "killed": ("totals-1", dies_and_is_back),
    "replaced": ("totals-1", is_frozen_and_replaced),
    "lost": ("totals-1", lambda pods: pods.kill("totals-1")),
}
"""The pod that it is about, and what happens, in this order; "replaced" is frozen first, "lost" does not come back."""


def measure(bootstrap: str, folder: Path, events: Sequence[str], *, are_bare: bool) -> None:
    """Let the events happen one after the other; print a line for each."""
    with closing(Admin(bootstrap)) as admin:
        for topic in (ORDERS, RESULTS, COPIES):
            admin.create_topic(topic, PARTITIONS)
    pods = Pods(bootstrap, folder, are_bare=are_bare)
    print(f"{'seconds':<12}{'its own':>8}{'others':>8}{'before':>8}   load", flush=True)
    try:
        for name in ("totals-0", "totals-1"):
            pods.start(name)
        with Orders(bootstrap, random.Random(1), Counter()), Standing(bootstrap) as standing:
            for event in events:
                pod, happen = EVENTS[event]
                standing.wait()
                standing.begin()
                time.sleep(QUIET_SECONDS)
                before, owners = max(standing.longest.values()), dict(standing.owners)
                standing.begin()
                happen(pods)
                deadline = time.monotonic() + PATIENCE
                while (pod in pods.running) != (pod in standing.owners.values()) and time.monotonic() < deadline:
                    time.sleep(0.1)
                standing.wait()
                moved = {p for p, owner in owners.items() if owner != standing.owners[p] or owner == pod}
                stood = [
                    max((seconds for p, seconds in standing.longest.items() if (p in moved) is own), default=0.0)
                    for own in (True, False)
                ]
                figures = "".join(f"{seconds:>8.1f}" for seconds in (*stood, before))
                print(f"{event:<12}{figures}   {os.getloadavg()[0]:.1f}", flush=True)
    finally:
        for process in pods.started:
            kill_tree(process)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", default="roster")
    parser.add_argument("--event", action="append", choices=EVENTS)
    parser.add_argument("--bare", action="store_true")
    given = parser.parse_args(words)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # pods end with this program, as they do by Ctrl-C
    try:
        with TemporaryDirectory() as folder, broker(given.broker, Path(folder)) as (bootstrap, _):
            measure(bootstrap, Path(folder), given.event or list(EVENTS), are_bare=given.bare)
    except MissingError as missing:
        print(f"*** MISSING: {missing}", flush=True)


def run(*, quick: bool) -> None:
    """All events, or the first."""
    main(["--event", "restart"] if quick else [])


if __name__ == "__main__":
    main()
