"""OffsetCommit, OffsetFetch, OffsetDelete: Roster's broker answers as Apache Kafka does."""

from __future__ import annotations

import struct

from tests.real.realparts.exchange import Actor, Exchange, commit_topics, protocols, scenario

SIMPLE = {"generation_id_or_member_epoch": -1, "member_id": ""}


def fetched(x: Exchange, label: str, group: str | None = None) -> None:
    x.call(label, "OffsetFetch", 7, group_id=group or x.group, topics=None, require_stable=False)


def consumer(x: Exchange, *topics: str, **join) -> Actor:
    """A single member, stable, subscribed to the topics."""
    a = Actor(x, "a", protocols=protocols("range", topics=topics or ("t",)), **join)
    a.join()
    a.sync("sync", {a.member_id: struct.pack(">hii", 0, 0, -1)})
    return a


@scenario
def test_commits_without_a_group_in_each_version(x):
    topic = x.topic()
    for version in range(2, 10):
        group = f"{x.group}-{version}"
        x.call(
            f"v{version}",
            "OffsetCommit",
            version,
            group_id=group,
            **SIMPLE,
            topics=commit_topics(topic, {0: version, 1: 2}),
        )
        fetched(x, f"v{version} fetched", group)
        x.note(f"v{version} described", x.ask("DescribeGroups", 5, groups=[group]))


@scenario
def test_who_may_commit(x):
    topic = x.topic()
    a = consumer(x)
    x.forget_nameless_group()
    table = {
        "good": {},
        "no member and no generation": SIMPLE,
        "no member": {"member_id": ""},
        "no generation": {"generation_id_or_member_epoch": -1},
        "generation behind": {"generation_id_or_member_epoch": 0},
        "generation ahead": {"generation_id_or_member_epoch": 5},
        "unknown member": {"member_id": "nobody"},
        "unknown member, no generation": {"member_id": "nobody", "generation_id_or_member_epoch": -1},
        "unknown member and generation": {"member_id": "nobody", "generation_id_or_member_epoch": 5},
        "unknown group": {"group_id": x.group + "-none"},
        "unknown group, no generation": {"group_id": x.group + "-none", "generation_id_or_member_epoch": -1},
        "empty group id": {"group_id": ""},
        "empty group id, simple": {"group_id": "", **SIMPLE},
        "no topics": {"topics": []},
        "topic without partitions": {"topics": [{"name": topic, "partitions": []}]},
    }
    for version in (2, 5, 6, 7, 8, 9):
        for label, change in table.items():
            a.commit(f"v{version} {label}", topic, version=version, **change)
    x.forget_nameless_group()
    a.leave()
    a.commit("a member of the past", topic)
    a.commit("simple commit to the empty group", topic, **SIMPLE)
    a.commit("generation of the past, no member", topic, member_id="")
    fetched(x, "fetched")


@scenario
def test_what_may_be_committed(x):
    topic = x.topic()
    for version in (2, 8, 9):
        group = {"group_id": x.group, **SIMPLE}
        x.call(
            f"v{version} unknown topic", "OffsetCommit", version, **group, topics=commit_topics(x.stem + "-no", {0: 1})
        )
        x.call(
            f"v{version} unknown partition", "OffsetCommit", version, **group, topics=commit_topics(topic, {7: 1, 0: 1})
        )
        x.call(f"v{version} partition -1", "OffsetCommit", version, **group, topics=commit_topics(topic, {-1: 1}))
        x.call(f"v{version} negative offset", "OffsetCommit", version, **group, topics=commit_topics(topic, {0: -1}))
        x.call(f"v{version} far offset", "OffsetCommit", version, **group, topics=commit_topics(topic, {0: 2**62}))
        x.call(f"v{version} null metadata", "OffsetCommit", version, **group, topics=commit_topics(topic, {0: 3}, None))
        for length in (4095, 4096, 4097):
            long = commit_topics(topic, {0: length}, "m" * length)
            x.call(f"v{version} metadata of {length}", "OffsetCommit", version, **group, topics=long)
        umlauts = commit_topics(topic, {0: 5}, "ü" * 2049)
        x.call(f"v{version} metadata counted in characters", "OffsetCommit", version, **group, topics=umlauts)
        twice = commit_topics(topic, {0: 1}) + commit_topics(topic, {0: 2, 1: 2})
        x.call(f"v{version} the same topic twice", "OffsetCommit", version, **group, topics=twice)
        fetched(x, f"v{version} fetched")
    epoch = commit_topics(topic, {0: 9})
    epoch[0]["partitions"][0]["committed_leader_epoch"] = 4
    x.call("with a leader epoch", "OffsetCommit", 8, group_id=x.group, **SIMPLE, topics=epoch)
    fetched(x, "fetched with its epoch")


@scenario
def test_fetching_in_each_version(x):
    topic = x.topic()
    for partition in (0, 1):
        topics = commit_topics(topic, {partition: 40 + partition}, "m")
        x.ask("OffsetCommit", 8, group_id=x.group, **SIMPLE, topics=topics)
    some = [{"name": topic, "partition_indexes": [1, 9, -1]}, {"name": x.stem + "-no", "partition_indexes": [0]}]
    for version in range(1, 8):
        stable = {"require_stable": True} if version == 7 else {}
        x.call(f"v{version} some", "OffsetFetch", version, group_id=x.group, topics=some, **stable)
        x.call(f"v{version} none", "OffsetFetch", version, group_id=x.group, topics=[], **stable)
        x.call(f"v{version} of an unknown group", "OffsetFetch", version, group_id=x.group + "-no", topics=some)
        x.call(f"v{version} of no group", "OffsetFetch", version, group_id="", topics=some)
        if version >= 2:
            x.call(f"v{version} all", "OffsetFetch", version, group_id=x.group, topics=None, **stable)
            x.call(f"v{version} all of an unknown group", "OffsetFetch", version, group_id=x.group + "-no", topics=None)
    for version in (8, 9):
        groups = [
            {"group_id": x.group, "topics": some},
            {"group_id": x.group + "-no", "topics": some},
            {"group_id": "", "topics": None},
        ]
        x.call(f"v{version} several groups", "OffsetFetch", version, groups=groups, require_stable=False)
        every = [{"group_id": x.group, "topics": None}]
        x.call(f"v{version} all", "OffsetFetch", version, groups=every, require_stable=True)
        x.call(f"v{version} no groups", "OffsetFetch", version, groups=[], require_stable=False)
    for member, epoch in (("", -1), (None, -1), ("nobody", -1), ("nobody", 3), (None, 3)):
        group = {"group_id": x.group, "topics": None, "member_id": member, "member_epoch": epoch}
        x.call(f"v9 member {member} epoch {epoch}", "OffsetFetch", 9, groups=[group], require_stable=False)


@scenario
def test_fetching_with_a_member_of_a_classic_group(x):
    topic = x.topic()
    a = consumer(x)
    a.commit("commit", topic)
    for member, epoch in ((a.member_id, 1), (a.member_id, -1), (a.member_id, 7), ("nobody", 1), (None, -1)):
        group = {"group_id": x.group, "topics": None, "member_id": member, "member_epoch": epoch}
        x.call(f"epoch {epoch}", "OffsetFetch", 9, groups=[group], require_stable=False)


@scenario
def test_commits_while_a_group_forms(x):
    topic = x.topic()
    a = Actor(x, "a")
    a.finish_join("asks for an id", a.start_join())
    a.commit("pending member", topic, generation_id_or_member_epoch=-1)
    a.commit("pending member with generation 0", topic, generation_id_or_member_epoch=0)
    a.commit("simple commit while a member is pending", topic, **SIMPLE)
    a.join()
    a.commit("before it synced", topic)
    a.commit("simple commit before it synced", topic, **SIMPLE)
    a.sync("sync", {a.member_id: b""})
    a.commit("stable", topic)
    b = Actor(x, "b")
    b_join = b.begin()
    x.until_state("PreparingRebalance")
    a.commit("preparing", topic, 50)
    a.commit("preparing, old generation", topic, 50, generation_id_or_member_epoch=0)
    a.join("again")
    b.finish_join("join", b_join)
    a.commit("completing", topic, 51)
    a.commit("completing, old generation", topic, 51, generation_id_or_member_epoch=1)
    fetched(x, "fetched")


@scenario
def test_deleting_offsets(x):
    mine, other = x.topic("mine"), x.topic("other")
    a = consumer(x, mine)
    a.commit("commit", mine)
    a.commit("commit", other)

    def delete(label: str, group: str, *names: str) -> None:
        topics = [{"name": name, "partitions": [{"partition_index": index} for index in (0, 1, 9)]} for name in names]
        x.call(label, "OffsetDelete", 0, group_id=group, topics=topics)

    delete("unknown group", x.group + "-no", mine)
    delete("empty group id", "", mine)
    delete("subscribed and not", x.group, mine, other, x.stem + "-no")
    delete("nothing", x.group)
    fetched(x, "fetched")
    a.leave()
    delete("when empty", x.group, mine)
    fetched(x, "fetched when empty")
    x.ask("OffsetCommit", 8, group_id=x.group + "-simple", **SIMPLE, topics=commit_topics(mine, {0: 1, 1: 2}))
    delete("simple group", x.group + "-simple", mine)
    fetched(x, "simple group fetched", x.group + "-simple")
    worker = Actor(x, "w", group=x.group + "-connect", protocol_type="connect")
    worker.join()
    worker.sync("sync", {worker.member_id: b""})
    worker.commit("commit", mine)
    delete("group of another type with members", worker.group, mine)


@scenario
def test_offsets_of_a_deleted_topic_are_forgotten(x):
    topic, kept = x.topic("gone"), x.topic("kept")
    both = commit_topics(topic, {0: 1, 1: 1}) + commit_topics(kept, {0: 5})
    x.call("commit", "OffsetCommit", 8, group_id=x.group, **SIMPLE, topics=both)
    x.call("drop", "DeleteTopics", 5, topic_names=[topic], timeout_ms=10_000)
    x.until_forgotten(topic)
    fetched(x, "fetched")
