"""The exporter's figures against those of librdkafka's admin client, on Roster's broker and on Apache Kafka."""

from __future__ import annotations

import contextlib
import re
import threading
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from roster.client import Admin, GroupListing, OffsetAndMetadata, UnreachableError
from roster.client.errors import BrokerError
from roster.http.server import HttpServer
from roster.metrics import lag
from roster.metrics.exporter import GroupExporter
from roster.metrics.families import metrics_page
from roster.metrics.positions import BAD_FOR, LogEnds, PositionReader
from roster.metrics.record_times import RecordTimes
from roster.model import Address
from roster.model import TopicPartition as Place
from roster.testing.broker import BrokerProcess
from roster.wire import ErrorCode
from tests.real.realparts.cluster import Cluster, unique
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

Series = dict[tuple[str, ...], float]
LAG = "kafka_consumergroup_group_lag"


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap) as opened:
        yield opened


def exporter_of(admin: Any, bootstrap: str, groups: str) -> GroupExporter:
    return GroupExporter(admin, PositionReader(admin, RecordTimes(bootstrap, "exporter-test")), re.compile(groups))


def text_of(exporter: GroupExporter) -> str:
    registry = CollectorRegistry()
    registry.register(exporter)
    return metrics_page(registry).answer("/metrics").body.decode()


def series(text: str, name: str) -> Series:
    """The values of a metric by its labels' values, in the order of their names."""
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for sample in samples
        if sample.name == name
    }


def commit(admin: Admin, group: str, topic: str, offsets: dict[int, int]) -> None:
    admin.commit_group_offsets(group, {Place(topic, number): OffsetAndMetadata(at) for number, at in offsets.items()})


def lag_by_librdkafka(cluster: Cluster, group: str) -> Series:
    """What Kafka's own tool computes: the end of the log less the committed offset."""
    with contextlib.closing(Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})) as asking:
        ends = {
            place: asking.get_watermark_offsets(TopicPartition(*place), timeout=60)[1]
            for place in cluster.committed(group)
        }
    return {(group, str(p), t): float(ends[t, p] - at) for (t, p), at in cluster.committed(group).items()}


def test_lag_is_what_another_client_computes_also_of_a_group_without_members(cluster: Cluster, admin: Admin) -> None:
    group, topic = unique("lagging"), cluster.create_topic(partitions=4, records=7)
    exporter = exporter_of(admin, cluster.bootstrap, f"{group}.*")
    for offsets in ({0: 0, 1: 3, 2: 7}, {0: 5, 3: 1}):
        commit(admin, group, topic, offsets)
        cluster.produce({(topic, 1): 2})
        exporter.refresh()
        text = text_of(exporter)
        expected = lag_by_librdkafka(cluster, group)
        assert series(text, LAG) == expected
        assert series(text, "kafka_consumergroup_group_sum_lag") == {(group,): sum(expected.values())}
        assert series(text, "kafka_consumergroup_group_max_lag") == {(group,): max(expected.values())}
        assert series(text, "kafka_consumergroup_group_topic_sum_lag") == {(group, topic): sum(expected.values())}
        assert series(text, "kafka_consumergroup_group_state") == {(group, "Empty", "classic"): 1}
        assert series(text, "kafka_consumergroup_group_members") == {(group,): 0}
    assert series(text, "kafka_partition_latest_offset")["1", topic] == 11


def test_lag_in_seconds_is_the_age_of_the_record_at_the_committed_offset(cluster: Cluster, admin: Admin) -> None:
    group, topic = unique("timed"), cluster.create_topic(partitions=3, records=2)
    commit(admin, group, topic, {0: 0, 1: 1, 2: 2})
    exporter = exporter_of(admin, cluster.bootstrap, group)
    times = exporter._reader._times
    with contextlib.closing(
        Consumer(
            {"bootstrap.servers": cluster.bootstrap, "group.id": unique("reader"), "auto.offset.reset": "earliest"}
        )
    ) as reader:
        written = {}
        for place in ((0, 0), (1, 1)):
            reader.assign([TopicPartition(topic, *place)])
            message = until(lambda: reader.poll(1.0), 60)
            assert message.offset() == place[1]
            written[place[0]] = message.timestamp()[1]
    times._now = lambda: max(written.values()) + 90_000
    exporter.refresh()
    expected = {(group, str(p), topic): (times._now() - at) / 1000 for p, at in written.items()}
    text = text_of(exporter)
    assert series(text, "kafka_consumergroup_group_lag_seconds") == expected | {(group, "2", topic): 0.0}
    assert series(text, "kafka_consumergroup_group_max_lag_seconds") == {(group,): max(expected.values())}


def test_in_a_truncated_log_the_next_record_there_is_counts(roster_broker: Cluster) -> None:
    group, topic = unique("truncated"), roster_broker.create_topic(partitions=1, records=5)
    with Admin(roster_broker.bootstrap) as admin:
        admin.delete_records({Place(topic, 0): 3})
        commit(admin, group, topic, {0: 1})
        exporter = exporter_of(admin, roster_broker.bootstrap, group)
        exporter.refresh()
        text = text_of(exporter)
    assert series(text, LAG) == lag_by_librdkafka(roster_broker, group) == {(group, "0", topic): 4}
    assert series(text, "kafka_consumergroup_group_lost_records") == {(group,): 2}
    assert 0 <= series(text, "kafka_consumergroup_group_lag_seconds")[group, "0", topic] < 3_600


def test_a_commit_beyond_the_log_counts_as_no_lag_and_is_counted(cluster: Cluster, admin: Admin) -> None:
    group, topic = unique("ahead"), cluster.create_topic(partitions=2, records=1)
    commit(admin, group, topic, {0: 50, 1: 0})
    exporter = exporter_of(admin, cluster.bootstrap, group)
    exporter.refresh()
    text = text_of(exporter)
    assert series(text, LAG) == {(group, "0", topic): 0, (group, "1", topic): 1}
    assert series(text, "kafka_consumergroup_group_clamped_partitions") == {(group,): 1}


def test_a_deleted_topic_and_a_deleted_group_leave_no_series(cluster: Cluster, admin: Admin) -> None:
    group, kept, gone = unique("left"), cluster.create_topic(partitions=1), cluster.create_topic(partitions=1)
    commit(admin, group, kept, {0: 0})
    commit(admin, group, gone, {0: 0})
    exporter = exporter_of(admin, cluster.bootstrap, group)
    admin.delete_topic(gone)
    exporter.refresh()
    assert set(series(text_of(exporter), LAG)) == {(group, "0", kept)}
    admin.delete_group(group)
    exporter.refresh()
    assert series(text_of(exporter), LAG) == series(text_of(exporter), "kafka_consumergroup_group_state") == {}


class Ends:
    """An admin client for which the leaders of some partitions do not answer, or none."""

    def __init__(self, bad: Collection[Place]) -> None:
        self.bad, self.asked, self.is_down = set(bad), 0, False

    def cluster_id(self) -> str:
        if self.is_down:
            raise UnreachableError("no broker answered")
        return "c"

    def end_offsets(self, partitions: Collection[Place]) -> dict[Place, int]:
        self.asked += 1
        if self.is_down:
            raise UnreachableError("no broker answered")
        if self.bad & set(partitions):
            raise BrokerError("no leader", code=ErrorCode.LEADER_NOT_AVAILABLE)
        return dict.fromkeys(partitions, 9)

    def beginning_offsets(self, partitions: Collection[Place]) -> dict[Place, int]:
        return dict.fromkeys(partitions, 1)


def test_a_bad_partition_is_left_out_and_asked_again_later() -> None:
    places = [Place("t", number) for number in range(64)]
    admin, now = Ends({places[5], places[40]}), [0.0]
    ends = LogEnds(admin, lambda: now[0])  # type: ignore[arg-type]
    good = dict.fromkeys((each for each in places if each not in admin.bad), (1, 9))
    assert ends(places) == good
    assert set(ends.bad) == admin.bad
    admin.asked = 0
    assert ends(places) == good
    assert admin.asked == 1, "bad ones are not asked again at once"
    now[0], admin.bad = BAD_FOR, set()
    assert ends(places) == dict.fromkeys(places, (1, 9))
    assert not ends.bad
    admin.is_down = True
    with pytest.raises(UnreachableError):
        ends(places)
    assert not ends.bad, "that the cluster is down is no partition's fault"


class Failing:
    """An admin client that can be told to fail, for all or for the offsets of one group."""

    def __init__(self, admin: Admin) -> None:
        self._admin, self.is_down, self.bad_group = admin, False, ""

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            if self.is_down:
                raise UnreachableError("no broker answered")
            if name == "group_offsets" and given[0] == self.bad_group:
                raise BrokerError("no coordinator", code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return getattr(self._admin, name)(*given, **named)

        return call


def test_what_cannot_be_asked_keeps_its_last_values(roster_broker: Cluster) -> None:
    topic, one, two = roster_broker.create_topic(partitions=1, records=3), unique("kept"), unique("kept")
    with Admin(roster_broker.bootstrap) as real:
        for group in (one, two):
            commit(real, group, topic, {0: 1})
        admin = Failing(real)
        exporter = exporter_of(admin, roster_broker.bootstrap, "kept-.*")
        exporter.refresh()
        before = series(text_of(exporter), LAG)
        admin.bad_group = one
        commit(real, two, topic, {0: 3})
        exporter.refresh()
        assert series(text_of(exporter), LAG) == before | {(two, "0", topic): 0}
        updated = series(text_of(exporter), "roster_exporter_last_update_timestamp_seconds")
        admin.is_down = True
        exporter.refresh()
        text = text_of(exporter)
    assert series(text, LAG) == before | {(two, "0", topic): 0}
    assert series(text, "roster_exporter_last_update_timestamp_seconds") == updated
    assert series(text, "roster_exporter_up") == {(): 0}
    assert series(text, "roster_exporter_errors_total") == {("cluster",): 1, ("group",): 1}


@pytest.mark.gate
def test_scrapes_have_no_gap_while_the_group_commits(roster_broker: Cluster) -> None:
    group, topic = unique("busy"), roster_broker.create_topic(partitions=2, records=50)
    stopped = threading.Event()
    with Admin(roster_broker.bootstrap) as admin:
        commit(admin, group, topic, {0: 0, 1: 0})
        exporter = exporter_of(admin, roster_broker.bootstrap, group)
        exporter.refresh()
        registry = CollectorRegistry()
        registry.register(exporter)
        looking = threading.Thread(target=exporter.run, args=(0.001, stopped))
        looking.start()
        with contextlib.closing(HttpServer(Address("127.0.0.1", 0), [metrics_page(registry)])) as server:
            try:
                for number in range(500):
                    if number % 10 == 0:
                        commit(admin, group, topic, {0: number // 10, 1: number // 10})
                    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=60) as response:
                        found = series(response.read().decode(), LAG)
                    assert set(found) == {(group, "0", topic), (group, "1", topic)}
                    assert all(0 <= value <= 50 for value in found.values())
                until(lambda: set(series(text_of(exporter), LAG).values()) == {1}, 60)
            finally:
                stopped.set()
                looking.join()


def test_too_many_partitions_are_shown_as_sums_only(roster_broker: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "MOST_PARTITIONS", 1)
    group, topic = unique("many"), roster_broker.create_topic(partitions=2, records=1)
    with Admin(roster_broker.bootstrap) as admin:
        commit(admin, group, topic, {0: 0, 1: 0})
        exporter = exporter_of(admin, roster_broker.bootstrap, group)
        exporter.refresh()
    assert series(text_of(exporter), LAG) == {}
    assert series(text_of(exporter), "kafka_consumergroup_group_sum_lag") == {(group,): 2}


def test_a_group_of_the_new_protocol_is_named_as_what_it_is(apache_kafka: Any, client: Any) -> None:
    topic, group = apache_kafka.create_topic(partitions=2, records=3), unique("new-protocol")
    client("confluent", apache_kafka, group, topics=[topic], protocol="consumer")
    with Admin(apache_kafka.bootstrap) as admin:
        exporter = exporter_of(admin, apache_kafka.bootstrap, group)

        def states() -> Series:
            exporter.refresh()
            return series(text_of(exporter), "kafka_consumergroup_group_state")

        until(lambda: states() == {(group, "Stable", "consumer"): 1}, 120)
        assert series(text_of(exporter), "kafka_consumergroup_group_members") == {(group,): 1}


class Share(Failing):
    """A cluster whose only group is a share group."""

    def list_groups(self) -> list[GroupListing]:
        return [GroupListing("s", "share", "Stable", "share")]


def test_a_share_group_has_a_state_only() -> None:
    admin: Any = Share(None)  # type: ignore[arg-type]
    admin._admin = Ends(())
    admin._admin.list_topics = lambda **_: {}
    exporter = exporter_of(admin, "h:1", ".*")
    exporter.refresh()
    text = text_of(exporter)
    assert series(text, "kafka_consumergroup_group_state") == {("s", "Stable", "share"): 1}
    assert series(text, LAG) == series(text, "kafka_consumergroup_group_members") == {}
    assert series(text, "roster_exporter_errors_total") == {("cluster",): 0, ("group",): 0}


@pytest.mark.process
def test_it_goes_on_after_its_broker_was_killed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "--log-level", "error") as broker:
        cluster = Cluster("roster", broker.bootstrap)
        topic, group = cluster.create_topic(partitions=2, records=4), unique("through-a-kill")
        with Admin(broker.bootstrap, request_timeout_ms=2_000) as admin:
            commit(admin, group, topic, {0: 1, 1: 4})
            exporter = exporter_of(admin, broker.bootstrap, group)
            exporter.refresh()
            before = series(text_of(exporter), LAG)
            broker.kill()
            exporter.refresh()
            text = text_of(exporter)
            assert series(text, LAG) == before == {(group, "0", topic): 3, (group, "1", topic): 0}
            assert series(text, "roster_exporter_up") == {(): 0}
            broker.start()
            cluster.produce({(topic, 1): 2})

            def is_up() -> bool:
                exporter.refresh()
                return series(text_of(exporter), "roster_exporter_up") == {(): 1}

            until(is_up, 60)
            text = text_of(exporter)
            assert series(text, LAG) == before | {(group, "1", topic): 2}
            assert series(text, LAG) == lag_by_librdkafka(cluster, group)
            assert set(series(text, "kafka_consumergroup_group_lag_seconds")) == set(series(text, LAG))
            assert series(text, "roster_exporter_bad_partitions") == {(): 0}
