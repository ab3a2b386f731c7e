"""`roster state reset` on a broker."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roster.cli.root import run
from roster.client import Admin, GroupMember, OffsetAndMetadata
from roster.model import TopicPartition
from roster.model.topology import changelog_topic, own_topics, repartition_topic
from roster.state.cleaning import stores_below
from roster.state.lmdb_store import LmdbStore
from tests.real.realparts.cluster import unique
from tests.state.test_cleaning import make


class Case:
    """A group that has worked: its changelog, another group's, its offsets, and stores."""

    def __init__(self, cluster, root, capsys) -> None:
        self.cluster, self.root, self._capsys = cluster, root, capsys
        self.group, self.source = unique("reset"), cluster.create_topic(partitions=2)
        self.changelog = changelog_topic(self.group, "totals")
        self.others = changelog_topic(f"{self.group}-next", "totals")
        self.between = repartition_topic(self.group, "by-key")
        with self.admin() as admin:
            admin.create_topic(self.between, 2)
            for topic in (self.changelog, self.others):
                admin.create_topic(topic, 2, configs={"cleanup.policy": "compact"})
            self.commit(admin, self.group)
            self.commit(admin, f"{self.group}-next")
        for topic in (self.changelog, self.others):
            make(root / topic / "id", "0_0", "0_1")

    def admin(self) -> Admin:
        return Admin(self.cluster.bootstrap)

    def commit(self, admin: Admin, group: str) -> None:
        admin.commit_group_offsets(group, {TopicPartition(self.source, 1): OffsetAndMetadata(7)})

    def reset(self, *options: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        where = ("-b", self.cluster.bootstrap, "--state-dir", str(self.root))
        code = run(["state", "reset", self.group, *where, *options])
        told = self._capsys.readouterr()
        return code, told.out, told.err

    def there(self) -> tuple[bool, bool, int, int]:
        with self.admin() as admin:
            topics = admin.list_topics(internal=True)
            stores = len(stores_below(self.root / self.changelog))
            return self.changelog in topics, self.others in topics, len(admin.group_offsets(self.group)), stores


@pytest.fixture
def case(roster_broker, tmp_path, capsys):
    return Case(roster_broker, tmp_path, capsys)


def test_what_would_go_is_shown_and_goes_with_execute_only(case):
    code, out, _ = case.reset()
    assert code == 0
    for words in (
        case.changelog,
        case.between,
        f"{case.source}-1",
        "would be deleted",
        "nothing was changed; --execute does it",
    ):
        assert words in out
    assert f"stays, may be of group {case.group}-next: name it with --store" in out
    assert case.there() == (True, True, 1, 2)
    code, out, _ = case.reset("--execute", "--json")
    document = json.loads(out)
    assert (code, document["executed"], document["changelogs"]) == (0, True, [case.changelog])
    assert document["repartitions"] == [case.between]
    assert document["offsets"] == [{"topic": case.source, "partition": 1, "offset": 7}]
    assert len(document["stores"]) == 2
    assert case.there() == (False, True, 0, 0)
    assert len(stores_below(case.root / case.others)) == 2
    with case.admin() as admin:
        assert case.between not in admin.list_topics(internal=True)
    code, out, _ = case.reset("--execute")
    assert code == 0, "a reset that was cut short is run again"
    assert case.changelog not in out


def test_a_group_with_members_or_stores_in_use_is_left_as_it_is(case):
    with GroupMember(case.cluster.bootstrap, case.group, [case.source]):
        for options in ((), ("--execute",)):
            code, _, err = case.reset(*options)
            assert (code, f"GROUP: {case.group} has 1 member; stop the applications first" in err) == (2, True)
    with LmdbStore(case.root / case.changelog / "id" / "0_1"):
        code, _, err = case.reset("--execute")
    assert (code, "another process writes it" in err) == (1, True)
    assert case.there() == (True, True, 1, 2)


@pytest.mark.parametrize(
    ("store", "message"), [("none", "--store: there is no topic"), ("a/b", "--store: '"), ("", "must not be empty")]
)
def test_a_store_that_is_not_there_is_named(case, store, message):
    code, _, err = case.reset("--store", store)
    assert (code, message in err) == (2, True), err


NAMES = st.text("ab-", min_size=1, max_size=4)


@given(st.lists(st.tuples(NAMES, NAMES), max_size=6), NAMES)
def test_a_changelog_of_another_group_is_never_taken(made, group):
    topics = {changelog_topic(owner, store): owner for owner, store in made}
    others = {owner for owner, _ in made} - {group}
    taken, doubtful = own_topics(group, topics, others, "-changelog")
    owned_by_one = {
        topic
        for topic, owner in topics.items()
        if owner == group and not any(topic.startswith(f"{other}-") for other in others)
    }
    assert owned_by_one <= set(taken)
    assert all(topics[topic] == group for topic in taken)
    assert {topic for topic, owner in topics.items() if owner == group} <= set(taken) | doubtful.keys()
