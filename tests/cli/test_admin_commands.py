"""`roster topics` and `roster groups` against an Admin that answers from memory."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from roster.cli.root import run
from roster.client import (
    GroupDescription,
    GroupListing,
    GroupNotEmptyError,
    MemberDescription,
    OffsetAndMetadata,
    PartitionDescription,
    TopicDescription,
    TopicExistsError,
    UnknownGroupError,
    UnknownTopicError,
    UnreachableError,
)
from roster.model import TopicPartition as TP


@dataclass
class Cluster:
    topics: dict[str, int] = field(default_factory=lambda: {"a": 2, "b": 1})
    ends: dict[TP, int] = field(default_factory=lambda: {TP("a", 0): 10, TP("a", 1): 20, TP("b", 0): 5})
    committed: dict[TP, int] = field(default_factory=lambda: {TP("a", 0): 4, TP("gone", 0): 7})
    members: list[MemberDescription] = field(
        default_factory=lambda: [
            MemberDescription("m-1", None, "app", "/127.0.0.1", [TP("a", 0), TP("a", 1)]),
            MemberDescription("m-2", "static", "app", "/127.0.0.1", []),
        ]
    )


@pytest.fixture
def cluster(monkeypatch):
    there = Cluster()

    class FakeAdmin:
        def __init__(self, bootstrap, **_):
            self.bootstrap = bootstrap

        def __enter__(self):
            if self.bootstrap == "127.0.0.1:1":
                raise UnreachableError("no broker answered at 127.0.0.1:1")
            return self

        def __exit__(self, *_):
            pass

        def list_topics(self, *, internal=False):
            return {**there.topics, **({"__consumer_offsets": 1} if internal else {})}

        def describe_topic(self, name):
            self._known(name)
            partitions = tuple(PartitionDescription(n, 0, (0,), (0,)) for n in range(there.topics[name]))
            return TopicDescription(name, None, False, partitions)

        def create_topic(self, name, partitions=1, *, replication=-1, configs=None):
            if name in there.topics:
                raise TopicExistsError(f"topic {name} exists already")
            there.topics[name] = partitions
            there.created = (replication, configs)

        def delete_topic(self, name):
            self._known(name)
            del there.topics[name]

        def create_partitions(self, name, total):
            there.topics[name] = total

        def beginning_offsets(self, partitions):
            return dict.fromkeys(partitions, 1)

        def end_offsets(self, partitions):
            return {tp: there.ends.get(tp, 1) for tp in partitions}

        def offsets_for_times(self, times):
            return {tp: None if tp.partition else ms // 1000 for tp, ms in times.items()}

        def list_groups(self):
            return [GroupListing("g", "consumer", "Stable"), GroupListing("e", "", "Empty")]

        def describe_group(self, group):
            if group != "g":
                raise UnknownGroupError(f"there is no group {group}")
            return GroupDescription(group, "Stable", "consumer", "range", there.members, "127.0.0.1:9092")

        def group_offsets(self, group, partitions=None):
            return {tp: OffsetAndMetadata(offset) for tp, offset in there.committed.items()}

        def commit_group_offsets(self, group, offsets):
            there.committed.update({tp: at.offset for tp, at in offsets.items()})

        def delete_group(self, group):
            if there.members:
                raise GroupNotEmptyError(f"group {group} still has 2 members; stop them first")
            there.deleted = group

        def _known(self, name):
            if name not in there.topics:
                raise UnknownTopicError(f"there is no topic {name}", topics=[name])

    monkeypatch.setattr("roster.cli.admin.Admin", FakeAdmin)
    return there


def answer(capsys, *arguments: str) -> str:
    assert run(list(arguments)) == 0
    return capsys.readouterr().out


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def complaint(capsys, *arguments: str) -> tuple[int, str]:
    code = run(list(arguments))
    (line,) = capsys.readouterr().err.splitlines()
    return code, line.removeprefix("roster: error: ")


def test_topics_list(cluster, capsys):
    assert rows(answer(capsys, "topics", "list")) == [
        ["topic", "partitions", "offsets"],
        ["a", "2", "28"],
        ["b", "1", "4"],
    ]
    assert json.loads(answer(capsys, "topics", "list", "--json"))[0] == {"topic": "a", "partitions": 2, "offsets": 28}
    assert "__consumer_offsets" in answer(capsys, "topics", "list", "--internal")
    cluster.topics.clear()
    assert answer(capsys, "topics", "list") == "no topics\n"


def test_topics_describe(cluster, capsys):
    assert rows(answer(capsys, "topics", "describe", "a"))[1:] == [
        ["0", "0", "0", "0", "1", "10"],
        ["1", "0", "0", "0", "1", "20"],
    ]
    document = json.loads(answer(capsys, "topics", "describe", "b", "--json"))
    assert document["partitions"] == [
        {"partition": 0, "leader": 0, "replicas": [0], "in_sync": [0], "begin": 1, "end": 5}
    ]
    assert complaint(capsys, "topics", "describe", "x") == (2, "there is no topic x")


def test_topics_create_grow_delete(cluster, capsys):
    assert "created c with 4" in answer(capsys, "topics", "create", "c", "-p", "4", "--config", "retention.ms=5=5")
    assert cluster.created == (-1, {"retention.ms": "5=5"})
    assert complaint(capsys, "topics", "create", "c") == (2, "topic c exists already")
    assert answer(capsys, "topics", "grow", "c", "6") == "c: 4 -> 6 partitions\n"
    assert complaint(capsys, "topics", "grow", "c", "6") == (
        2,
        "TOTAL: c has 6 partitions already; a topic can only grow",
    )
    assert answer(capsys, "topics", "delete", "c", "--yes") == "deleted c\n"
    assert "c" not in cluster.topics


def test_groups_list(cluster, capsys):
    assert rows(answer(capsys, "groups", "list"))[1:] == [["e", "Empty", "-"], ["g", "Stable", "consumer"]]
    assert json.loads(answer(capsys, "groups", "list", "--json"))[1] == {
        "group": "g",
        "state": "Stable",
        "protocol_type": "consumer",
    }


def test_groups_describe_says_who_owns_what_and_how_far_behind(cluster, capsys):
    lines = answer(capsys, "groups", "describe", "g").splitlines()
    assert lines[0] == "g: Stable, 2 members, protocol range, coordinator 127.0.0.1:9092, lag 6"
    assert [line.split() for line in lines[2:4]] == [
        ["a", "0", "4", "10", "6", "app", "/127.0.0.1", "m-1"],
        ["a", "1", "-", "20", "-", "app", "/127.0.0.1", "m-1"],
    ]
    assert lines[4] == "without partitions: m-2"


def test_groups_describe_for_machines(cluster, capsys):
    document = json.loads(answer(capsys, "groups", "describe", "g", "--json"))
    assert document["lag"] == 6
    assert document["members"][0]["assignment"] == [["a", 0], ["a", 1]]
    assert document["partitions"][1] == {
        "topic": "a",
        "partition": 1,
        "committed": None,
        "begin": 1,
        "end": 20,
        "lag": None,
        "owner": "m-1",
    }


def test_groups_offsets_leave_out_topics_that_are_gone(cluster, capsys):
    assert rows(answer(capsys, "groups", "offsets", "g"))[1:] == [["a", "0", "4", "1", "10", "6"]]
    assert json.loads(answer(capsys, "groups", "offsets", "g", "--json"))[0]["lag"] == 6


@pytest.mark.parametrize(
    ("target", "expected"),
    [("earliest", [1, 1]), ("latest", [10, 20]), ("15", [10, 15]), ("0", [1, 1]), ("1970-01-01T00:00:03", [3, 20])],
)
def test_groups_reset(cluster, capsys, target, expected):
    answer(capsys, "groups", "reset", "g", "--topic", "a", "--to", target)
    assert [cluster.committed[TP("a", n)] for n in range(2)] == expected


def test_groups_reset_only_one_partition_and_dry_run(cluster, capsys):
    text = answer(capsys, "groups", "reset", "g", "-t", "a", "--to", "latest", "--partition", "1", "--dry-run")
    assert rows(text)[1:] == [["a", "1", "-", "20"]]
    assert TP("a", 1) not in cluster.committed
    code, line = complaint(capsys, "groups", "reset", "g", "-t", "a", "--to", "latest", "--partition", "5")
    assert (code, line) == (2, "--partition: a has no partition 5; it has 2")


def test_groups_delete(cluster, capsys):
    assert complaint(capsys, "groups", "delete", "g") == (2, "group g still has 2 members; stop them first")
    cluster.members.clear()
    assert answer(capsys, "groups", "delete", "g") == "deleted g\n"
    assert complaint(capsys, "groups", "describe", "x") == (2, "there is no group x")


def test_an_unreachable_cluster_names_the_option(cluster, capsys):
    code, line = complaint(capsys, "topics", "list", "--bootstrap", "127.0.0.1:1")
    assert code == 1
    assert line.startswith("--bootstrap: no broker answered at 127.0.0.1:1 (`roster broker`")
