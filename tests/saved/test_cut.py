"""Cuts of a group whose transactions go on at every look, with markers that come to each log when they like."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.model import OffsetAndMetadata, TopicPartition
from roster.pipeline.errors import PipelineError
from roster.saved.cut import Cut, take_cut
from tests.examples_tried import examples

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


@dataclass(eq=False)
class Transaction:
    number: int
    source: TopicPartition
    logs: list[TopicPartition]
    offset: int
    commits: bool


@dataclass
class Log:
    """Records as their transaction, None for markers; transactions that are open, and the aborted ones."""

    records: list[Transaction | None] = field(default_factory=list)
    open: list[Transaction] = field(default_factory=list)

    @property
    def stable(self) -> int:
        return min((self.records.index(each) for each in self.open), default=len(self.records))


class Cluster:
    """Each writer goes through one transaction after the other; at every request some of their steps happen."""

    def __init__(self, seed: int, writers: dict[TopicPartition, list[TopicPartition]], busy: int) -> None:
        self.chance, self.busy = random.Random(seed), busy
        self.logs: defaultdict[TopicPartition, Log] = defaultdict(Log)
        self.offsets = dict.fromkeys(writers, 0)  # as a pipeline commits them before its first batch
        self.pending: dict[TopicPartition, list[Transaction]] = defaultdict(list)
        self.last: dict[TopicPartition, Transaction] = {}
        self.count, self.requests = 0, 0
        self.steps = [self._work(source, logs) for source, logs in writers.items()]
        self.pauses = 0.0

    def _work(self, source: TopicPartition, logs: list[TopicPartition]) -> Iterator[None]:
        offset = 0
        while True:
            self.count += 1
            offset += self.chance.randint(0, 2)  # a batch for a timer reads nothing
            mine = Transaction(self.count, source, logs, offset, self.chance.random() < 0.8)
            for log in self.chance.sample(logs * 2, 2 * len(logs)):
                if mine not in self.logs[log].open:
                    self.logs[log].open.append(mine)
                self.logs[log].records.append(mine)
                yield
            self.pending[source].append(mine)
            yield
            markers: list[Any] = self.chance.sample([*logs, None], len(logs) + 1)
            for marker in markers:
                yield
                if marker is None:
                    self.pending[source].remove(mine)
                    if mine.commits:
                        self.offsets[source], self.last[source] = offset, mine
                else:
                    self.logs[marker].records.append(None)
                    self.logs[marker].open.remove(mine)
            if not mine.commits:
                offset = self.offsets.get(source, 0)
            for _ in range(self.chance.randint(0, 12)):
                yield

    def _go_on(self) -> None:
        self.requests += 1
        for _ in range(self.chance.randint(0, self.busy)):
            next(self.chance.choice(self.steps))

    def stable_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {log: (self._go_on(), self.logs[log].stable)[1] for log in partitions}

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {log: (self._go_on(), len(self.logs[log].records))[1] for log in partitions}

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def group_offsets(
        self, group: str, partitions: Collection[TopicPartition] | None = None, *, stable: bool = True
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        self._go_on()
        wanted = [*self.offsets] if partitions is None else [*partitions]
        while stable and any(self.pending[each] for each in wanted):
            self._go_on()
        found = {each: OffsetAndMetadata(self.offsets[each]) for each in wanted if each in self.offsets}
        self._go_on()
        return found

    def committed_in(self, log: TopicPartition, end: int, decided: dict[int, bool]) -> set[int]:
        return {each.number for each in self.logs[log].records[:end] if each is not None and decided[each.number]}

    def pause(self, seconds: float) -> None:
        self.pauses += seconds
        self._go_on()

    def cut(self, *given: Any) -> Cut:
        return take_cut(self, "g", *given, patience=1e9, now=lambda: self.pauses, pause=self.pause)


def up_to(cluster: Cluster, source: TopicPartition, numbers: set[int]) -> bool:
    """True if these transactions of a source are all that were committed, up to one of them."""
    mine = {
        each.number
        for log in cluster.logs.values()
        for each in log.records
        if each is not None and each.source == source and each.commits
    }
    return {each for each in mine if each <= max(numbers, default=0)} == numbers


def transactions(cluster: Cluster) -> dict[int, Transaction]:
    return {each.number: each for log in cluster.logs.values() for each in log.records if each is not None}


@given(st.integers(0, 1 << 32), st.integers(1, 3), st.integers(0, 6))
@settings(max_examples=examples(150), deadline=None)
def test_a_tasks_changelogs_have_exactly_what_its_offsets_say(seed: int, stores: int, busy: int) -> None:
    sources = [TopicPartition("in", number) for number in range(2)]
    of = {at: [TopicPartition(f"g-{store}-changelog", at.partition) for store in range(stores)] for at in sources}
    cluster = Cluster(seed, of, busy)
    for _ in range(60):
        cluster._go_on()
    cut = cluster.cut([log for logs in of.values() for log in logs])
    known = transactions(cluster)
    decided = {number: each.commits for number, each in known.items()}
    for source, logs in of.items():
        found = [cluster.committed_in(log, cut.ends[log], decided) for log in logs]
        assert all(each == found[0] for each in found), "the stores of a task are of one batch"
        assert up_to(cluster, source, found[0])
        assert cut.offsets.get(source, 0) == (known[max(found[0])].offset if found[0] else 0)


@given(st.integers(0, 1 << 32), st.integers(0, 3))
@settings(max_examples=examples(100), deadline=None)
def test_records_on_their_way_are_exactly_those_that_the_input_offsets_say(seed: int, busy: int) -> None:
    sources = [TopicPartition("in", number) for number in range(3)]
    passing = [TopicPartition("g-r-repartition", number) for number in range(2)]
    later = {at: [TopicPartition("g-s-changelog", at.partition)] for at in passing}
    cluster = Cluster(seed, dict.fromkeys(sources, passing) | later, busy)
    for _ in range(60):
        cluster._go_on()
    cut = cluster.cut([log for logs in later.values() for log in logs], passing)
    known = transactions(cluster)
    decided = {number: each.commits for number, each in known.items()}
    found = [cluster.committed_in(log, cut.ends[log], decided) for log in passing]
    assert found[0] == found[1]
    for source in sources:
        mine = {number for number in found[0] if known[number].source == source}
        assert up_to(cluster, source, mine)
        assert cut.offsets.get(source, 0) == (known[max(mine)].offset if mine else 0)
    for source, (log,) in later.items():
        mine = cluster.committed_in(log, cut.ends[log], decided)
        assert up_to(cluster, source, mine)
        assert cut.offsets.get(source, 0) == (known[max(mine)].offset if mine else 0)


def test_a_transaction_that_stays_open_is_named() -> None:
    log, source = TopicPartition("g-s-changelog", 0), TopicPartition("in", 0)
    cluster = Cluster(1, {source: [log]}, 0)
    next(cluster.steps[0])
    with pytest.raises(PipelineError, match=r"no moment was found in 60 s .* in g-s-changelog\. Export when"):
        take_cut(cluster, "g", [log], now=lambda: cluster.pauses, pause=cluster.pause)
    assert cluster.pauses >= 60
