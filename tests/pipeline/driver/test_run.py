"""A run's order: a slot first, then the group; what a stall and a stop mean on the way. All around it is scripted."""

from __future__ import annotations

import logging
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from roster.client import ClosedError, RequestTimeoutError, UnknownTopicError, UnreachableError
from roster.pipeline.driver import run, signals
from roster.pipeline.driver.batch_run import BatchGuard
from roster.pipeline.driver.reporting import Reporter
from roster.pipeline.driver.run import Run, client_id_of
from roster.pipeline.driver.runner_protocol import BetweenBatches
from roster.pipeline.options import Options, Tuning
from roster.pipeline.tasks.reader import ReadError
from roster.spark import KafkaSink, PipelineError
from roster.spark.jobs.spark_jobs import check_worker
from tests.clocks import patch_time
from tests.spark.spark_fakes import P0, P1, FakeMember, FakeRunner, FakeSink
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from roster.pipeline.batch import Batch

OPTIONS = Options(
    spark=None,
    bootstrap="b:1",
    group="g",
    topics=("t",),
    tuning=Tuning(min_offsets_per_task=1),
    max_offsets_per_batch=5,
)


class FakeProbe:
    """Is answered after `looks` looks; `during` is called at each."""

    def __init__(self, looks: int, during: Callable[[], object], error: PipelineError | None = None) -> None:
        self.looks, self.during, self.error = looks, during, error
        self.running, self.cancelled = False, False

    def wait(self, seconds: float) -> bool:
        self.during()
        self.looks -= 1
        return self.looks < 0

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def cancel(self) -> None:
        self.cancelled = True


class SlotRunner(FakeRunner):
    """Hands out the probes of a script, the last for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.script = [FakeProbe(0, lambda: None)]
        self.asked: list[FakeProbe] = []
        self.warmed = 0
        self.does_small = False
        self.on_warm_up: Callable[[], object] = lambda: None

    def warm_up(self, sink: object, *, is_small: bool = False) -> bool:
        if is_small and not self.does_small:
            return False
        self.warmed += 1
        self.cancelled = False
        self.on_warm_up()
        if self.cancelled:
            raise RuntimeError("job group cancelled")
        return True

    def ask_for_slot(self) -> FakeProbe:
        probe = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        self.asked.append(probe)
        return probe


class Rig:
    """A run with everything around it faked; members are made as `joins` says."""

    def __init__(self, *, alone: bool = False) -> None:
        self.members: list[FakeMember] = []
        self.runner, self.sink = SlotRunner(), FakeSink()
        self.run = Run(OPTIONS, self.runner, self.sink, self._join, Reporter("g"), is_alone=lambda: alone)
        self.on_start: Callable[[FakeMember], object] = lambda member: None

    def _join(self, options: Options) -> FakeMember:
        member = FakeMember({P0: 10, P1: 20})
        member.become(P0, P1, generation=len(self.members) + 1, member_id=f"m{len(self.members)}")
        member.end = self.run.stop
        plain = member.start

        def start(timeout: float) -> None:
            plain(timeout)
            self.on_start(member)

        member.start = start  # type: ignore[assignment, method-assign]
        self.members.append(member)
        return member


class Clock:
    """Time that passes while it is waited for, and one second in each attempt."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        patch_time(monkeypatch, run, monotonic=lambda: self.now, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def _as_sink(cause: Exception) -> PipelineError:
    error = PipelineError(str(cause), field="KafkaSink")
    error.__cause__ = cause
    return error


_PASSING = [UnreachableError("connection refused"), RequestTimeoutError("no answer"), ReadError("no answer")]
_LOST = ReadError("gone")
_LOST.is_lost = True


@pytest.mark.parametrize("passing", _PASSING, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("is_sink", [True, False])
@pytest.mark.parametrize("ends_at", [50.0, 70.0])
def test_a_start_is_tried_again_while_no_broker_answers(
    passing: Exception, is_sink: bool, ends_at: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = _as_sink(passing) if is_sink else passing
    clock, told, attempts = Clock(monkeypatch), list[str](), list[float]()

    def attempt() -> str:
        attempts.append(clock.now)
        clock.now += 1
        if clock.now < ends_at:
            raise error
        return "parts"

    def tried() -> str | None:
        return run.until_reached(attempt, 60.0, lambda: False, told.append)

    if ends_at < 60:
        assert tried() == "parts"
    else:
        with pytest.raises(type(error)) as raised:
            tried()
        assert raised.value.__cause__ is None, "nobody wants to read a traceback"
        assert attempts[-1] >= 58
    assert told == [str(error)]
    assert len(attempts) > 20


def test_what_does_not_pass_ends_a_start_at_once_and_a_stop_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told = Clock(monkeypatch), list[str]()
    for error in (PipelineError("no topic"), UnknownTopicError("t"), _LOST, _as_sink(ValueError("x"))):

        def attempt(error: Exception = error) -> None:
            raise error

        with pytest.raises(type(error)):
            run.until_reached(attempt, 60.0, lambda: False, told.append)
    assert (clock.now, told) == (0.0, [])

    def refused() -> None:
        raise UnreachableError("connection refused")

    assert run.until_reached(refused, 60.0, lambda: clock.now > 5, told.append) is None
    assert 5 < clock.now < 6


def test_a_sink_without_a_broker_says_so_and_that_it_may_pass() -> None:
    with pytest.raises(PipelineError, match="KafkaSink: no broker answered") as raised:
        KafkaSink("127.0.0.1:1", "t").open(None, "g", 1_000)  # type: ignore[arg-type]
    assert isinstance(raised.value.__cause__, UnreachableError)


def test_without_a_slot_it_says_so_and_does_not_join(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "roster.pipeline")
    rig, clock = Rig(), [0.0]
    patch_time(monkeypatch, run, monotonic=lambda: clock[0])

    def look() -> None:
        clock[0] += 1.0
        assert rig.members == [], "no member is made, so none holds partitions"
        assert rig.run.phase == "waiting for executors"

    rig.runner.script = [FakeProbe(40, look)]
    rig.runner.script[0].looks = 40
    rig.on_start = lambda member: rig.run.stop()
    rig.run.work(available_now=False)
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "g: warms executors up, then joins",
        'g: waits for executors seconds=5 partitions="none meanwhile"',
        'g: waits for executors seconds=35 partitions="none meanwhile"',
    ]
    assert {entry[0] for entry in rig.members[0].history} == {"start", "close"}


def test_in_a_local_session_it_waits_for_a_core_and_not_for_executors(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "roster.pipeline")
    rig = Rig()
    rig.run._is_local = True
    rig.runner.script = [FakeProbe(40, lambda: None)]
    rig.on_start = lambda member: rig.run.stop()
    with pytest.MonkeyPatch.context() as patch:
        now = iter(range(0, 4000, 3))
        patch_time(patch, run, monotonic=lambda: float(next(now)))
        rig.run.work(available_now=False)
    told = [record.getMessage() for record in caplog.records if "waits" in record.getMessage()]
    assert told
    assert all(
        line.startswith("g: waits for a free core, which other jobs of this session have seconds=") for line in told
    )


def test_stopped_while_waiting_the_probe_is_withdrawn_and_nothing_joins() -> None:
    rig = Rig()
    rig.runner.script = [FakeProbe(5, rig.run.stop)]
    rig.run.work(available_now=False)
    assert rig.runner.asked[0].cancelled
    assert rig.members == []


def test_it_warms_up_before_it_joins_and_so_owns_nothing_meanwhile() -> None:
    rig = Rig()

    def look() -> None:
        assert rig.run.phase == "warming up"
        assert rig.members == []

    rig.runner.on_warm_up = look
    rig.run.work(available_now=True)
    assert rig.runner.warmed == 1
    assert len(rig.members) == 1


def test_the_first_of_a_group_joins_while_it_warms_up() -> None:
    rig, joined = Rig(alone=True), threading.Event()
    rig.on_start = lambda member: joined.set()
    rig.runner.on_warm_up = lambda: joined.wait(10) and None
    rig.run.work(available_now=True)
    assert joined.is_set()
    assert (rig.runner.warmed, len(rig.members)) == (1, 1)
    assert rig.members[0].of("close")


def test_the_first_of_a_group_waits_for_no_slot_if_small_batches_need_none() -> None:
    for alone in (True, False):
        rig = Rig(alone=alone)
        rig.runner.does_small = True
        rig.run.work(available_now=True)
        assert (rig.runner.warmed, len(rig.runner.asked)) == (1, 0 if alone else 1)
        assert len(rig.members) == 1


def test_the_first_of_a_group_leaves_it_if_its_warm_up_fails_or_is_stopped() -> None:
    def joining(member: FakeMember) -> None:
        until(lambda: bool(member.of("close")), 10)
        raise ClosedError("the member was closed")

    def fail() -> None:
        raise PipelineError("no column x", field="transform")

    failing = Rig(alone=True)
    failing.on_start, failing.runner.on_warm_up = joining, fail
    with pytest.raises(PipelineError, match="no column x"):
        failing.run.work(available_now=False)
    stopped = Rig(alone=True)
    stopped.on_start, stopped.runner.on_warm_up = joining, stopped.run.stop
    stopped.run.work(available_now=False)
    for rig in (failing, stopped):
        assert rig.members[0].of("close")
        assert rig.runner.batches == []


def test_stopped_while_warming_up_its_jobs_are_cancelled_and_nothing_joins() -> None:
    rig = Rig()
    rig.runner.on_warm_up = rig.run.stop
    rig.run.work(available_now=False)
    assert rig.runner.cancelled
    assert rig.members == []


def test_a_plan_that_fails_without_rows_ends_the_run_before_the_join() -> None:
    rig = Rig()

    def fail() -> None:
        raise PipelineError("no column x", field="transform")

    rig.runner.on_warm_up = fail
    with pytest.raises(PipelineError, match="no column x"):
        rig.run.work(available_now=False)
    assert rig.members == []


def test_it_joins_when_no_member_of_the_earlier_release_is_left(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "roster.pipeline")
    monkeypatch.setattr(run, "_OLD_LOOK", 0.0)
    rig, left = Rig(), [2, 2, 1]

    def old() -> int:
        assert rig.members == []
        return left.pop(0) if left else 0

    monkeypatch.setattr(BetweenBatches, "old_members", lambda _: old())
    rig.on_start = lambda member: rig.run.stop()
    rig.run.work(available_now=False)
    assert (left, len(rig.members)) == ([], 1)
    said = [line for line in caplog.messages if "earlier release" in line]
    assert said == ["g: waits for the members of the earlier release to leave members=2 seconds=0"]


def test_stopped_while_members_of_the_earlier_release_are_there_it_never_joins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "_OLD_LOOK", 0.0)
    rig = Rig()

    def old() -> int:
        if rig.run.phase == "waiting for the earlier release":
            rig.run.stop()
        return 1

    monkeypatch.setattr(BetweenBatches, "old_members", lambda _: old())
    rig.run.work(available_now=False)
    assert rig.members == []


def test_stopped_while_joining_the_join_is_given_up() -> None:
    rig = Rig()

    def stop_meanwhile(member: FakeMember) -> None:
        assert rig.run.phase == "joining"
        rig.run.stop()
        assert member.of("close"), "closed under the waiting start"
        raise ClosedError("the member was closed")

    rig.on_start = stop_meanwhile
    rig.run.work(available_now=False)
    assert rig.runner.batches == []


def test_executors_that_cannot_do_the_work_end_the_run_before_the_join() -> None:
    rig = Rig()
    rig.runner.script = [FakeProbe(0, lambda: None, PipelineError("executors run X, which has no Roster"))]
    with pytest.raises(PipelineError, match="which has no Roster"):
        rig.run.work(available_now=False)
    assert rig.members == []


def test_after_a_stall_the_group_is_left_a_slot_awaited_and_the_work_taken_up_as_another_member(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BatchGuard, "start", lambda self: None)  # it looks when the test says so
    rig = Rig()

    def stall(batch: Batch) -> None:
        watch = rig.run._loop._guard  # type: ignore[union-attr]
        for now in (0.0, 284.0, 300.0):
            watch.check(rig.members[0].ownership(), now)
        assert rig.members[0].of("close"), "left at once, before the batch has come back"
        rig.runner.during = lambda batch: None

    rig.runner.during = stall
    rig.run.work(available_now=True)
    assert len(rig.runner.asked) == rig.runner.warmed == len(rig.members) == 2
    assert sorted(rig.sink.records) == sorted((p, o) for p, end in {P0: 10, P1: 20}.items() for o in range(end))
    assert rig.sink.aborted == 1
    before, after = rig.runner.batches[:2]
    assert (before.offsets, after.offsets) == (5, 2), "what was learned of batches outlives the membership"
    assert len(after.ranges) == 1
    assert set(rig.sink.claims.values()) == {"m1"}
    assert "handed back partitions" in caplog.text
    assert "max_batch_ms" in caplog.text


def test_after_a_stall_a_static_member_comes_back_with_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchGuard, "start", lambda self: None)  # it looks when the test says so
    rig = Rig()

    def stall(batch: Batch) -> None:
        rig.members[0].static_id = "i-1"
        for now in (0.0, 284.0, 300.0):
            rig.run._loop._guard.check(rig.members[0].ownership(), now)  # type: ignore[union-attr]
        rig.runner.during = lambda batch: None

    rig.runner.during = stall
    rig.run.work(available_now=True)
    assert [member.static_id for member in rig.members] == ["i-1", "i-1"], "the second one got it before it joined"


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            {"missing": {"roster": "ModuleNotFoundError: No module named 'roster'"}},
            r"executors run /usr/bin/python3 \(Python 3\.11\.2, host h\), which has no Roster\. Give executors",
        ),
        (
            {"missing": {"roster": "ModuleNotFoundError: x", "pyarrow": "ImportError: libarrow.so"}},
            r"which has no Roster and no pyarrow \(ImportError: libarrow\.so\)",
        ),
        ({"missing": {}, "roster_version": "0.0.1"}, r"which has Roster 0\.0\.1, the driver has"),
    ],
)
def test_what_executors_lack_is_one_line(found: dict[str, object], message: str) -> None:
    report = {"python": "/usr/bin/python3", "python_version": "3.11.2", "host": "h", "roster_version": "", **found}
    with pytest.raises(PipelineError, match=message) as raised:
        check_worker(report)
    assert "\n" not in str(raised.value)


def test_a_second_signal_within_a_second_is_an_echo(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls, called = [50.0], [], threading.Semaphore(0)
    patch_time(monkeypatch, signals, monotonic=lambda: clock[0])

    def stop(reason: str, now: bool) -> None:
        calls.append((reason, now))
        called.release()

    before = signal.getsignal(signal.SIGINT)
    with signals.stopping(stop):
        for moment in (50.0, 50.9, 51.0):
            clock[0] = moment
            signal.raise_signal(signal.SIGINT)
            assert called.acquire(timeout=60)
    assert calls == [("SIGINT", False), ("SIGINT", False), ("SIGINT", True)]
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("name", "expected"), [("shops", "shops"), ("My shops (v2)", "My-shops-v2"), ("łódź", "d"), ("东京", "roster")]
)
def test_the_default_client_id_is_the_applications_name(name: str, expected: str) -> None:
    assert client_id_of(name) == expected


@pytest.mark.parametrize(("times", "finished"), [(1, True), (2, False)])
def test_a_signal_waits_while_the_jvm_starts_and_a_second_one_does_not(times: int, finished: bool) -> None:
    done: list[bool] = []

    def starting() -> None:
        with signals.exiting_on_sigint(), signals.held_until_done():
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
            done.append(True)

    began = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(SystemExit) as ended:
            starting()
    finally:
        signal.signal(signal.SIGINT, began)
    assert (ended.value.code, bool(done)) == (130, finished)
