"""lag-sticky and lag-cooperative-sticky: counts, stickiness, when lag may move something, capacity, two rounds."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.assignors import LAG, LAG_COOPERATIVE_STICKY, LAG_STICKY
from roster.assignors.lag import LagOptions, lag_cooperative_sticky, lag_sticky, with_offsets
from roster.model import Claims, MemberInfo, Problem
from tests.examples_tried import examples

EXAMPLES = settings(max_examples=examples(100, "ROSTER_ASSIGNOR_CASES"), deadline=None, derandomize=True, database=None)
LAG_AWARE = (LAG, LAG_STICKY, LAG_COOPERATIVE_STICKY)


@st.composite
def groups(draw):
    """(members, partition counts, offsets): claims may be stale, doubled, of other topics, or of no partition."""
    topics = {f"t{i}": draw(st.sampled_from([1, 1, 2, 3, 5, 8])) for i in range(draw(st.integers(1, 6)))}
    names = sorted(topics)
    alike = draw(st.booleans())
    members = {}
    for m in range(draw(st.integers(1, 7))):
        owned = draw(
            st.dictionaries(st.sampled_from([*names, "gone"]), st.lists(st.integers(-1, 8), max_size=6), max_size=4)
        )
        members[f"m{m}"] = MemberInfo(
            names if alike else draw(st.lists(st.sampled_from(names), unique=True)),
            owned,
            draw(st.sampled_from([3, 3, 3, 2, -1])),
            capacity=draw(st.sampled_from([1, 1, 2, 5, 40])),
        )
    lag = st.one_of(st.integers(0, 3), st.integers(0, 1000), st.integers(0, 10**9))
    offsets = {topic: {p: (0, draw(lag), 0) for p in range(count)} for topic, count in topics.items()}
    return members, topics, offsets


def problem_of(group):
    members, topics, offsets = group
    return with_offsets(Problem.build(members, topics), offsets)


def round_after(problem, plan, *, everything=False, settling=False):
    """The problem of the next round: members claim what they were given; `everything`: as if nothing were withheld."""
    owner = plan.owner if everything else plan.given
    had = np.flatnonzero(owner >= 0)
    return replace(
        problem,
        claims=Claims(owner[had].astype(np.int32), had),
        generation=np.full(len(problem.members), 9, dtype=np.int32),
        settling=settling,
    )


@EXAMPLES
@given(groups())
def test_la_2_every_subscriber_has_its_share_of_each_topic_rounded_down_or_up(group):
    """With equal capacities: counts within a topic differ by one at most."""
    members, topics, _ = group
    problem = problem_of(group)
    for assignor in LAG_AWARE:
        given_out = assignor.assign(problem)
        capacity = {m: 1 if assignor is LAG else info.capacity for m, info in members.items()}
        owned = {m: {} for m in members}
        for p, owner in enumerate(given_out.owner.tolist()):
            if owner >= 0:
                owned[problem.members[owner]].setdefault(problem.topic_partition(p).topic, set()).add(p)
        for topic, count in topics.items():
            consumers = [m for m, info in members.items() if topic in info.topics]
            whole = sum(capacity[m] for m in consumers)
            assert sum(len(owned[m].get(topic, ())) for m in members) == (count if consumers else 0)
            for m in consumers:
                share = Fraction(count * capacity[m], whole)
                assert share - 1 < len(owned[m].get(topic, ())) < share + 1
            assert not any(owned[m].get(topic) for m in members if m not in consumers)


@EXAMPLES
@given(groups(), st.randoms(use_true_random=False))
def test_the_same_plan_under_any_order_of_members_and_topics(group, chance):
    members, topics, offsets = group

    def shuffled(mapping):
        keys = list(mapping)
        chance.shuffle(keys)
        return {key: mapping[key] for key in keys}

    other = (shuffled(members), shuffled(topics), shuffled(offsets))
    for assignor in LAG_AWARE:
        one, two = assignor.assign(problem_of(group)), assignor.assign(problem_of(other))
        assert one.assignment() == two.assignment()
        assert one.transferring() == two.transferring()


@EXAMPLES
@given(groups())
def test_a_plan_whose_lags_are_unchanged_stays(group):
    """f(f(x)) = f(x)."""
    problem = problem_of(group)
    for assignor in LAG_AWARE:
        plan = assignor.assign(problem)
        again = assignor.assign(round_after(problem, plan, everything=True))
        assert (again.owner == plan.owner).all()
        assert not again.withheld.any()


@EXAMPLES
@given(groups())
def test_a_group_rests_after_two_rounds(group):
    problem = problem_of(group)
    first = LAG_COOPERATIVE_STICKY.assign(problem)
    second = LAG_COOPERATIVE_STICKY.assign(round_after(problem, first, settling=bool(first.withheld.any())))
    assert not second.withheld.any()
    third = LAG_COOPERATIVE_STICKY.assign(round_after(problem, second))
    assert not third.withheld.any()


@EXAMPLES
@given(groups())
def test_nothing_is_handed_over_before_everyone_else_has_let_go(group):
    problem = problem_of(group)
    plan = LAG_COOPERATIVE_STICKY.assign(problem)
    for m, p in zip(problem.claims.member.tolist(), problem.claims.partition.tolist(), strict=True):
        if plan.given[p] >= 0 and plan.given[p] != plan.owner_before[p]:
            assert m == plan.given[p]


@EXAMPLES
@given(groups(), groups())
def test_the_second_round_moves_nothing_even_if_lags_have_changed_since(group, other):
    """The members say that they have just given something up, so the round only finishes what the first began."""
    problem = problem_of(group)
    first = LAG_COOPERATIVE_STICKY.assign(problem)
    chance = np.random.default_rng(len(other[0]))
    changed = replace(problem, lag=chance.integers(0, 10**6, problem.partition_count))
    second = LAG_COOPERATIVE_STICKY.assign(round_after(changed, first, settling=True))
    assert not second.withheld.any()
    assert not second.moved().any()


@EXAMPLES
@given(groups())
def test_without_offsets_counts_decide_as_if_every_lag_were_zero_and_the_plan_says_so(group):
    """A group whose leader cannot have offsets once keeps the shares of each topic that it is promised."""
    problem = problem_of(group)
    nothing = np.zeros(problem.partition_count, dtype=np.int64)
    for assignor in (LAG_STICKY, LAG_COOPERATIVE_STICKY):
        plan, expected = assignor.assign(replace(problem, lag=None)), assignor.assign(replace(problem, lag=nothing))
        assert (plan.owner == expected.owner).all()
        assert (plan.withheld == expected.withheld).all()
        assert plan.lag is None or plan.lag.note == "no offsets: decided by counts and capacities alone"


def test_without_offsets_a_topic_that_is_uneven_is_evened_out():
    claims = {"a": {"t": [0, 1]}, "b": {"t": [2, 3], "u": [0]}, "c": {"t": [4], "u": [1, 2]}}
    members = {name: MemberInfo(["t", "u"], owned, generation=1) for name, owned in claims.items()}
    plan = LAG_COOPERATIVE_STICKY.assign(Problem.build(members, {"t": 5, "u": 3}))
    assert sorted(plan.loads().tolist()) == [2, 3, 3]
    assert plan.owner[5:].tolist() == [1, 0, 2] or plan.owner[5:].tolist() == [1, 2, 0]
    assert plan.moved().sum() == 1


def test_without_offsets_capacities_still_count():
    problem = Problem.build({"big": MemberInfo(["t"], capacity=3), "small": MemberInfo(["t"])}, {"t": 8})
    plan = LAG_STICKY.assign(problem)
    assert plan.loads().tolist() == [6, 2]
    assert plan.lag.note == "no offsets: decided by counts and capacities alone"


@EXAMPLES
@given(groups())
def test_lag_moves_something_only_if_that_relieves_the_fullest_member_by_the_hysteresis(group):
    problem = problem_of(group)
    for options in (LagOptions(), LagOptions(max_skew=0.0, hysteresis=0.3), LagOptions(movement_cost=50)):
        rested = LAG.assign(replace(problem, capacity=None))
        if rested.lag is None:
            continue
        chance = np.random.default_rng(problem.partition_count)
        later = replace(
            round_after(replace(problem, capacity=None), rested), lag=chance.integers(0, 1000, problem.partition_count)
        )
        plan = lag_sticky(options).assign(later)
        before = np.bincount(rested.owner, weights=later.lag, minlength=len(problem.members)).max()
        moved = int(plan.moved().sum())
        if moved:
            assert before - plan.lag.fullest >= options.hysteresis * before
            assert before - plan.lag.fullest >= options.movement_cost * moved
            assert before > plan.lag.bound * (1 + options.max_skew)


def steady(size=6, partitions=60, seed=0):
    """A group at rest under random lags."""
    lag = np.random.default_rng(seed).exponential(1000, partitions).astype(np.int64)
    problem = replace(Problem.build({f"m{i}": MemberInfo(["t"]) for i in range(size)}, {"t": partitions}), lag=lag)
    return round_after(problem, LAG_COOPERATIVE_STICKY.assign(problem))


@pytest.mark.parametrize("seed", range(20))
def test_noise_in_lag_moves_nothing(seed):
    problem = steady(seed=seed)
    noise = np.random.default_rng(seed).uniform(0.96, 1.04, problem.partition_count)
    noisy = replace(problem, lag=(problem.lag * noise).astype(np.int64))
    plan = LAG_COOPERATIVE_STICKY.assign(noisy)
    assert not plan.moved().any()


def test_a_partition_that_falls_behind_is_made_room_for_and_the_plan_says_why():
    problem = steady()
    lag = problem.lag.copy()
    late = LAG_COOPERATIVE_STICKY.assign(problem).owner[0]
    lag[problem.claims.partition[problem.claims.member == late]] += 2000
    plan = LAG_COOPERATIVE_STICKY.assign(replace(problem, lag=lag))
    assert plan.moved().any()
    assert plan.lag.ratio <= 1.1
    assert plan.lag.note.startswith("moved to take ")
    assert all("lag: " in move.why for move in plan.explain())
    stay = lag_cooperative_sticky(LagOptions(max_skew=10.0)).assign(replace(problem, lag=lag))
    assert not stay.moved().any()
    dear = lag_cooperative_sticky(LagOptions(movement_cost=10**6)).assign(replace(problem, lag=lag))
    assert not dear.moved().any()
    assert dear.lag.note.startswith("left as it is: ")


def test_one_who_joins_costs_only_what_it_is_due():
    problem = steady(6, 60)
    seven = {f"m{i}": MemberInfo(["t"]) for i in range(7)}
    joined = replace(
        Problem.build(seven, {"t": 60}),
        lag=problem.lag,
        claims=problem.claims,
        generation=np.full(7, 9, dtype=np.int32),
    )
    plan = LAG_COOPERATIVE_STICKY.assign(joined)
    assert sorted(plan.loads().tolist()) == [8, 8, 8, 9, 9, 9, 9]
    assert int(plan.moved().sum()) == 8


def test_a_member_with_forty_cores_counts_forty():
    members = {"spark": MemberInfo(["t"], capacity=40), "a": MemberInfo(["t"]), "b": MemberInfo(["t"])}
    problem = Problem.build(members, {"t": 84})
    problem = replace(problem, lag=np.full(84, 100, dtype=np.int64))
    plan = LAG_COOPERATIVE_STICKY.assign(problem)
    assert dict(zip(problem.members, plan.loads().tolist(), strict=True)) == {"a": 2, "b": 2, "spark": 80}
    assert plan.lag.fullest == plan.lag.bound == 200


def test_capacities_out_of_range_are_brought_to_its_ends():
    members = {"a": MemberInfo(["t"], capacity=-7), "b": MemberInfo(["t"], capacity=0), "c": MemberInfo(["t"])}
    problem = Problem.build(members, {"t": 3})
    assert LAG_STICKY.assign(replace(problem, lag=np.ones(3, dtype=np.int64))).loads().tolist() == [1, 1, 1]


@pytest.mark.parametrize("option", ["max_skew", "hysteresis", "movement_cost"])
@pytest.mark.parametrize("value", [-1, float("inf"), float("nan"), "1", None, True])
def test_options_that_make_no_sense_are_named(option, value):
    with pytest.raises(ValueError, match=option):
        LagOptions(**{option: value})
