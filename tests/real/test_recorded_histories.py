"""Twelve rebalances of real clients: each is named in the group's history as what was done, or as unknown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from roster._clock import wall_ms
from roster.client import Admin
from roster.history.derived import ENDS, EVENTS, GroupHistory
from roster.history.tables import GROUPS, rows_of
from roster.model import TopicPartition, parse_addresses
from roster.records import native
from roster.records.fetch import read_ranges
from roster.records.fetch_decisions import Settings as FetchSettings
from roster.wire.offsets_topic import partition_of
from tests.real.realparts import clients, jvm
from tests.real.realparts.clients import HostedMember, Settings
from tests.real.realparts.cluster import unique
from tests.real.realparts.groups import partitions, shared_out
from tests.waiting import until

OFFSETS_TOPIC = "__consumer_offsets"


def history_of(bootstrap: str, group: str, *topics: str) -> GroupHistory:
    """What the records say of a group now; topics are known by their ids."""
    with Admin(bootstrap) as admin:
        place = TopicPartition(OFFSETS_TOPIC, partition_of(group, len(admin.describe_topic(OFFSETS_TOPIC).partitions)))
        begin, end = admin.beginning_offsets([place])[place], admin.end_offsets([place])[place]
    found = []
    for batch in read_ranges(parse_addresses(bootstrap), "test", [(*place, begin, end)], FetchSettings()):
        found += [pa.table(rows) for rows in rows_of(native.kernel(None, native.OFFSETS), batch)]
    rows = pa.concat_tables(found)
    rows = rows.filter(pc.and_(pc.equal(rows["group"], group), pc.equal(rows["table"], GROUPS)))
    found = [EVENTS.empty_table(), rows.select([name for name in EVENTS.names if name != "topic_id"])]
    with Admin(bootstrap) as admin:
        for topic in topics:
            place = {"topic": topic, "partition": 0, "offset": 0, "topic_id": admin.topic_ids()[topic]}
            found.append(pa.Table.from_pylist([{"table": ENDS, "group": group, "at": 0, **place}], EVENTS))
    return GroupHistory(pa.concat_tables(found, promote_options="default").select(EVENTS.names).cast(EVENTS))


@pytest.mark.sampled(1)
def test_what_real_clients_did_is_named_or_unknown(cluster: Any, client: Any, tmp_path: Path) -> None:
    stem, group = unique("topic"), unique("group")
    topic = cluster.create_topic(stem, partitions=6)
    done: list[tuple[int, int, set[str]]] = []

    def step(kinds: set[str], act: Callable[[], object], members: list[Any], count: int = 6) -> None:
        begin = wall_ms()
        act()
        shared_out(members, partitions(topic, count))
        done.append((begin, wall_ms(), kinds))

    opened: list[Any] = []

    def opens(kind: str, **chosen: Any) -> None:
        chosen = {"topics": [topic], **chosen}
        opened.append(client(kind, cluster, group, assignors=["range"], **chosen))

    step({"joined"}, lambda: opens("kafka-python"), opened)
    step({"joined"}, lambda: opens("confluent"), opened)
    step({"joined"}, lambda: opens("aiokafka"), opened)
    step({"left_or_expired"}, lambda: opened.pop(0).close(), opened)
    host = clients.python_host(tmp_path / "host.log")
    doomed = HostedMember(host, "roster", cluster.bootstrap, group, Settings([topic], assignors=["range"]))
    opened.append(doomed)
    step({"joined"}, lambda: None, opened)
    opened.remove(doomed)
    step({"left_or_expired"}, host.kill, opened)
    step({"joined"}, lambda: opens("roster", instance="shelf"), opened)
    opened.pop().close()
    step({"static_member_replaced"}, lambda: opens("roster", instance="shelf"), opened)
    step({"partitions_added"}, lambda: cluster.add_partitions(topic, 8), opened, 8)
    step({"joined"}, lambda: opens("confluent", topics=[], pattern=f"^{topic}(-.*)?$"), opened, 8)
    pattern = opened[-1]

    begin = wall_ms()
    other = cluster.create_topic(topic, partitions=2)
    until(lambda: {owned for owned in pattern.owned if owned[0] == other})
    done.append((begin, wall_ms(), {"subscription_changed"}))
    pattern.close()
    opened.remove(pattern)
    shared_out(opened, partitions(topic, 8))

    def both() -> None:
        leaving = opened.pop(0)
        opens("kafka-python")
        leaving.close()

    step({"joined", "left_or_expired"}, both, opened, 8)

    found = history_of(cluster.bootstrap, group).timeline.rebalances
    seen: set[str] = set()
    for begin, end, kinds in done:
        told = {cause.kind.value for each in found if begin <= each.now.at_ms <= end for cause in each.causes}
        assert told <= kinds | {"unknown"}, (kinds, told)
        seen |= told & kinds
    assert seen >= {"joined", "left_or_expired", "static_member_replaced", "partitions_added", "subscription_changed"}


@pytest.mark.gate
def test_a_group_of_the_new_protocol_has_its_epochs_owners_and_causes(apache_kafka: Any, client: Any) -> None:
    topic, group = apache_kafka.create_topic(unique("topic"), partitions=6), unique("group")
    opened: list[Any] = []
    for kind in ("confluent", "java", "confluent"):
        opened.append(client(kind, apache_kafka, group, topics=[topic], protocol="consumer"))
        shared_out(opened, partitions(topic, 6))
    with Admin(apache_kafka.bootstrap) as admin:
        first = {each.client_id: each.member_id for each in admin.describe_group(group).members}
        opened.pop(0).close()
        shared_out(opened, partitions(topic, 6))
        apache_kafka.add_partitions(topic, 8)
        shared_out(opened, partitions(topic, 8))
        opened.append(client("confluent", apache_kafka, group, topics=[topic], protocol="consumer", instance="shelf"))
        shared_out(opened, partitions(topic, 8))
        opened.pop().close()
        opened.append(client("confluent", apache_kafka, group, topics=[topic], protocol="consumer", instance="shelf"))
        shared_out(opened, partitions(topic, 8))
        now = until(lambda: found if (found := admin.describe_group(group)).state == "Stable" else None)
    tables = dict(history_of(apache_kafka.bootstrap, group, topic).tables())
    rows = tables["rebalances"].to_pylist()
    told = [(cause["kind"], row["members"]) for row in rows for cause in row["causes"] if cause["kind"] != "unknown"]
    assert told[:4] == [("joined", 2), ("joined", 3), ("left_or_expired", 2), ("partitions_added", 2)]
    assert told[4:] == [("joined", 3), ("static_member_replaced", 3)]
    assert (rows[-1]["generation"], rows[-1]["partitions"]) == (now.epoch, 8)
    (left,) = [cause for row in rows for cause in row["causes"] if cause["kind"] == "left_or_expired"]
    (gone,) = first.keys() - {each.client_id for each in now.members}
    assert (left["client_id"], left["member_id"]) == (gone, first[gone])
    assert all(row["sync_ms"] is not None and row["unowned_partition_ms"] is not None for row in rows[1:-1])
    owned = [row for row in tables["ownership"].to_pylist() if row["until"] is None]
    owners = {(row["topic"], row["partition"], row["member_id"]) for row in owned}
    told_by_kafka = jvm.consumer_groups(apache_kafka.bootstrap, group)
    assert owners == {(row["TOPIC"], int(row["PARTITION"]), row["CONSUMER-ID"]) for row in told_by_kafka}
