"""Pipelines as applications of their own: killed, paused, told to stop, on clusters; the output is compared exactly."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest

from roster.spark import ParquetSink
from tests.spark.apps.standalone import Standalone
from tests.spark.programs import APPS, START_SECONDS, Application
from tests.spark.spark_topics import Topics
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from roster.client import MemberDescription

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

PROGRAM = APPS / "copying.py"


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


def both_have_a_share(topics: Topics, group: str, partitions: int = 2) -> None:
    """Whichever of two applications started first would otherwise do all the work."""

    def shared() -> bool:
        members = topics.admin.describe_group(group).members
        return [len(member.assignment) for member in members] == [partitions, partitions]

    until(lambda: topics.exists(group) and shared(), START_SECONDS, "both applications have partitions")


class Story:
    """One group on one topic, and the output directory that its applications share."""

    def __init__(self, topics: Topics, partitions: int, folder: Path) -> None:
        self.topics, self._partitions, self._folder = topics, partitions, folder
        self.topic, self.group = topics.create(partitions), f"app-{uuid.uuid4().hex[:8]}"
        self.out = folder / "out"

    def application(self, name: str, hold: Path, *more: str) -> Application:
        """Start one; its tasks wait while `hold` exists."""
        arguments = [self.topics.bootstrap, self.group, self.topic, str(self.out), "--hold", str(hold), *more]
        return Application(PROGRAM, *arguments, log=self._folder / f"{name}.log")

    def fill(self, records: int) -> None:
        self.topics.fill(self.topic, self._partitions, records)

    def hold(self, hold: Path) -> None:
        """Return once the application of that file is held in a batch."""
        hold.touch()
        until_held(hold, lambda: self.fill(400))

    def until_all_is_committed(self) -> None:
        topics = self.topics

        def done() -> bool:
            read = {p.topic for p in topics.committed(self.group)} | {self.topic}
            return topics.committed(self.group) == {p: end for topic in read for p, end in topics.ends(topic).items()}

        until(done, START_SECONDS, "all is committed")

    def members(self) -> Sequence[MemberDescription]:
        return self.topics.admin.describe_group(self.group).members

    def assert_exact(self) -> None:
        """Every record counts, and counts once."""
        assert counted(self.out) == self.topics.everything(self.topic)


@pytest.mark.gate
def test_paused_killed_and_restarted_mid_batch_no_record_is_lost_or_doubled(topics: Topics, tmp_path: Path) -> None:
    story = Story(topics, 4, tmp_path)
    holds = [tmp_path / "hold-first", tmp_path / "hold-second"]
    with (
        story.application("first", holds[0], "--dataframe") as first,
        story.application("second", holds[1], "--small") as second,
    ):
        both_have_a_share(topics, story.group)
        story.fill(4000)
        first.hears("done")
        paused_until_its_partitions_moved(story, first, holds[0])
        driver_killed(story, first, holds[0])
        all_killed(story, second, holds[1])
    with story.application("restarted", holds[0], "--most", "100", "--small") as restarted:
        story.until_all_is_committed()
        story.assert_exact()
        finished_by_ctrl_c(story, restarted, holds[0])
    assert topics.committed(story.group) == ParquetSink(str(story.out)).positions()
    assert story.members() == []


@pytest.mark.gate
@pytest.mark.parametrize("broker", ["roster", pytest.param("apache", marks=pytest.mark.real)])
def test_dataframes_with_state_lose_and_double_nothing_whatever_comes_amid_sparks_stage(
    request: pytest.FixtureRequest, topics: Topics, tmp_path: Path, broker: str
) -> None:
    """A rebalance, a pause beyond the session, a killed driver, and all of the last application killed."""
    with contextlib.ExitStack() as stack:
        if broker == "apache":
            topics = stack.enter_context(Topics(request.getfixturevalue("apache_kafka").bootstrap))
        story = Story(topics, 4, tmp_path)
        names = ["first", "second"]
        holds = [tmp_path / f"hold-{name}" for name in names]
        kinds = [["--dataframe", "--state", str(tmp_path / name)] for name in names]
        first = stack.enter_context(story.application("first", holds[0], *kinds[0]))
        until(lambda: topics.exists(story.group), START_SECONDS, "the first application is in the group")
        story.fill(4000)
        story.until_all_is_committed()
        story.assert_exact()
        story.hold(holds[0])
        second = stack.enter_context(story.application("second", holds[1], *kinds[1]))
        until(lambda: len(story.members()) == 2, START_SECONDS, "a second application is in the group")
        holds[0].unlink()
        story.fill(1000)
        story.until_all_is_committed()
        story.assert_exact()
        both_have_a_share(topics, story.group, 4)
        paused_until_its_partitions_moved(story, first, holds[0], 4)
        driver_killed(story, first, holds[0])
        story.hold(holds[1])
        second.signal(signal.SIGKILL)
        holds[1].unlink()
        with story.application("restarted", holds[0], *kinds[0]):
            story.until_all_is_committed()
            story.assert_exact()


def paused_until_its_partitions_moved(story: Story, paused: Application, hold: Path, partitions: int = 2) -> None:
    """Paused mid-batch and awake again after a take-over, it writes nothing more under its old member id."""
    story.hold(hold)
    paused.signal(signal.SIGSTOP)
    hold.unlink()
    story.until_all_is_committed()
    until(lambda: len(story.members()) == 1, START_SECONDS, "the other application is alone")
    (owner,) = story.members()
    story.assert_exact()
    known = entries(story.out)
    old_ids = {entry["member"] for entry in known} - {owner.member_id}
    assert old_ids
    paused.signal(signal.SIGCONT)
    both_have_a_share(story.topics, story.group, partitions)
    story.fill(1000)
    story.until_all_is_committed()
    assert not old_ids & {entry["member"] for entry in entries(story.out)[len(known) :]}
    story.assert_exact()


def driver_killed(story: Story, killed: Application, hold: Path) -> None:
    """The driver's process alone: what else it started must find out for itself."""
    story.hold(hold)
    os.kill(killed.process.pid, signal.SIGKILL)
    assert killed.ends() == -signal.SIGKILL
    story.until_all_is_committed()
    story.assert_exact()
    hold.unlink()


def all_killed(story: Story, killed: Application, hold: Path) -> None:
    """The group's last application, whose staying worker does the batch; nothing but its successor can finish it."""
    story.hold(hold)
    mark = hold.with_name(f"{hold.name}.held")

    def held() -> int:
        worker = int(mark.read_text() or 0)  # nothing while it is written
        return worker if parent(worker) == killed.process.pid else 0

    worker = until(held, START_SECONDS, "the staying worker is held")
    os.kill(killed.process.pid, signal.SIGKILL)
    killed.ends()
    until(lambda: parent(worker) is None, START_SECONDS, "the worker has ended with its driver")
    killed.signal(signal.SIGKILL)
    assert story.topics.committed(story.group) != story.topics.ends(story.topic)
    hold.unlink()


def parent(pid: int) -> int | None:
    """The process that started another; None if that one is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[1])


def finished_by_ctrl_c(story: Story, application: Application, hold: Path) -> None:
    """The batch in flight counts, and the rest is left."""
    hold.touch()
    before = story.topics.ends(story.topic)
    story.fill(500)
    until_held(hold, lambda: None)
    application.signal(signal.SIGINT)  # a terminal sends it to the whole process group
    hold.unlink()
    application.hears("end")
    assert application.ends() == 0
    assert 0 < len(counted(story.out)) - sum(before.values()) < 500


@pytest.mark.gate
def test_an_executor_of_a_standalone_cluster_killed_mid_batch_leaves_the_output_exact(
    topics: Topics, tmp_path: Path
) -> None:
    story, hold = Story(topics, 3, tmp_path), tmp_path / "hold"
    story.fill(3000)
    hold.touch()
    with Standalone(tmp_path, cores=2, memory="2g") as cluster:
        more = ("--most", "2000", "--available-now", "--master", cluster.master)
        with story.application("application", hold, *more) as application:
            until_held(hold, lambda: None)
            executors = cluster.executors()
            assert len(executors) == 2
            os.kill(executors[0], signal.SIGKILL)
            hold.unlink()
            application.hears("end")
            assert application.ends() == 0
    story.assert_exact()
