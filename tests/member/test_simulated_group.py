"""Groups of real members and the real coordinator in virtual time, under faults (reference: invariants and faults)."""

from __future__ import annotations

from random import Random
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.assignors import Assignor, LagOptions, lag_cooperative_sticky
from roster.member import MemberState
from roster.member.config import DEFAULT_ASSIGNORS
from roster.member.events import Closed
from roster.member.types import FailureKind
from tests.examples_tried import examples, some
from tests.member.simulated_group import HEARTBEAT, REBALANCE, SESSION, Actor, Faults, World

Assignors: TypeAlias = tuple[str | Assignor, ...]
SETTLE = 3 * (SESSION + REBALANCE)
EAGER = ("sticky",)
COOPERATIVE = ("cooperative-sticky",)
LAG = ("lag",)
LAG_STICKY = ("lag-sticky",)
LAG_COOPERATIVE = ("lag-cooperative-sticky",)
RESTLESS = (lag_cooperative_sticky(LagOptions(max_skew=0.0, hysteresis=0.0)),)
POLICIES = {"sticky": EAGER, "cooperative-sticky": COOPERATIVE, "lag": LAG, "lag-sticky": LAG_STICKY}
POLICIES |= {"default": DEFAULT_ASSIGNORS}
POLICIES |= {"lag-cooperative-sticky": LAG_COOPERATIVE, "restless lag": RESTLESS}
TOPICS = {"t": 5, "u": 3}


def title(assignors: Assignors) -> str:
    return "restless lag" if assignors is RESTLESS else str(assignors[0])


def settled(world: World) -> None:
    """Faults stop; then everything must be owned, balanced and at rest."""
    world.stop_faults()
    world.run(SETTLE)
    world.check_settled()
    rounds = world.rounds
    world.run(20 * HEARTBEAT)
    assert world.rounds == rounds, "L4: no rebalance while idle"
    world.check_settled()


def again(world: World, actor: Actor, name: str) -> Actor:
    """A dead process is started anew."""
    config = actor.config
    return world.join(name, config.assignors, instance=config.group_instance_id, capacity=config.capacity)


@pytest.mark.parametrize("assignors", [("range",), ("roundrobin",), *POLICIES.values()], ids=title)
def test_members_that_come_and_go_share_everything(assignors: Assignors) -> None:
    world = World(1, TOPICS, Faults())
    actors = []
    for number in range(4):
        actors.append(world.join(f"m{number}", assignors))
        world.run(5_000)
    settled(world)
    actors[0].feed(Closed())
    world.run(5_000)
    assert actors[0].stopped
    actors[1].kill()
    settled(world)
    assert len(world.living) == 2


@pytest.mark.parametrize("members", [1, 2, 5])
def test_a_cooperative_join_takes_at_most_two_rounds_and_an_eager_one_takes_one(members: int) -> None:
    """L4: sticky rounds to the fixed point are at most two, eager one."""
    cases = [(EAGER, 1), (COOPERATIVE, 2), (LAG, 1), (LAG_STICKY, 1), (LAG_COOPERATIVE, 2), (RESTLESS, 2)]
    for assignors, most in cases[: examples(len(cases), quick=2)]:
        world = World(2, {"t": 12}, Faults())
        for number in range(members):
            world.join(f"m{number}", assignors)
        settled(world)
        before = world.rounds
        world.join("new", assignors)
        settled(world)
        assert world.rounds - before <= most


def test_a_group_rolls_from_range_to_cooperative_sticky_without_stopping() -> None:
    world = World(3, TOPICS, Faults())
    running = [world.join(f"m{number}", ("range",)) for number in range(3)]
    world.run(10_000)
    for assignors in (("cooperative-sticky", "range"), COOPERATIVE):
        for number, old in enumerate(running):
            old.feed(Closed())
            world.run(3_000)
            running[number] = world.join(f"{old.name}'", assignors)
            world.run(8_000)
            assert any(actor.held for actor in world.living)
    settled(world)
    assert {actor.member.protocol_name for actor in world.living} == {"cooperative-sticky"}


def test_a_static_member_that_restarts_costs_no_rebalance() -> None:
    """S13: a static rejoin while Stable with the same metadata causes no rebalance."""
    world = World(4, TOPICS, Faults())
    actors = [world.join(f"m{number}", ("range",), instance=f"i{number}") for number in range(3)]
    settled(world)
    before, owned = world.rounds, actors[1].owns.partitions
    actors[1].kill()
    world.run(2_000)
    again = world.join("m1'", ("range",), instance="i1")
    world.run(10_000)
    assert world.rounds == before
    assert again.owns.partitions == owned
    assert again.member.state is MemberState.STABLE


def test_of_two_processes_with_one_instance_id_the_older_is_fenced() -> None:
    world = World(5, TOPICS, Faults())
    old = world.join("old", COOPERATIVE, instance="i")
    world.run(10_000)
    new = world.join("new", COOPERATIVE, instance="i")
    world.run(10_000)
    assert old.owns.failure is not None
    assert old.owns.failure.kind is FailureKind.FENCED_INSTANCE
    assert len(new.owns.partitions) == 8
    assert not old.held


def test_new_partitions_are_picked_up_by_the_leaders_watch() -> None:
    world = World(6, TOPICS, Faults())
    for number in range(3):
        world.join(f"m{number}", COOPERATIVE)
    world.run(20_000)
    world.grow("t", 9)
    settled(world)


def test_a_paused_member_that_wakes_up_commits_nothing_more() -> None:
    """S2: a paused zombie may still process, it must never commit."""
    world = World(7, TOPICS, Faults())
    sleeper = world.join("sleeper", COOPERATIVE)
    world.join("other", COOPERATIVE)
    world.run(20_000)
    mine, epoch = sleeper.owns.partitions, sleeper.owns.epoch
    assert mine
    sleeper.pause(2 * SESSION + REBALANCE)
    world.run(2 * SESSION + REBALANCE)
    sleeper.commit(mine & sleeper.held, epoch)
    sleeper.commit(sleeper.held, epoch)
    settled(world)
    assert FailureKind.FENCED in sleeper.failures or not sleeper.failures


def test_a_coordinator_that_comes_back_finds_the_group_as_it_was() -> None:
    world = World(8, TOPICS, Faults())
    actors = [world.join(f"m{number}", COOPERATIVE) for number in range(3)]
    settled(world)
    owned, before = [actor.owns.partitions for actor in actors], world.rounds
    world.crash_leader(3_000)
    world.run(20_000)
    assert [actor.owns.partitions for actor in actors] == owned
    assert world.rounds == before


@pytest.mark.parametrize("assignors", [LAG_STICKY, LAG_COOPERATIVE])
def test_members_get_what_their_capacities_are_due(assignors: Assignors) -> None:
    world = World(9, {"t": 40}, Faults())
    big = world.join("big", assignors, capacity=40)
    small = [world.join(f"small{number}", assignors, capacity=5) for number in range(2)]
    settled(world)
    assert len(big.owns.partitions) == 32
    small[0].kill()
    settled(world)
    assert len(big.owns.partitions) in (35, 36)


@pytest.mark.parametrize(("movement_cost", "moves"), [(0, True), (10**12, False)])
def test_the_options_of_the_leader_decide_whether_lag_moves_partitions(movement_cost: int, moves: bool) -> None:
    """In a rebalance that changes no counts: what one cannot keep up with is passed on, or stays where it is."""
    world = World(10, {"t": 8}, Faults())
    assignors = (lag_cooperative_sticky(LagOptions(movement_cost=movement_cost)),)
    actors = [world.join(f"m{number}", assignors) for number in range(2)]
    settled(world)
    before = [actor.owns.partitions for actor in actors]
    world.pace |= dict.fromkeys(before[0], 1_000) | dict.fromkeys(before[1], 0)
    world.grow("t", 10)
    settled(world)
    assert all(old <= actor.owns.partitions for old, actor in zip(before, actors, strict=True)) != moves


def test_a_leader_that_cannot_have_offsets_assigns_all_the_same() -> None:
    world = World(11, TOPICS, Faults(no_offsets=1.0))
    actors = [world.join(f"m{number}", LAG_COOPERATIVE) for number in range(3)]
    world.run(SETTLE)
    assert sum(actor.lookups for actor in actors) > 0
    world.check_settled()
    settled(world)


def test_a_leader_that_cannot_have_offsets_shares_each_topic_out_evenly() -> None:
    """Without offsets counts decide, topic by topic, and whoever joins or leaves afterwards."""
    for seed in some(range(12), quick=2):
        world, chance = World(seed, TOPICS, Faults(no_offsets=1.0)), Random(seed)
        for number in range(7):
            if len(world.living) > 1 and chance.random() < 0.4:
                chance.choice(world.living).feed(Closed())
            else:
                world.join(f"m{number}", LAG_COOPERATIVE)
            world.run(SETTLE)
            world.check_settled()


@given(
    seed=st.integers(0, 2**32),
    faults=st.builds(Faults, reset=st.sampled_from((0.0, 0.05)), delay=st.sampled_from((0, 30, 800))),
    actions=st.lists(
        st.tuples(
            st.sampled_from(("join", "neighbour", "leave", "kill", "crash")), st.integers(0, 7), st.integers(0, 9_000)
        ),
        max_size=10,
    ),
)
@settings(max_examples=examples(40))
def test_a_group_goes_over_to_range_for_a_neighbour_that_knows_nothing_else_and_back(
    seed: int, faults: Faults, actions: list[tuple[str, int, int]]
) -> None:
    """S1-S8 hold all the while; at rest the protocol is the best that all members know."""
    world = World(seed, TOPICS, faults)
    for number in range(2):
        world.join(f"first{number}", DEFAULT_ASSIGNORS)
    world.run(10_000)
    for number, (action, which, wait) in enumerate(actions):
        living = world.living
        if action == "join" and len(living) < 6:
            world.join(f"m{number}", DEFAULT_ASSIGNORS)
        elif action == "neighbour" and len(living) < 6:
            world.join(f"n{number}", ("range", "roundrobin"))
        elif action == "leave" and len(living) > 1:
            living[which % len(living)].feed(Closed())
        elif action == "kill" and len(living) > 1:
            living[which % len(living)].kill()
        elif action == "crash":
            world.crash_leader(1 + wait // 2)
        world.run(wait)
    settled(world)
    simple = any("roundrobin" in actor.config.assignors for actor in world.living)
    assert {actor.member.protocol_name for actor in world.living} == {"range" if simple else "cooperative-sticky"}


ACTIONS = ("join", "kill", "leave", "pause", "crash", "grow", "wait", "static", "restart", "commit")


@given(
    seed=st.integers(0, 2**32),
    policy=st.sampled_from(list(POLICIES)),
    faults=st.builds(
        Faults,
        reset=st.sampled_from((0.0, 0.02, 0.1)),
        duplicate=st.sampled_from((0.0, 0.05)),
        slow_release=st.sampled_from((0.0, 0.3)),
        no_offsets=st.sampled_from((0.0, 0.3)),
        delay=st.sampled_from((0, 30, 800)),
    ),
    actions=st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 7), st.integers(0, 12_000)), max_size=14),
)
@settings(max_examples=examples(100))
def test_the_invariants_hold_under_faults(
    seed: int, policy: str, faults: Faults, actions: list[tuple[str, int, int]]
) -> None:
    """S1-S14 as far as they concern members, then L1-L4 once the faults stop."""
    assignors = POLICIES[policy]
    world = World(seed, TOPICS, faults)
    world.join("first", assignors)
    names = iter(range(1_000))
    for action, which, wait in actions:
        living = world.living
        target = living[which % len(living)] if living else None
        if action == "join" and len(living) < 6:
            world.join(f"m{next(names)}", assignors, capacity=1 + which % 3)
        elif action == "static" and len(living) < 6:
            name = next(names)
            world.join(f"s{name}", assignors, instance=f"i{name}")
        elif action == "crash":
            world.crash_leader(1 + wait // 2)
        elif action == "grow":
            world.grow("u", world.topics["u"] + 1)
        elif target is not None and action == "kill":
            target.kill()
        elif target is not None and action == "restart":
            target.kill()
            again(world, target, f"{target.name}'")
        elif target is not None and action == "leave":
            target.feed(Closed())
        elif target is not None and action == "pause":
            target.pause(wait * 3)
        elif target is not None and action == "commit":
            target.commit()
        world.run(wait)
    settled(world)
