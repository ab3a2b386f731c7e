"""Static membership (KIP-345, KIP-814): Roster's broker answers as Apache Kafka does."""

from __future__ import annotations

from tests.real.realparts.exchange import Actor, Exchange, protocols, scenario


def static_pair(x: Exchange, version: int = 9) -> tuple[Actor, Actor]:
    """A static leader "a" (instance one) and a static follower "b" (instance two), synced."""
    a = Actor(x, "a", version=version, group_instance_id="one")
    b = Actor(x, "b", version=version, group_instance_id="two")
    a_join = a.start_join()
    x.until_state("PreparingRebalance", members=1)
    b_join = b.start_join()
    a.finish_join("first join", a_join)
    b.finish_join("first join", b_join)
    b_sync = b.start_sync()
    a.sync("first sync", {a.member_id: b"for a", b.member_id: b"for b"})
    x.finish("b: first sync", b_sync)
    return a, b


def described(x: Exchange, label: str = "described") -> None:
    x.note(label, x.ask("DescribeGroups", 5, groups=[x.group]))


@scenario
def test_static_members_need_no_id_first(x):
    static_pair(x)
    described(x)


def _restart_follower(x: Exchange, version: int) -> None:
    a, b = static_pair(x, version)
    old = b.member_id
    b.member_id = ""
    b.join("restarted")
    x.note("got a new id", b.member_id != old)
    x.note("state", x.state())
    x.call("old id syncs", "SyncGroup", 3, **b.sync_fields(member_id=old))
    x.call("old id beats", "Heartbeat", 4, group_id=x.group, generation_id=1, member_id=old, group_instance_id="two")
    x.call("old id beats without its name", "Heartbeat", 4, group_id=x.group, generation_id=1, member_id=old)
    x.call("old id joins", "JoinGroup", version, **{**b.join_fields, "member_id": old})
    topic = x.topic()
    b.commit("old id commits", topic, member_id=old)
    b.commit("old id commits without its name", topic, version=6, member_id=old)
    b.sync("with the new id", {})
    b.heartbeat("with the new id")
    b.commit("with the new id", topic)
    a.heartbeat("undisturbed")
    described(x)


@scenario
def test_restarted_follower_takes_its_place_without_a_rebalance(x):
    _restart_follower(x, 9)


@scenario
def test_restarted_follower_of_an_older_client(x):
    _restart_follower(x, 5)


@scenario
def test_restarted_leader_is_told_to_skip_the_assignment(x):
    a, b = static_pair(x)
    a.member_id = ""
    a.join("restarted")
    x.note("leads", a.leader)
    a.sync("new assignments do not count", {a.member_id: b"new", b.member_id: b"new"})
    b.heartbeat("undisturbed")
    described(x)


@scenario
def test_restarted_leader_of_an_older_client_is_told_the_old_id_leads(x):
    for version in (5, 7, 8):
        y = Exchange(x.cluster, f"{x.stem}-{version}")
        a, _b = static_pair(y, version)
        old = a.member_id
        a.member_id = ""
        told = a.join(f"v{version} restarted")
        y.note("the old id", {"leads": told["leader"] == old, "is new": told["member_id"] != old})
        a.sync("what is stored")
        x.log += y.log
        y.close()


@scenario
def test_restart_with_other_protocols_that_change_the_choice_rebalances(x):
    a, b = static_pair(x)
    b.member_id = ""
    b_join = b.start_join(protocols=protocols("roundrobin", "range"))
    x.note("same choice: no rebalance", b_join.answered(3.0))
    b.finish_join("restarted with one more", b_join)
    x.note("state", x.state())
    a.heartbeat("state")
    b.member_id = ""
    b.join("restarted with nothing in common", protocols=protocols("sticky"))
    a.heartbeat("after the refusal")


@scenario(known={".": "a member that changes its subscription has the group rebalance, also when it is static"})
def test_restarted_follower_with_changed_subscription(x):
    a, b = static_pair(x)
    b.member_id = ""
    b_join = b.start_join(protocols=protocols("range", topics=["other"]))
    x.note("answered at once", b_join.answered(1.0))
    if x.state() == "PreparingRebalance":
        a.join("again")
    b.finish_join("restarted", b_join)
    described(x)


@scenario
def test_fenced_instance(x):
    a, b = static_pair(x)
    wrong = {"member_id": b.member_id}
    a.heartbeat("another's id", **wrong)
    a.heartbeat("unknown id", member_id="nobody")
    a.heartbeat("unknown instance", group_instance_id="three")
    a.heartbeat("wrong generation", generation_id=9)
    a.heartbeat("unknown id and wrong generation", generation_id=9, member_id="nobody")
    a.heartbeat("no name, good id", group_instance_id=None)
    for version in (3, 5):
        names = {"protocol_type": "consumer", "protocol_name": "range"} if version == 5 else {}
        a.sync(f"v{version} another's id", {}, version, **wrong, **names)
        a.sync(f"v{version} unknown id", {}, version, member_id="nobody", **names)
        a.sync(f"v{version} unknown instance", {}, version, group_instance_id="three", **names)
    topic = x.topic()
    for version in (7, 8, 9):
        a.commit(f"v{version} another's id", topic, version=version, **wrong)
        a.commit(f"v{version} unknown id", topic, version=version, member_id="nobody")
        a.commit(f"v{version} unknown instance", topic, version=version, group_instance_id="three")
        a.commit(f"v{version} wrong generation", topic, version=version, generation_id_or_member_epoch=9)
    for version in (5, 9):
        x.call(f"v{version} joins with another's id", "JoinGroup", version, **{**a.join_fields, **wrong})
        x.call(f"v{version} joins with an unknown id", "JoinGroup", version, **{**a.join_fields, "member_id": "nobody"})
    described(x)


@scenario
def test_leaving_by_instance_id(x):
    a, b = static_pair(x)
    c = Actor(x, "c")
    c_join = c.begin()
    x.until_state("PreparingRebalance")
    joins = [(a, a.start_join()), (b, b.start_join())]
    for member, pending in [(c, c_join), *joins]:
        member.finish_join("second join", pending)
    entries = [
        {"member_id": "", "group_instance_id": "three"},
        {"member_id": "nobody", "group_instance_id": "two"},
        {"member_id": a.member_id, "group_instance_id": "two"},
        {"member_id": c.member_id, "group_instance_id": "one"},
        {"member_id": "", "group_instance_id": "two"},
        {"member_id": a.member_id},
        {"member_id": c.member_id},
    ]
    for number, entry in enumerate(entries):
        x.call(f"entry {number}", "LeaveGroup", 5, group_id=x.group, members=[entry])
        x.note(f"members after {number}", len(x.ask("DescribeGroups", 5, groups=[x.group])["groups"][0]["members"]))
    described(x)


@scenario
def test_static_member_that_restarts_while_its_join_waits_fences_the_old_one(x):
    a, b = static_pair(x)
    a_join = a.start_join()
    x.until_state("PreparingRebalance")
    second = Actor(x, "a", group_instance_id="one")
    again = second.start_join()
    a.finish_join("the join that waited", a_join)
    b.join("follower")
    second.finish_join("the one that restarted", again)
    described(x)


@scenario
def test_static_member_that_restarts_while_assignments_are_awaited(x):
    a, b = static_pair(x)
    a_join = a.start_join()
    x.until_state("PreparingRebalance")
    b.join("second join")
    a.finish_join("second join", a_join)
    b_sync = b.start_sync()
    x.note("state", x.state())
    second = Actor(x, "b", group_instance_id="two")
    again = second.start_join()
    x.finish("b: the sync that waited", b_sync)
    x.until_state("PreparingRebalance")
    a.heartbeat("told")
    a.join("third join")
    second.finish_join("restarted", again)
    described(x)


@scenario
def test_static_members_stay_through_a_rebalance_they_miss(x):
    a = Actor(x, "a", group_instance_id="one", rebalance_timeout_ms=1_000)
    b = Actor(x, "b", group_instance_id="two", rebalance_timeout_ms=1_000)
    a_join = a.start_join()
    x.until_state("PreparingRebalance", members=1)
    b_join = b.start_join()
    a.finish_join("first join", a_join)
    b.finish_join("first join", b_join)
    b_sync = b.start_sync()
    a.sync("first sync", {a.member_id: b"for a", b.member_id: b"for b"})
    x.finish("b: first sync", b_sync)
    a.join("the other one is away")
    a.sync("again", {a.member_id: b"for a", b.member_id: b"for b"})
    described(x)
    b.heartbeat("comes back with the old generation")
    b.join("comes back")


@scenario
def test_dynamic_member_in_a_group_of_static_ones(x):
    a, b = static_pair(x)
    b.join("a dynamic request with the static one's id", group_instance_id=None)
    x.note("state", x.state())
    a.heartbeat("the other one")
