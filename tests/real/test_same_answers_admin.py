"""Finding, describing, listing and deleting groups; requests nobody knows: answers as Apache Kafka gives them."""

from __future__ import annotations

import struct

from tests.real.realparts.cluster import Cluster, unique
from tests.real.realparts.exchange import Actor, Connection, Exchange, commit_topics, encode_request, scenario

SIMPLE = {"generation_id_or_member_epoch": -1, "member_id": ""}


@scenario
def test_finding_the_coordinator(x):
    for version in (0, 1, 2, 3):
        kind = {} if version == 0 else {"key_type": 0}
        x.call(f"v{version}", "FindCoordinator", version, key=x.group, **kind)
        x.call(f"v{version} empty key", "FindCoordinator", version, key="", **kind)
        if version:
            x.call(f"v{version} unknown key type", "FindCoordinator", version, key=x.group, key_type=9)
    for version in (4, 5, 6):
        x.call(f"v{version}", "FindCoordinator", version, key_type=0, coordinator_keys=[x.group, "other", ""])
        x.call(f"v{version} no keys", "FindCoordinator", version, key_type=0, coordinator_keys=[])
        x.call(f"v{version} unknown key type", "FindCoordinator", version, key_type=9, coordinator_keys=[x.group])


def _groups_in_each_state(x: Exchange) -> dict[str, str]:
    """One group for each state a client can see; the actors stay connected."""
    topic = x.topic()
    names = {state: f"{x.group}-{state}" for state in ("simple", "empty", "preparing", "completing", "stable")}
    x.ask("OffsetCommit", 8, group_id=names["simple"], **SIMPLE, topics=commit_topics(topic, {0: 1}))
    left = Actor(x, "left", group=names["empty"])
    left.join()
    left.leave()
    a, b = Actor(x, "a", group=names["preparing"]), Actor(x, "b", group=names["preparing"])
    a.join()
    a.sync("sync", {a.member_id: b""})
    b.begin()
    x.until_state("PreparingRebalance", 2, names["preparing"])
    Actor(x, "c", group=names["completing"], group_instance_id="i").join()
    d = Actor(x, "d", group=names["stable"])
    d.join()
    d.sync("sync", {d.member_id: struct.pack(">hii", 0, 0, -1)})
    return names


@scenario
def test_describing_groups_in_each_state(x):
    names = [*_groups_in_each_state(x).values(), x.group + "-unknown", ""]
    for version in range(7):
        for allowed in (False, True) if version >= 3 else (False,):
            option = {"include_authorized_operations": allowed} if version >= 3 else {}
            x.call(f"v{version} {allowed}", "DescribeGroups", version, groups=names, **option)
        x.call(f"v{version} none", "DescribeGroups", version, groups=[])


@scenario
def test_listing_groups(x):
    _groups_in_each_state(x)

    def listed(label: str, version: int, **filters) -> None:
        told = x.ask("ListGroups", version, **filters)
        mine = [group for group in told["groups"] if group["group_id"].startswith(x.group)]
        x.note(label, {**told, "groups": mine})

    for version in range(6):
        listed(f"v{version}", version)
    for version in (4, 5):
        for states in (["Stable"], ["stable"], ["Empty", "PreparingRebalance"], ["Nonsense"], ["Dead"], []):
            listed(f"v{version} {states}", version, states_filter=states)
    for types in (["classic"], ["Classic"], ["consumer"], ["nonsense"], []):
        listed(f"types {types}", 5, types_filter=types, states_filter=[])
    listed("both", 5, types_filter=["classic"], states_filter=["Empty"])


@scenario
def test_deleting_groups(x):
    names = _groups_in_each_state(x)
    x.forget_nameless_group()
    every = [*names.values(), x.group + "-unknown", ""]
    for version in (0, 1, 2):
        x.call(f"v{version}", "DeleteGroups", version, groups_names=every)
    x.call("no groups", "DeleteGroups", 2, groups_names=[])
    for state in ("simple", "empty"):
        x.call(f"{state} described", "DescribeGroups", 5, groups=[names[state]])
        x.call(f"{state} offsets", "OffsetFetch", 7, group_id=names[state], topics=None, require_stable=False)


@scenario
def test_names_twice_in_one_request(x):
    names = _groups_in_each_state(x)
    x.call("described twice", "DescribeGroups", 5, groups=[names["stable"], names["stable"]])
    x.call("found twice", "FindCoordinator", 4, key_type=0, coordinator_keys=["a", "a"])


@scenario
def test_api_versions_that_do_not_exist(x):
    raw = x.connect()
    for version in (99, 32767, -1):
        raw = x.connect()
        raw.send_frame(struct.pack(">hhih", 18, version, 7, -1) + b"\0\1\1\0")
        x.note(f"ApiVersions v{version}", raw.read_frame()[:6])
    for name, key, version in (
        ("JoinGroup", 11, 10),
        ("Heartbeat", 12, 99),
        ("no such key", 999, 0),
        ("negative", -1, 0),
        # Keys of Kafka's protocol that no broker lists for clients, then such as Kafka's list, by unlisted versions.
        ("LeaderAndIsr", 4, 7),
        ("Vote", 52, 0),
        ("BrokerRegistration", 62, 0),
        ("AlterClientQuotas", 49, 9),
        ("UpdateFeatures", 57, 9),
        ("ConsumerGroupHeartbeat", 68, 99),
    ):
        raw = x.connect()
        raw.send_frame(struct.pack(">hhih", key, version, 8, -1))
        x.note(name, _fate(raw))


@scenario
def test_bytes_that_are_no_request(x):
    for label, frame in {
        "empty frame": b"",
        "half a header": b"\0\x0b\0",
        "header only": struct.pack(">hhih", 11, 5, 1, -1),
        "huge array": struct.pack(">hhih", 11, 5, 1, -1)
        + struct.pack(">h", 1)
        + b"g"
        + b"\0" * 12
        + b"\x7f\xff\xff\xff",
        "negative size inside": struct.pack(">hhih", 12, 0, 1, -1) + struct.pack(">h", -5),
        "zeros": b"\0" * 64,
    }.items():
        raw = x.connect()
        raw.send_frame(frame)
        x.note(label, _fate(raw))
    for label, size in (("oversized", 2**31 - 1), ("negative size", -1)):
        raw = x.connect()
        raw.socket.sendall(struct.pack(">i", size) + b"x" * 10)
        x.note(label, _fate(raw))
    beat = encode_request("Heartbeat", 4, {"group_id": x.group, "generation_id": 1, "member_id": "m"}, 7, None)
    raw = x.connect()
    raw.send_frame(beat + b"\0\1\2")
    x.note("bytes behind the last field", raw.read_frame())
    x.call("still alive", "Heartbeat", 4, group_id=x.group, generation_id=1, member_id="m")


def _fate(raw: Connection) -> str:
    try:
        raw.read_frame(5)
    except (EOFError, ConnectionError):
        return "connection closed"
    except TimeoutError:
        return "no answer"
    return "answered"


def test_versions_of_group_requests_are_those_of_apache_kafka(apache_kafka: Cluster, roster_broker: Cluster):
    ranges = {}
    for cluster in (apache_kafka, roster_broker):
        x = Exchange(cluster, unique("versions"))
        told = x.ask("ApiVersions", 3, client_software_name="tests", client_software_version="1")
        ranges[cluster.kind] = {key["api_key"]: (key["min_version"], key["max_version"]) for key in told["api_keys"]}
        x.close()
    mine, theirs = ranges["roster"], ranges["apache"]
    assert set(mine) <= set(theirs)
    newer = {18: 5, 28: 6, 42: 3}  # of Kafka 4.4
    beyond = {key: (mine[key], theirs[key]) for key in mine if mine[key][1] > newer.get(key, theirs[key][1])}
    assert not beyond, f"versions that Apache Kafka has not: {beyond}"
    for key in (11, 12, 13, 14, 15, 16, 42, 47):
        assert mine[key][1] == newer.get(key, theirs[key][1]), f"api {key}: {mine[key]} against {theirs[key]}"
