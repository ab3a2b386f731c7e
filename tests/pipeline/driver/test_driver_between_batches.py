"""The driver's loop with copies of state to work on: when it does, and what it does not read meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roster.model import TopicPartition
from roster.pipeline.batch import Range, Restoring
from roster.pipeline.driver.loop import DriverLoop
from roster.pipeline.driver.runner_protocol import BetweenBatches, Outcome
from roster.pipeline.errors import SinkFencedError
from roster.pipeline.options import Options, Tuning
from tests.spark.spark_fakes import P0, P1, FakeMember, FakeRunner, FakeSink, StillGuard

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import pytest

    from roster.pipeline.batch import Batch


class FakeCopies(BetweenBatches):
    """Restores `needs` in so many pieces each, and then has `spare` pieces of work on copies of others."""

    def __init__(self, needs: Mapping[TopicPartition, int], spare: int = 0) -> None:
        super().__init__()
        self.needs, self.spare = dict(needs), spare
        self.pieces: list[float] = []
        self.between_ends: dict[TopicPartition, int] = {}
        self.timers: list[tuple[bool, set[TopicPartition]]] = []
        """What each look at timers is to find, and whether only a run's first ones count."""
        self.told: list[tuple[str, set[TopicPartition]]] = []

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        self.told.append(("took", set(partitions)))

    def committed(self, batch: Batch, outcome: Outcome, log_ends: Mapping[TopicPartition, int]) -> None:
        self.told.append(("committed", set(batch.ranges)))

    def aborted(self, batch: Batch) -> None:
        self.told.append(("aborted", set(batch.ranges)))

    def held(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        return frozenset(each for each in partitions if self.needs.get(each))

    def due(
        self, partitions: Collection[TopicPartition], behind: Collection[TopicPartition], *, once: bool
    ) -> frozenset[TopicPartition]:
        if not self.timers:
            return frozenset()
        only_once, due = self.timers.pop(0)
        assert once is only_once
        return frozenset(due & set(partitions))

    def restore(self, seconds: float) -> bool:
        waiting = next((each for each, pieces in self.needs.items() if pieces), None)
        if waiting is None and not self.spare:
            return False
        self.pieces.append(seconds)
        if waiting is None:
            self.spare -= 1
        else:
            self.needs[waiting] -= 1
        return True

    def log_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {partition: self.between_ends.get(partition, 0) for partition in partitions}

    def restoring(self) -> dict[str, Restoring]:
        return {f"0_{each.partition}": Restoring(7, 70, left, None) for each, left in self.needs.items() if left}


class Setup:
    def __init__(self, copies: FakeCopies, **options: Any) -> None:
        self.member, self.runner, self.sink = FakeMember({P0: 10, P1: 20}), FakeRunner(), FakeSink()
        self.runner.restore = copies.restore  # type: ignore[method-assign]
        self.member.become(P0, P1, generation=1)
        chosen = Options(spark=None, bootstrap="b:1", group="g", topics=("t",), **options)
        guard = StillGuard(self.member, self.runner.cancel, margin=1.0)
        self.loop = DriverLoop(self.member, self.runner, self.sink, chosen, guard=guard, between_batches=copies)
        self.member.end = self.loop.stop


def test_a_task_is_not_read_before_it_is_restored_and_others_are() -> None:
    copies = FakeCopies({P0: 3})
    setup = Setup(copies)
    setup.loop.run(available_now=True)
    assert [set(batch.ranges) for batch in setup.runner.batches] == [{P1}, {P0}]
    assert copies.pieces == [0.2] * 3, "as long as a look for records would have waited"
    assert setup.member.offsets == {P0: 10, P1: 20}


def test_stores_are_told_which_partitions_come_and_how_each_batch_ends() -> None:
    copies = FakeCopies({})
    setup = Setup(copies, max_offsets_per_batch=2)

    def lose(batch: Batch) -> None:
        setup.runner.during = overtaken
        setup.member.become(P1, lost=frozenset({P0}), generation=2)
        setup.loop._guard.check(setup.member.ownership(), 0.0)

    def overtaken(batch: Batch) -> None:
        setup.runner.during = lambda batch: setup.loop.stop() if batch.number else None
        raise SinkFencedError("another writer came first")

    setup.runner.during = lose
    setup.loop.run(available_now=True)
    assert copies.told == [
        ("took", {P0, P1}),
        ("aborted", {P0, P1}),
        ("took", {P1}),
        ("aborted", {P1}),
        ("took", {P1}),
        ("committed", {P1}),
        ("committed", {P1}),
    ]


def test_copies_of_others_have_the_time_without_input() -> None:
    copies = FakeCopies({}, spare=4)
    setup = Setup(copies, tuning=Tuning(poll_interval_ms=50))
    setup.loop.run(available_now=False)
    assert copies.pieces == [0.05] * 4
    assert setup.member.offsets == {P0: 10, P1: 20}


def test_a_run_over_what_is_available_does_not_wait_for_copies_of_others() -> None:
    copies = FakeCopies({}, spare=4)
    Setup(copies).loop.run(available_now=True)
    assert copies.pieces == []


def test_a_member_without_partitions_keeps_copies_too() -> None:
    copies = FakeCopies({}, spare=2)
    setup = Setup(copies)
    setup.member.become(generation=2)
    setup.loop.run(available_now=False)
    assert len(copies.pieces) == 2


def test_restoring_is_logged_when_it_begins_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "roster.pipeline"):
        Setup(FakeCopies({P0: 3})).loop.run(available_now=True)
    lines = [record.getMessage() for record in caplog.records if "state" in record.getMessage()]
    assert lines == [
        "g: restoring state tasks=0_0 records=7 bytes=70 left=2",
        "g: copies of state are up tasks=0_0",
    ]


def test_a_run_over_what_is_available_ends_when_its_own_records_are_read_too() -> None:
    repartition = TopicPartition("g-by-k-repartition", 0)
    copies = FakeCopies({})
    setup = Setup(copies, starting_offsets="latest", tuning=Tuning(poll_interval_ms=10))
    setup.member.counts = {"t": 0}
    member = setup.member
    member.begins |= {repartition: 0}
    member.ends |= {repartition: 4}
    member.become(P0, repartition, generation=1)
    copies.between_ends = {repartition: 7}  # of an open transaction there are three more

    def end_transaction() -> None:
        member.ends[repartition] = 7

    member.end = end_transaction
    setup.loop.run(available_now=True)
    assert [batch.ranges for batch in setup.runner.batches] == [
        {P0: Range(0, 10), repartition: Range(0, 4)},
        {repartition: Range(4, 7)},
    ]


def test_a_partition_whose_timer_is_due_has_a_turn_without_records() -> None:
    copies = FakeCopies({})
    setup = Setup(copies, tuning=Tuning(poll_interval_ms=10), trigger_interval_ms=0)
    setup.runner.whole_partitions = True
    copies.timers = [(False, set()), (False, {P1}), (False, {P0})]
    setup.runner.during = lambda batch: setup.member.ends.update({P1: 23 if batch.number else 20})
    setup.loop.run(available_now=False)
    assert [batch.ranges for batch in setup.runner.batches] == [
        {P0: Range(0, 10), P1: Range(0, 20)},
        {P1: Range(20, 20)},
        {P0: Range(10, 10), P1: Range(20, 23)},
    ]
    assert setup.member.offsets == {P0: 10, P1: 23}


def test_a_timer_waits_until_its_state_is_restored() -> None:
    copies = FakeCopies({P0: 2})
    setup = Setup(copies, trigger_interval_ms=0)
    setup.runner.whole_partitions = True
    setup.member.begins |= {P0: 10}
    copies.timers = [(True, {P0})] * 4 + [(True, set())]
    setup.loop.run(available_now=True)
    assert [batch.ranges for batch in setup.runner.batches] == [{P1: Range(0, 20)}, {P0: Range(10, 10)}]
