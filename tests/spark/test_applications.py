"""Pipelines as applications of their own: killed, paused, told to stop, on clusters; the output is compared exactly."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow.dataset as ds
import pytest

from roster.spark import ParquetSink
from tests.spark.spark_topics import until
from tests.spark.standalone import Standalone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.spark.spark_topics import Topics

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

START_SECONDS = 300


class Application:
    """app.py in a process group of its own, with what it says as it says it."""

    def __init__(self, *arguments: str, log: Path) -> None:
        self._log = log.open("w")
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("app.py")), *arguments],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        self.said: list[dict[str, Any]] = []
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self.process.stdout or ():
            self._lines.put(line)
        self._lines.put("")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait(30)
        self._log.close()

    def hears(self, what: str, seconds: float = START_SECONDS) -> dict[str, Any]:
        """The next line that says `what`."""
        while True:
            line = self._lines.get(timeout=seconds)
            assert line, f"the application ended:\n{Path(self._log.name).read_text()[-3000:]}"
            if line.startswith("{"):
                self.said.append(json.loads(line))
                if what in self.said[-1]:
                    return self.said[-1]

    def signal(self, number: int) -> None:
        """To everything the application started: driver, JVM and workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def executors(self) -> list[int]:
        """Process ids of the executors that run as processes of their own."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended
                ours = os.getsid(int(path.name)) == self.process.pid
                if ours and b"CoarseGrainedExecutorBackend" in (path / "cmdline").read_bytes():
                    found.append(int(path.name))
        return found

    def stop(self) -> None:
        """SIGTERM to the driver, as a supervisor sends it."""
        self.process.send_signal(signal.SIGTERM)

    def ends(self, seconds: float = 60) -> int:
        return self.process.wait(seconds)


@pytest.fixture
def group() -> str:
    return f"app-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Path]:
    """While this file exists, tasks wait."""
    path = tmp_path / "hold"
    yield path
    path.unlink(missing_ok=True)


def until_held(hold: Path, more: Callable[[], object]) -> None:
    """Wait until a task of the application is held in a batch, as the task itself says.

    `more` adds a few records: on a busy machine a session may end and a batch be dropped, and then nothing may be left
    to be held with.
    """
    mark = hold.with_name(f"{hold.name}.held")
    mark.unlink(missing_ok=True)
    deadline = time.monotonic() + START_SECONDS
    while not mark.exists():
        assert time.monotonic() < deadline, f"no task was held within {START_SECONDS} s"
        more()
        time.sleep(1)


def counted(out: Path) -> list[tuple[int, int]]:
    """Every row a plain reader finds."""
    table = ds.dataset(out, format="parquet", exclude_invalid_files=False).to_table(columns=["partition", "offset"])
    return sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


def entries(out: Path) -> list[dict[str, Any]]:
    """The commit log."""
    return [json.loads(path.read_text()) for path in sorted((out / "_roster" / "log").glob("*.json"))]


def both_have_a_share(topics: Topics, group: str) -> None:
    """Whichever of two applications started first would otherwise do all the work."""

    def shared() -> bool:
        members = topics.admin.describe_group(group).members
        return [len(member.assignment) for member in members] == [2, 2]

    until(lambda: topics.exists(group) and shared(), START_SECONDS, "both applications have partitions")


def test_killed_mid_batch_and_taken_over_no_record_is_lost_or_doubled(
    topics: Topics, group: str, hold: Path, tmp_path: Path
) -> None:
    topic, out = topics.create(4), tmp_path / "out"
    common = [topics.bootstrap, group, topic, str(out), "--most", "900"]
    with (
        Application(*common, "--hold", str(hold), log=tmp_path / "a.log") as first,
        Application(*common, log=tmp_path / "b.log") as second,
    ):
        both_have_a_share(topics, group)
        topics.fill(topic, 4, 4000)
        first.hears("done")
        hold.touch()
        until_held(hold, lambda: topics.fill(topic, 4, 400))
        os.kill(first.process.pid, signal.SIGKILL)  # the driver alone: what else it started must find out for itself
        assert first.ends() == -signal.SIGKILL
        until(lambda: topics.committed(group) == topics.ends(topic), 90, "the other application takes over")
        second.stop()
        second.hears("end")
        assert second.ends() == 0
    assert counted(out) == topics.everything(topic)
    assert ParquetSink(str(out)).positions() == topics.ends(topic)
    assert topics.admin.describe_group(group).members == []


def test_killed_mid_batch_and_restarted_no_record_is_lost_or_doubled_and_ctrl_c_finishes_the_batch(
    topics: Topics, group: str, hold: Path, tmp_path: Path
) -> None:
    topic, out = topics.create(2, 500), tmp_path / "out"
    common = [topics.bootstrap, group, topic, str(out), "--most", "200", "--hold", str(hold)]
    with Application(*common, log=tmp_path / "a.log") as first:
        first.hears("done")
        hold.touch()
        until_held(hold, lambda: topics.fill(topic, 2, 300))
        first.signal(signal.SIGKILL)
        first.ends()
    hold.unlink()
    with Application(*common, log=tmp_path / "b.log") as again:
        until(lambda: topics.committed(group) == topics.ends(topic), START_SECONDS, "the application goes on")
        assert counted(out) == topics.everything(topic)
        hold.touch()
        before = topics.ends(topic)
        topics.fill(topic, 2, 500)
        until_held(hold, lambda: None)
        again.signal(signal.SIGINT)  # a terminal sends it to the whole process group
        hold.unlink()
        again.hears("end")
        assert again.ends() == 0
    assert topics.committed(group) == ParquetSink(str(out)).positions()
    assert len(counted(out)) == sum(before.values()) + 200, "the batch in flight counts, no other follows"
    assert topics.admin.describe_group(group).members == []


def test_a_paused_application_that_wakes_up_after_its_partitions_moved_writes_nothing_more(
    topics: Topics, group: str, hold: Path, tmp_path: Path
) -> None:
    topic, out = topics.create(4), tmp_path / "out"
    common = [topics.bootstrap, group, topic, str(out)]
    with (
        Application(*common, "--hold", str(hold), log=tmp_path / "a.log") as paused,
        Application(*common, log=tmp_path / "b.log") as other,
    ):
        both_have_a_share(topics, group)
        topics.fill(topic, 4, 1000)
        paused.hears("done")
        hold.touch()
        until_held(hold, lambda: topics.fill(topic, 4, 400))
        paused.signal(signal.SIGSTOP)
        hold.unlink()
        until(lambda: topics.committed(group) == topics.ends(topic), 90, "the other application takes over")
        (owner,) = topics.admin.describe_group(group).members
        assert counted(out) == topics.everything(topic)
        old_ids = {entry["member"] for entry in entries(out)} - {owner.member_id}
        known = len(entries(out))
        paused.signal(signal.SIGCONT)
        until(lambda: len(topics.admin.describe_group(group).members) == 2, 60, "the paused one joins again")
        topics.fill(topic, 4, 1000)
        until(lambda: topics.committed(group) == topics.ends(topic), 60)
        assert not old_ids & {entry["member"] for entry in entries(out)[known:]}, "nothing more under the old member id"
        for application in (paused, other):
            application.stop()
        for application in (paused, other):
            application.hears("end")
            assert application.ends() == 0
    assert counted(out) == topics.everything(topic)


@pytest.mark.timeout(560)
def test_an_executor_killed_mid_batch_leaves_the_output_exact(
    topics: Topics, group: str, hold: Path, tmp_path: Path
) -> None:
    topic, out = topics.create(3, 3000), tmp_path / "out"
    common = [topics.bootstrap, group, topic, str(out), "--most", "2000", "--available-now", "--hold", str(hold)]
    hold.touch()
    with Application(*common, "--master", "local-cluster[2,1,512]", log=tmp_path / "a.log") as application:
        # Three JVMs start one after the other before the first batch.
        application.hears("batch", 300)
        until_held(hold, lambda: None)
        executors = application.executors()
        assert len(executors) == 2
        os.kill(executors[0], signal.SIGKILL)
        hold.unlink()
        application.hears("end", 200)
        assert application.ends() == 0
    assert counted(out) == topics.everything(topic)


def test_a_standalone_master_and_worker_started_from_the_wheel(topics: Topics, group: str, tmp_path: Path) -> None:
    topic, out = topics.create(2, 1000), tmp_path / "out"
    with Standalone(tmp_path) as cluster:
        common = [topics.bootstrap, group, topic, str(out), "--available-now"]
        with Application(*common, "--master", cluster.master, log=tmp_path / "a.log") as application:
            application.hears("end")
            assert application.ends() == 0
    assert counted(out) == topics.everything(topic)
