"""Runs of tasks without records, in time that a test says."""

from __future__ import annotations

from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.model.topology import Subtopology
from roster.pipeline.batch import Batch, Owner, Range, Split
from roster.pipeline.driver import offset_ranges
from roster.stateful.changelogs import Changelog, Changelogs
from roster.stateful.due_tasks import TaskRun, Timers

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
T0, T1 = TaskId(0, 0), TaskId(0, 1)


class Case:
    def __init__(self, *, timed: tuple[int, ...] = (0,)) -> None:
        self.at = 100.0
        changelogs = Changelogs([Changelog("g-s-changelog", "id", 3, Subtopology(0, ("t",), ("s",)))])
        self.timers = Timers(changelogs, timed, now=lambda: self.at)

    def due(self, *, once: bool = False) -> set[TopicPartition]:
        return set(self.timers.due([P0, P1], (), once=once))

    def ran(self, seconds_to_timer: dict[TaskId, float | None]) -> None:
        batch = Batch(0, Owner("g", 1, "m"), {})
        self.timers.ran(batch, {task: TaskRun((), seconds) for task, seconds in seconds_to_timer.items()})


def test_a_task_that_is_taken_over_has_one_turn_as_its_timers_are_not_known() -> None:
    case = Case()
    case.timers.assigned([P0, P1, P2])
    assert case.due() == case.due(once=True) == {P0, P1}
    case.ran({T0: None, T1: 5.0})
    assert case.due() == set()
    case.timers.assigned([P1])
    assert case.due() == {P1}, "another owner may have had it meanwhile"


def test_a_timer_is_due_once_its_seconds_are_over_and_a_later_turn_replaces_it() -> None:
    case = Case()
    case.ran({T0: 5.0, T1: 6.0})
    case.at = 104.9
    assert case.due() == set()
    case.at = 105.0
    assert case.due() == {P0}
    assert case.due(once=True) == set(), "a run up to the log ends does not wait for timers"
    case.ran({T0: 1.0})
    case.at = 106.0
    assert case.due() == {P0, P1}
    case.ran({T0: None, T1: -3.0})
    assert case.due() == {P1}


def test_nothing_is_due_in_a_sub_topology_without_timers() -> None:
    case = Case(timed=(1,))
    case.timers.assigned([P0])
    case.ran({T1: 0.0})
    assert case.due() == set()


def test_tasks_without_records_are_dealt_too() -> None:
    dealt = offset_ranges.whole({P0: Range(3, 3), P1: Range(0, 9), P2: Range(4, 4)}, 2)
    assert sorted(split for task in dealt for split in task) == [
        Split("t", 0, 3, 3),
        Split("t", 1, 0, 9),
        Split("t", 2, 4, 4),
    ]
    assert offset_ranges.whole({P0: Range(3, 3)}, 4) == [(Split("t", 0, 3, 3),)]
