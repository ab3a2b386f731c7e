"""What must hold for any group, hostile ones included: determinism, rest, validity, and safe cooperative hand-overs."""

import os
import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.assignors import ASSIGNORS, COOPERATIVE_STICKY, STICKY
from roster.assignors.certificate import verify
from roster.model import NO_OWNER, MemberInfo, Plan, Problem, TopicPartition
from tests.examples_tried import examples

CASES = examples(150, "ROSTER_ASSIGNOR_CASES")

topics = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 6), max_size=6)
numbers = st.lists(st.integers(-2, 8), max_size=6)
members = st.dictionaries(
    st.text(st.sampled_from("mxyüµ"), min_size=1, max_size=4),
    st.builds(
        MemberInfo,
        topics=st.lists(st.sampled_from("abcdefgh"), max_size=5),
        owned=st.dictionaries(st.sampled_from("abcdefgh"), numbers, max_size=4),
        generation=st.integers(-1, 4),
        instance=st.none() | st.sampled_from(["i1", "i2", "i3"]),
        rack=st.none() | st.sampled_from(["r1", "r2", "r3"]),
    ),
    min_size=1,
    max_size=8,
)
replicas = st.lists(st.sets(st.sampled_from(["r1", "r2", "r3"]), max_size=2), max_size=6)
racks = st.none() | st.dictionaries(st.sampled_from("abcdef"), replicas, max_size=6)
every_assignor = pytest.mark.parametrize("name", sorted(ASSIGNORS))


def by_name(plan: Plan) -> tuple[dict, dict, list]:
    return plan.partitions(), plan.transferring(), plan.explain()


def shuffled(mapping: dict, seed: int) -> dict:
    keys = list(mapping)
    random.Random(seed).shuffle(keys)
    return {key: mapping[key] for key in keys}


@every_assignor
@given(topics=topics, group=members, racks=racks)
def test_any_input_gives_a_valid_plan(name, topics, group, racks):
    """A1: every partition that somebody subscribes to has one owner, who subscribes to it; every member is answered."""
    problem = Problem.build(group, topics, replica_racks=racks)
    plan = ASSIGNORS[name].assign(problem)
    wanted = {
        TopicPartition(t, p) for t, n in topics.items() for p in range(n) if any(t in i.topics for i in group.values())
    }
    handed = plan.partitions()
    assert set(handed) == set(group)
    given_out = [tp for partitions in handed.values() for tp in partitions] + list(plan.transferring())
    assert sorted(given_out) == sorted(wanted)
    assert all(tp.topic in group[m].topics for m, partitions in handed.items() for tp in partitions)
    assert all(tp.topic in group[m].topics for tp, m in plan.transferring().items())
    assert len(plan.explain()) == int(((plan.owner != plan.owner_before) & (plan.owner != NO_OWNER)).sum())


@every_assignor
@given(topics=topics, group=members, racks=racks, seed=st.integers(0, 999))
def test_the_order_in_which_members_and_topics_are_listed_decides_nothing(name, topics, group, racks, seed):
    """A4; Kafka's own sticky assignors violate it (ST-7)."""
    plan = ASSIGNORS[name].assign(Problem.build(group, topics, replica_racks=racks))
    again = {
        m: MemberInfo(i.topics[::-1], shuffled(i.owned, seed), i.generation, i.instance, i.rack)
        for m, i in shuffled(group, seed).items()
    }
    other = ASSIGNORS[name].assign(Problem.build(again, shuffled(topics, seed), replica_racks=racks))
    assert by_name(plan) == by_name(other)


@pytest.mark.process
@pytest.mark.gate
def test_the_hash_seed_decides_nothing():
    code = """
from roster.assignors import ASSIGNORS
from roster.model import MemberInfo, Problem
topics = {f"t{i}": 1 + i % 4 for i in range(9)}
names = sorted({f"t{i}" for i in range(9)})
group = {m: MemberInfo(set(names[i % 3 :: 1 + i % 2]), {"t1": {0}}, i % 2, rack="ab"[i % 2])
         for i, m in enumerate({"m1", "m2", "m3", "m4", "m5"}, 1) for i in [int(m[1])]}
racks = {t: [{"a"}, {"b"}] * 2 for t in topics}
for r in (None, racks):
    for name in sorted(ASSIGNORS):
        plan = ASSIGNORS[name].assign(Problem.build(group, topics, replica_racks=r))
        print(sorted((m, p) for m, p in plan.partitions().items()), sorted(plan.transferring().items()))
"""
    runs = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(runs) == 1
    assert runs.pop()


@given(topics=topics, group=members, racks=racks)
def test_a_plan_that_is_carried_out_is_planned_again(topics, group, racks):
    """A5: f(f(x)) = f(x), and nothing moves."""
    plan = STICKY.assign(Problem.build(group, topics, replica_racks=racks))
    owned = plan.assignment()
    after = {m: MemberInfo(i.topics, owned[m], 5, i.instance, i.rack) for m, i in group.items()}
    again = STICKY.assign(Problem.build(after, topics, replica_racks=racks))
    assert again.partitions() == plan.partitions()
    assert again.explain() == []


@given(topics=topics, group=members, racks=racks)
def test_a_cooperative_group_is_safe_in_every_round_and_rests_after_two(topics, group, racks):
    """S3: a partition that somebody still claims goes to nobody else; L4: at most two rounds to the fixed point."""
    before: dict[str, set[TopicPartition]] = {m: set() for m in group}
    for round_number in range(3):
        plan = COOPERATIVE_STICKY.assign(Problem.build(group, topics, replica_racks=racks))
        handed = {m: set(partitions) for m, partitions in plan.partitions().items()}
        for m, partitions in handed.items():
            for tp in partitions:
                claims = {o: i.generation for o, i in group.items() if tp.partition in i.owned.get(tp.topic, ())}
                others = [generation for other, generation in claims.items() if other != m]
                assert not others or claims.get(m, -2) > max(others)
        if round_number >= 1:
            assert plan.transferring() == {}
            assert all(before[m] <= handed[m] for m in group)
        if round_number == 2:
            assert before == handed
        before = handed
        owned, newest = plan.assignment(), max(info.generation for info in group.values())
        group = {m: MemberInfo(i.topics, owned[m], newest + 1, i.instance, i.rack) for m, i in group.items()}


def test_a_doubly_claimed_partition_waits_until_both_have_let_go():
    """KIP-341: belongs to nobody; in cooperative mode nobody, not even one of the two, gets it in the same round."""
    group = {m: MemberInfo(["t"], {"t": [0]}, 4) for m in ("a", "b")} | {"c": MemberInfo(["t"])}
    plan = COOPERATIVE_STICKY.assign(Problem.build(group, {"t": 3}))
    assert TopicPartition("t", 0) in plan.transferring()
    assert all(TopicPartition("t", 0) not in partitions for partitions in plan.partitions().values())
    assert [m.why for m in plan.explain() if m.partition == 0] == ["claimed by several members in one generation"]


def test_co_4_a_rack_match_comes_before_staying():
    group = {
        "c0": MemberInfo(["t1"], {"t1": [0, 1]}, 1, rack="a"),
        "c1": MemberInfo(["t1"], {"t1": [2, 3]}, 1, rack="b"),
    }
    racks = {"t1": [{"a"}, {"b"}, {"a"}, {"b"}]}
    plan = COOPERATIVE_STICKY.assign(Problem.build(group, {"t1": 4}, replica_racks=racks))
    assert plan.assignment() == {"c0": {"t1": [0]}, "c1": {"t1": [3]}}
    assert plan.transferring() == {TopicPartition("t1", 2): "c0", TopicPartition("t1", 1): "c1"}
    assert {m.why for m in plan.explain()} == {
        "c1 is in a rack with a replica, c0 is not",
        "c0 is in a rack with a replica, c1 is not",
    }


def test_sg_1_what_one_member_alone_may_have_it_gets():
    group = {"c1": MemberInfo(["t1"]), "c2": MemberInfo(["t1", "t2"]), "c3": MemberInfo(["t1"])}
    plan = STICKY.assign(Problem.build(group, {"t1": 3, "t2": 2}))
    assert plan.assignment() == {"c1": {"t1": [0, 2]}, "c2": {"t2": [0, 1]}, "c3": {"t1": [1]}}


def test_sg_4_a_topic_no_longer_subscribed_is_given_up():
    group = {
        "a": MemberInfo(["t1"], {"t1": [0], "t2": [0]}, 1),
        "b": MemberInfo(["t1", "t2"], {"t1": [1], "t2": [1]}, 1),
    }
    plan = STICKY.assign(Problem.build(group, {"t1": 2, "t2": 2}))
    assert plan.assignment() == {"a": {"t1": [0, 1]}, "b": {"t2": [0, 1]}}
    why = {(m.topic, m.partition): m.why for m in plan.explain()}
    assert why["t2", 0] == "a no longer subscribes to t2"
    assert why["t1", 1].startswith("balance: b makes room")


def test_st_3_the_survivors_keep_what_they_have():
    topics = {"t0": 1, "t1": 2, "t2": 3}
    group = {"C0": MemberInfo(["t0"]), "C1": MemberInfo(["t0", "t1"]), "C2": MemberInfo(["t0", "t1", "t2"])}
    plan = STICKY.assign(Problem.build(group, topics))
    assert plan.assignment() == {"C0": {"t0": [0]}, "C1": {"t1": [0, 1]}, "C2": {"t2": [0, 1, 2]}}
    left = {m: MemberInfo(group[m].topics, plan.assignment()[m], 1) for m in ("C1", "C2")}
    again = STICKY.assign(Problem.build(left, topics))
    assert again.assignment() == {"C1": {"t0": [0], "t1": [0, 1]}, "C2": {"t2": [0, 1, 2]}}


def test_sg_5_fifty_of_two_hundred_leave():
    chance = random.Random(5)
    topics = {f"t{i:02}": chance.randint(1, 10) for i in range(40)}
    group = {f"m{i:03}": MemberInfo(chance.sample(sorted(topics), chance.randint(1, 20))) for i in range(200)}
    owned = STICKY.assign(Problem.build(group, topics)).assignment()
    stay = chance.sample(sorted(group), 150)
    plan = STICKY.assign(Problem.build({m: MemberInfo(group[m].topics, owned[m], 1) for m in stay}, topics))
    assert verify(plan.problem, plan).ok


def test_sg_6_hundred_rounds_of_changing_subscriptions():
    chance = random.Random(6)
    topics = {f"t{i:02}": chance.randint(1, 10) for i in range(chance.randint(10, 20))}
    names = [f"m{i:02}" for i in range(chance.randint(20, 40))]
    owned = {m: {} for m in names}
    for generation in range(examples(100, quick=20)):
        group = {
            m: MemberInfo(chance.sample(sorted(topics), chance.randint(1, 8)), owned[m], generation) for m in names
        }
        plan = STICKY.assign(Problem.build(group, topics))
        assert verify(plan.problem, plan).ok
        owned = plan.assignment()


@given(topics=topics, group=members, racks=racks, data=st.data())
@settings(max_examples=examples(300))
def test_the_proof_holds_for_the_plan_and_fails_for_a_worse_one(topics, group, racks, data):
    """A certificate that accepts anything proves nothing: swap two owners and it must agree with the plain figures."""
    problem = Problem.build(group, topics, replica_racks=racks)
    plan = STICKY.assign(problem)
    assert verify(problem, plan).ok, verify(problem, plan)
    if not problem.partition_count:
        return
    owner = plan.owner.copy()
    for _ in range(data.draw(st.integers(1, 3))):
        owner[data.draw(st.integers(0, len(owner) - 1))] = data.draw(st.integers(0, len(group) - 1))
    other = Plan.of(problem, owner, owner_before=plan.owner_before, contested=plan.contested)
    proof = verify(problem, other)
    if proof.valid:
        assert proof.balanced == (sorted(other.loads().tolist()) == sorted(plan.loads().tolist()))
        assert proof.ok == (proof.balanced and figures(other) == figures(plan))


def figures(plan: Plan) -> tuple[int, int]:
    """(partitions outside their owner's rack, if racks matter; partitions moved)."""
    racks, busy = plan.problem.racks, [len(plan.problem.subscriptions[s]) > 0 for s in plan.problem.subscription_of]
    off = 0
    if racks is not None and racks.tells_apart([m for m, b in enumerate(busy) if b]):
        off = sum(not racks.suits()[m, s] for m, s in zip(plan.owner, racks.set_of, strict=True))
    return off, int(((plan.owner == plan.owner_before) & (plan.owner_before != NO_OWNER)).sum())
