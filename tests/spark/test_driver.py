"""The driver's loop against a scripted group: what is committed, in which order, and what is dropped."""

from __future__ import annotations

import itertools
import logging
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.client import BrokerError, CommitFenced, CommitRetriable, GroupError, UnreachableError
from roster.spark.driver import loop
from roster.spark.driver.batch_guard import cancel_reason
from roster.spark.driver.loop import DriverLoop
from roster.spark.errors import PipelineError
from roster.spark.options import Options, Tuning
from tests.examples_tried import examples
from tests.spark.spark_fakes import P0, P1, P2, FakeMember, FakeRunner, FakeSink, StillGuard

if TYPE_CHECKING:
    from roster.spark.batch import Batch, Progress


class Stage:
    """A loop with everything around it faked."""

    def __init__(self, *, exact: bool = True, ends: dict[Any, int] | None = None, **options: Any) -> None:
        self.member = FakeMember(ends if ends is not None else {P0: 10, P1: 20, P2: 30})
        self.sink = FakeSink(exact=exact)
        self.runner = FakeRunner()
        chosen = Options(
            spark=None,
            bootstrap="b:1",
            group="g",
            **{"topics": ("t",), "tuning": Tuning(min_offsets_per_task=1), **options},
        )
        self.watch = StillGuard(self.member, self.runner.cancel, margin=1.0)
        self.reports: list[Progress] = []
        self.loop = DriverLoop(self.member, self.runner, self.sink, chosen, self.reports.append, self.watch)
        self.member.end = self.loop.stop
        self.member.become(P0, P1, generation=1)

    def run(self, *, available_now: bool = False) -> None:
        self.loop.run(available_now=available_now)

    def look(self, now: float = 0.0) -> None:
        self.watch.look(self.member.ownership(), now)


def all_of(**ends: int) -> set[tuple[Any, int]]:
    return {
        (partition, offset) for name, end in ends.items() for partition in [globals()[name]] for offset in range(end)
    }


def test_everything_owned_is_read_once_and_committed_with_the_generation_it_was_planned_in() -> None:
    stage = Stage(max_offsets_per_batch=7)
    stage.run()
    assert sorted(stage.sink.records) == sorted(all_of(P0=10, P1=20))
    commits = stage.member.of("commit")
    assert commits[-1][1:] == ({P1: 20}, 1) or commits[-1][1] == {P0: 10, P1: 20}
    assert stage.member.offsets == {P0: 10, P1: 20} == stage.sink.positions
    assert {generation for _, _, generation in commits} == {1}


def test_progress_tells_rows_lag_of_all_owned_and_generation() -> None:
    stage = Stage(max_offsets_per_batch=12)
    stage.run()
    assert [report.batch for report in stage.reports] == [0, 1, 2]
    first = stage.reports[0]
    assert (first.rows, first.generation, first.group, first.member_id) == (12, 1, "g", "m")
    assert first.total_lag == 18
    assert first.lag.keys() == {P0, P1}
    assert stage.loop.last_progress is stage.reports[-1]
    assert stage.reports[-1].total_lag == 0
    assert '"t-0": [' in first.to_json()
    assert "12 rows from 2 partitions" in str(first)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("earliest", {P0: 0, P1: 0}),
        ("latest", {P0: 10, P1: 20}),
        (datetime.fromtimestamp(0.004, UTC), {P0: 4, P1: 4}),
        (datetime.fromtimestamp(0.015, UTC), {P0: 10, P1: 15}),
        ({"t": {0: 3, "1": "latest"}}, {P0: 3, P1: 20}),
        ({P1: 5}, {P0: 0, P1: 5}),
    ],
    ids=str,
)
def test_starting_offsets_count_where_neither_sink_nor_group_know_better(rule: Any, expected: dict[Any, int]) -> None:
    stage = Stage(starting_offsets=rule)
    stage.member.counts = {"t": 2}
    stage.run()
    starts = {p: min((o for q, o in stage.sink.records if q == p), default=stage.member.ends[p]) for p in (P0, P1)}
    assert starts == expected
    assert stage.member.of("commit")[0][1] == expected, "the group is told at once, so that `latest` stays what it was"


def test_the_sinks_position_comes_before_the_groups_and_the_group_is_told() -> None:
    stage = Stage()
    stage.sink.positions = {P0: 8}
    stage.member.offsets = {P0: 2, P1: 19}
    stage.run()
    assert sorted(stage.sink.records) == [(P0, 8), (P0, 9), (P1, 19)]
    assert stage.member.of("commit")[0][1] == {P0: 8}


def test_an_offset_the_group_committed_past_the_sinks_position_is_where_another_member_got_to() -> None:
    stage = Stage()
    stage.sink.positions = {P0: 2, P1: 19}
    stage.member.offsets = {P0: 8, P1: 4}
    stage.run()
    assert sorted(stage.sink.records) == [(P0, 8), (P0, 9), (P1, 19)]


def test_a_partition_added_later_is_read_from_its_first_record_even_with_latest() -> None:
    stage = Stage(starting_offsets="latest")
    stage.member.counts = {"t": 2}
    stage.member.script = [lambda: stage.member.become(P0, P1, P2, generation=2)]
    stage.run()
    assert sorted(stage.sink.records) == sorted(all_of(P2=30))


def test_revoked_while_idle_is_released_at_once() -> None:
    stage = Stage()
    stage.member.script = [lambda: stage.member.become(P0, revoking=frozenset({P1}), revoke_deadline=1e9)]
    stage.run()
    assert stage.member.of("release") == [("release", {P1})]


def test_a_batch_that_would_outlast_the_rebalance_timeout_comes_back_with_half_its_offsets() -> None:
    stage = Stage(max_offsets_per_batch=8)

    def revoke(batch: Batch) -> None:
        stage.runner.during = lambda batch: None
        stage.member.become(P0, revoking=frozenset({P1}), revoke_deadline=100.0)
        stage.look(now=99.5)

    stage.runner.during = revoke
    stage.run()
    sizes = [batch.offsets for batch in stage.runner.batches]
    assert sizes[:2] == [8, 4]
    assert sorted(stage.sink.records) == sorted(all_of(P0=10))


def test_a_batch_whose_partitions_were_lost_was_not_too_large() -> None:
    stage = Stage(max_offsets_per_batch=8)

    def lose(batch: Batch) -> None:
        stage.runner.during = lambda batch: None
        stage.member.become(P0, lost=frozenset({P1}))
        stage.look()

    stage.runner.during = lose
    stage.run()
    assert [batch.offsets for batch in stage.runner.batches] == [8, 8, 2]


def test_partitions_that_were_just_assigned_do_not_wait_for_the_sinks_interval() -> None:
    stage = Stage(ends={P0: 10, P1: 20, P2: 30})
    stage.sink.default_trigger_interval_ms = 600_000
    stage.member.script = [lambda: stage.member.become(P0, P1, P2, generation=2)]
    stage.run()
    assert [set(batch.ranges) for batch in stage.runner.batches] == [{P0, P1}, {P2}]


def test_batches_are_sized_by_the_rate_of_those_before() -> None:
    stage = Stage(target_batch_ms=1_000, consumer={"max.poll.interval.ms": 300_000})
    stage.loop._size.done(5, 1.0)
    stage.run()
    assert stage.runner.batches[0].offsets == 5


def test_a_batch_ends_well_inside_the_rebalance_timeout_whatever_the_target() -> None:
    stage = Stage(target_batch_ms=100_000, consumer={"max.poll.interval.ms": 6_000})
    stage.loop._size.done(10, 1.0)
    assert stage.loop._size.limit == 20


def test_revoked_mid_batch_the_batch_is_finished_committed_and_then_released() -> None:
    stage = Stage()

    def revoke(batch: Batch) -> None:
        stage.member.become(P0, revoking=frozenset({P1}), revoke_deadline=100.0)
        stage.look(now=50.0)

    stage.runner.during = revoke
    stage.run()
    assert [entry[0] for entry in stage.member.history] == ["commit", "commit", "release"]
    assert stage.member.history[1][1] == {P0: 10, P1: 20}


def test_a_batch_that_would_outlast_the_deadline_is_cancelled_left_uncommitted_and_released() -> None:
    stage = Stage()
    deadlines: list[bool] = []

    def revoke_and_take_long(batch: Batch) -> None:
        if not deadlines:
            stage.member.become(P0, revoking=frozenset({P1}), revoke_deadline=100.0)
            stage.look(now=98.9)
            deadlines.append(stage.runner.cancelled)
            stage.look(now=99.0)

    stage.runner.during = revoke_and_take_long
    stage.run()
    assert deadlines == [False], "the margin of one second was not reached"
    assert [entry[:2] for entry in stage.member.history] == [
        ("commit", {P0: 0, P1: 0}),
        ("release", {P1}),
        ("commit", {P0: 10}),
    ]
    assert stage.sink.aborted == 1
    assert {p for p, _ in stage.sink.records} == {P0}


@pytest.mark.parametrize("in_time", [True, False], ids=["cancelled", "noticed only afterwards"])
@pytest.mark.parametrize("how", ["lost", "new member id"])
def test_results_of_a_batch_whose_partitions_were_lost_are_dropped(how: str, in_time: bool) -> None:
    stage = Stage(exact=False)

    def lose(batch: Batch) -> None:
        if how == "lost":
            stage.member.become(P0, lost=frozenset({P1}), generation=2)
        else:
            stage.member.become(P0, member_id="another", lost=frozenset({P0, P1}) - {P0}, generation=2)
        if in_time:
            stage.look()
        stage.runner.during = lambda batch: None

    stage.runner.during = lose
    stage.run()
    assert [p for p, _ in stage.sink.records] == [P0] * 10, "the retained partition is read again, once"
    assert stage.member.offsets == {P0: 10, P1: 0}
    assert stage.sink.aborted == 1


def test_a_job_that_starts_after_the_cancel_is_cancelled_too() -> None:
    stage = Stage()

    def start_another_job(batch: Batch) -> None:
        stage.member.become(lost=frozenset({P0, P1}))
        stage.look()
        assert stage.runner.cancelled
        stage.runner.cancelled = False
        stage.look()

    stage.runner.during = start_another_job
    stage.run()
    assert stage.sink.records == []


def test_a_partition_that_was_away_between_two_looks_is_found_anew() -> None:
    stage = Stage(exact=False)

    def away_and_back() -> None:
        stage.member.become(P1, lost=frozenset({P0}), generation=2)
        stage.member.offsets[P0] = 15  # another member worked on it
        stage.member.ends[P0] = 18
        stage.member.become(P0, P1, generation=3)

    stage.member.script = [away_and_back]
    stage.run()
    assert [o for p, o in stage.sink.records if p == P0] == [*range(10), 15, 16, 17]


def test_fenced_by_the_sink_nothing_is_told_to_the_group_and_positions_are_found_anew() -> None:
    stage = Stage()

    def other_writer(batch: Batch) -> None:
        stage.sink.positions[P0] = 4
        stage.runner.during = lambda batch: None

    stage.runner.during = other_writer
    stage.run()
    assert sorted(o for p, o in stage.sink.records if p == P0) == [*range(4, 10)]
    assert sorted(o for p, o in stage.sink.records if p == P1) == [*range(20)]


def test_a_commit_fenced_for_some_partitions_still_counts_for_the_others() -> None:
    stage = Stage()
    stage.member.offsets = {P0: 0, P1: 0}
    stage.member.commit_errors = [CommitFenced("lost", partitions={P1})]
    stage.run()
    assert stage.member.offsets == {P0: 10, P1: 20}
    assert len(stage.sink.records) == 30, "the sink has the fenced partition's rows already"


def test_a_commit_is_tried_again_while_the_partitions_are_held() -> None:
    stage = Stage()
    stage.member.offsets = {P0: 0, P1: 0}
    stage.member.commit_errors = [CommitRetriable("loading"), CommitRetriable("loading")]
    stage.member.script = [lambda: None, lambda: None]
    stage.run()
    assert stage.member.offsets == {P0: 10, P1: 20}


def test_a_commit_is_given_up_when_the_partitions_are_lost_meanwhile() -> None:
    stage = Stage(exact=False)
    stage.member.offsets = {P0: 0, P1: 0}
    stage.member.commit_errors = [CommitRetriable("not now")]
    stage.member.script = [lambda: stage.member.become(lost=frozenset({P0, P1}), generation=2)]
    stage.member.commit_errors *= 5
    stage.run()
    assert stage.member.offsets == {P0: 0, P1: 0}
    assert len(stage.runner.batches) == 1


def test_passing_trouble_with_the_broker_is_waited_out() -> None:
    stage = Stage()
    stage.member.offset_errors = [UnreachableError("restarting")]
    stage.member.script = [lambda: stage.member.become(P0, P1)]
    stage.run()
    assert len(stage.sink.records) == 30


def test_lasting_trouble_ends_the_run() -> None:
    stage = Stage()
    stage.member.offset_errors = [BrokerError("no")]
    with pytest.raises(BrokerError):
        stage.run()
    stage = Stage()
    stage.member.become(error=GroupError("fenced"))
    with pytest.raises(GroupError, match="fenced"):
        stage.run()


def test_a_failing_batch_ends_the_run_uncommitted() -> None:
    stage = Stage()

    def fail(batch: Batch) -> None:
        raise ZeroDivisionError

    stage.runner.during = fail
    with pytest.raises(ZeroDivisionError):
        stage.run()
    assert stage.member.offsets == {P0: 0, P1: 0}


def test_stop_lets_the_batch_in_flight_finish_and_commit() -> None:
    stage = Stage(max_offsets_per_batch=5)
    stage.runner.during = lambda batch: stage.loop.stop()
    stage.run()
    assert len(stage.sink.records) == 5
    assert sum(stage.member.offsets.values()) == 5


def test_stop_at_once_cancels_the_batch_in_flight() -> None:
    stage = Stage()
    stage.runner.during = lambda batch: stage.loop.stop(now=True)
    stage.run()
    assert stage.sink.records == []
    assert stage.sink.aborted == 1


def test_available_now_ends_at_the_ends_seen_at_the_take_over() -> None:
    stage = Stage(max_offsets_per_batch=6)

    def more(batch: Batch) -> None:
        stage.member.ends[P0] += 3

    stage.runner.during = more
    stage.member.end = lambda: pytest.fail("there is nothing to wait for")
    stage.run(available_now=True)
    assert sorted(stage.sink.records) == sorted(all_of(P0=10, P1=20))


@pytest.mark.parametrize(("begin", "end", "committed"), [(5, 10, 3), (0, 10, 12)], ids=["retention", "topic anew"])
def test_lost_records_end_the_run_unless_that_is_allowed(begin: int, end: int, committed: int) -> None:
    for allowed in (False, True):
        stage = Stage(exact=False, fail_on_data_loss=not allowed)
        stage.member.become(P0, generation=1)
        stage.member.begins[P0], stage.member.ends[P0] = begin, end
        stage.member.offsets[P0] = committed
        if allowed:
            stage.run()
            assert [o for _, o in stage.sink.records] == [*range(begin, end)]
        else:
            with pytest.raises(PipelineError, match="fail_on_data_loss"):
                stage.run()


def test_a_batch_without_progress_is_cancelled_and_the_group_left_and_progress_is_counted() -> None:
    stage = Stage()
    stage.watch._patience, stage.watch._activity = 300.0, stage.runner.activity
    seen: list[bool] = []

    def slow(batch: Batch) -> None:
        for now in (0.0, 284.0):
            stage.look(now)
        stage.runner.finished += 1
        for now in (400.0, 684.0):
            stage.look(now)
        seen.append(stage.runner.cancelled)
        stage.look(700.0)

    stage.runner.during = slow
    stage.run()
    assert seen == [False], "a task that finished starts the time anew"
    assert stage.loop.stalled is not None
    assert "300 s" in stage.loop.stalled
    assert stage.sink.records == []
    assert stage.sink.aborted == 1
    assert stage.member.of("close") == [("close",)]
    assert len(stage.runner.batches) == 1, "the loop ends: the work belongs to others now"


def test_a_sink_ahead_of_the_group_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "roster.pipeline")
    stage = Stage()
    stage.sink.positions = {P0: 4, P1: 9}
    stage.member.offsets = {P0: 0, P1: 9}
    stage.run()
    assert 'g: the sink stands at 4, the group at 0: the sink wins topic=t partitions="t 0"' in caplog.text


def test_a_sink_whose_output_is_gone_ends_a_run_without_records(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, looks = [0.0], list[float]()
    monkeypatch.setattr(loop.time, "monotonic", lambda: clock[0])
    stage = Stage()

    def look() -> None:
        looks.append(clock[0])
        if len(looks) == 3:
            raise PipelineError("it was deleted", field="KafkaSink")

    def passing() -> None:
        clock[0] += 1.0

    stage.sink.look = look  # type: ignore[method-assign]
    stage.member.end = passing
    with pytest.raises(PipelineError, match="KafkaSink: it was deleted"):
        stage.run()
    assert [later - earlier for earlier, later in itertools.pairwise(looks)] == [3.0, 3.0]


def test_available_now_says_why_there_was_no_batch(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "roster.pipeline")
    told = "g: nothing is new: the group stands at the end of all partitions"
    stage = Stage()
    stage.run(available_now=True)
    assert told not in caplog.text
    again = Stage()
    again.member.offsets, again.sink.positions = dict(stage.member.offsets), dict(stage.sink.positions)
    again.run(available_now=True)
    assert not again.runner.batches
    assert told in caplog.text


def test_available_now_with_a_pattern_that_matches_nothing_says_so(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(topics=re.compile("zzz.*"), consumer={"heartbeat.interval.ms": 1})
    stage.member.become(generation=1)
    stage.run(available_now=True)
    assert "g: no topic matches pattern=zzz.*" in caplog.text


def test_verdict_looks_at_error_membership_loss_and_deadline_in_that_order() -> None:
    stage = Stage()
    stage.run()
    batch = stage.runner.batches[0]
    member = stage.member
    member.become(P0, P1)
    assert cancel_reason(batch, member.ownership(), 1e12, 1.0) is None
    member.become(P0, revoking=frozenset({P1}), revoke_deadline=10.0)
    assert cancel_reason(batch, member.ownership(), 8.9, 1.0) is None
    assert cancel_reason(batch, member.ownership(), 9.0, 1.0) == "it would outlast the rebalance timeout"
    member.become(P0, P1, revoking=frozenset({P2}), revoke_deadline=10.0)
    assert cancel_reason(batch, member.ownership(), 9.0, 1.0) is None, "the batch has nothing of what is revoked"
    member.become(P0)
    assert "t-1" in str(cancel_reason(batch, member.ownership(), 0.0, 1.0))
    member.become(P0, P1, member_id="another")
    assert "does not know" in str(cancel_reason(batch, member.ownership(), 0.0, 1.0))
    member.become(P0, P1, error=GroupError("gone"))
    assert "gone" in str(cancel_reason(batch, member.ownership(), 0.0, 1.0))


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["grow", "rebalance", "revoke", "lose", "other", "fenced", "retry"]),
        st.sets(st.sampled_from([P0, P1, P2])),
        st.booleans(),
    ),
    max_size=12,
)


@settings(max_examples=examples(200))
@given(EVENTS, EVENTS, st.integers(1, 12))
def test_with_an_exact_sink_every_record_counts_once_whatever_the_group_does(
    idle: list[Any], mid_batch: list[Any], most: int
) -> None:
    stage = Stage(max_offsets_per_batch=most)
    member, sink = stage.member, stage.sink

    def happen(event: tuple[str, set[Any], bool]) -> None:
        kind, partitions, look = event
        now = member.ownership()
        if kind == "grow":
            for partition in partitions:
                member.ends[partition] += 5
        elif kind == "rebalance":
            member.become(*partitions, generation=now.generation + 1)
        elif kind == "revoke":
            kept = now.partitions - partitions
            member.become(*kept, revoking=now.partitions & partitions, revoke_deadline=0.0 if look else 1e12)
        elif kind == "lose":
            member.become(*now.partitions - partitions, lost=now.partitions & partitions, member_id=f"m{now.epoch}")
        elif kind == "other":  # another member worked on what is not ours and committed later than its sink
            for partition in partitions - now.partitions - now.revoking:
                at = sink.positions.get(partition, 0)
                if at < member.ends[partition]:
                    sink.records.append((partition, at))
                    sink.positions[partition] = at + 1
        elif kind == "fenced":
            member.commit_errors.append(CommitFenced("fenced", partitions=partitions))
        else:
            member.commit_errors.append(CommitRetriable("later"))
        if look:
            stage.look(now=1.0)

    stage.runner.during = lambda batch: happen(mid_batch.pop()) if mid_batch else None
    idle_steps = [0]

    def settle() -> None:
        idle_steps[0] += 1
        if all(sink.positions.get(p, 0) == end for p, end in member.ends.items()):
            stage.loop.stop()
        member.become(P0, P1, P2, generation=member.ownership().generation + 1)
        assert idle_steps[0] < 100, "the loop does not get on"

    member.script = [lambda event=event: happen(event) for event in idle]
    member.end = settle
    stage.run()
    assert len(sink.records) == len(set(sink.records)), "no record counts twice"
    for partition, position in sink.positions.items():
        assert sorted(o for p, o in sink.records if p == partition) == [*range(position)], "no record is skipped"
    assert sink.positions.items() >= {p: end for p, end in member.ends.items() if end}.items(), "everything was read"
    assert all(member.offsets.get(p, 0) <= sink.positions.get(p, 0) for p in member.ends)


def test_small_batches_wait_for_the_sinks_default_interval_full_ones_and_available_now_do_not() -> None:
    for available_now, most, configured, batches in [
        (False, 1_000, None, [{P0: 10, P1: 20}]),
        (True, 1_000, None, [{P0: 10, P1: 20}]),
        (False, 15, None, [15, 15]),
        (True, 20, None, [20, 10]),
        (False, 20, 0, [20, 10]),
        (False, 20, None, [20]),
        (False, 15, 600_000, [15]),
    ]:
        options = {
            "max_offsets_per_batch": most,
            "trigger_interval_ms": configured,
            "tuning": Tuning(min_offsets_per_task=1, poll_interval_ms=1),
        }
        stage = Stage(**options)
        stage.sink.default_trigger_interval_ms = 600_000
        stage.member.script = [lambda: None] * 3
        stage.run(available_now=available_now)
        sizes = [sum(span.size for span in batch.ranges.values()) for batch in stage.runner.batches]
        assert sizes == [sum(b.values()) if isinstance(b, dict) else b for b in batches], options


def test_a_small_batch_that_grows_full_while_it_waits_starts_at_once() -> None:
    stage = Stage(max_offsets_per_batch=30, tuning=Tuning(min_offsets_per_task=1, poll_interval_ms=1))
    stage.sink.default_trigger_interval_ms = 600_000

    def grow(end: int) -> None:
        stage.member.ends.update({P0: end})
        stage.member.become(P0, P1)  # a change ends the wait

    stage.member.script = [lambda: grow(15), lambda: grow(40)]
    stage.run()
    assert [sum(span.size for span in batch.ranges.values()) for batch in stage.runner.batches] == [30, 30]
