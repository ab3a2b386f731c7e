"""Copies of state: which are worked on, for how long, and what the group is told of them; time is what a test says."""

from __future__ import annotations

import math
import uuid
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.member.task_assignor import HeldTasks
from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.model.topology import Subtopology
from roster.pipeline.driver.switching import Unswitched
from roster.pipeline.tasks.reader import ReaderConfig
from roster.spark.stateful_batches import StatefulBatches
from roster.state import Position
from roster.stateful.changelogs import Changelog, Changelogs
from roster.stateful.restore_schedule import SHARE, Allowance, Copies, deal
from roster.stateful.tasks.catch_up import StoreTarget, catch_up
from roster.stateful.tasks.host_stores import Restored, RestoreJob, process_id, restore_copy, stores_found
from roster.stateful.tasks.store_location import Place
from tests.examples_tried import examples
from tests.stateful.test_store_processing import Log, entries

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

CHANGELOG = Changelog("g-s-changelog", "id", 4, Subtopology(0, ("t",), ("s",)))


def at(number: int) -> TopicPartition:
    return TopicPartition(CHANGELOG.topic, number)


class Logs:
    """Changelog partitions that have an end."""

    def __init__(self, ends: Mapping[int, int]) -> None:
        self.ends = dict(ends)
        self.open: set[int] = set()
        """Partitions with an open transaction of one record."""

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {each: self.ends[each.partition] + (each.partition in self.open) for each in partitions}

    def stable_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {each: self.ends[each.partition] for each in partitions}


class Member:
    def __init__(self) -> None:
        self.held = HeldTasks()
        self.reports: list[dict[int, int]] = []

    def become(self, active: Iterable[int] = (), standby: Iterable[int] = ()) -> None:
        sets = (frozenset(TaskId(0, number) for number in each) for each in (active, standby))
        self.held = HeldTasks(**dict(zip(("active", "standby"), sets, strict=True)))

    def tasks(self) -> HeldTasks:
        return self.held

    def report_gaps(self, gaps: Mapping[TaskId, int]) -> None:
        self.reports.append({task.partition: gap for task, gap in gaps.items()})


class Case:
    def __init__(self, ends: Mapping[int, int], lag: int = 10) -> None:
        self.at, self.logs, self.member = 0.0, Logs(ends), Member()
        self.copies = Copies(self.logs, Changelogs([CHANGELOG]), lag, lambda: self.at)

    def join(self, found: Mapping[int, int]) -> dict[int, int]:
        self.copies.record_stores({uuid.uuid4().hex: {at(number): offset for number, offset in found.items()}})
        self.copies.join(self.member)
        return {task.partition: gap for task, gap in self.copies.gaps().items()}

    def jobs(self, seconds: float = 1.0) -> list[int]:
        return [job.task.partition for job in self.copies.between_batches(seconds)[0]]


def source(*numbers: int) -> list[TopicPartition]:
    return [TopicPartition("t", number) for number in numbers]


def test_gaps_are_known_before_joining_and_of_a_task_without_a_store_its_whole_log() -> None:
    assert Case({0: 100, 1: 100, 2: 0, 3: 50}).join({0: 100, 1: 30, 3: 60}) == {0: 0, 1: 70, 2: 0, 3: 50}


class TableLogs(Logs):
    """And those of a joined table, with other ends."""

    def __init__(self, ends: Mapping[int, int], table: Mapping[int, int]) -> None:
        super().__init__(ends)
        self.table = dict(table)

    def stable_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        found = super().stable_offsets(partitions)
        return {each: self.table[each.partition] if each.topic == "items" else found[each] for each in partitions}


def test_a_joined_table_is_state_of_its_tasks() -> None:
    """Task 1_p joins the table without an operator, task 0_p has a store, too."""
    tables = [Changelog("items", "id", 4, CHANGELOG.of), Changelog("names", "id", 2, Subtopology(1, ("passed",)))]
    case = Case({0: 100, 1: 100, 2: 0, 3: 0})
    logs = TableLogs(case.logs.ends, {0: 5000, 1: 0, 2: 0, 3: 0})
    case.copies = Copies(logs, Changelogs([CHANGELOG]), 10, lambda: case.at, tables)
    case.copies.record_stores({uuid.uuid4().hex: {at(0): 100, at(1): 100, TopicPartition("names", 0): 100}})
    case.copies.join(case.member)
    with_state = [TaskId(0, number) for number in range(4)], [TaskId(1, number) for number in range(2)]
    assert case.copies.gaps() == dict(zip([*with_state[0], *with_state[1]], [5000, 0, 0, 0, 0, 100], strict=True))
    assert case.copies.all_tasks == {*with_state[0], *with_state[1]}

    owned = [TopicPartition("t", 0), TopicPartition("passed", 0), TopicPartition("passed", 1)]
    assert case.copies.changelogs.tasks_of(owned) == [TaskId(0, 0), TaskId(1, 0), TaskId(1, 1)]
    case.member.held = HeldTasks(active=frozenset(case.copies.changelogs.tasks_of(owned)))
    case.copies.assigned(owned)
    assert case.copies.held(owned) == {owned[0], owned[2]}, "a batch would wait for their tables"
    jobs, _ = case.copies.between_batches(1.0)
    assert {job.changelog: job.target.end for job in jobs} == {
        TopicPartition("items", 0): 5000,
        TopicPartition("names", 1): 100,
    }
    assert {task: copy.left for task, copy in case.copies.restoring().items()} == {"0_0": 5000, "1_1": 100}
    case.copies.record_restored(Restored(job.changelog, job.target.end, 1) for job in jobs)
    assert not case.copies.held(owned)
    case.at += 5
    assert case.copies.between_batches(1.0)[0] == []
    assert case.copies.whole() == {TaskId(0, 0), TaskId(1, 0), TaskId(1, 1)}
    logs.table[0] = 9000
    case.copies.mark_unknown([TaskId(0, 0)])
    assert case.copies.whole() == {TaskId(1, 0), TaskId(1, 1)}
    case.copies.record_batch({at(0): 101, TopicPartition("items", 0): 9000})
    assert case.copies.whole() == {TaskId(0, 0), TaskId(1, 0), TaskId(1, 1)}
    case.copies.record_lost([TaskId(0, 0)])
    assert case.copies.gaps()[TaskId(0, 0)] == 9000 + 100


def test_applications_that_share_a_directory_are_one_process_and_others_are_not(tmp_path: Path) -> None:
    def process(*names: str) -> uuid.UUID:
        case = Case({})
        places = [Place(str(tmp_path / name), "c", "id") for name in names]
        case.copies.record_stores({process_id(place): {} for place in places})
        return case.copies.process_id

    assert process("a") == process("a") != process("b")
    assert process("a", "b") == process("b", "a") != process("a")


def test_copies_are_worked_on_in_turn_and_their_gaps_reported() -> None:
    case = Case({0: 100, 1: 100, 2: 100, 3: 100})
    case.join({0: 100})
    case.member.become([0], [1, 2])
    first, second = case.jobs(), case.jobs()
    assert sorted(first) == sorted(second) == [1, 2]
    assert first != second, "one of them would never get time if it did not suffice"
    case.copies.record_restored([Restored(at(1), 95, 80, 800), Restored(at(2), 40, 40, 400)])
    assert case.member.reports[-1] == {0: 0, 1: 5, 2: 60, 3: 100}
    case.at = 2.0
    (task, restoring), *_ = case.copies.restoring().items()
    assert (task, restoring.records, restoring.bytes, restoring.left) == ("0_2", 40, 400, 60)
    assert restoring.seconds_left == 3.0
    case.copies.record_restored([Restored(at(2), 100, 60, 600)])
    assert case.copies.restoring() == {}
    assert case.copies._records == 180


def test_what_has_caught_up_is_looked_at_once_a_second() -> None:
    case = Case({0: 100, 1: 100, 2: 0, 3: 0})
    case.join({0: 100, 1: 100})
    case.member.become([0], [1])
    assert case.jobs() == []
    case.logs.ends[1] = 105
    assert case.jobs() == []
    case.at = 1.0
    assert case.jobs() == [1]
    case.logs.ends[1] = 500
    case.at = 2.0
    assert case.jobs() == case.jobs() == [1], "far behind: no pause"


def test_an_own_task_far_behind_is_restored_before_it_is_read() -> None:
    case = Case({0: 100, 1: 100, 2: 5, 3: 100})
    case.join({1: 95})
    case.member.become([0, 1, 2], [3])
    case.copies.assigned(source(0, 1, 2))
    assert case.copies.held(source(0, 1, 2)) == set(source(0))
    jobs, seconds = case.copies.with_batch()
    assert ([job.task.partition for job in jobs], seconds > 0) == ([0], True), "before copies of others"
    case.copies.record_restored([Restored(at(0), 50, 50, 500)])
    assert case.copies.held(source(0)) == set(source(0))
    case.copies.record_restored([Restored(at(0), 91, 41, 410)])
    assert not case.copies.held(source(0))
    case.copies.assigned(source(3))
    case.member.become([0, 1, 2])
    case.copies.with_batch()
    assert not case.copies.held(source(3)), "given up meanwhile"


def test_the_gap_of_an_own_task_is_its_own_whatever_batches_have_added_to_its_log() -> None:
    """A task that is said to be far behind would be given to the nearest copy at the next rebalance."""
    case = Case({0: 100, 1: 100, 2: 0, 3: 0})
    case.join({0: 100})
    case.member.become([0], [1])
    case.copies.assigned(source(0))
    case.copies.record_batch({at(0): 180})
    case.logs.ends[0] = 190
    case.jobs()
    assert case.member.reports[-1] == {0: 0, 1: 100, 2: 0, 3: 0}
    case.copies.mark_unknown([TaskId(0, 0)])
    case.at = 1.0
    assert case.jobs() == [0, 1], "after a batch that was not committed its store is looked at"
    assert case.member.reports[-1] == {0: 10, 1: 100, 2: 0, 3: 0}
    case.copies.record_restored([Restored(at(0), 190)])
    assert case.member.reports[-1] == {0: 0, 1: 100, 2: 0, 3: 0}
    assert case.copies.whole() == set()
    case.at = 2.0
    assert case.jobs() == [1]
    assert case.copies.whole() == {TaskId(0, 0)}


def test_an_own_task_that_is_restored_is_reported_with_what_is_left_of_its_log() -> None:
    case = Case({0: 100, 1: 0, 2: 0, 3: 0})
    case.join({})
    case.member.become([0])
    case.copies.assigned(source(0))
    case.copies.with_batch()
    assert case.member.reports[-1][0] == 100
    case.copies.record_restored([Restored(at(0), 60, 60, 600)])
    assert case.member.reports[-1][0] == 40


def test_a_copy_that_fails_is_left_alone_for_a_while_and_an_own_task_goes_on_to_its_batch() -> None:
    case = Case({0: 100, 1: 100, 2: 0, 3: 0})
    case.join({})
    case.member.become([0], [1])
    case.copies.assigned(source(0))
    assert case.jobs() == [0]
    case.copies.record_restored([Restored(at(0), None, problem="no room")])
    assert not case.copies.held(source(0))
    assert case.jobs() == []
    case.at = 1.0
    assert sorted(case.jobs()) == [0, 1]


@given(st.lists(st.tuples(st.floats(0.01, 20.0), st.floats(0.5, 1.2)), max_size=60))
def test_copies_never_slow_batches_by_more_than_a_fifth(batches: list[tuple[float, float]]) -> None:
    allowance = Allowance()
    own = added = late = 0.0
    for seconds, overshoot in batches:
        given_time = allowance.seconds
        spent = given_time * overshoot
        own, added = own + seconds, added + spent
        allowance.earn(seconds)
        allowance.spend(spent)
        if given_time:
            late = max(given_time * (overshoot - 1), 0.0)  # what one piece takes too long is saved up before the next
        assert added <= SHARE * own + late + 1e-9


@given(st.integers(0, 9), st.integers(0, 5), st.integers(1, 4))
def test_every_chore_is_dealt_once_and_to_free_cores_first(count: int, tasks: int, cores: int) -> None:
    jobs = [
        RestoreJob(TaskId(0, number), StoreTarget(TopicPartition("c", number), 0, 1, {}, None))
        for number in range(count)
    ]
    lanes = deal(jobs, tasks, cores)
    assert sorted(job for lane in lanes for job in lane) == jobs
    assert len(lanes) <= max(tasks, cores)
    if tasks < cores:
        assert not any(lanes[:tasks])
        assert all(lanes[tasks:])


values = st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.sampled_from([None, b"1", b"2"])), min_size=1)


@pytest.mark.parametrize("is_ordered", [True, False])
@given(script=st.lists(st.tuples(values, st.booleans(), st.integers(0, 3)), min_size=1, max_size=8))
@settings(max_examples=examples(25, "ROSTER_STATE_SCRIPTS"))
def test_a_copy_brought_up_piece_by_piece_is_the_changelog(
    tmp_path_factory: pytest.TempPathFactory, is_ordered: bool, script: list[Any]
) -> None:
    place, log = Place(str(tmp_path_factory.mktemp("state")), "c", "id", is_ordered), Log()
    at = TopicPartition("c", 0)
    over = 0.0  # a piece ends after its first record batch
    for changes, committed, pieces in script:
        keys, found = zip(*changes, strict=True)
        table = pa.table([pa.array(keys, pa.binary()), pa.array(found, pa.binary())], ["key", "value"])
        log.write(table, committed=committed)
        for _ in range(pieces):
            copy = restore_copy(
                place, RestoreJob(TaskId(0, 0), StoreTarget(at, 0, len(log.records), {}, None)), log.fetch, over
            )
            assert not copy.problem
            assert stores_found(place) == {TaskId(0, 0): copy.position}
            expected = dict(entry for entry in log.records[: copy.position] if entry is not None)
            with place.open("0_0") as store:
                assert entries(store) == sorted((key, value) for key, value in expected.items() if value is not None)
    with place.open("0_0") as store:
        catch_up(store, StoreTarget(at, 0, len(log.records), {"t": 7}, None), log.fetch)
        assert store.position() == Position(len(log.records), {"t": 7})


def test_a_store_in_use_is_a_problem_of_its_copy_only(tmp_path: Path) -> None:
    place = Place(str(tmp_path), "c", "id")
    with place.open("0_0"):
        copy = restore_copy(
            place, RestoreJob(TaskId(0, 0), StoreTarget(TopicPartition("c", 0), 0, 5, {}, None)), Log().fetch, 0.0
        )
    assert copy.position is None
    assert "StoreInUseError" in copy.problem


@pytest.mark.parametrize("done", [None, 0, 1, 3])
def test_spark_settles_the_stores_that_the_worker_has_not_come_to(done: int | None) -> None:
    targets = {TaskId(0, n): (StoreTarget(at(n), 0, 5, {}, "token"),) for n in range(3)}
    spark, stores = MagicMock(cores=2), MagicMock(topology=MagicMock(plans=()))
    asked: list[int] = []

    def collect(count: int, restore_lanes: Any) -> list[Restored]:
        asked.extend(job.task.partition for lane in restore_lanes.__self__._restore_jobs.lanes for job in lane)
        return [Restored(at(n), 5) for n in asked]

    spark.collect = collect
    cleaner = MagicMock(due_at=math.inf)
    parts = spark, None, ReaderConfig("b:1", "g"), None, stores, (), cleaner
    batches = StatefulBatches(*parts, set, Unswitched())
    stores.targets.last.return_value = targets
    worker = None if done is None else [Restored(at(n), 5) for n in range(done)]
    batches.settle(lambda _: worker)
    assert sorted(asked) == list(range(done or 0, 3))
