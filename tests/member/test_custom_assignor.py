"""An application's own assignor: user data both ways, the hook, and one clear error for each of its mistakes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import roster
from roster.assignors import (
    COOPERATIVE_STICKY,
    Assignor,
    ClaimSource,
    JoinContext,
    RebalanceProtocol,
    make_plan,
    resolve_assignors,
)
from roster.member.config import ConfigError, MemberConfig
from roster.member.subscription import subscription_bytes
from roster.member.types import FailureKind
from roster.model import MemberInfo, Plan, Problem
from roster.wire.consumer.messages import (
    FAILURE_MAGIC,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_subscription,
)
from roster.wire.messages import JoinGroupRequest, SyncGroupRequest, SyncGroupResponse
from tests.member.stage import Stage, assignment, group_of, parts


class Echo(Assignor):
    """Deals partitions in turn; sends `data`, and answers each member with its own data and the generation."""

    name = "echo"

    def __init__(self, data=b"", protocols=(RebalanceProtocol.EAGER,)):
        self.data, self.supported_protocols = data, protocols
        self.joins, self.seen, self.received = [], [], []

    def subscription_user_data(self, join):
        self.joins.append(join)
        return self.data

    def assign(self, problem):
        self.seen.append(problem)
        given: dict[str, dict[str, list[int]]] = {}
        for topic, count in zip(problem.topics, problem.counts.tolist(), strict=True):
            able = [member for member in problem.members if topic in problem.topics_of(member)]
            for number in range(count):
                given.setdefault(able[number % len(able)], {}).setdefault(topic, []).append(number)
        told = zip(problem.members, problem.user_data, strict=True)
        return Plan.from_assignment(
            problem, given, user_data={m: b"%d:" % problem.group_generation + d for m, d in told if d is not None}
        )

    def on_assignment(self, partitions, user_data, generation):
        self.received.append((partitions, user_data, generation))


class Fixed(Echo):
    """Answers what the test gives it."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def assign(self, problem):
        return self.answer(problem)


def test_a_join_sees_the_last_assignment_and_its_generation_and_the_hook_its_user_data():
    mine = Echo(b"me")
    stage = Stage(assignors=(mine, "range"), rack_id="r1", capacity=2)
    stage.start()
    assert stage.claims().user_data == b"me"
    assert mine.joins == [JoinContext(topics=frozenset({"t"}), rack="r1", capacity=2)]
    stage.joined(generation=4)
    stage.answer(SyncGroupRequest, SyncGroupResponse(assignment=assignment("t-0 t-1", user_data=b"\x00hi")))
    assert mine.received == [(parts("t-0 t-1"), b"\x00hi", 4)]
    stage.heartbeat(roster_error())
    stage.release("t-0 t-1")
    assert mine.joins[-1].last_assignment == parts("t-0 t-1")
    assert mine.joins[-1].last_generation == mine.joins[-1].generation == 4
    assert mine.joins[-1].owned == frozenset()


def roster_error():
    from roster.wire import ErrorCode

    return ErrorCode.REBALANCE_IN_PROGRESS


@given(st.dictionaries(st.text("abcdef", min_size=1), st.none() | st.binary(max_size=40), min_size=1, max_size=5))
def test_any_user_data_comes_to_assign_and_goes_back_as_any_client_reads_it(data):
    mine = Echo()
    subscriptions = {m: subscription_bytes(Echo(d), JoinContext(topics=frozenset({"t"}))) for m, d in data.items()}
    assert {m: decode_subscription(s).user_data for m, s in subscriptions.items()} == data
    sent = roster.lead(mine, subscriptions, {"t": 7}, generation=9)
    assert dict(zip(mine.seen[0].members, mine.seen[0].user_data, strict=True)) == data
    assert {m: decode_assignment(a).user_data for m, a in sent.items()} == {
        m: None if d is None else b"9:" + d for m, d in data.items()
    }
    numbers = [n for a in sent.values() for entry in decode_assignment(a).assigned_partitions for n in entry.partitions]
    assert sorted(numbers) == list(range(7))


@given(st.binary(max_size=24))
def test_user_data_of_ones_own_is_never_taken_for_claims_or_capacities(data):
    mine = Echo()
    raw = encode_subscription(Subscription(topics=["t"], user_data=data), version=1)
    roster.lead(mine, {"a": raw}, {"t": 2})
    (problem,) = mine.seen
    assert (problem.capacity, problem.settling, len(problem.claims.member)) == (None, False, 0)
    assert problem.generation.tolist() == [-1]


def owners(*values):
    return lambda problem: Plan.of(problem, np.array(values, dtype=np.int32))


OTHER_PROBLEM = Problem.build({"a": MemberInfo(["t"])}, {"t": 2})


def mapping(assignment, **user_data):
    return lambda problem: Plan.from_assignment(problem, assignment, user_data=user_data)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (mapping({"x": {"t": [0]}}), r"assignment\['x'\]: no such member"),
        (mapping({"a": {"x": [0]}}), r"assignment\['a'\]\['x'\]: no member subscribes"),
        (mapping({"b": {"t": [0]}}), r"assignment\['b'\]\['t'\]: the member does not subscribe"),
        (mapping({"a": {"t": [0, 0]}}), r"assignment\['a'\]\['t'\]: partition 0 is given twice, to 'a' too"),
        (mapping({"a": {"u": [1]}, "b": {"u": [1]}}), r"assignment\['b'\]\['u'\]: partition 1 is given twice, to 'a'"),
        (mapping({"a": {"t": [2]}}), r"assignment\['a'\]\['t'\]: 2 is not a partition; there are 0 to 1"),
        (mapping({"a": {"t": [True]}}), r"True is not a partition"),
        (mapping({}, x=b""), r"user_data\['x'\]: no such member"),
        (mapping({}, a="text"), r"user_data\['a'\] must be bytes, not str"),
        (mapping({}, a=FAILURE_MAGIC + b"!"), r"user_data\['a'\] starts with the bytes .* which mark a failure"),
        (owners(0, 0, 0), r"owner: has 3 entries for 4 partitions"),
        (owners(0, 0, 0, 2), r"owner\[3\] \(u-1\): 2 is not a member's index; there are 2"),
        (owners(0, 1, 0, 0), r"owner\[1\] \(t-1\): b does not subscribe to t"),
        (lambda problem: {"a": []}, r"assign\(\) must return a Plan, not dict"),
        (lambda _: Plan.from_assignment(OTHER_PROBLEM, {}), r"problem: the plan is for other members or topics"),
    ],
)
def test_a_plan_that_is_not_valid_is_refused_by_its_field(answer, complaint):
    subscriptions = {
        member: encode_subscription(Subscription(topics=topics))
        for member, topics in {"a": ["t", "u"], "b": ["u"]}.items()
    }
    with pytest.raises(ValueError, match=complaint):
        roster.lead(Fixed(answer), subscriptions, {"t": 2, "u": 2})


def test_what_another_member_claims_waits_a_round_under_a_cooperative_assignor_of_ones_own():
    members = {
        "a": MemberInfo(["t"], owned={"t": [0, 1]}, generation=5),
        "b": MemberInfo(["t"], owned={"t": [0]}, generation=3),
    }
    problem = Problem.build(members, {"t": 3})
    both = (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)
    plan = make_plan(Echo(protocols=both), problem)  # t-0 and t-2 to a, t-1 to b
    assert plan.assignment() == {"a": {"t": [0, 2]}, "b": {}}, "an outdated claim does not hold t-0 back"
    assert plan.transferring() == {next(iter(parts("t-1"))): "b"}
    assert make_plan(Echo(), problem).transferring() == {}


def test_user_data_survives_the_change_of_a_group_to_an_eager_assignor():
    mine = Echo(b"x")
    stage = Stage(assignors=("cooperative-sticky", mine))
    stage.start()
    join = JoinContext(topics=frozenset({"t"}), owned=parts("t-0"), generation=1)
    from roster.wire.messages import JoinGroupResponse

    members = [
        JoinGroupResponse.Member(member_id=m, metadata=subscription_bytes(Echo(b"y"), j))
        for m, j in (("m", JoinContext(topics=frozenset({"t"}))), ("n", join))
    ]
    stage.joined(protocol="echo", leader="m", members=members)
    stage.know({"t": 2})
    from roster.member.assign_group import assign_group
    from roster.member.events import Assigned

    task = stage.work.pop()
    stage.step(Assigned(task.id, *assign_group(task.assignor, task.group)))
    sent = {row.member_id: decode_assignment(row.assignment) for row in stage.request(SyncGroupRequest).assignments}
    assert {member: each.user_data for member, each in sent.items()} == {"m": b"1:y", "n": b"1:y"}
    assert sent["m"].assigned_partitions == [], "n still claims t-0"


class Broken(Echo):
    def __init__(self, method):
        super().__init__()
        setattr(self, method, self.fail)

    def fail(self, *_):
        raise RuntimeError("no")


def test_an_error_in_the_user_data_fails_the_member_and_names_the_assignor():
    stage = Stage(assignors=(Broken("subscription_user_data"),))
    stage.start()
    assert stage.owns.failure.kind is FailureKind.ASSIGNMENT
    assert stage.owns.failure.message == "assignor echo: subscription_user_data: RuntimeError: no"
    assert not stage.has(JoinGroupRequest)


def test_user_data_that_is_not_bytes_fails_the_member():
    stage = Stage(assignors=(Echo("text"),))
    stage.start()
    assert "TypeError: must return bytes or None, not str" in stage.owns.failure.message


def test_an_error_in_the_hook_fails_the_member_before_it_owns_anything():
    stage = Stage(assignors=(Broken("on_assignment"),))
    stage.stable("t-0")
    assert stage.owns.failure.message == "assignor echo: on_assignment: RuntimeError: no"
    assert stage.owns.partitions == frozenset()


class Nameless(Echo):
    name = ""


class Unsourced(Echo):
    claim_source = "fields"


@pytest.mark.parametrize(
    ("assignor", "complaint"),
    [
        (Echo, r"Echo is a class; give an instance: Echo\(\)"),
        (Nameless(), "Nameless.name must be the protocol name"),
        (Echo(protocols=()), "Echo.supported_protocols must list"),
        (Unsourced(), "Unsourced.claim_source must be a ClaimSource"),
    ],
)
def test_an_assignor_that_is_none_is_named_as_an_option(assignor, complaint):
    with pytest.raises(ConfigError, match=complaint):
        MemberConfig(group="g", selection=frozenset({"t"}), assignors=(assignor,))


def test_an_assignor_may_decide_by_one_of_rosters_on_a_changed_problem():
    class Blind(Echo):
        claim_source = ClaimSource.FIELDS

        def assign(self, problem):
            from dataclasses import replace

            return COOPERATIVE_STICKY.assign(replace(problem, racks=None))

    assert resolve_assignors([Blind()])
    stage_group = {m.member_id: m.metadata for m in group_of(a="t", b="t")}
    sent = roster.lead(Blind(), stage_group, {"t": 2})
    assert all(decode_assignment(data).assigned_partitions for data in sent.values())
