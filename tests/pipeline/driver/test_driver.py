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
from roster.model.offsets import Arrival
from roster.pipeline.driver import batch_run, loop, switching
from roster.pipeline.driver.batch_run import cancel_reason
from roster.pipeline.driver.loop import DriverLoop
from roster.pipeline.errors import PipelineError
from roster.pipeline.options import Options, Tuning
from tests.clocks import patch_time
from tests.examples_tried import examples
from tests.spark.spark_fakes import P0, P1, P2, FakeMember, FakeRunner, FakeSink, StillGuard

if TYPE_CHECKING:
    from roster.pipeline.batch import Batch, Progress


class Rig:
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
        self.loop = DriverLoop(self.member, self.runner, self.sink, chosen, [self.reports.append], self.watch)
        self.member.end = self.loop.stop
        self.member.become(P0, P1, generation=1)

    def run(self, *, available_now: bool = False) -> None:
        self.loop.run(available_now=available_now)

    def look(self, now: float = 0.0) -> None:
        self.watch.check(self.member.ownership(), now)


def all_of(**ends: int) -> set[tuple[Any, int]]:
    return {
        (partition, offset) for name, end in ends.items() for partition in [globals()[name]] for offset in range(end)
    }


def test_everything_owned_is_read_once_and_committed_with_the_generation_it_was_planned_in() -> None:
    rig = Rig(max_offsets_per_batch=7)
    rig.run()
    assert sorted(rig.sink.records) == sorted(all_of(P0=10, P1=20))
    commits = rig.member.of("commit")
    assert commits[-1][1:] == ({P1: 20}, 1) or commits[-1][1] == {P0: 10, P1: 20}
    assert rig.member.offsets == {P0: 10, P1: 20} == rig.sink.positions
    assert {generation for _, _, generation in commits} == {1}


def test_progress_tells_rows_lag_of_all_owned_and_generation() -> None:
    rig = Rig(max_offsets_per_batch=12)
    rig.run()
    assert [report.batch for report in rig.reports] == [0, 1, 2]
    first = rig.reports[0]
    assert (first.rows, first.generation, first.group, first.member_id) == (12, 1, "g", "m")
    assert first.total_lag == 18
    assert first.lag.keys() == {P0, P1}
    assert rig.loop.last_progress is rig.reports[-1]
    assert rig.reports[-1].total_lag == 0
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
    rig = Rig(starting_offsets=rule)
    rig.member.counts = {"t": 2}
    rig.run()
    starts = {p: min((o for q, o in rig.sink.records if q == p), default=rig.member.ends[p]) for p in (P0, P1)}
    assert starts == expected
    assert rig.member.of("commit")[0][1] == expected, "the group is told at once, so that `latest` stays what it was"


def test_the_sinks_position_comes_before_the_groups_and_the_group_is_told() -> None:
    rig = Rig()
    rig.sink.positions = {P0: 8}
    rig.member.offsets = {P0: 2, P1: 19}
    rig.run()
    assert sorted(rig.sink.records) == [(P0, 8), (P0, 9), (P1, 19)]
    assert rig.member.of("commit")[0][1] == {P0: 8}


def test_an_offset_the_group_committed_past_the_sinks_position_is_where_another_member_got_to() -> None:
    rig = Rig()
    rig.sink.positions = {P0: 2, P1: 19}
    rig.member.offsets = {P0: 8, P1: 4}
    rig.run()
    assert sorted(rig.sink.records) == [(P0, 8), (P0, 9), (P1, 19)]


def test_a_partition_added_later_is_read_from_its_first_record_even_with_latest() -> None:
    rig = Rig(starting_offsets="latest")
    rig.member.counts = {"t": 2}
    rig.member.script = [lambda: rig.member.become(P0, P1, P2, generation=2)]
    rig.run()
    assert sorted(rig.sink.records) == sorted(all_of(P2=30))


def test_revoked_while_idle_is_released_at_once() -> None:
    rig = Rig()
    rig.member.script = [lambda: rig.member.become(P0, revoking=frozenset({P1}), revoke_deadline=1e9)]
    rig.run()
    assert rig.member.of("release") == [("release", {P1})]


def test_a_batch_that_would_outlast_the_rebalance_timeout_comes_back_with_half_its_offsets() -> None:
    rig = Rig(max_offsets_per_batch=8)

    def revoke(batch: Batch) -> None:
        rig.runner.during = lambda batch: None
        rig.member.become(P0, revoking=frozenset({P1}), revoke_deadline=100.0)
        rig.look(now=99.5)

    rig.runner.during = revoke
    rig.run()
    sizes = [batch.offsets for batch in rig.runner.batches]
    assert sizes[:2] == [8, 4]
    assert sorted(rig.sink.records) == sorted(all_of(P0=10))


def test_a_batch_whose_partitions_were_lost_was_not_too_large() -> None:
    rig = Rig(max_offsets_per_batch=8)

    def lose(batch: Batch) -> None:
        rig.runner.during = lambda batch: None
        rig.member.become(P0, lost=frozenset({P1}))
        rig.look()

    rig.runner.during = lose
    rig.run()
    assert [batch.offsets for batch in rig.runner.batches] == [8, 8, 2]


def test_partitions_that_were_just_assigned_do_not_wait_for_the_sinks_interval() -> None:
    rig = Rig(ends={P0: 10, P1: 20, P2: 30})
    rig.sink.default_trigger_interval_ms = 600_000
    rig.member.script = [lambda: rig.member.become(P0, P1, P2, generation=2)]
    rig.run()
    assert [set(batch.ranges) for batch in rig.runner.batches] == [{P0, P1}, {P2}]


def test_batches_are_sized_by_the_rate_of_those_before() -> None:
    rig = Rig(target_batch_ms=1_000, consumer={"max.poll.interval.ms": 300_000})
    rig.loop._pace.size.done(5, 1.0)
    rig.run()
    assert rig.runner.batches[0].offsets == 5


def test_a_batch_ends_well_inside_the_rebalance_timeout_whatever_the_target() -> None:
    rig = Rig(target_batch_ms=100_000, consumer={"max.poll.interval.ms": 6_000})
    rig.loop._pace.size.done(10, 1.0)
    assert rig.loop._pace.size.limit == 20


def test_revoked_mid_batch_the_batch_is_finished_committed_and_then_released() -> None:
    rig = Rig()

    def revoke(batch: Batch) -> None:
        rig.member.become(P0, revoking=frozenset({P1}), revoke_deadline=100.0)
        rig.look(now=50.0)

    rig.runner.during = revoke
    rig.run()
    assert [entry[0] for entry in rig.member.history] == ["commit", "commit", "release"]
    assert rig.member.history[1][1] == {P0: 10, P1: 20}


def test_a_batch_that_would_outlast_the_deadline_is_cancelled_left_uncommitted_and_released() -> None:
    rig = Rig()
    deadlines: list[bool] = []

    def revoke_and_take_long(batch: Batch) -> None:
        if not deadlines:
            rig.member.become(P0, revoking=frozenset({P1}), revoke_deadline=100.0)
            rig.look(now=98.9)
            deadlines.append(rig.runner.cancelled)
            rig.look(now=99.0)

    rig.runner.during = revoke_and_take_long
    rig.run()
    assert deadlines == [False], "the margin of one second was not reached"
    assert [entry[:2] for entry in rig.member.history] == [
        ("commit", {P0: 0, P1: 0}),
        ("release", {P1}),
        ("commit", {P0: 10}),
    ]
    assert rig.sink.aborted == 1
    assert {p for p, _ in rig.sink.records} == {P0}


@pytest.mark.parametrize("in_time", [True, False], ids=["cancelled", "noticed only afterwards"])
@pytest.mark.parametrize("how", ["lost", "new member id"])
def test_results_of_a_batch_whose_partitions_were_lost_are_dropped(how: str, in_time: bool) -> None:
    rig = Rig(exact=False)

    def lose(batch: Batch) -> None:
        if how == "lost":
            rig.member.become(P0, lost=frozenset({P1}), generation=2)
        else:
            rig.member.become(P0, member_id="another", lost=frozenset({P0, P1}) - {P0}, generation=2)
        if in_time:
            rig.look()
        rig.runner.during = lambda batch: None

    rig.runner.during = lose
    rig.run()
    assert [p for p, _ in rig.sink.records] == [P0] * 10, "the retained partition is read again, once"
    assert rig.member.offsets == {P0: 10, P1: 0}
    assert rig.sink.aborted == 1


def test_a_job_that_starts_after_the_cancel_is_cancelled_too() -> None:
    rig = Rig()

    def start_another_job(batch: Batch) -> None:
        rig.member.become(lost=frozenset({P0, P1}))
        rig.look()
        assert rig.runner.cancelled
        rig.runner.cancelled = False
        rig.look()

    rig.runner.during = start_another_job
    rig.run()
    assert rig.sink.records == []


def test_a_partition_that_was_away_between_two_looks_is_found_anew() -> None:
    rig = Rig(exact=False)

    def away_and_back() -> None:
        rig.member.become(P1, lost=frozenset({P0}), generation=2)
        rig.member.offsets[P0] = 15  # another member worked on it
        rig.member.ends[P0] = 18
        rig.member.become(P0, P1, generation=3)

    rig.member.script = [away_and_back]
    rig.run()
    assert [o for p, o in rig.sink.records if p == P0] == [*range(10), 15, 16, 17]


def test_fenced_by_the_sink_nothing_is_told_to_the_group_and_positions_are_found_anew() -> None:
    rig = Rig()

    def other_writer(batch: Batch) -> None:
        rig.sink.positions[P0] = 4
        rig.runner.during = lambda batch: None

    rig.runner.during = other_writer
    rig.run()
    assert sorted(o for p, o in rig.sink.records if p == P0) == [*range(4, 10)]
    assert sorted(o for p, o in rig.sink.records if p == P1) == [*range(20)]


def test_a_commit_fenced_for_some_partitions_still_counts_for_the_others() -> None:
    rig = Rig()
    rig.member.offsets = {P0: 0, P1: 0}
    rig.member.commit_errors = [CommitFenced("lost", partitions={P1})]
    rig.run()
    assert rig.member.offsets == {P0: 10, P1: 20}
    assert len(rig.sink.records) == 30, "the sink has the fenced partition's rows already"


def test_a_commit_is_tried_again_while_the_partitions_are_held() -> None:
    rig = Rig()
    rig.member.offsets = {P0: 0, P1: 0}
    rig.member.commit_errors = [CommitRetriable("loading"), CommitRetriable("loading")]
    rig.member.script = [lambda: None, lambda: None]
    rig.run()
    assert rig.member.offsets == {P0: 10, P1: 20}


def test_a_commit_is_given_up_when_the_partitions_are_lost_meanwhile() -> None:
    rig = Rig(exact=False)
    rig.member.offsets = {P0: 0, P1: 0}
    rig.member.commit_errors = [CommitRetriable("not now")]
    rig.member.script = [lambda: rig.member.become(lost=frozenset({P0, P1}), generation=2)]
    rig.member.commit_errors *= 5
    rig.run()
    assert rig.member.offsets == {P0: 0, P1: 0}
    assert len(rig.runner.batches) == 1


def test_passing_trouble_with_the_broker_is_waited_out() -> None:
    rig = Rig()
    rig.member.offset_errors = [UnreachableError("restarting")]
    rig.member.script = [lambda: rig.member.become(P0, P1)]
    rig.run()
    assert len(rig.sink.records) == 30


def test_lasting_trouble_ends_the_run() -> None:
    rig = Rig()
    rig.member.offset_errors = [BrokerError("no")]
    with pytest.raises(BrokerError):
        rig.run()
    rig = Rig()
    rig.member.become(error=GroupError("fenced"))
    with pytest.raises(GroupError, match="fenced"):
        rig.run()


def test_a_failing_batch_ends_the_run_uncommitted() -> None:
    rig = Rig()

    def fail(batch: Batch) -> None:
        raise ZeroDivisionError

    rig.runner.during = fail
    with pytest.raises(ZeroDivisionError):
        rig.run()
    assert rig.member.offsets == {P0: 0, P1: 0}


def test_stop_lets_the_batch_in_flight_finish_and_commit() -> None:
    rig = Rig(max_offsets_per_batch=5)
    rig.runner.during = lambda batch: rig.loop.stop()
    rig.run()
    assert len(rig.sink.records) == 5
    assert sum(rig.member.offsets.values()) == 5


def test_stop_at_once_cancels_the_batch_in_flight() -> None:
    rig = Rig()
    rig.runner.during = lambda batch: rig.loop.stop(now=True)
    rig.run()
    assert rig.sink.records == []
    assert rig.sink.aborted == 1


def test_available_now_ends_at_the_ends_seen_at_the_take_over() -> None:
    rig = Rig(max_offsets_per_batch=6)

    def more(batch: Batch) -> None:
        rig.member.ends[P0] += 3

    rig.runner.during = more
    rig.member.end = lambda: pytest.fail("there is nothing to wait for")
    rig.run(available_now=True)
    assert sorted(rig.sink.records) == sorted(all_of(P0=10, P1=20))


@pytest.mark.parametrize(("begin", "end", "committed"), [(5, 10, 3), (0, 10, 12)], ids=["retention", "topic anew"])
def test_lost_records_end_the_run_unless_that_is_allowed(begin: int, end: int, committed: int) -> None:
    for allowed in (False, True):
        rig = Rig(exact=False, fail_on_data_loss=not allowed)
        rig.member.become(P0, generation=1)
        rig.member.begins[P0], rig.member.ends[P0] = begin, end
        rig.member.offsets[P0] = committed
        if allowed:
            rig.run()
            assert [o for _, o in rig.sink.records] == [*range(begin, end)]
        else:
            with pytest.raises(PipelineError, match="fail_on_data_loss"):
                rig.run()


def test_a_batch_without_progress_is_cancelled_and_the_group_left_and_progress_is_counted() -> None:
    rig = Rig()
    rig.watch._patience, rig.watch._activity = 300.0, rig.runner.activity
    seen: list[bool] = []

    def slow(batch: Batch) -> None:
        for now in (0.0, 284.0):
            rig.look(now)
        rig.runner.finished += 1
        for now in (400.0, 684.0):
            rig.look(now)
        seen.append(rig.runner.cancelled)
        rig.look(700.0)

    rig.runner.during = slow
    rig.run()
    assert seen == [False], "a task that finished starts the time anew"
    assert rig.loop.stalled is not None
    assert "300 s" in rig.loop.stalled
    assert rig.sink.records == []
    assert rig.sink.aborted == 1
    assert rig.member.of("close") == [("close",)]
    assert len(rig.runner.batches) == 1, "the loop ends: the work belongs to others now"


def test_a_sink_ahead_of_the_group_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "roster.pipeline")
    rig = Rig()
    rig.sink.positions = {P0: 4, P1: 9}
    rig.member.offsets = {P0: 0, P1: 9}
    rig.run()
    assert 'g: the sink stands at 4, the group at 0: the sink wins topic=t partitions="t 0"' in caplog.text


def test_a_sink_whose_output_is_gone_ends_a_run_without_records(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, looks = [0.0], list[float]()
    patch_time(monkeypatch, loop, batch_run, switching, monotonic=lambda: clock[0])
    rig = Rig()

    def look() -> None:
        looks.append(clock[0])
        if len(looks) == 3:
            raise PipelineError("it was deleted", field="KafkaSink")

    def passing() -> None:
        clock[0] += 1.0

    rig.sink.check_target = look  # type: ignore[method-assign]
    rig.member.end = passing
    with pytest.raises(PipelineError, match="KafkaSink: it was deleted"):
        rig.run()
    assert [later - earlier for earlier, later in itertools.pairwise(looks)] == [3.0, 3.0]


def test_available_now_says_why_there_was_no_batch(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "roster.pipeline")
    told = "g: nothing is new: the group stands at the end of all partitions"
    rig = Rig()
    rig.run(available_now=True)
    assert told not in caplog.text
    again = Rig()
    again.member.offsets, again.sink.positions = dict(rig.member.offsets), dict(rig.sink.positions)
    again.run(available_now=True)
    assert not again.runner.batches
    assert told in caplog.text


def test_available_now_with_a_pattern_that_matches_nothing_says_so(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(topics=re.compile("zzz.*"), consumer={"heartbeat.interval.ms": 1})
    rig.member.become(generation=1)
    rig.run(available_now=True)
    assert "g: no topic matches pattern=zzz.*" in caplog.text


def test_verdict_looks_at_error_membership_loss_and_deadline_in_that_order() -> None:
    rig = Rig()
    rig.run()
    batch = rig.runner.batches[0]
    member = rig.member
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
@given(EVENTS, EVENTS, st.integers(1, 12), st.sampled_from([None, 0]))
def test_with_an_exact_sink_every_record_counts_once_whatever_the_group_does(
    idle: list[Any], mid_batch: list[Any], most: int, interval: int | None
) -> None:
    rig = Rig(max_offsets_per_batch=most, trigger_interval_ms=interval)
    member, sink = rig.member, rig.sink

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
            rig.look(now=1.0)

    rig.runner.during = lambda batch: happen(mid_batch.pop()) if mid_batch else None
    idle_steps = [0]

    def settle() -> None:
        idle_steps[0] += 1
        if all(sink.positions.get(p, 0) == end for p, end in member.ends.items()):
            rig.loop.stop()
        member.become(P0, P1, P2, generation=member.ownership().generation + 1)
        assert idle_steps[0] < 100, "the loop does not get on"

    member.script = [lambda event=event: happen(event) for event in idle]
    member.end = settle
    rig.run()
    assert len(sink.records) == len(set(sink.records)), "no record counts twice"
    for partition, position in sink.positions.items():
        assert sorted(o for p, o in sink.records if p == partition) == [*range(position)], "no record is skipped"
    assert sink.positions.items() >= {p: end for p, end in member.ends.items() if end}.items(), "everything was read"
    assert all(member.offsets.get(p, 0) <= sink.positions.get(p, 0) for p in member.ends)


def test_records_that_brokers_send_are_not_asked_for() -> None:
    rig, asked = Rig(trigger_interval_ms=0), []
    ask = rig.member.end_offsets

    def noted(partitions: Any) -> Any:
        asked.append(len(rig.runner.batches))
        return ask(partitions)

    def grow() -> None:
        rig.member.ends[P0] += 5

    rig.member.end_offsets = noted  # type: ignore[method-assign]
    rig.member.script = [grow, lambda: None, grow]
    rig.runner.during = lambda batch: grow() if len(rig.runner.batches) == 2 else None
    rig.run()
    batches = rig.runner.batches
    starts = (10, 15, 20)
    assert [dict(batch.ranges) for batch in batches[1:]] == [{P0: (start, start + 5)} for start in starts]
    assert [[each[:4] for each in batch.arrivals] for batch in batches] == [
        [],
        *([(*P0, start, start + 3), (*P0, start + 3, start + 5)] for start in starts),
    ]
    assert asked == [0, 0], "for the starting offsets, and for the first batch"
    assert {P0: 15, P1: 20} in rig.member.watched, "the next ones are fetched while a batch runs"


@pytest.mark.parametrize("most", [1_000, 4])
def test_a_batch_has_all_records_that_came_at_any_moment_of_the_one_before(most: int) -> None:
    rig = Rig(ends={P0: 1, P1: 1}, trigger_interval_ms=0, max_offsets_per_batch=most)

    def growing(action: Any) -> Any:
        def grown(*arguments: Any, **more: Any) -> Any:
            if len(rig.runner.batches) < 5:
                rig.member.ends[P0] += 1
            result = action(*arguments, **more)
            if len(rig.runner.batches) < 5:
                rig.member.ends[P1] += 1
            return result

        return grown

    for of, name in [(rig.member, "watch"), (rig.runner, "run"), (rig.sink, "commit"), (rig.member, "commit")]:
        setattr(of, name, growing(getattr(of, name)))
    ends: list[dict[Any, int]] = []
    begin = rig.member.watch
    rig.member.watch = lambda *a, **more: (ends.append(dict(rig.member.ends)), begin(*a, **more))  # type: ignore[method-assign]
    rig.run()
    assert sorted(rig.sink.records) == sorted(all_of(P0=rig.member.ends[P0], P1=rig.member.ends[P1]))
    if most == 1_000:
        planned = [batch.next_offsets for batch in rig.runner.batches]
        assert planned == [{p: at[p] for p in of} for at, of in zip(ends, planned, strict=False)]


def test_what_comes_in_a_pause_between_batches_is_in_the_next_one() -> None:
    rig = Rig(ends={P0: 1, P1: 0}, trigger_interval_ms=600_000)
    rig.member.arrivals = lambda at: {P0: [Arrival(*P0, 1, 2, 2, False, b"records")]} if at[P0] == 1 else {}  # type: ignore[method-assign]

    def pause(seconds: float, ownership: Any) -> None:
        rig.member.ends[P0] = 9
        rig.loop._batch_started = float("-inf")

    rig.loop._idle = pause  # type: ignore[method-assign]
    rig.member.script = [lambda: rig.member.ends.update({P0: 2})]
    rig.run()
    assert [dict(batch.ranges) for batch in rig.runner.batches] == [{P0: (0, 1)}, {P0: (1, 9)}]


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
        rig = Rig(**options)
        rig.sink.default_trigger_interval_ms = 600_000
        rig.member.script = [lambda: None] * 3
        rig.run(available_now=available_now)
        sizes = [sum(span.size for span in batch.ranges.values()) for batch in rig.runner.batches]
        assert sizes == [sum(b.values()) if isinstance(b, dict) else b for b in batches], options


def test_batches_are_small_until_the_runner_takes_large_ones_and_none_of_them_waits_for_the_interval() -> None:
    for suggested, configured, most, sizes in [
        (None, 600_000, 1_000, [8, 8, 14]),
        (None, 0, 6, [6, 6, 6, 6, 6]),
        (None, 600_000, 6, [6]),
        (600_000, None, 1_000, [30]),  # a sink that would rather have few large batches
    ]:
        rig = Rig(trigger_interval_ms=configured, max_offsets_per_batch=most)
        rig.sink.default_trigger_interval_ms = suggested
        rig.runner.most_offsets = 8

        def during(batch: Batch, runner: FakeRunner = rig.runner) -> None:
            runner.most_offsets = 8 if batch.number == 0 else None

        rig.runner.during = during
        rig.member.script = [lambda: None] * 3
        rig.run()
        assert [batch.offsets for batch in rig.runner.batches] == sizes


def test_a_small_batch_that_grows_full_while_it_waits_starts_at_once() -> None:
    rig = Rig(max_offsets_per_batch=30, tuning=Tuning(min_offsets_per_task=1, poll_interval_ms=1))
    rig.sink.default_trigger_interval_ms = 600_000

    def grow(end: int) -> None:
        rig.member.ends.update({P0: end})
        rig.member.become(P0, P1)  # a change ends the wait

    rig.member.script = [lambda: grow(15), lambda: grow(40)]
    rig.run()
    assert [sum(span.size for span in batch.ranges.values()) for batch in rig.runner.batches] == [30, 30]


def test_looks_in_more_partitions_than_brokers_are_asked_about_take_a_tenth_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: dict[int, list[float]] = {}
    for most in (2, 1):
        with monkeypatch.context() as patched:
            clock = [100.0]
            patched.setattr(loop, "MOST_WATCHED", most)
            patch_time(patched, loop, batch_run, switching, monotonic=lambda clock=clock: clock[0])
            rig = Rig(ends={P0: 0, P1: 0})
            ends, waited = rig.member.end_offsets, waits.setdefault(most, [])

            def look(partitions: Any, clock: Any = clock, ends: Any = ends) -> Any:
                clock[0] += 0.05
                return ends(partitions)

            patched.setattr(rig.member, "end_offsets", look)
            patched.setattr(
                rig.loop, "_idle", lambda seconds, _, rig=rig, to=waited: (to.append(seconds), rig.loop.stop())
            )
            rig.member.script = [lambda to=waited, rig=rig: (to.append(0.2), rig.loop.stop())]
            rig.run()
    assert waits == {2: [0.2], 1: [pytest.approx(0.45)]}
