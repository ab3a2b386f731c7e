"""Workers that stay on the hosts of a cluster: they do small batches at the stores, and may be killed."""

from __future__ import annotations

import os
import signal
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.programs import Application
from tests.spark.standalone import Standalone
from tests.waiting import until

if TYPE_CHECKING:
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


@pytest.mark.gate
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_workers_on_two_hosts_do_small_batches_and_a_killed_one_is_replaced(topics: Topics, tmp_path: Path) -> None:
    topic, out, sent = topics.create(PARTITIONS), topics.create(1), 0
    program = Path(__file__).with_name("hosts_app.py")

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
