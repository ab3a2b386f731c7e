"""The page in a real browser on a real Apache Kafka: a classic group and one of KIP-848, as they rebalance."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pytest

from roster.client import Admin
from roster.http.server import HttpServer
from roster.model import Address
from roster.page import watch as watch_module
from roster.page.pages import page_answers
from roster.page.watch import GroupsWatch
from tests.page.test_browser import Eyes
from tests.real.realparts.browser import chromium
from tests.real.realparts.cluster import unique
from tests.real.realparts.groups import commit_all, consumed_up_to, partitions, shared_out

pytestmark = pytest.mark.real


@pytest.mark.gate
def test_both_kinds_of_groups_are_shown_as_kafka_has_them(
    apache_kafka: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "FOCUS_INTERVAL", 0.3)
    topic, stem = apache_kafka.create_topic(partitions=6, records=7), unique("group")
    every = partitions(topic, 6)
    chosen = {
        "roster": {"assignors": ["cooperative-sticky"]},
        "confluent": {"protocol": "consumer"},
    }
    groups = {kind: f"{stem}-{kind}" for kind in chosen}
    members = {kind: [client(kind, apache_kafka, groups[kind], topics=[topic], **chosen[kind])] for kind in chosen}
    for kind, group in groups.items():
        shared_out(members[kind], every)
        consumed_up_to(members[kind], dict.fromkeys(every, 7))
        commit_all(apache_kafka, group, members[kind], dict.fromkeys(every, 7))
    apache_kafka.produce(dict.fromkeys(every, 3))
    with contextlib.ExitStack() as opened:
        names = re.compile(re.escape(stem) + ".*")
        watch = opened.enter_context(contextlib.closing(GroupsWatch(apache_kafka.bootstrap, names, interval=0.5)))
        pages, streams = page_answers(watch)
        server = opened.enter_context(contextlib.closing(HttpServer(Address("127.0.0.1", 0), pages, streams=streams)))
        eyes = Eyes(opened.enter_context(chromium()), server.port).go()
        assert set(eyes.sees("td.name a", lambda found: len(found) == 2)) == set(groups.values())
        eyes.sees("tbody tr", lambda rows: all("Stable" in row and "18" in row for row in rows))
        for kind, group in groups.items():
            eyes.go(f"#group={group}")
            eyes.sees(".who b", lambda found: len(found) == 1)
            members[kind].append(client(kind, apache_kafka, group, topics=[topic], **chosen[kind]))
            shared_out(members[kind], every)
            with Admin(apache_kafka.bootstrap) as admin:
                now = admin.describe_group(group)
            eyes.sees(".who small", lambda found: sum("3 partitions" in text for text in found) == 2)
            title = eyes.sees("h1 + p", lambda found: "Stable" in found[0])[0]
            assert ("consumer group" if kind == "confluent" else "classic group") in title
            if now.epoch is not None:
                eyes.sees("h1 + p", lambda found, epoch=now.epoch: f"epoch {epoch}" in found[0])
            eyes.sees("li.rebalance", lambda found: any("joined" in text for text in found))
        assert eyes.complaints() == []
