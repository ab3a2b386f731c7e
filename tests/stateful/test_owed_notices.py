"""When an application owes others a notice that all has been read, and when it sends it, by a clock of its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from roster.model import TopicPartition
from roster.pipeline.batch import Batch, Owner, Range
from roster.stateful.input_backlog import InputBacklog

if TYPE_CHECKING:
    from roster.stateful.tasks.outgoing import Backlog

ZERO, ONE = (TopicPartition("in", number) for number in range(2))
BEHIND = TopicPartition("to-1", 0)
OWN = [ZERO, ONE, BEHIND]


class Group:
    """An input of two partitions, and one application that looks at it; a partition's source is its number."""

    def __init__(self, *, looks_for_each: bool = False) -> None:
        self.ends, self.offsets, self.clock = {ZERO: 0, ONE: 0}, {ZERO: 0, ONE: 0}, 100.0
        self.shown = self.offsets
        admin: Any = SimpleNamespace(
            describe_topic=lambda _: SimpleNamespace(
                partitions=[SimpleNamespace(partition=0), SimpleNamespace(partition=1)]
            ),
            end_offsets=lambda partitions: {at: self.ends.get(at, 0) for at in partitions},
            group_offsets=lambda _, partitions, stable: {
                at: SimpleNamespace(offset=self.shown[at]) for at in partitions
            },
        )
        self.backlog = InputBacklog(
            *(admin, "g", ["in"], lambda at: {at.partition + 1}, lambda: self.clock),
            sink=BEHIND.topic,
            looks_for_each=looks_for_each,
        )

    def due(self, *behind: TopicPartition, once: bool = False) -> list[TopicPartition]:
        return [*self.backlog.due(OWN, behind, once=once)]

    def plan(self, **rows: int) -> tuple[Batch, Backlog]:
        """A batch of so many rows of each partition, which are produced first."""
        ranges = {}
        for at, count in zip((ZERO, ONE), (rows.get("zero"), rows.get("one")), strict=True):
            if count is not None:
                self.ends[at] += count
                ranges[at] = Range(self.offsets[at], self.ends[at])
        batch = Batch(0, Owner("g", 1, "m"), ranges)
        backlog = self.backlog.left_behind(batch)
        assert backlog is not None
        return batch, backlog

    def commit(self, batch: Batch, **times: int) -> None:
        self.backlog.sent({number: times[name] for number, name in ((1, "zero"), (2, "one")) if name in times})
        self.backlog.committed(batch)
        self.offsets = {**self.offsets, **batch.next_offsets}
        self.shown = self.offsets

    def tell(self) -> Backlog:
        """Send the notice that is due."""
        assert self.due() == [ZERO]
        batch, backlog = self.plan(zero=0)
        self.commit(batch)
        assert self.due() == []
        return backlog


@pytest.fixture
def group() -> Group:
    """A group whose application has told all."""
    group = Group()
    group.commit(group.plan(zero=10, one=10)[0], zero=5, one=7)
    assert group.due() == []
    return group


def test_a_last_small_batch_is_told_to_all_a_second_later(group: Group) -> None:
    group.clock += 0.4
    batch, backlog = group.plan(one=20)
    assert not backlog.is_for_all
    assert backlog.times == {2: 7}, "labels go on from the largest time so far"
    group.commit(batch, one=90)
    assert group.due() == [], "another batch may follow"
    group.clock += 1
    backlog = group.tell()
    assert (backlog.is_for_all, backlog.behind, backlog.times) == (True, (), {1: 5, 2: 90})


def test_batches_that_follow_each_other_tell_all_once_a_second(group: Group) -> None:
    told = []
    for _ in range(10):
        group.clock += 0.4
        assert group.due() == []
        batch, backlog = group.plan(one=1)
        group.commit(batch, one=8)
        told.append(backlog.is_for_all)
    assert told == [False, False, True] * 3 + [False]


@pytest.mark.parametrize("looks_for_each", [True, False])
def test_behind_rows_of_a_task_in_one_partition_there_may_be_rows_in_others(looks_for_each: bool) -> None:
    group = Group(looks_for_each=looks_for_each)
    group.commit(group.plan(zero=10, one=10)[0], zero=5, one=7)
    group.clock += 0.4
    group.ends[ONE] += 1  # by the transaction that the next rows come from
    assert group.plan(zero=1)[1].behind == ((2,) if looks_for_each else ())


def test_what_a_batch_tells_of_others_is_all_that_not_all_have_heard(group: Group) -> None:
    group.commit(group.plan(one=20)[0], one=90)
    group.clock += 1
    batch, backlog = group.plan(zero=1)
    assert (backlog.is_for_all, backlog.times) == (True, {1: 5, 2: 90})
    group.commit(batch, zero=6)
    group.clock += 1
    assert group.due() == []
    assert group.plan(zero=1)[1].times == {1: 6}


def test_a_notice_that_was_not_committed_is_due_again(group: Group) -> None:
    group.clock += 0.4
    group.commit(group.plan(one=20)[0], one=90)
    group.clock += 1
    for _ in range(3):
        assert group.due() == [ZERO]
        group.plan(zero=0)
        group.backlog.assigned([ZERO])  # the batch is aborted, and its positions are looked up again
    assert group.tell().times == {1: 5, 2: 90}


def test_whoever_takes_a_partition_looks_at_once_and_tells(group: Group) -> None:
    group.backlog.assigned([BEHIND])
    assert group.due() == [], "nothing of the input"
    group.backlog.assigned([ONE, BEHIND])
    backlog = group.tell()
    assert (backlog.is_for_all, backlog.times) == (True, {1: 5})


def test_nothing_is_told_while_others_have_more_to_read(group: Group) -> None:
    group.backlog.assigned([ZERO])
    group.ends[ONE] += 5
    assert group.due() == []
    group.offsets = {**group.offsets, ONE: 15}
    group.shown = group.offsets
    assert group.due() == [], "it looks once a second"
    assert group.due(once=True) == [ZERO], "but at once as a run ends"
    group.clock += 1
    group.tell()


def test_what_others_had_to_read_is_told_once_they_have(group: Group) -> None:
    group.ends[ONE] += 5
    group.clock += 2
    batch, backlog = group.plan(zero=1)
    assert backlog.behind == (2,)
    group.commit(batch, zero=6)
    group.clock += 2
    assert group.due() == []
    group.offsets = {**group.offsets, ONE: 15}
    group.shown = group.offsets
    group.clock += 1
    group.tell()


def test_records_behind_the_repartition_do_not_keep_it_from_telling(group: Group) -> None:
    group.clock += 0.4
    group.commit(group.plan(one=20)[0], one=90)
    group.clock += 1
    assert group.due(ZERO) == [], "its batch tells"
    assert group.due(BEHIND) == [ZERO]


def test_own_commits_that_brokers_do_not_show_yet_hold_nothing_back(group: Group) -> None:
    shown = group.shown
    group.commit(group.plan(one=20)[0], one=90)
    group.shown = shown
    group.clock += 2
    _, backlog = group.plan(zero=1)
    assert backlog.behind == ()


def test_a_group_without_records_tells_nothing() -> None:
    assert Group().due() == []
