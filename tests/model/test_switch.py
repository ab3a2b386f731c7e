"""Two groups of which one writes: random interleavings of owners, late owners, requests and deaths."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from roster.model import OffsetAndMetadata, TopicPartition
from roster.model.switch import Request, Results, Seen, Standing, peer_of, results_of, step

P0, P1 = TopicPartition("a", 0), TopicPartition("b", 0)
OLD, NEW = "old", "new"
OTHER = {OLD: NEW, NEW: OLD}


@dataclass
class Owner:
    """An owner of the group's one task; `generation` tells whether it still is."""

    group: str
    generation: int
    standing: Standing
    at: dict[TopicPartition, int]
    asked: Request | None = None
    seen: dict[TopicPartition, Seen] = field(default_factory=dict)
    looked: bool = False
    limits: dict[TopicPartition, int] = field(default_factory=dict)


class Groups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ends = {P0: 3, P1: 3}
        self.committed = {OLD: (Standing(), {P0: 0, P1: 0}), NEW: (Standing(Results.PAUSED), {P0: 0, P1: 0})}
        self.generation = {OLD: 0, NEW: 0}
        self.owners: dict[str, list[Owner]] = {OLD: [], NEW: []}
        self.asked: dict[str, Request | None] = {OLD: None, NEW: None}
        self.written: dict[TopicPartition, list[tuple[int, int]]] = {P0: [], P1: []}
        self.requests = 0
        self.restart(OLD)
        self.restart(NEW)

    def restart(self, group: str) -> None:
        """Another owner takes the task; the one before may not have noticed."""
        self.generation[group] += 1
        standing, at = self.committed.setdefault(group, (Standing(Results.PAUSED), {P0: 0, P1: 0}))
        owner = Owner(group, self.generation[group], standing, dict(at))
        if standing.results is not Results.WRITES and standing.peer:
            owner.limits = dict.fromkeys(at, -1)
        self.owners[group] = [*self.owners[group], owner][-2:]

    def commit(self, owner: Owner, standing: Standing, at: dict[TopicPartition, int]) -> bool:
        if owner.generation != self.generation[owner.group]:
            return False
        self.committed[owner.group] = standing, dict(at)
        owner.standing, owner.at = standing, dict(at)
        return True

    def look(self, owner: Owner) -> None:
        owner.asked, owner.looked = self.asked[owner.group], True
        peer = peer_of(owner.group, owner.standing, owner.asked)
        standing, at = self.committed.get(peer, (Standing(), {}))
        owner.seen = {partition: Seen(offset, standing) for partition, offset in at.items()}

    def act(self, owner: Owner) -> None:
        after = step(owner.group, owner.standing, owner.at, owner.asked, owner.seen)
        owner.limits = dict(after.limits)
        if after.standing != owner.standing:
            self.commit(owner, after.standing, owner.at)

    def work(self, owner: Owner, most: dict[TopicPartition, int]) -> None:
        to = {
            p: max(at, min(at + most[p], self.ends[p], owner.limits.get(p, self.ends[p]))) for p, at in owner.at.items()
        }
        before = owner.at
        if self.commit(owner, owner.standing, to) and owner.standing.results is Results.WRITES:
            for partition, end in to.items():
                self.written[partition].append((before[partition], end))

    groups = st.sampled_from([OLD, NEW])
    sizes = st.fixed_dictionaries({P0: st.integers(0, 4), P1: st.integers(0, 4)})

    @rule(sizes=sizes)
    def records_arrive(self, sizes: dict[TopicPartition, int]) -> None:
        self.ends = {partition: end + sizes[partition] for partition, end in self.ends.items()}

    @rule(group=groups)
    def the_task_moves(self, group: str) -> None:
        self.restart(group)

    @rule(group=groups)
    def all_applications_die(self, group: str) -> None:
        self.generation[group] += 1

    @rule(data=st.data(), group=groups)
    def an_owner_looks(self, data: Any, group: str) -> None:
        self.look(data.draw(st.sampled_from(self.owners[group])))

    @rule(data=st.data(), group=groups)
    def an_owner_takes_a_step_by_what_it_saw(self, data: Any, group: str) -> None:
        owner = data.draw(st.sampled_from(self.owners[group]))
        if owner.looked:
            self.act(owner)
            owner.looked = False

    @rule(data=st.data(), group=groups, most=sizes)
    def an_owner_runs_a_batch(self, data: Any, group: str, most: dict[TopicPartition, int]) -> None:
        self.work(data.draw(st.sampled_from(self.owners[group])), most)

    @rule(to=groups, is_killed=st.booleans())
    def a_command_asks_and_may_be_killed_half_way(self, to: str, *, is_killed: bool) -> None:
        self.requests += 1
        self.asked[OTHER[to]] = Request(str(self.requests), OTHER[to], to)
        if not is_killed:
            self.asked[to] = self.asked[OTHER[to]]

    @rule(group=groups)
    def a_command_forgets(self, group: str) -> None:
        self.asked[group] = None

    @precondition(lambda self: any(owner.generation != self.generation[g] for g, (*_, owner) in self.owners.items()))
    @rule(group=groups)
    def a_command_gives_up_for_a_group_without_applications(self, group: str) -> None:
        if group not in self.committed:
            return
        standing, at = self.committed[group]
        self.asked[group] = None
        if self.owners[group][-1].generation != self.generation[group] and standing.results is Results.WAITS:
            self.committed[group] = Standing(Results.PAUSED, standing.switch, standing.peer, standing.took), at

    @precondition(lambda self: self.committed.keys() == {OLD, NEW})
    @rule(group=groups)
    def a_group_that_does_not_write_is_deleted(self, group: str) -> None:
        if self.committed[group][0].results in (Results.PAUSED, Results.WAITS):
            self.generation[group] += 1
            del self.committed[group]

    @invariant()
    def each_result_is_written_once_and_none_is_left_out(self) -> None:
        for partition, ranges in self.written.items():
            at = 0
            for begin, end in ranges:
                assert begin == at, f"{partition}: {ranges}"
                at = end

    def teardown(self) -> None:
        for target in (NEW, OLD):
            self.restart(OLD)
            self.restart(NEW)
            self.a_command_asks_and_may_be_killed_half_way(target, is_killed=False)
            for _ in range(12):
                for group in (OLD, NEW):
                    owner = self.owners[group][-1]
                    self.look(owner)
                    self.act(owner)
                    self.look(owner)
                    self.work(owner, {P0: 10**6, P1: 10**6})
            assert self.committed[target][0].results is Results.WRITES
            assert self.committed[OTHER[target]][0].results is Results.PAUSED
        self.each_result_is_written_once_and_none_is_left_out()
        assert {partition: ranges[-1][1] for partition, ranges in self.written.items()} == self.ends


TestGroups = Groups.TestCase


def test_a_standing_is_kept_in_the_metadata_of_an_offset_beside_what_is_there() -> None:
    standing = Standing(Results.HANDED_OVER, "7", "new", "5")
    metadata = standing.added_to('{"transactional.id": "t"}')
    assert metadata == (
        '{"transactional.id": "t", "results": {"results": "handed over", "switch": "7", "peer": "new", "took": "5"}}'
    )
    assert Standing.of(metadata) == standing
    assert Seen.of(OffsetAndMetadata(3, metadata=metadata)) == Seen(3, standing)
    assert Standing().added_to(metadata) == metadata
    assert Request.of(Request("7", OLD, NEW).encode()) == Request("7", OLD, NEW)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "[]",
        "{}",
        '{"results": 3}',
        '{"results": {}}',
        '{"results": {"results": "x"}}',
        '{"results": ["results"]}',
        '{"results": {"results": "paused", "peer": 3}}',
        '{"results": {"results": "paused", "more": "x"}}',
    ],
)
def test_text_of_others_has_no_standing_and_no_request(text: str) -> None:
    assert Standing.of(text) is None
    assert Request.of(text) is None


WRITES, PAUSED = Standing(), Standing(Results.PAUSED)
WAITS = Standing(Results.WAITS, "s", OLD)
HANDED = Standing(Results.HANDED_OVER, "s", NEW)
TOOK = Standing(Results.WRITES, "s", OLD, "s")
LED = Standing(Results.PAUSED, "s", NEW)
ASKED = Request("s", OLD, NEW)
ANOTHER = Request("t", OLD, NEW)


@pytest.mark.parametrize(
    ("group", "own", "asked", "other", "then", "limit"),
    [
        (NEW, PAUSED, None, None, PAUSED, None),
        (NEW, PAUSED, ASKED, None, PAUSED, None),
        (NEW, PAUSED, ASKED, (WRITES, 3), WAITS, 7),
        (OLD, WRITES, None, None, WRITES, None),
        (OLD, WRITES, ASKED, (PAUSED, 3), WRITES, None),
        (OLD, WRITES, ASKED, (WAITS, 8), WRITES, None),
        (OLD, WRITES, ANOTHER, (WAITS, 3), WRITES, None),
        (OLD, WRITES, ASKED, (WAITS, 7), HANDED, 7),
        (NEW, WAITS, ASKED, (WRITES, 3), WAITS, 7),
        (NEW, WAITS, ASKED, (replace(HANDED, peer="third"), 7), WAITS, 7),
        (NEW, WAITS, ASKED, (HANDED, 9), WAITS, 9),
        (NEW, WAITS, ASKED, (HANDED, 7), TOOK, None),
        (NEW, WAITS, None, (HANDED, 7), replace(WAITS, results=Results.PAUSED), 7),
        (NEW, WAITS, ANOTHER, (HANDED, 7), replace(WAITS, results=Results.PAUSED), 7),
        (OLD, HANDED, ASKED, (WAITS, 3), HANDED, 7),
        (OLD, HANDED, None, None, HANDED, 7),
        (OLD, HANDED, ASKED, None, replace(HANDED, results=Results.WRITES), None),
        (OLD, HANDED, Request("t", NEW, OLD), None, replace(HANDED, results=Results.WRITES), None),
        (NEW, PAUSED, ASKED, (HANDED, 7), PAUSED, None),
        (OLD, HANDED, None, (TOOK, 12), LED, 7),
        (OLD, HANDED, ASKED, (PAUSED, 3), replace(HANDED, results=Results.WRITES), None),
        (OLD, LED, None, (TOOK, 12), LED, 12),
        (OLD, LED, None, (TOOK, 3), LED, 7),
        (OLD, LED, None, None, LED, 7),
        (NEW, TOOK, None, None, TOOK, None),
    ],
)
def test_the_state_table(
    group: str, own: Standing, asked: Request | None, other: Any, then: Standing, limit: int | None
) -> None:
    seen = {} if other is None else {P0: Seen(other[1], other[0])}
    assert step(group, own, {P0: 7}, asked, seen) == (then, {} if limit is None else {P0: limit})


@pytest.mark.parametrize(
    ("standings", "text"),
    [
        ([], ""),
        ([Standing(), None], ""),
        ([Standing(Results.PAUSED)] * 2, "paused"),
        ([Standing(Results.PAUSED, "s", "shops")], "paused, shops writes"),
        ([Standing(Results.WRITES, "s", "shops", "s"), None], "written; written, not by shops"),
        (
            [Standing(Results.WAITS, "s", "a"), Standing(Results.HANDED_OVER, "s", "b")],
            "handed over to b; waiting for a",
        ),
    ],
)
def test_the_results_of_a_group_are_told_where_they_depend_on_another(
    standings: list[Standing | None], text: str
) -> None:
    assert results_of("" if each is None else each.added_to('{"own": 1}') for each in standings) == text
