"""A leader whose assignor looks at lag: offsets first, bytes to bytes, and what its members tell it."""

import re
from dataclasses import replace

import pytest

import roster
from roster.assignors import (
    LAG_STICKY,
    CooperativeStickyAssignor,
    LagOptions,
    RebalanceProtocol,
    lag_cooperative_sticky,
    lag_sticky,
)
from roster.member.assign_group import plan_group
from roster.member.config import ConfigError, MemberConfig
from roster.member.events import FetchOffsets, OffsetsFetched, Started
from roster.member.group_snapshot import GroupSnapshot
from roster.wire import ErrorCode
from roster.wire.consumer.user_data import (
    encode_cooperative_user_data,
    encode_lag_user_data,
    encode_sticky_user_data,
    split_lag_user_data,
)
from roster.wire.messages import SyncGroupRequest
from tests.member.stage import Stage, group_of
from tests.member.test_leader import received, sent, sets

LA_1 = {"t": {0: (0, 100_000, 0), 1: (0, 60_000, 0), 2: (0, 50_000, 0)}}
COOPERATIVE = "lag-cooperative-sticky"


class LagStage(Stage):
    """A stage on which offsets are looked up."""

    def __init__(self, assignor=COOPERATIVE, **options):
        self.lookups = []
        super().__init__(assignors=(assignor,), **options)
        step = self.member.step

        def watched(event, now):
            effects = step(event, now)
            self.lookups += [effect for effect in effects if isinstance(effect, FetchOffsets)]
            return effects

        self.member.step = watched

    def leading(self):
        self.start()
        self.joined(leader="m", members=group_of(m="t", other="t"))
        self.know({"t": 3})
        return self

    def rejoining(self):
        """The coordinator tells of a rebalance."""
        self.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)


def test_offsets_are_asked_for_once_before_the_assignment_that_wants_them():
    stage = LagStage(auto_offset_reset="earliest").leading()
    assert stage.work == []
    (lookup,) = stage.lookups
    assert (lookup.group, lookup.partitions, lookup.timeout_ms) == ("g", {"t": 3}, 10_000)
    stage.step(OffsetsFetched(lookup.id, LA_1))
    (work,) = stage.work
    assert (work.group.offsets, work.group.auto_offset_reset, work.group.partitions) == (LA_1, "earliest", {"t": 3})
    stage.assigned(m="t-0", other="t-1 t-2")
    assert stage.has(SyncGroupRequest)


def test_without_offsets_the_assignment_is_made_all_the_same_and_people_are_told():
    stage = LagStage().leading()
    stage.step(OffsetsFetched(stage.lookups[0].id, None, "no broker answered"))
    assert stage.work[0].group.offsets is None
    assert any("does without lags: no broker answered" in report.text for report in stage.reports)


def test_the_leader_assigns_with_the_options_it_was_given():
    mine = lag_cooperative_sticky(LagOptions(max_skew=0.5))
    stage = LagStage(mine).leading()
    (lookup,) = stage.lookups
    stage.step(OffsetsFetched(lookup.id, LA_1))
    assert stage.work[0].assignor is mine
    assert stage.member.protocol_name == COOPERATIVE


def test_an_assignor_of_ones_own_is_joined_with_like_those_that_read_the_same_claims():
    class Mine(type(LAG_STICKY)):
        name = "mine"

    stage = LagStage(Mine(), capacity=3)
    stage.stable("t-0 t-1", generation=4)
    stage.rejoining()
    stage.release("t-0 t-1")
    (rest,), capacity, _ = split_lag_user_data([stage.claims().user_data])
    assert rest == encode_sticky_user_data({"t": [0, 1]}, 4)
    assert capacity.tolist() == [3]


class OnlyCooperative(CooperativeStickyAssignor):
    name = "new"
    supported_protocols = (RebalanceProtocol.COOPERATIVE,)


@pytest.mark.parametrize("assignor", ["lag", "range"])
def test_assignors_that_ask_nobody_what_they_own_are_told_nothing(assignor):
    stage = LagStage(assignor, capacity=3)
    stage.stable("t-0 t-1", generation=4)
    stage.rejoining()
    stage.release("t-0 t-1")
    assert stage.claims().user_data is None


@pytest.mark.parametrize(
    ("assignors", "complaint"),
    [
        ((), "must name at least one of cooperative-sticky, lag, "),
        (("fair",), "there is no assignor 'fair'; known are cooperative-sticky, lag, "),
        ((None,), "there is no assignor None; known are"),
        (("lag-sticky", lag_sticky(LagOptions(max_skew=1))), "names lag-sticky twice; leave one out"),
        ((LagOptions(),), "write lag_cooperative_sticky(LagOptions(max_skew=0.1, "),
        (
            (
                "lag-sticky",
                OnlyCooperative(),
            ),
            "lag-sticky, new share no rebalance mode; use them in separate groups",
        ),
    ],
)
def test_assignors_that_cannot_be_are_named(assignors, complaint):
    with pytest.raises(ConfigError, match=re.escape(complaint)) as refused:
        MemberConfig(group="g", selection=frozenset({"t"}), assignors=assignors)
    assert refused.value.option == "assignors"


def test_other_assignors_and_followers_ask_for_nothing():
    assert LagStage("cooperative-sticky").leading().lookups == []
    follower = LagStage()
    follower.start()
    follower.joined()
    assert follower.lookups == []


def test_an_answer_that_comes_late_or_twice_does_no_harm():
    stage = LagStage().leading()
    number = stage.lookups[0].id
    stage.step(OffsetsFetched(number - 1, LA_1))
    assert stage.work == []
    stage.step(OffsetsFetched(number, LA_1))
    stage.step(OffsetsFetched(number, None))
    assert len(stage.work) == 1
    stage.assigned(m="t-0")
    stage.synced("t-0")
    stage.step(OffsetsFetched(number, LA_1))
    assert stage.work == []


def test_news_of_topics_while_offsets_are_fetched_is_in_the_assignment():
    stage = LagStage(selection=re.compile("t"), metadata_max_age_ms=1_000)
    stage.step(Started())
    stage.know({"t": 3})
    stage.find_coordinator()
    stage.joined(leader="m", members=group_of(m="t", other="t"))
    stage.know({"t": 3})
    stage.wait(1_000)
    stage.know({"t": 5})
    assert len(stage.lookups) == 1
    stage.step(OffsetsFetched(stage.lookups[0].id, LA_1))
    assert stage.work[0].group.partitions == {"t": 5}


def test_a_member_tells_its_capacity_and_that_it_gave_something_up():
    stage = LagStage(capacity=40)
    stage.start()
    assert split_lag_user_data([stage.claims().user_data])[1:] == ([40], False)
    stage.joined()
    stage.synced("t-0 t-1")
    stage.rejoining()
    assert split_lag_user_data([stage.claims().user_data])[2] is False
    stage.joined(2)
    stage.synced("t-0")
    stage.release("t-1")
    (rest,), _, settling = split_lag_user_data([stage.claims().user_data])
    assert settling
    assert rest == encode_cooperative_user_data(2)
    stage.joined(3)
    stage.synced("t-0")
    stage.rejoining()
    assert split_lag_user_data([stage.claims().user_data])[2] is False


def test_an_eager_member_sends_what_it_owned_behind_the_header():
    stage = LagStage("lag-sticky")
    stage.stable("t-0 t-1", generation=4)
    stage.rejoining()
    stage.release("t-0 t-1")
    (rest,), capacity, _ = split_lag_user_data([stage.claims().user_data])
    assert rest == encode_sticky_user_data({"t": [0, 1]}, 4)
    assert capacity.tolist() == [1]


def test_la_1_bytes_to_bytes():
    group = {"C0": sent("t"), "C1": sent("t")}
    for assignor in ("lag", "lag-sticky", COOPERATIVE):
        got = received(roster.lead(assignor, group, {"t": 3}, offsets=LA_1))
        assert got == sets(C0="t-0", C1="t-1 t-2")


def test_la_4_the_reset_policy_decides_about_partitions_without_a_commit():
    offsets = {"t": {0: (0, 900, None), 1: (0, 50, 0), 2: (0, 40, 0), 3: (0, 10, 0)}}
    group = {"a": sent("t"), "b": sent("t")}
    known = GroupSnapshot(subscriptions=group, partitions={"t": 4}, offsets=offsets)
    earliest = plan_group("lag", replace(known, auto_offset_reset="earliest"))
    latest = plan_group("lag", known)
    assert earliest.lag.of_member.tolist() == [910, 90]
    assert sorted(latest.lag.of_member.tolist()) == [50, 50]
    with pytest.raises(ValueError, match="auto_offset_reset"):
        replace(known, auto_offset_reset="newest")


@pytest.mark.parametrize(
    "value", ["by_duration:PT1H", "by_duration:P2DT3H4M5.5S", "by_duration:p1d", "none", "earliest"]
)
def test_any_other_reset_policy_of_kafka_counts_the_whole_log(value):
    """KIP-169: earliest (or any other value)."""
    config = MemberConfig(group="g", selection=frozenset({"t"}), auto_offset_reset=value)
    offsets = {"t": {0: (10, 100, None)}}
    plan = plan_group(
        "lag",
        GroupSnapshot(subscriptions={"a": sent("t")}, partitions={"t": 1}, offsets=offsets, auto_offset_reset=value),
    )
    assert (config.auto_offset_reset, plan.lag.of_member.tolist()) == (value, [90])


@pytest.mark.parametrize(
    "value", ["newest", "by_duration", "by_duration:", "by_duration:P", "by_duration:1h", "EARLIEST", None, 7]
)
def test_what_is_no_value_of_kafkas_property_is_refused(value):
    with pytest.raises(ConfigError, match="must be earliest, latest, none or by_duration: and an ISO") as failed:
        MemberConfig(group="g", selection=frozenset({"t"}), auto_offset_reset=value)
    assert failed.value.option == "auto_offset_reset"


def test_assignors_that_do_not_look_at_lag_do_not_mind_offsets():
    group = {"a": sent("t"), "b": sent("t")}
    assert roster.lead("range", group, {"t": 3}, offsets=LA_1) == roster.lead("range", group, {"t": 3})


def test_capacity_and_claims_are_read_from_the_user_data():
    big = encode_lag_user_data(encode_sticky_user_data({"t": [7]}, 3), capacity=3, settling=False)
    group = {"a": sent("t", user_data=big), "b": sent("t", user_data=b"what is this")}
    got = received(roster.lead("lag-sticky", group, {"t": 8}, offsets={}))
    assert (len(got["a"]), len(got["b"])) == (6, 2)
    assert "t-7" in got["a"]


def test_cooperative_members_are_given_nothing_that_another_still_has():
    data = encode_lag_user_data(encode_cooperative_user_data(5), capacity=1, settling=False)
    group = {"a": sent("t", {"t": [0, 1, 2]}, 5, data), "b": sent("t", None, 5, data)}
    plan = plan_group(COOPERATIVE, GroupSnapshot(subscriptions=group, partitions={"t": 3}, generation=6, offsets=LA_1))
    assert received(roster.lead(COOPERATIVE, group, {"t": 3}, generation=6, offsets=LA_1)) == sets(a="t-1 t-2", b="")
    assert {(p.partition, m) for p, m in plan.transferring().items()} == {(0, "b")}


@pytest.mark.parametrize(
    ("option", "value"), [("capacity", 0), ("capacity", True), ("capacity", 1.5), ("auto_offset_reset", "newest")]
)
def test_options_that_cannot_work_are_named(option, value):
    with pytest.raises(ConfigError, match=r"must be|is not a whole number from 1 to") as refused:
        MemberConfig(group="g", selection=frozenset({"t"}), **{option: value})
    assert refused.value.option == option
