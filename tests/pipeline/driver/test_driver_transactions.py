"""The driver's loop with a sink that commits the group's offsets itself: order of calls, retries, fences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roster.client import CommitFenced, CommitRetriable, UnreachableError
from roster.pipeline.driver.loop import DriverLoop
from roster.pipeline.errors import SinkFencedError
from roster.pipeline.options import Options, Tuning
from tests.spark.spark_fakes import P0, P1, FakeMember, FakeRunner, FakeSink, StillGuard

if TYPE_CHECKING:
    from collections.abc import Collection

    from roster.model import TopicPartition
    from roster.pipeline.batch import Batch, Owner, Progress


class TransactionalSink(FakeSink):
    """Moves the member's offsets with its records; `errors` come out of the next commits."""

    commits_offsets = True

    def __init__(self, member: FakeMember) -> None:
        super().__init__(exact=False)
        self.member, self.errors = member, []  # type: ignore[var-annotated]

    def take_over(self, partitions: Collection[TopicPartition], owner: Owner) -> None:
        self.member.history.append(("take over", set(partitions)))

    def offset_metadata(self, owner: Owner) -> str:
        return f"owned by {owner.member_id}"

    def commit(self, written: list[tuple[TopicPartition, int]], batch: Batch) -> None:
        self.member.history.append(("together", batch.next_offsets, batch.owner.generation))
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error
        self.records += written
        self.member.offsets.update(batch.next_offsets)

    def abort(self, written: Any, batch: Batch) -> None:
        self.member.history.append(("abort",))


def scripted() -> tuple[DriverLoop, FakeMember, TransactionalSink, list[Progress]]:
    member = FakeMember({P0: 10, P1: 20})
    sink = TransactionalSink(member)
    options = Options(spark=None, bootstrap="b:1", group="g", topics=("t",), tuning=Tuning(min_offsets_per_task=1))
    reports: list[Progress] = []
    runner = FakeRunner()
    loop = DriverLoop(member, runner, sink, options, [reports.append], StillGuard(member, runner.cancel, margin=1.0))
    member.end = loop.stop
    member.become(P0, P1, generation=1)
    return loop, member, sink, reports


EVERYTHING = sorted([(P0, offset) for offset in range(10)] + [(P1, offset) for offset in range(20)])


def test_what_is_open_ends_before_offsets_are_read_and_the_claim_comes_before_the_batch() -> None:
    loop, member, sink, reports = scripted()
    loop.run(available_now=True)
    assert member.history == [
        ("take over", {P0, P1}),
        ("commit", {P0: 0, P1: 0}, 1),
        ("together", {P0: 10, P1: 20}, 1),
    ]
    assert sorted(sink.records) == EVERYTHING
    assert set(reports[0].phases) == {"plan", "work", "transaction"}


def test_a_commit_whose_outcome_is_open_is_repeated_under_the_generation_of_then() -> None:
    loop, member, sink, _ = scripted()
    sink.errors = [CommitRetriable("between two generations"), UnreachableError("no broker"), None]
    member.script = [lambda: member.become(P0, P1, generation=2)]
    loop.run(available_now=True)
    assert [entry[2] for entry in member.of("together")] == [1, 2, 2]
    assert sorted(sink.records) == EVERYTHING
    assert not member.of("abort")


def test_a_fenced_batch_is_aborted_and_read_again_from_where_the_group_stands() -> None:
    loop, member, sink, _ = scripted()
    sink.errors = [SinkFencedError("another producer has the transactional id")]
    loop.run(available_now=True)
    assert [entry[0] for entry in member.history] == [
        *("take over", "commit", "together", "abort"),
        *("take over", "commit", "together"),
    ]
    assert sorted(sink.records) == EVERYTHING


def test_partitions_lost_while_the_outcome_is_open_end_the_transaction() -> None:
    loop, member, sink, _ = scripted()
    sink.errors = [CommitRetriable("no coordinator")]
    member.script = [lambda: member.become(P1, generation=2, lost=frozenset({P0}))]
    loop.run(available_now=True)
    assert [entry[0] for entry in member.of("together", "abort")] == ["together", "abort", "together"]
    assert sorted(sink.records) == [(P1, offset) for offset in range(20)]


def test_partitions_that_left_and_came_back_do_not_count_under_the_old_work(monkeypatch: Any) -> None:
    loop, member, sink, _ = scripted()
    confirm = member.confirm
    answers = [CommitFenced("1 partitions were lost", partitions={P0})]

    def once_fenced(*arguments: Any) -> tuple[int, str]:
        if answers:
            raise answers.pop()
        return confirm(*arguments)

    monkeypatch.setattr(member, "confirm", once_fenced)
    loop.run(available_now=True)
    assert [entry[0] for entry in member.of("together", "abort")] == ["abort", "together"]
    assert sorted(sink.records) == EVERYTHING


def test_without_its_claim_a_partition_is_not_worked_on() -> None:
    loop, member, sink, _ = scripted()
    member.commit_errors = [CommitRetriable("no coordinator")]
    member.script = [lambda: member.become(P0, P1, generation=1)]
    loop.run(available_now=False)
    kinds = [entry[0] for entry in member.history]
    assert kinds == ["take over", "take over", "commit", "together"]
    assert sorted(sink.records) == EVERYTHING
