"""Kafka's worked cases, each by its id, and the cases where Roster is deliberately better than Kafka."""

import itertools
from collections import Counter

import pytest

from roster.assignors import ASSIGNORS
from roster.model import MemberInfo, Plan, Problem


def plan(name, partitions, members, racks=None) -> Plan:
    return ASSIGNORS[name].assign(Problem.build(members, partitions, replica_racks=racks))


def members(**topics) -> dict[str, MemberInfo]:
    return {name: MemberInfo(subscribed.split()) for name, subscribed in topics.items()}


def owning(topics, generation=1, rack=None, **owned) -> MemberInfo:
    return MemberInfo(topics.split(), owned, generation, rack=rack)


def shown(plan: Plan) -> dict[str, set[str]]:
    return {member: {str(tp) for tp in partitions} for member, partitions in plan.partitions().items()}


def sets(**partitions) -> dict[str, set[str]]:
    return {member: set(listed.split()) for member, listed in partitions.items()}


STICKY = ["sticky", "cooperative-sticky"]


class TestRange:
    def test_rg_2_each_topic_is_cut_among_its_own_subscribers(self):
        got = plan("range", {"t1": 3, "t2": 2}, members(c1="t1", c2="t1 t2", c3="t1"))
        assert shown(got) == sets(c1="t1-0", c2="t1-1 t2-0 t2-1", c3="t1-2")

    def test_rg_3_more_members_than_partitions(self):
        assert shown(plan("range", {"t": 1}, members(c1="t", c2="t"))) == sets(c1="t-0", c2="")

    def test_rg_3_a_topic_missing_from_metadata_leaves_every_member_present_and_empty(self):
        assert shown(plan("range", {}, members(c1="t", c2="t"))) == sets(c1="", c2="")

    def test_rg_3_no_topics_subscribed(self):
        assert shown(plan("range", {"t": 1}, members(c=""))) == sets(c="")

    @pytest.mark.parametrize("ids", list(itertools.permutations(["x", "y", "z"])))
    def test_rg_5_static_members_keep_their_share_whatever_their_member_ids(self, ids):
        group = {m: MemberInfo(["t1", "t2"], instance=i) for m, i in zip(ids, ["i1", "i2", "i3"], strict=True)}
        got = shown(plan("range", {"t1": 5, "t2": 5}, group))
        assert [got[m] for m in ids] == list(
            sets(a="t1-0 t1-1 t2-0 t2-1", b="t1-2 t1-3 t2-2 t2-3", c="t1-4 t2-4").values()
        )

    @pytest.mark.parametrize("dynamic", ["c4", "c5", "a"])
    def test_rg_5_dynamic_members_come_after_static_ones(self, dynamic):
        group = {f"m{i}": MemberInfo(["t1", "t2"], instance=f"i{i}") for i in (3, 1, 2)}
        got = shown(plan("range", {"t1": 5, "t2": 4}, {dynamic: MemberInfo(["t1", "t2"]), **group}))
        assert got == sets(m1="t1-0 t1-1 t2-0", m2="t1-2 t2-1", m3="t1-3 t2-2") | {dynamic: {"t1-4", "t2-3"}}

    def test_rg_8_co_partitioned_topics_follow_racks_together(self):
        group = {
            "c0": MemberInfo(["t1", "t2"], rack="a"),
            "c1": MemberInfo(["t1", "t2"], rack="b"),
            "c2": MemberInfo(["t3", "t4"], rack="b"),
            "c3": MemberInfo(["t3", "t4"], rack="a"),
        }
        partitions = {"t1": 6, "t2": 6, "t3": 2, "t4": 2}
        one = {t: [{"ab"[p % 2]} for p in range(n)] for t, n in partitions.items()}
        assert shown(plan("range", partitions, group, one)) == sets(
            c0="t1-0 t1-2 t1-4 t2-0 t2-2 t2-4", c1="t1-1 t1-3 t1-5 t2-1 t2-3 t2-5", c2="t3-1 t4-1", c3="t3-0 t4-0"
        )
        both = {t: [{"a", "b"}] * n for t, n in partitions.items()}
        assert shown(plan("range", partitions, group, both)) == shown(plan("range", partitions, group))

    def test_with_racks_each_member_has_a_fair_share_of_each_topic(self):
        group = {f"c{number}": MemberInfo(["t"], rack="ab"[number % 2]) for number in range(3)}
        for count in range(3, 9):
            made = plan("range", {"t": count}, group, {"t": [{"ab"[number % 2]} for number in range(count)]})
            shares = sorted(map(len, made.partitions().values()))
            assert shares == sorted(count // 3 + (number < count % 3) for number in range(3))

    def test_racks_that_are_the_same_for_all_partitions_change_nothing(self):
        group = {"c0": MemberInfo(["t1", "t2"], rack="b"), "c1": MemberInfo(["t1", "t2"], rack="a")}
        racks = {"t1": [{"a"}], "t2": [{"a"}]}
        assert shown(plan("range", {"t1": 1, "t2": 1}, group, racks)) == sets(c0="t1-0 t2-0", c1="")


class TestRoundRobin:
    def test_rr_3_static_members_first(self):
        group = {f"c{i}": MemberInfo(["t1", "t2"], instance=f"i{i}") for i in (1, 2, 3)}
        got = plan("roundrobin", {"t1": 3, "t2": 3}, {"c4": MemberInfo(["t1", "t2"]), **group})
        assert shown(got) == sets(c1="t1-0 t2-1", c2="t1-1 t2-2", c3="t1-2", c4="t2-0")

    RR_4 = {"1": 2, "2": 1, "3": 2, "4": 1, "5": 2}, members(m1="1 2 3 4 5", m2="1 3 5", m3="1 3 5", m4="1 2 3 4 5")

    def test_rr_4_members_that_do_not_subscribe_are_skipped(self):
        assert shown(plan("roundrobin", *self.RR_4)) == sets(m1="1-0 3-0 5-0", m2="1-1 3-1 5-1", m3="", m4="2-0 4-0")

    def test_members_take_turns_and_who_does_not_subscribe_to_a_topic_is_passed_over(self):
        for topics in itertools.product(("a", "b", "a b"), repeat=3):
            for counts in itertools.product(range(4), repeat=2):
                partitions, group = dict(zip("ab", counts, strict=True)), dict(zip("xyz", topics, strict=True))
                expected, turn = {name: set() for name in group}, itertools.cycle(group)
                for topic, count in partitions.items():
                    for number in range(count if any(topic in subscribed for subscribed in topics) else 0):
                        owner = next(name for name in turn if topic in group[name])
                        expected[owner].add(f"{topic}-{number}")
                assert shown(plan("roundrobin", partitions, members(**group))) == expected, (partitions, group)

    @pytest.mark.parametrize("name", STICKY)
    def test_rr_4_sticky_gives_everybody_two_on_the_same_input(self, name):
        assert plan(name, *self.RR_4).loads().tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("name", STICKY)
class TestStickyEqualSubscriptions:
    def test_st_1_a_fresh_group_is_dealt_as_roundrobin_does(self, name):
        group = members(c1="t1 t2", c2="t1 t2")
        assert shown(plan(name, {"t1": 3, "t2": 3}, group)) == shown(plan("roundrobin", {"t1": 3, "t2": 3}, group))

    def test_st_4_the_member_below_its_share_gets_what_nobody_has(self, name):
        group = {"c1": owning("t1 t2", t1=[0], t2=[1]), "c2": owning("t1 t2", t1=[1], t2=[2])}
        got = plan(name, {"t1": 2, "t2": 3}, group)
        assert shown(got) == sets(c1="t1-0 t2-0 t2-1", c2="t1-1 t2-2")
        assert got.transferring() == {}

    def test_st_5_three_members_one_without_anything(self, name):
        group = {"c1": owning("t1 t2", t1=[0]), "c2": owning("t1 t2", t1=[1]), "c3": owning("t1 t2")}
        assert shown(plan(name, {"t1": 2, "t2": 3}, group)) == sets(c1="t1-0 t2-1", c2="t1-1 t2-2", c3="t2-0")

    def test_st_11_old_generations_that_nobody_contests_are_kept(self, name):
        topics = "t t1 t2 t3"
        group = {
            "c1": MemberInfo(topics.split()),
            "c2": owning(topics, 9, t=[0], t1=[0], t2=[0]),
            "c3": owning(topics, 8, t1=[1], t2=[2], t3=[2]),
            "c4": owning(topics, 7, t=[1, 2], t3=[1]),
        }
        assert shown(plan(name, dict.fromkeys(topics.split(), 3), group)) == sets(
            c1="t1-2 t2-1 t3-0", c2="t-0 t1-0 t2-0", c3="t1-1 t2-2 t3-2", c4="t-1 t-2 t3-1"
        )

    def test_st_12_a_returning_member_with_an_old_generation_takes_nothing_from_a_newer_one(self, name):
        partitions = {"t": 6, "t2": 6}
        fresh = plan(name, partitions, members(c1="t t2", c2="t t2", c3="t t2"))
        assert fresh.loads().tolist() == [4, 4, 4]
        had = fresh.assignment()
        two = plan(name, partitions, {c: owning("t t2", 1, **had[c]) for c in ("c1", "c2")})
        assert two.loads().tolist() == [6, 6]
        assert two.moved().sum() == 0
        newer = two.assignment()["c2"]
        back = plan(name, partitions, {"c2": owning("t t2", 2, **newer), "c3": owning("t t2", 1, **had["c3"])})
        assert back.loads().tolist() == [6, 6]
        assert shown(back)["c2"] == shown(two)["c2"]

    def test_st_14_nothing_is_transferring_when_nobody_has_to_give(self, name):
        group = {"c1": owning("t", t=[0, 1]), "c2": owning("t", t=[2]), "c3": owning("t")}
        got = plan(name, {"t": 4}, group)
        assert shown(got) == sets(c1="t-0 t-1", c2="t-2", c3="t-3")
        assert got.transferring() == {}

    def test_st_15_partitions_added(self, name):
        group = {"a": owning("t", t=[0, 1]), "b": owning("t", t=[2, 3])}
        assert shown(plan(name, {"t": 6}, group)) == sets(a="t-0 t-1 t-4", b="t-2 t-3 t-5")

    def test_st_15_dropping_a_vanished_partition_is_not_a_move(self, name):
        got = plan(name, {"t": 3}, {"a": owning("t", t=[0, 1]), "b": owning("t", t=[2, 3])})
        assert shown(got) == sets(a="t-0 t-1", b="t-2")
        assert got.explain() == []

    def test_st_16_a_deleted_topic(self, name):
        got = plan(name, {"t1": 1, "t3": 3}, {"c": owning("t1 t2 t3", t2=[0], t1=[0])})
        assert shown(got) == sets(c="t1-0 t3-0 t3-1 t3-2")
        assert shown(plan(name, {}, {"c": owning("t1", t1=[0])})) == sets(c="")

    def test_st_17_partitions_are_given_up_from_all_topics_evenly(self, name):
        group = {"c1": owning("t1 t2", t1=range(12), t2=range(12)), "c2": MemberInfo(["t1", "t2"])}
        got = plan(name, {"t1": 12, "t2": 12}, group)
        target = {member: Counter() for member in got.problem.members}
        for p, owner in enumerate(got.owner.tolist()):
            target[got.problem.members[owner]][got.problem.topic_partition(p).topic] += 1
        assert target == {"c1": {"t1": 6, "t2": 6}, "c2": {"t1": 6, "t2": 6}}
        assert shown(got)["c1"] == {f"{t}-{p}" for t in ("t1", "t2") for p in range(6)}


class TestBetterThanKafka:
    @pytest.mark.parametrize("name", sorted(ASSIGNORS))
    @pytest.mark.parametrize("order", [["a", "b", "c"], ["c", "a", "b"], ["b", "c", "a"]])
    def test_df_1_a_member_with_an_empty_subscription_gets_nothing_wherever_it_is_listed(self, name, order):
        """Kafka, meeting the empty subscription first, hands t to a member that does not subscribe to it."""
        group = {"a": MemberInfo(), "b": MemberInfo(["t"]), "c": MemberInfo(["t"])}
        got = plan(name, {"t": 4}, {m: group[m] for m in order})
        assert shown(got)["a"] == set()
        assert got.loads().tolist() == [0, 2, 2]

    @pytest.mark.parametrize("name", STICKY)
    @pytest.mark.parametrize("order", [["a", "b"], ["b", "a"]])
    def test_df_2_the_newest_generation_wins_in_any_listing_order(self, name, order):
        """Kafka believes the stale claim when its member is listed later."""
        group = {"a": owning("t", 5, t=[0, 1]), "b": owning("t", 4, t=[0, 1])}
        assert shown(plan(name, {"t": 4}, {m: group[m] for m in order})) == sets(a="t-0 t-1", b="t-2 t-3")
