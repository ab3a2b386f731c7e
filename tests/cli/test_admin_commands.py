"""`roster topics` and `roster groups` against an Admin that answers from memory."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from roster.cli.root import run
from roster.client import (
    AuthorizationError,
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
    metadata: str = ""
    committed: dict[TP, int] = field(default_factory=lambda: {TP("a", 0): 4, TP("gone", 0): 7})
    internal: set[str] = field(default_factory=set)
    more: list[GroupListing] = field(default_factory=list)
    described: list[str] = field(default_factory=list)
    forbidden: str = ""
    state: str = "Stable"
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

        def replica_racks(self, topics):
            return {name: [frozenset()] * there.topics[name] for name in topics if name in there.topics}

        def describe_topic(self, name):
            self._known(name)
            partitions = tuple(PartitionDescription(n, 0, (0,), (0,)) for n in range(there.topics[name]))
            return TopicDescription(name, None, name in there.internal, partitions)

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
            return [GroupListing("e", "", "Empty"), GroupListing("g", "consumer", "Stable", "classic"), *there.more]

        def describe_group(self, group):
            there.described.append(group)
            if group == there.forbidden:
                raise AuthorizationError(f"group {group}: this client may not describe it")
            if group != "g":
                raise UnknownGroupError(f"there is no group {group}")
            return GroupDescription(group, there.state, "consumer", "range", there.members, "127.0.0.1:9092")

        def pending_offsets(self, group, partitions):
            return set()

        def group_offsets(self, group, partitions=None, *, stable=True):
            return {tp: OffsetAndMetadata(offset, metadata=there.metadata) for tp, offset in there.committed.items()}

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
    assert rows(answer(capsys, "groups", "list"))[1:] == [
        ["e", "Empty", "-", "-", "-", "-"],
        ["g", "Stable", "classic", "consumer", "2", "at", "least", "6"],
    ]
    assert json.loads(answer(capsys, "groups", "list", "--json"))[1] == {
        "group": "g",
        "state": "Stable",
        "type": "classic",
        "protocol_type": "consumer",
        "members": 2,
        "lag": 6,
        "lag_complete": False,
        "results": None,
    }
    assert [row[0] for row in rows(answer(capsys, "groups", "list", "[f-z]"))] == ["group", "g"]
    assert answer(capsys, "groups", "list", "x*") == "no group matches 'x*'\n"


def test_groups_say_which_of_two_writes(cluster, capsys):
    cluster.metadata = '{"results": {"results": "paused", "switch": "s", "peer": "shops"}}'
    head, _, row = rows(answer(capsys, "groups", "list"))
    assert (head[-1], row[-3:]) == ("results", ["paused,", "shops", "writes"])
    assert json.loads(answer(capsys, "groups", "list", "--json"))[1]["results"] == "paused, shops writes"
    assert "results paused, shops writes\n" in answer(capsys, "groups", "describe", "g")
    assert json.loads(answer(capsys, "groups", "describe", "g", "--json"))["results"] == "paused, shops writes"


def test_groups_list_shows_groups_that_the_client_may_only_list(cluster, capsys):
    cluster.forbidden = "g"
    assert rows(answer(capsys, "groups", "list", "g"))[1] == ["g", "Stable", "classic", "consumer", "-", "-"]


def test_groups_list_looks_into_few_groups_only(cluster, capsys):
    cluster.more = [GroupListing(f"h-{n:03}", "consumer", "Stable", "classic") for n in range(100)]
    assert run(["groups", "list"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 103
    assert err == "members and lag are not shown of 102 groups, more than 100; give a pattern, as in 'shop*'\n"
    assert cluster.described == []
    assert rows(answer(capsys, "groups", "list", "g"))[1][4:] == ["2", "at", "least", "6"]
    assert cluster.described == ["g"]


def test_groups_describe_says_who_owns_what_and_how_far_behind(cluster, capsys):
    lines = answer(capsys, "groups", "describe", "g").splitlines()
    assert lines[:3] == [
        "g: Stable, 2 members, lag at least 6",
        "classic group, assignor range, coordinator 127.0.0.1:9092",
        "",
    ]
    assert [line.split() for line in lines[3:]] == [
        ["member", "client", "host", "partitions"],
        ["m-1", "app", "127.0.0.1", "2"],
        ["static", "app", "127.0.0.1", "0"],
        [],
        ["topic", "partition", "committed", "end", "lag", "member"],
        ["a", "0", "4", "10", "6", "m-1"],
        ["a", "1", "-", "20", "-", "m-1"],
    ]


def test_the_lag_is_exact_only_if_it_is_known_of_every_partition(cluster, capsys):
    def first_line() -> str:
        return answer(capsys, "groups", "describe", "g").splitlines()[0]

    cluster.committed = {TP("a", 0): 4, TP("a", 1): 20}
    assert first_line() == "g: Stable, 2 members, lag 6"
    cluster.committed = {}
    assert first_line() == "g: Stable, 2 members, lag unknown"
    cluster.members = []
    cluster.committed = {TP("a", 0): 4}
    cluster.state = "Empty"
    assert first_line() == "g: Empty, 0 members, lag at least 6"
    cluster.committed = {TP("a", 0): 4, TP("a", 1): 20}
    assert first_line() == "g: Empty, 0 members, lag 6"


@pytest.mark.parametrize("state", ["PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"])
def test_the_lag_is_a_lower_bound_while_assignments_are_unknown(cluster, capsys, state):
    cluster.state, cluster.committed = state, {TP("a", 0): 4, TP("a", 1): 20}
    lines = answer(capsys, "groups", "describe", "g").splitlines()
    assert lines[0] == f"g: {state}, 2 members, lag at least 6"
    assert lines[2] == "members and assignments are complete once the rebalance is over"
    document = json.loads(answer(capsys, "groups", "describe", "g", "--json"))
    assert (document["lag"], document["lag_complete"]) == (6, False)
    cluster.committed = {}
    document = json.loads(answer(capsys, "groups", "describe", "g", "--json"))
    assert (document["lag"], document["lag_complete"]) == (None, False)


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
        "pending": False,
        "owner": "m-1",
    }


@pytest.mark.parametrize(
    ("target", "expected"),
    [("earliest", [1, 1]), ("latest", [10, 20]), ("15", [10, 15]), ("0", [1, 1]), ("1970-01-01T00:00:03", [3, 20])],
)
def test_groups_reset(cluster, capsys, target, expected):
    answer(capsys, "groups", "reset", "g", "--topic", "a", "--to", target, "--yes")
    assert [cluster.committed[TP("a", n)] for n in range(2)] == expected


def test_groups_reset_only_one_partition_and_dry_run(cluster, capsys):
    text = answer(capsys, "groups", "reset", "g", "-t", "a", "--to", "latest", "--partition", "1", "--dry-run")
    assert rows(text)[1:] == [["a", "1", "-", "20"]]
    assert TP("a", 1) not in cluster.committed
    code, line = complaint(capsys, "groups", "reset", "g", "-t", "a", "--to", "latest", "--partition", "5", "--yes")
    assert (code, line) == (2, "--partition: a has no partition 5; it has 2")


def test_groups_delete(cluster, capsys):
    assert complaint(capsys, "groups", "delete", "g", "--yes") == (2, "group g still has 2 members; stop them first")
    cluster.members.clear()
    assert answer(capsys, "groups", "delete", "g", "--yes") == "deleted g\n"
    assert complaint(capsys, "groups", "describe", "x") == (2, "there is no group x")


def test_an_unreachable_cluster_names_the_option(cluster, capsys):
    code, line = complaint(capsys, "topics", "list", "--bootstrap", "127.0.0.1:1")
    assert code == 1
    assert line.startswith("--bootstrap: no broker answered at 127.0.0.1:1 (`roster broker`")


def test_an_offset_outside_of_the_log_becomes_its_end_and_the_table_says_so(cluster, capsys):
    text = answer(capsys, "groups", "reset", "g", "-t", "a", "--to", "15", "--dry-run")
    assert text.splitlines()[0].split() == ["topic", "partition", "before", "would", "be", "note"]
    assert [" ".join(row) for row in rows(text)[1:]] == ["a 0 4 10 the end: 15 lies beyond it", "a 1 - 15"]
    text = answer(capsys, "groups", "reset", "g", "-t", "a", "--to", "0", "--partition", "0", "--yes")
    assert rows(text)[1] == ["a", "0", "4", "1", "the", "begin:", "0", "is", "gone"]
    text = answer(capsys, "groups", "reset", "g", "-t", "a", "--to", "1970-01-01T00:00:03", "--yes")
    assert text.splitlines()[2].endswith("the end: no record at or after 1970-01-01T00:00:03+00:00")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("99999999999999999999", "--to: 99999999999999999999 is larger than any offset (9223372036854775807)"),
        ("9" * 5000, "is larger than any offset"),
        ("1969-12-31T23:59:59.999", "--to: 1969-12-31T23:59:59.999 lies before 1970"),
    ],
)
def test_a_place_that_cannot_be_in_a_log_is_refused(cluster, capsys, target, words):
    code, line = complaint(capsys, "groups", "reset", "g", "-t", "a", "--to", target, "--yes")
    assert code == 2
    assert words in line


@pytest.mark.parametrize(
    ("arguments", "question"),
    [
        (["topics", "delete", "a"], "Delete topic a and all its records?"),
        (["groups", "delete", "g"], "Delete group g and its offsets?"),
        (["groups", "reset", "g", "-t", "a", "--to", "latest"], "Set these offsets of group g?"),
    ],
)
def test_without_a_terminal_nothing_is_deleted_or_reset_unless_told(cluster, capsys, arguments, question):
    cluster.members.clear()
    before = (dict(cluster.topics), dict(cluster.committed))
    code, line = complaint(capsys, *arguments)
    assert (code, line) == (2, f"--yes: there is no terminal to ask {question!r} on; add --yes")
    assert (cluster.topics, cluster.committed) == before
    assert not hasattr(cluster, "deleted")


@pytest.mark.parametrize(("typed", "code"), [("y", 0), ("n", 1)])
def test_on_a_terminal_they_ask(cluster, capsys, monkeypatch, typed, code):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    asked = []
    monkeypatch.setattr("click.confirm", lambda text, **_: asked.append(text) or typed == "y")
    cluster.members.clear()
    assert run(["topics", "delete", "b"]) == code
    assert ("b" in cluster.topics) == (typed == "n")
    assert run(["groups", "reset", "g", "-t", "a", "--to", "latest"]) == code
    assert (TP("a", 1) in cluster.committed) == (typed == "y")
    assert asked == ["Delete topic b and all its records?", "Set these offsets of group g?"]
    assert ("not confirmed; nothing was changed" in capsys.readouterr().err) == (typed == "n")


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state", "__share_group_state", "own"])
def test_internal_topics_are_not_deleted(cluster, capsys, name):
    cluster.topics |= {"__consumer_offsets": 50, "own": 1}
    cluster.internal = {"own"}
    code, line = complaint(capsys, "topics", "delete", name, "--yes")
    assert (code, line) == (2, f"NAME: {name} is an internal topic; the cluster keeps its own state in it")
    assert {"__consumer_offsets", "own"} <= set(cluster.topics)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (".", "NAME: '.' cannot be a topic; use 1 to 249 letters, digits, '.', '_' or '-', and neither '.' nor '..'"),
        ("..", "NAME: '..' cannot be a topic"),
        ("a b", "NAME: 'a b' cannot be a topic; use 1 to 249 letters"),
        ("x" * 250, f"NAME: '{'x' * 39}... (252 characters) cannot be a topic; use 1 to 249 letters"),
        ("", "Invalid value for 'NAME': must not be empty"),
    ],
)
def test_a_bad_name_of_a_new_topic_says_why(cluster, capsys, name, words):
    code, line = complaint(capsys, "topics", "create", name)
    assert code == 2
    assert line.startswith(words)


def test_one_partition_is_singular(cluster, capsys):
    assert answer(capsys, "topics", "create", "c") == "created c with 1 partition\n"
