"""What is told of groups: on a real broker, when it goes, and however many listen."""

from __future__ import annotations

import contextlib
import json
import re
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlencode

import pytest

from roster.client import Admin, GroupMember, OffsetAndMetadata
from roster.model import TopicPartition
from roster.page import watch as watch_module
from roster.page.pages import page_answers
from roster.page.watch import GroupsWatch
from roster.testing import EmbeddedBroker
from tests.client.task_application import Application, applications
from tests.page.fake_groups import FakeGroups, numbered, page_of
from tests.waiting import until


def test_it_follows_a_group_of_a_broker_through_a_rebalance_an_outage_and_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch_module, "FOCUS_INTERVAL", 0.05)
    with EmbeddedBroker() as broker, Admin(broker.bootstrap) as admin, contextlib.ExitStack() as opened:
        admin.create_topic("orders", 4)
        broker.produce("orders", [b"x"] * 10, partition=3)
        admin.commit_group_offsets("shops", {TopicPartition("orders", 3): OffsetAndMetadata(4)})
        watch = opened.enter_context(
            contextlib.closing(GroupsWatch(broker.bootstrap, re.compile("shops"), interval=0.1, share=1.0))
        )
        row = until(lambda: watch.groups["groups"].get("shops"), 60)
        assert (row["state"], row["members"], row["lag"], row["kind"]) == ("Empty", 0, 6, "classic")
        assert row["seconds"] >= 0
        assert watch.open("others") is None
        group = watch.open("shops")
        assert group is not None
        with group.open().listening(lambda: None):
            with GroupMember(broker.bootstrap, "shops", ["orders"], client_id="app-1"):
                until(lambda: [each["partitions"] for each in group.document["members"]] == [4], 60)
                assert until(lambda: group.document["rebalances"], 60)[-1]["causes"] == [
                    "A app-1-" + _four(group) + " joined"
                ]
                rows = group.document["all_rows"]
                assert [row[:3] for row in rows] == [[0, number, 0] for number in range(4)]
                assert rows[3][3:6] == [4, 10, 6]
                broker.stop()
                until(lambda: group.document["head"]["away"] and watch.groups["head"]["error"], 60)
                assert group.document["head"]["lag"] == 6
                assert group.document["head"]["seconds"] >= 0
                broker.start()
                until(lambda: not group.document["head"]["away"] and not watch.groups["head"]["error"], 60)
            until(lambda: group.document["head"]["state"] == "Empty", 60)
            admin.delete_group("shops")
            until(lambda: group.document["head"]["state"] == "", 60)
            assert group.document["events"][-1]["kind"] == "gone"


def _four(group: Any) -> str:
    return str(group.document["members"][0]["id"].removeprefix("app-1-")[:4])


def test_thirty_listeners_cost_no_look_more(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = FakeGroups()
    for name in ("a", "b"):
        groups.put(name, {"x": numbered("t", 2)}, dict.fromkeys(numbered("t", 2), 5))
    with page_of(groups, monkeypatch) as (watch, _), contextlib.ExitStack() as opened:
        until(lambda: watch.groups["groups"].keys() == {"a", "b"}, 60)
        woken = [0] * 60
        for number in range(30):
            for offset, feed in ((0, watch.overview), (30, watch.open("a").open())):  # type: ignore[union-attr]

                def wake(at: int = number + offset) -> None:
                    woken[at] += 1

                opened.enter_context(feed.listening(wake))
        begin = len(groups.looks)
        until(lambda: min(woken) >= 5, 60)
        looks = groups.looks[begin:]
        assert looks.count(None) <= max(woken[:30]) + 1
        assert looks.count("a") <= max(woken[30:]) + 1
        assert "b" not in looks


def test_a_group_that_nobody_looks_at_any_more_is_not_looked_at_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "_FORGOTTEN_AFTER", 0.0)
    groups = FakeGroups()
    groups.put("a", {}, {})
    with page_of(groups, monkeypatch) as (watch, _):
        watch.open("a")
        watch.open("never-there")
        until(lambda: {"a", "never-there"} <= set(groups.looks), 60)
        begin = len(groups.looks)
        until(lambda: groups.looks[begin:].count(None) >= 5, 60)
        until(lambda: watch.groups["groups"].keys() == {"a"}, 60)
        begin = len(groups.looks)
        until(lambda: groups.looks[begin:].count(None) >= 5, 60)
        assert set(groups.looks[begin:]) == {None}


def ask(port: int, path: str, **query: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}?{urlencode(query)}", timeout=60) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_groups_and_partitions_as_json_and_what_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    groups, name = FakeGroups(), "<b>&\"'" + "é" * 200
    groups.put(name, {"<i>": numbered("t", 1)}, {TopicPartition("t", 0): 5})
    groups.put("shared", {}, {}, kind="share")
    del groups.seen.described["shared"]
    with page_of(groups, monkeypatch, names=re.compile("[^x]+")) as (watch, server):
        until(lambda: len(watch.groups["groups"]) == 2, 60)
        shared = ask(server.port, "/page/groups")[1]["groups"]["shared"]
        assert (shared["kind"], shared["state"], shared["lag"]) == ("share", "Stable", None)
        shown = ask(server.port, "/page/group", group="shared")[1]["head"]
        assert (shown["state"], shown["trouble"]) == ("Stable", "members of share groups are not shown")
        status, document = ask(server.port, "/page/group", group=name)
        assert (status, document["members"][0]["client"], document["all_rows"][0][5]) == (200, "<i>", 5)
        status, life = ask(server.port, "/page/partition", group=name, topic="t", partition="0")
        assert (status, life["lags"][0][1]) == (200, 5)
        for query, field in (
            ({"group": "x"}, "group"),
            ({}, "group"),
            ({"group": name, "partition": "-1"}, "partition"),
            ({"group": name, "partition": "²"}, "partition"),
        ):
            status, refused = ask(server.port, "/page/partition", **query)
            assert (status, refused["error"]["field"]) == (404 if field == "group" else 400, field), query
        many = {f"f{number}": "" for number in range(50)}
        for path in ("group", "partition", "live"):
            status, refused = ask(server.port, f"/page/{path}", group=name, **many)
            assert (status, refused["error"]["field"]) == (400, "query")


def test_the_page_of_an_application_is_on_its_group_alone_there_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = FakeGroups()
    with page_of(groups, monkeypatch, names="mine") as (watch, _):
        until(lambda: watch.groups["head"]["at"], 60)
        assert watch.groups["head"]["only"] == "mine"
        assert watch.open("other") is None
        mine = watch.open("mine")
        assert mine is not None
        groups.put("mine", {"a": numbered("t", 3)}, dict.fromkeys(numbered("t", 3), 1))
        until(lambda: mine.document["head"]["lag"] == 3, 60)
        assert set(groups.looks) == {None}


def test_an_application_tells_on_its_page_what_its_member_knows_though_another_leads() -> None:
    with EmbeddedBroker() as broker, Admin(broker.bootstrap) as admin, contextlib.ExitStack() as opened:
        admin.create_topic("orders", 8)

        def member(name: str, **more: Any) -> GroupMember:
            more = {"assignors": ["cooperative-sticky"], "heartbeat_interval_ms": 50, "client_id": name, **more}
            return opened.enter_context(GroupMember(broker.bootstrap, "shops", ["orders"], **more))

        def mine_has(*counts: int) -> bool:
            for each in others:
                each.release(each.ownership().revoking)
            now = mine.ownership()
            return (len(now.partitions), len(now.revoking)) == counts

        def own() -> list[str]:
            return [each["text"] for each in page.document["events"] if each["kind"] == "own"]

        others = [member("leader")]
        mine = member("mine", rebalance_timeout_ms=5_000)
        watch = GroupsWatch(broker.bootstrap, "shops", interval=0.05, share=1.0, own_events=mine.statistics.events)
        opened.enter_context(contextlib.closing(watch))
        page = watch.open("shops")
        assert page is not None
        until(lambda: mine_has(4, 0), 60)
        others.append(member("third"))
        until(lambda: mine_has(3, 1), 60)
        assert "joins again: group is already rebalancing" in own()
        mine.release(mine.ownership().revoking)
        until(lambda: mine_has(3, 0) and len(others[1].ownership().partitions) == 2, 60)
        others.append(member("fourth"))
        until(lambda: mine_has(2, 1), 60)
        until(lambda: mine_has(2, 0), 60)  # it never released the partition
        released, lost = until(lambda: (told := [e for e in own() if "joins" not in e]) and len(told) == 2 and told, 60)
        assert re.fullmatch(r"released revoked partitions after \d+\.\d s", released)
        assert lost == "lost partitions: 1"


def test_the_files_are_there() -> None:
    with contextlib.closing(GroupsWatch("127.0.0.1:1", "g")) as watch:
        pages, _ = page_answers(watch)
        for page in pages:
            if page.path == "/" or "." in page.path:
                assert page.answer(page.path).body


def test_tasks_with_state_have_owners_and_standby_copies() -> None:
    with EmbeddedBroker() as broker, Admin(broker.bootstrap) as admin, applications() as running:
        admin.create_topic("orders", 4)
        watch = GroupsWatch(broker.bootstrap, "totals", interval=0.1, share=1.0)
        with contextlib.closing(watch):
            for _ in range(2):
                running.append(Application(broker.bootstrap, "totals", "orders"))
            group = watch.open("totals")
            assert group is not None

            def tasks() -> list[dict[str, Any]]:
                for application in running:
                    application.restore()
                found: list[dict[str, Any]] = group.document.get("tasks", [])
                return found if found and all(each["owner"] and each["standbys"] for each in found) else []

            found = until(tasks, 60)
            assert [each["task"] for each in found] == ["0_0", "0_1", "0_2", "0_3"]
            members = {each["id"] for each in group.document["members"]}
            for each in found:
                ((copy, _),) = each["standbys"]
                assert {each["owner"], copy} == members


def test_a_look_that_fails_unforeseen_is_logged_and_the_next_one_is_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    groups = FakeGroups()
    groups.broken = True
    with page_of(groups, monkeypatch) as (watch, _):
        until(lambda: len(groups.looks) >= 2, 60)
        assert "what nobody thought of" in caplog.text
        groups.put("a", {}, {})
        groups.broken = False
        until(lambda: watch.groups["groups"], 60)
