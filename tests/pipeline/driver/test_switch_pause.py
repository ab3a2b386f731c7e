"""Two drivers' loops that take turns in writing, in virtual time: what lies between the results of both."""

from __future__ import annotations

import time
from math import ceil
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.client.switch_requests import request_group
from roster.model import OffsetAndMetadata
from roster.model.switch import Request, Results, Seen
from roster.pipeline.driver.batch_size import BatchSize, Pace
from roster.pipeline.driver.loop import DriverLoop
from roster.pipeline.driver.reporting import Reporter
from roster.pipeline.driver.runner_protocol import Outcome
from roster.pipeline.driver.switching import Switching
from roster.pipeline.options import Options, Tuning
from tests.examples_tried import examples
from tests.spark.spark_fakes import P0, P1, FakeMember, FakeRunner, FakeSink, StillGuard

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from roster.model import TopicPartition
    from roster.model.switch import Standing
    from roster.pipeline.batch import Batch

OLD, NEW = "old", "new"


class Clock:
    """The time of whichever group works."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    @property
    def module(self) -> SimpleNamespace:
        """In place of `time`."""
        return SimpleNamespace(monotonic=self.monotonic, time_ns=time.time_ns)


class Cluster:
    """Two groups that read a topic to which records come at a rate."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.groups: dict[str, Group] = {}
        self.requests: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}

    def ask(self, request: Request) -> None:
        for group in (request.target, request.source):
            self.requests[request_group(group)] = {P0: OffsetAndMetadata(0, metadata=request.encode())}

    def group_offsets(self, group: str, partitions: Any = None, *, stable: bool) -> dict[TopicPartition, Any]:
        return self.requests.get(group, {}) if group not in self.groups else self.groups[group].committed()


class Told(Reporter):
    """Keeps what it is told."""

    def __init__(self, group: str) -> None:
        super().__init__(group)
        self.silent: list[int] = []

    def switched(
        self, standings: Mapping[TopicPartition, Standing], positions: Mapping[TopicPartition, int], silent: int
    ) -> None:
        super().switched(standings, positions, silent)
        self.silent += [silent for each in standings.values() if each.results is Results.WRITES]


class Runner(FakeRunner):
    """Reads nothing."""

    def run(self, batch: Batch, tasks: Any, sink: Any, refused: Any = ()) -> Outcome:
        self.during(batch)
        return Outcome([], rows=0)


class Group:
    """A pipeline: each batch takes a while, and each wait as long as it is to."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        seconds: float,
        *,
        keeps_state: bool,
        pace: Pace | None = None,
        **options: Any,
    ) -> None:
        self.name, self.at = name, 0.0
        self.member, self.sink, self.reporter = FakeMember({P0: 0, P1: 0}), FakeSink(exact=False), Told(name)
        self.events: list[tuple[float, str, Batch]] = []
        self.seconds, self._cluster = seconds, cluster
        self._clock: Clock | None = None
        self.switching = Switching(name, cluster, paused=name == NEW, keeps_state=keeps_state)  # type: ignore[arg-type]
        runner = Runner(self._run)
        chosen = Options(
            spark=None,
            bootstrap="b:1",
            group=name,
            topics=("t",),
            tuning=Tuning(min_offsets_per_task=1),
            **options,
        )
        self.loop = DriverLoop(
            self.member,
            runner,
            self.sink,
            chosen,
            guard=StillGuard(self.member, runner.cancel, margin=1.0),
            reporter=self.reporter,
            pace=pace,
            switching=self.switching,
        )
        self.member.become(P0, P1, generation=1)
        self._commits: list[tuple[float, dict[TopicPartition, OffsetAndMetadata]]] = []
        self._commit = self.member.commit
        self.member.wait, self.member.commit = self._wait, self._note  # type: ignore[method-assign]
        cluster.groups[name] = self

    def _run(self, batch: Batch) -> None:
        assert self._clock is not None
        self._clock.now += self.seconds
        paused = self.switching.paused(batch.ranges)
        for results in ("none", "written"):
            if any((partition in paused) is (results == "none") for partition in batch.ranges):
                self.events.append((self._clock.now, results, batch))

    def _wait(self, epoch: int, timeout: float) -> Any:
        assert self._clock is not None
        self._clock.now += timeout
        return self.member.ownership()

    def _note(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], ownership: Any) -> None:
        assert self._clock is not None
        self._commit(offsets, ownership)
        self._commits.append((self._clock.now, self.member.group_offsets()))

    def committed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What is committed at this time: a batch that has begun may end later."""
        now = float("inf") if self._clock is None else self._clock.now
        return next((offsets for when, offsets in reversed(self._commits) if when <= now), {})

    def work(self, clock: Clock) -> None:
        """One pass, and the wait behind it if there is nothing to do."""
        self._clock, clock.now = clock, self.at
        self.member.ends = {P0: int(self._cluster.rate * self.at), P1: int(self._cluster.rate * self.at / 3)}
        _, worked = self.loop._pass(available_now=False)
        if not worked:
            clock.now += 0.2
        self.at = max(clock.now, self.at + 0.001)

    def stands(self) -> set[Results]:
        return {Seen.of(at).standing.results for at in self.committed().values()}

    def of(self, partition: TopicPartition, results: str) -> list[tuple[float, int, int]]:
        """When each batch of a partition with or without results ended, and its range."""
        return [
            (when, batch.ranges[partition].start, batch.ranges[partition].end)
            for when, kind, batch in self.events
            if kind == results and partition in batch.ranges
        ]


def until(clock: Clock, groups: Collection[Group], done: Any, seconds: float = 600.0) -> None:
    end = max(group.at for group in groups) + seconds
    while not done():
        first = min(groups, key=lambda group: group.at)
        assert first.at < end, [group.stands() for group in groups]
        first.work(clock)


def change_places(clock: Clock, cluster: Cluster, old: Group, new: Group, number: int) -> None:
    cluster.ask(Request(str(number), old.name, new.name))
    until(clock, (old, new), lambda: (old.stands(), new.stands()) == ({Results.PAUSED}, {Results.WRITES}))
    begun = {p: len(new.of(p, "written")) for p in (P0, P1)}
    until(clock, (old, new), lambda: all(len(new.of(p, "written")) > begun[p] for p in begun))


@settings(max_examples=examples(40), deadline=None)
@given(
    rate=st.sampled_from([20.0, 500.0, 20_000.0]),
    seconds=st.lists(st.sampled_from([0.05, 0.3, 1.0, 4.0]), min_size=2, max_size=2),
    interval=st.sampled_from([None, 0, 100, 10_000]),
    keeps_state=st.booleans(),
)
def test_the_first_results_of_one_group_are_in_the_second_batch_after_the_last_of_the_other(
    rate: float, seconds: list[float], interval: int | None, *, keeps_state: bool
) -> None:
    clock, cluster = Clock(), Cluster(rate)
    with pytest.MonkeyPatch.context() as patch:
        for module in ("loop", "batch_run", "switching", "reporting"):
            patch.setattr(
                f"roster.pipeline.driver.{module}.time",
                SimpleNamespace(monotonic=clock.monotonic, time_ns=time.time_ns),
            )
        old, new = (
            Group(cluster, name, each, keeps_state=keeps_state, trigger_interval_ms=interval)
            for name, each in zip((OLD, NEW), seconds, strict=True)
        )
        until(clock, (old, new), lambda: (old.stands(), new.stands()) == ({Results.WRITES}, {Results.PAUSED}))
        until(clock, (old, new), lambda: len(old.of(P0, "written")) > 3)
        for number in range(3):
            change_places(clock, cluster, old, new, number)
            for partition in (P0, P1):
                stopped, _, end = old.of(partition, "written")[-1]
                first, begin, _ = next(each for each in new.of(partition, "written") if each[0] > stopped)
                assert begin == end
                silent = [when for when, *_ in new.of(partition, "none") if stopped <= when - new.seconds < first]
                assert len(silent) <= (1 if keeps_state else 0)
                assert len(silent) <= max(new.reporter.silent)
                assert first - stopped <= 2 * new.seconds + old.seconds + 2.0, "without a trigger's interval"
            assert max(new.reporter.silent) <= 1
            old, new = new, old


@pytest.mark.parametrize("most", [1_000, 100])
def test_the_batch_between_is_as_large_as_it_must_be_and_no_larger_than_it_may_be(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """A batch of the old group has hundreds of records; those of the new one had ten before the switch."""
    clock, cluster = Clock(), Cluster(100.0)
    for module in ("loop", "batch_run", "switching", "reporting"):
        monkeypatch.setattr(
            f"roster.pipeline.driver.{module}.time", SimpleNamespace(monotonic=clock.monotonic, time_ns=time.time_ns)
        )
    old = Group(cluster, OLD, 2.0, keeps_state=True)
    new = Group(cluster, NEW, 0.05, keeps_state=True, pace=Pace(BatchSize(10, 1.0)), max_offsets_per_batch=most)
    until(clock, (old, new), lambda: len(old.of(P0, "written")) > 3)
    change_places(clock, cluster, old, new, 0)
    stopped, *_ = old.of(P0, "written")[-1]
    between = [batch.offsets for when, results, batch in new.events if results == "none" and when > stopped]
    assert max(between) > 99, "of more than ten"
    assert max(new.reporter.silent) == len(between) == ceil(sum(between) / most)
