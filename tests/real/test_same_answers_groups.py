"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup: Roster's broker answers as Apache Kafka does."""

from __future__ import annotations

from tests.real.realparts.exchange import Actor, Exchange, protocols, scenario, subscription

JOIN = {"session_timeout_ms": 30_000, "rebalance_timeout_ms": 30_000, "protocol_type": "consumer"}


def stable_pair(x: Exchange, **join) -> tuple[Actor, Actor]:
    """Two members, the first one leading, synced."""
    a, b = Actor(x, "a", **join), Actor(x, "b", **join)
    a_join, b_join = a.begin(), b.begin()
    a.finish_join("first join", a_join)
    b.finish_join("first join", b_join)
    b_sync = b.start_sync()
    a.sync("first sync", {a.member_id: b"for a", b.member_id: b"for b"})
    x.finish("b: first sync", b_sync)
    return a, b


@scenario
def test_join_refuses_bad_requests(x):
    good = {"group_id": x.group, **JOIN, "protocols": protocols("range")}
    table = {
        "empty group id": {"group_id": ""},
        "session too short": {"session_timeout_ms": 1},
        "session too long": {"session_timeout_ms": 1_800_001},
        "negative session": {"session_timeout_ms": -1},
        "no protocols": {"protocols": []},
        "empty protocol type": {"protocol_type": ""},
        "unknown member of an unknown group": {"member_id": "who-is-this"},
        "unknown member and no protocols": {"member_id": "who-is-this", "protocols": []},
        "unknown member and empty protocol type": {"member_id": "who-is-this", "protocol_type": ""},
    }
    for version in (2, 3, 4, 5, 6, 7, 8, 9):
        for label, change in table.items():
            x.call(f"v{version} {label}", "JoinGroup", version, **{**good, "member_id": "", **change})


@scenario(known={"^instance 'xxxxx'": "longer than 249 characters: Kafka's clients refuse it, Roster's broker as well"})
def test_instance_ids_that_are_no_names(x):
    good = {"group_id": x.group, **JOIN, "protocols": protocols("range"), "member_id": ""}
    for number, instance in enumerate(("", ".", "..", "a/b", "x" * 250)):
        group = {**good, "group_id": f"{x.group}-{number}"}
        x.call(f"instance {instance[:5]!r}", "JoinGroup", 5, **group, group_instance_id=instance)
    x.call("static with an unknown member id", "JoinGroup", 5, **{**good, "member_id": "x"}, group_instance_id="i")
    x.note("state", x.state())


@scenario
def test_each_version_of_join_sync_heartbeat_leave(x):
    for version, sync, beat, leave in (
        (2, 0, 0, 0),
        (3, 1, 1, 1),
        (4, 2, 2, 2),
        (5, 3, 3, 3),
        (6, 4, 4, 4),
        (9, 5, 4, 5),
    ):
        a = Actor(x, "a", version=version, group=f"{x.group}-{version}")
        a.join(f"join v{version}")
        names = {"protocol_type": "consumer", "protocol_name": "range"} if sync >= 5 else {}
        a.sync(f"sync v{sync}", {a.member_id: b"everything"}, sync, **names)
        a.heartbeat(f"heartbeat v{beat}", beat)
        a.leave(f"leave v{leave}", leave)
        a.heartbeat(f"heartbeat v{beat} after leaving", beat)


@scenario
def test_a_new_member_is_given_its_id_first(x):
    a = Actor(x, "a")
    given = a.finish_join("no id yet", a.start_join())
    x.note("state while pending", x.ask("DescribeGroups", 5, groups=[x.group]))
    x.note("starts with its client id", given["member_id"].startswith("a-"))
    a.heartbeat("pending member", generation_id=0)
    a.sync("pending member", generation_id=0)
    a.join("with the id")
    b = Actor(x, "b")
    b.finish_join("no id yet", b.start_join())
    b.leave("pending member leaves")
    b.finish_join("an id that was left", b.start_join())


@scenario
def test_leader_and_follower_see_their_sides_of_a_join(x):
    a, b = stable_pair(x)
    x.note("leads", {"a": a.leader, "b": b.leader})
    x.note("described", x.ask("DescribeGroups", 5, groups=[x.group]))


@scenario
def test_follower_that_joins_again_unchanged_gets_the_same_generation(x):
    a, b = stable_pair(x)
    b.join("same again")
    b.sync("same again")
    x.note("state", x.state())
    a.heartbeat("undisturbed")


@scenario
def test_changed_metadata_of_a_follower_starts_a_rebalance(x):
    a, b = stable_pair(x)
    b_join = b.start_join(protocols=protocols("range", topics=["t", "u"]))
    x.until_state("PreparingRebalance")
    a.heartbeat("told to join again")
    b.heartbeat("told as well")
    x.call("sync while preparing", "SyncGroup", 3, **a.sync_fields())
    a.commit("commit while preparing", x.topic())
    a.join("again")
    b.finish_join("again", b_join)
    x.call("stale generation", "Heartbeat", 4, group_id=x.group, generation_id=1, member_id=a.member_id)


@scenario
def test_leader_that_joins_again_starts_a_rebalance(x):
    a, b = stable_pair(x)
    a_join = a.start_join()
    x.until_state("PreparingRebalance")
    b.heartbeat("told to join again")
    b.join("again")
    a.finish_join("again", a_join)
    x.note("state", x.state())


@scenario
def test_joining_again_while_the_leader_assigns(x):
    a, b = Actor(x, "a"), Actor(x, "b")
    a_join, b_join = a.begin(), b.begin()
    a.finish_join("first join", a_join)
    b.finish_join("first join", b_join)
    x.note("state", x.state())
    x.note("described", x.ask("DescribeGroups", 5, groups=[x.group]))
    b.join("same metadata: same generation")
    a.join("leader with the same metadata: same generation")
    a.heartbeat("while assigning")
    b.commit("while assigning", x.topic())
    b_sync = b.start_sync()
    a_again = a.start_join(protocols=protocols("range", topics=["u"]))
    x.finish("b: parked sync when a joins with changed metadata", b_sync)
    b.join("again")
    a.finish_join("again", a_again)


@scenario
def test_sync_checks(x):
    a, b = stable_pair(x)
    table = {
        "unknown group": {"group_id": x.group + "-none"},
        "empty group id": {"group_id": ""},
        "unknown member": {"member_id": "nobody"},
        "empty member": {"member_id": ""},
        "generation behind": {"generation_id": 0},
        "generation ahead": {"generation_id": 9},
        "generation -1": {"generation_id": -1},
        "unknown member and generation": {"member_id": "nobody", "generation_id": 9},
        "same again": {},
        "unknown instance": {"group_instance_id": "nobody"},
    }
    for label, change in table.items():
        for version in (3, 4, 5):
            names = {"protocol_type": "consumer", "protocol_name": "range"} if version == 5 else {}
            x.call(f"v{version} {label}", "SyncGroup", version, **a.sync_fields(**{**names, **change}))
    for label, names in {
        "other type": {"protocol_type": "connect", "protocol_name": "range"},
        "other name": {"protocol_type": "consumer", "protocol_name": "roundrobin"},
        "no names": {"protocol_type": None, "protocol_name": None},
    }.items():
        x.call(label, "SyncGroup", 5, **b.sync_fields(**names))
    b.sync("a follower's assignments are ignored", {a.member_id: b"mine", b.member_id: b"mine"})
    a.sync("the leader's are as well once stable", {a.member_id: b"new", b.member_id: b"new"})


@scenario
def test_leader_that_leaves_out_a_member_gives_it_nothing(x):
    a, b = Actor(x, "a"), Actor(x, "b")
    a_join, b_join = a.begin(), b.begin()
    a.finish_join("join", a_join)
    b.finish_join("join", b_join)
    a.sync("b forgotten, a stranger given", {a.member_id: b"for a", "stranger": b"?"})
    b.sync("nothing")
    x.note("described", x.ask("DescribeGroups", 5, groups=[x.group]))


@scenario
def test_heartbeat_checks(x):
    a, _ = stable_pair(x)
    table = {
        "unknown group": {"group_id": x.group + "-none"},
        "empty group id": {"group_id": ""},
        "unknown member": {"member_id": "nobody"},
        "empty member": {"member_id": ""},
        "generation behind": {"generation_id": 0},
        "generation ahead": {"generation_id": 9},
        "generation -1": {"generation_id": -1},
        "unknown member and generation": {"member_id": "nobody", "generation_id": 9},
        "good": {},
    }
    for version in range(5):
        for label, change in table.items():
            a.heartbeat(f"v{version} {label}", version, **change)
    a.heartbeat("dynamic member with an instance id", group_instance_id="nobody")


@scenario
def test_leave_checks(x):
    a, b = stable_pair(x)
    for version in (0, 1, 2):
        x.call(f"v{version} unknown group", "LeaveGroup", version, group_id=x.group + "-none", member_id="m")
        x.call(f"v{version} unknown member", "LeaveGroup", version, group_id=x.group, member_id="nobody")
        x.call(f"v{version} empty group id", "LeaveGroup", version, group_id="", member_id="nobody")
        x.call(f"v{version} empty member", "LeaveGroup", version, group_id=x.group, member_id="")
    nobody = [{"member_id": "nobody"}, {"member_id": "", "group_instance_id": "i"}, {"member_id": ""}]
    for version in (3, 4, 5):
        x.call(f"v{version} unknown group", "LeaveGroup", version, group_id=x.group + "-none", members=nobody)
        x.call(f"v{version} empty group id", "LeaveGroup", version, group_id="", members=nobody)
        x.call(f"v{version} unknown members", "LeaveGroup", version, group_id=x.group, members=nobody)
        x.call(f"v{version} no members", "LeaveGroup", version, group_id=x.group, members=[])
    x.note("state", x.state())
    both = [{"member_id": b.member_id}, {"member_id": "nobody"}, {"member_id": b.member_id}]
    x.call("a batch with a stranger and a repetition", "LeaveGroup", 5, group_id=x.group, members=both)
    a.heartbeat("the other one is told")
    b.heartbeat("the one that left")
    a.join("alone")
    a.leave("the last one")
    x.note("described", x.ask("DescribeGroups", 5, groups=[x.group]))


@scenario
def test_member_that_leaves_lets_a_waiting_join_finish(x):
    a, b = stable_pair(x)
    a_join = a.start_join()
    x.until_state("PreparingRebalance")
    b.leave("instead of joining")
    a.finish_join("alone", a_join)
    a.sync("alone", {a.member_id: b"all"})


@scenario
def test_leader_that_leaves_while_others_wait_for_its_assignment(x):
    a, b = Actor(x, "a"), Actor(x, "b")
    a_join, b_join = a.begin(), b.begin()
    a.finish_join("join", a_join)
    b.finish_join("join", b_join)
    b_sync = b.start_sync()
    a.leave("without assigning")
    x.finish("b: parked sync", b_sync)
    b.join("as the new leader")
    x.note("leads", b.leader)


@scenario
def test_pending_member_holds_up_a_join(x):
    a, _b = stable_pair(x)
    c = Actor(x, "c")
    c.finish_join("gets an id", c.start_join())
    a_join = a.start_join()
    x.until_state("PreparingRebalance")
    _b_join = _b.start_join()
    x.note("a waits", not a_join.answered(0.2))
    c.leave("never joined")
    a.finish_join("without c", a_join)
    _b.finish_join("without c", _b_join)


@scenario(known={"^a: (now )?sticky": "a member that is alone may come back with another strategy"})
def test_protocols_must_fit_the_group(x):
    a = Actor(x, "a", protocols=protocols("range", "roundrobin"))
    a.join()
    a.sync("sync", {a.member_id: b"all"})
    for label, change in {
        "other type": {"protocol_type": "connect"},
        "no common name": {"protocols": protocols("sticky")},
    }.items():
        for version in (3, 5, 9):
            b = Actor(x, "b", version=version, **change)
            b.join(f"v{version} {label}")
        static = Actor(x, "s", group_instance_id="s", **change)
        static.join(f"static {label}")
    a.heartbeat("undisturbed")
    a.join("now sticky only", protocols=protocols("sticky"))
    a.sync("sticky", {a.member_id: b"all"}, 5, protocol_type="consumer", protocol_name="sticky")


@scenario
def test_each_member_votes_for_its_first_common_protocol(x):
    a = Actor(x, "a", protocols=protocols("x", "range", "roundrobin"))
    b = Actor(x, "b", protocols=protocols("roundrobin", "range"))
    c = Actor(x, "c", protocols=protocols("roundrobin", "range", "y"))
    joins = [(m, m.begin()) for m in (a, b, c)]
    for member, pending in joins:
        told = member.finish_join("join", pending)
        x.note("chosen", told["protocol_name"])


@scenario
def test_groups_of_any_protocol_type(x):
    a = Actor(x, "worker", protocol_type="connect", protocols=[{"name": "default", "metadata": b"url"}])
    a.join()
    a.sync("sync", {a.member_id: b"connectors"}, 5, protocol_type="connect", protocol_name="default")
    x.note("described", x.ask("DescribeGroups", 5, groups=[x.group]))
    topic = x.topic()
    a.commit("offsets of a worker", topic)
    x.note("fetched", x.ask("OffsetFetch", 7, group_id=x.group, topics=None, require_stable=False))
    a.leave()
    x.note("described when empty", x.ask("DescribeGroups", 5, groups=[x.group]))
    b = Actor(x, "consumer")
    b.join("another type once it is empty")


@scenario
def test_member_id_of_another_group_means_nothing(x):
    a = Actor(x, "a")
    a.join()
    other = Actor(x, "b", group=x.group + "-2")
    other.join()
    other.sync("sync", {other.member_id: b""})
    x.call("a's id", "JoinGroup", 9, **{**other.join_fields, "member_id": a.member_id})
    x.call("a's id", "Heartbeat", 4, group_id=other.group, generation_id=1, member_id=a.member_id)
    x.call("unknown id", "JoinGroup", 3, **{**other.join_fields, "member_id": "nobody"})


@scenario
def test_group_after_everyone_left_starts_a_new_generation(x):
    a = Actor(x, "a")
    a.join()
    a.sync("sync", {a.member_id: b"one"})
    a.leave()
    x.note("state", x.state())
    a.finish_join("with the id it left", a.start_join())
    a.member_id = ""
    a.join("anew")
    a.sync("sync", {a.member_id: b"two"})


@scenario
def test_dead_member_is_removed_after_its_session(x):
    a = Actor(x, "a", session_timeout_ms=1_200, rebalance_timeout_ms=1_200)
    b = Actor(x, "b", version=5)
    a_join, b_join = a.begin(), b.begin()
    a.finish_join("join", a_join)
    b.finish_join("join", b_join)
    b_sync = b.start_sync()
    a.sync("sync", {a.member_id: b"a", b.member_id: b"b"})
    x.finish("b: sync", b_sync)
    x.until_state("PreparingRebalance", members=1)
    a.heartbeat("expired")
    b.heartbeat("told")
    b.join("alone")


@scenario
def test_dynamic_member_that_does_not_join_again_is_dropped_at_the_rebalance_timeout(x):
    a = Actor(x, "a", rebalance_timeout_ms=1_000)
    b = Actor(x, "b", rebalance_timeout_ms=1_000)
    joins = [(a, a.begin()), (b, b.begin())]
    for member, pending in joins:
        member.finish_join("join", pending)
    b_sync = b.start_sync()
    a.sync("sync", {a.member_id: b"a", b.member_id: b"b"})
    x.finish("b: sync", b_sync)
    b.join("alone, as the leader never comes", protocols=[{"name": "range", "metadata": subscription("v")}])
    x.note("leads", b.leader)
    a.heartbeat("dropped")


@scenario
def test_members_that_never_sync_are_dropped(x):
    a = Actor(x, "a", rebalance_timeout_ms=1_000)
    b = Actor(x, "b", rebalance_timeout_ms=1_000)
    joins = [(a, a.begin()), (b, b.begin())]
    for member, pending in joins:
        member.finish_join("join", pending)
    told = b.sync("parked until the leader's time is over")
    x.note("told to join again", told["error_code"])
    b.join("alone")
    a.heartbeat("dropped")
