"""Tasks with several stores: what is known of their changelogs, of copies and of turns, by the task as a whole."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roster.member.task_assignor import HeldTasks
from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.model.topology import Subtopology
from roster.pipeline.batch import Batch, Owner, Range, StoreProgress
from roster.pipeline.errors import PipelineError
from roster.stateful.changelogs import Changelog, Changelogs
from roster.stateful.restore_schedule import Copies
from roster.stateful.stores import StoreTargets
from roster.stateful.tasks.host_stores import Restored
from roster.stateful.tasks.processing import Report, combined

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

FIRST = Subtopology(0, ("in", "other"), ("ids", "hours"))
SECOND = Subtopology(1, ("g-by-page-repartition",), ("pages",))
CHANGELOGS = Changelogs(
    [Changelog("g-ids", "i", 2, FIRST), Changelog("g-hours", "h", 2, FIRST), Changelog("g-pages", "p", 3, SECOND)]
)
TASKS = [TaskId(0, 0), TaskId(0, 1), TaskId(1, 0), TaskId(1, 1), TaskId(1, 2)]
LOGS = [log for task in TASKS for log in CHANGELOGS.logs[task]]
END = 100


def log_of(topic: str, number: int) -> TopicPartition:
    return TopicPartition(topic, number)


class Logs:
    """Changelogs of END records each."""

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, END)

    stable_offsets = end_offsets


class Member:
    def __init__(self, active: Collection[TaskId], standby: Collection[TaskId]) -> None:
        self._held = HeldTasks(active=frozenset(active), standby=frozenset(standby))
        self.gaps: Mapping[TaskId, int] = {}

    def tasks(self) -> HeldTasks:
        return self._held

    def report_gaps(self, gaps: Mapping[TaskId, int]) -> None:
        self.gaps = gaps


def test_tasks_and_logs_belong_together() -> None:
    assert CHANGELOGS.tasks == TASKS
    assert CHANGELOGS.logs[TaskId(0, 1)] == [log_of("g-ids", 1), log_of("g-hours", 1)]
    assert all(log in CHANGELOGS.logs[CHANGELOGS.task_by_log[log]] for log in LOGS)
    read = [log_of("in", 1), log_of("other", 1), log_of("g-by-page-repartition", 2), log_of("late", 0), log_of("in", 7)]
    assert CHANGELOGS.tasks_of(read) == [TaskId(0, 1), TaskId(1, 2)]
    with pytest.raises(PipelineError, match="the topic 'in' has grown, its changelog 'g-ids' has 2 partitions"):
        CHANGELOGS.check_grown(read)


@given(
    st.fixed_dictionaries({}, optional={log: st.integers(0, END) for log in LOGS}),
    st.sets(st.sampled_from(TASKS)),
    st.sets(st.sampled_from(TASKS)),
    st.integers(0, END),
)
def test_a_task_is_as_far_behind_as_its_stores_together_and_caught_up_when_all_are(
    found: dict[TopicPartition, int], active: set[TaskId], standby: set[TaskId], acceptable: int
) -> None:
    standby -= active
    copies = Copies(Logs(), CHANGELOGS, acceptable, lambda: 0.0)
    copies.record_stores({uuid.uuid4().hex: found})
    gaps = {task: sum(END - found.get(log, 0) for log in CHANGELOGS.logs[task]) for task in TASKS}
    copies.join(Member(active, standby))
    assert copies.gaps() == gaps
    sources = [
        log_of(of.sources[0], task.partition) for task in active for of in (FIRST, SECOND) if of.number == task[0]
    ]
    copies.assigned(sources)
    cold = {task for task in active if gaps[task] > acceptable}
    assert {CHANGELOGS.readers.get(source) for source in copies.held(sources)} == cold
    jobs, _ = copies.between_batches(1.0)
    behind = {log for log in LOGS if log not in found or found[log] < END}
    wanted = cold or {task for task in active if gaps[task]} | standby
    assert {job.changelog for job in jobs} == {log for log in behind if CHANGELOGS.task_by_log[log] in wanted}
    assert all(job.task == CHANGELOGS.task_by_log[job.changelog] for job in jobs)
    for number, job in enumerate(jobs):
        assert (job.task in copies.whole()) is False
        copies.record_restored([Restored(job.changelog, END, 1, 10)])
        left = {each.task for each in jobs[number + 1 :]}
        assert job.task in left or not copies.held(sources) & {
            source for source in sources if CHANGELOGS.readers.get(source) == job.task
        }
    assert not copies.held(sources)
    copies.record_batch({log: END + 5 for task in active for log in CHANGELOGS.logs[task]})
    assert copies.whole() == active
    copies.record_lost([TaskId(0, 0)])
    assert copies._gaps()[TaskId(0, 0)] == 2 * (END + 5 if TaskId(0, 0) in active else END), (
        "the whole log, as it is known"
    )


def test_all_stores_of_a_task_take_a_turn_from_where_each_of_them_ends() -> None:
    targets = StoreTargets(Logs(), CHANGELOGS, 1.0)
    ranges = {
        log_of("in", 1): Range(7, 9),
        log_of("other", 1): Range(3, 4),
        log_of("g-by-page-repartition", 1): Range(5, 6),
    }
    batch = Batch(0, Owner("g", 1, "m"), ranges)
    targets.committed({TaskId(0, 1): "token"}, batch)
    prepared = targets.prepare(batch)
    assert [(target.changelog, target.end, target.inputs, target.token) for target in prepared[TaskId(0, 1)]] == [
        (log, END, {"in": 7, "other": 3}, "token") for log in CHANGELOGS.logs[TaskId(0, 1)]
    ]
    (target,) = prepared[TaskId(1, 1)]
    assert (target.changelog, target.inputs, target.token) == (log_of("g-pages", 1), {"g-by-page-repartition": 5}, None)
    targets.forget([log_of("other", 1)])
    assert {target.token for target in targets.prepare(batch)[TaskId(0, 1)]} == {None}


def test_a_task_reports_what_its_stores_do() -> None:
    first, second = StoreProgress(3, 30, late=1), StoreProgress(4, 40, late=2)
    reports = [Report("t", stores=(first,)), Report("t", 7.5, stores=(second,)), Report("t", 2.5)]
    assert combined(reports) == Report("t", 2.5, stores=(first, second))
    assert combined(reports[:1]) == reports[0]
