"""Kafka's own Java admin client on Roster's broker, and what the broker says to what it does not do."""

from __future__ import annotations

import pytest

from tests.real.realparts.clients import AdminError
from tests.real.realparts.cluster import unique
from tests.real.realparts.groups import partitions, shared_out
from tests.waiting import until


@pytest.fixture
def admin(java_host, cluster):
    """`admin(operation, …)` asks the Java admin client."""
    return lambda operation, **question: java_host.ask(bootstrap=cluster.bootstrap, operation=operation, **question)


def test_groups_are_listed_and_described(admin, cluster, client):
    topic, group = cluster.create_topic(partitions=4), unique("group")
    members = [client(kind, cluster, group, topics=[topic]) for kind in ("java", "roster")]
    members.append(client("kafka-python", cluster, group, topics=[topic], instance="fixed"))
    shared_out(members, partitions(topic, 4))
    assert admin("groups")[group] == {"protocol": "consumer", "type": "Classic", "state": "Stable"}
    described = admin("describe", group=group)
    assert (described["state"], described["type"], described["assignor"]) == ("Stable", "Classic", "range")
    told = {entry["client"]: {tuple(p) for p in entry["partitions"]} for entry in described["members"]}
    assert told == {member.client_id: member.owned for member in members}
    instances = {entry["client"]: entry["instance"] for entry in described["members"]}
    assert instances == {m.client_id: m.settings.instance for m in members}
    assert all(entry["host"].lstrip("/") == "127.0.0.1" for entry in described["members"])


def test_offsets_of_a_group_are_listed_altered_and_deleted(admin, cluster, client):
    topic, group = cluster.create_topic(partitions=3, records=10), unique("group")
    first = client("java", cluster, group, topics=[topic])
    first.wait_for(lambda m: m.consumed_count() == 30)
    first.commit()
    assert {name: told["offset"] for name, told in admin("offsets", group=group).items()} == {
        f"{topic}-{partition}": 10 for partition in range(3)
    }
    with pytest.raises(AdminError, match="UnknownMemberIdException"):
        admin("alter", group=group, offsets=[[topic, 0, 4]])
    with pytest.raises(AdminError, match="subscribed"):
        admin("forget", group=group, partitions=[[topic, 0]])
    first.close()
    admin("alter", group=group, offsets=[[topic, 0, 4], [topic, 1, 7]])
    told = admin("offsets", group=group)
    assert told[f"{topic}-0"] == {"offset": 4, "metadata": "altered", "epoch": -1}
    admin("forget", group=group, partitions=[[topic, 2]])
    assert set(admin("offsets", group=group)) == {f"{topic}-0", f"{topic}-1"}
    second = client("kafka-python", cluster, group, topics=[topic])
    second.wait_for(lambda m: m.consumed_count() == 6 + 3 + 10, what="what lies behind the altered offsets")


def test_a_group_is_deleted_once_it_is_empty(admin, cluster, client):
    topic, group = cluster.create_topic(partitions=1, records=3), unique("group")
    member = client("java", cluster, group, topics=[topic])
    member.wait_for(lambda m: m.consumed_count() == 3)
    member.commit()
    with pytest.raises(AdminError, match="GroupNotEmptyException"):
        admin("delete", group=group)
    member.close()
    until(lambda: cluster.group_state(group) == "EMPTY")
    admin("delete", group=group)
    assert group not in admin("groups")
    with pytest.raises(AdminError, match="GroupIdNotFoundException"):
        admin("delete", group=group)
    with pytest.raises(AdminError, match="GroupIdNotFoundException"):
        admin("describe", group=group)


def test_static_members_are_removed_by_name(admin, cluster, client):
    topic, group = cluster.create_topic(partitions=2), unique("group")
    settings = {"topics": [topic], "session_ms": 30_000}
    leaving = client("java", cluster, group, instance="leaving", **settings)
    staying = client("roster", cluster, group, instance="staying", **settings)
    shared_out([leaving, staying], partitions(topic, 2))
    leaving.close()
    assert len(cluster.group(group).members) == 2
    admin("remove", group=group, instances=["leaving"])
    shared_out([staying], partitions(topic, 2))


def test_topics_are_created_grown_counted_and_dropped(admin, cluster):
    name = unique("made-by-java")
    admin("create", topic=name, partitions=3)
    with pytest.raises(AdminError, match="TopicExistsException"):
        admin("create", topic=name, partitions=3)
    until(lambda: admin("topics").get(name) == 3)
    admin("grow", topic=name, partitions=5)
    until(lambda: admin("topics").get(name) == 5)
    cluster.produce({(name, 4): 6})
    assert admin("ends", partitions=[[name, 4], [name, 0]]) == {f"{name}-4": 6, f"{name}-0": 0}
    assert admin("cluster") == {"nodes": 1, "controller": True}
    admin("drop", topic=name)
    until(lambda: name not in admin("topics"))
