"""Where the tasks of a stateful pipeline on a cluster go: to the hosts that have their stores."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.model.tasks import TaskId
from roster.pipeline.batch import Split
from roster.spark.jobs.preferred_locations import Cluster, Locations
from tests.examples_tried import examples
from tests.real.realparts.apache import free_ports
from tests.spark.apps.standalone import Standalone
from tests.spark.programs import APPS, Application
from tests.spark.spark_topics import committed_records

if TYPE_CHECKING:
    from tests.spark.spark_topics import Topics


def seen(locations: Locations, homes: dict[int, str], directories: dict[str, str]) -> None:
    """As if each partition had a Spark task, which ran at home."""
    tasks = [{partition} for partition in homes]
    hosts = dict(enumerate(homes.values()))
    locations.ran(tasks, {number: directories[host] for number, host in hosts.items()}, hosts)


def test_a_store_stays_where_it_is_while_its_host_has_no_more_than_its_share() -> None:
    locations = Locations()
    locations.executors(["a", "b"])
    seen(locations, {0: "b", 1: "a", 2: "b", 3: "a"}, {"a": "in-a", "b": "in-b"})
    assert locations.choose_hosts([0, 1, 2, 3]) == {0: "b", 1: "a", 2: "b", 3: "a"}
    assert locations.choose_hosts([0, 2]) == {0: "b", 2: "b"}  # of all partitions b has its share


def test_what_is_beyond_a_hosts_share_moves_and_stays_there() -> None:
    locations = Locations()
    locations.executors(["a"])
    seen(locations, dict.fromkeys(range(4), "a"), {"a": "in-a"})
    locations.executors(["a", "late"])
    moved = locations.choose_hosts(range(4))
    assert Counter(moved.values()) == {"a": 2, "late": 2}
    assert locations.choose_hosts(range(4)) == moved
    assert [locations.hosts(partition) for partition in range(4)] == [[moved[partition]] for partition in range(4)]


def test_a_store_on_a_host_without_an_executor_is_restored_elsewhere_and_looked_for_again() -> None:
    locations = Locations()
    locations.executors(["a", "b"])
    seen(locations, {0: "a", 1: "b"}, {"a": "in-a", "b": "in-b"})
    locations.executors(["b"])
    assert locations.hosts(0) == []
    assert not locations.knows(["in-a"])
    assert locations.choose_hosts([0, 1]) == {0: "b", 1: "b"}


def test_hosts_that_share_a_directory_share_its_stores() -> None:
    locations = Locations()
    locations.executors(["a", "b"])
    seen(locations, {0: "a", 1: "b", 2: "a", 3: "a"}, {"a": "shared", "b": "shared"})
    assert Counter(locations.choose_hosts([0, 1, 2, 3]).values()) == {"a": 2, "b": 2}


class Executors:
    """In place of Spark's status store."""

    def hosts(self) -> set[str]:
        return {"a", "b"}


def test_tasks_dealt_to_hosts_that_share_a_directory_are_each_for_one_of_them() -> None:
    cluster: Any = Cluster(None)  # type: ignore[arg-type]
    cluster._executors = Executors()
    splits = [[Split("t", number, 0, 5) for number in range(4)]]
    dealt = cluster.dealt(splits, lambda split: TaskId(0, split.partition))
    tasks = [{TaskId(0, split.partition) for split in each} for each in dealt]
    cluster._locations.ran(tasks, dict.fromkeys(range(2), "shared"), dict(enumerate("ab")))
    assert cluster.dealt(splits, lambda split: TaskId(0, split.partition)) == dealt
    homes = cluster._locations.choose_hosts(set().union(*tasks))
    assert [{homes[task] for task in each} for each in tasks] == [{"a"}, {"b"}]


@settings(max_examples=examples(100))
@given(
    st.lists(st.tuples(st.sets(st.integers(0, 11)), st.sets(st.sampled_from("abcd"))), min_size=1, max_size=8),
    st.randoms(use_true_random=False),
)
def test_tasks_that_run_at_home_come_to_rest_in_equal_shares(steps, random) -> None:
    locations = Locations()
    for partitions, executors in [*steps, *[(set(range(12)), {"a", "b", "c"})] * 3]:
        locations.executors(executors)
        homes = locations.choose_hosts(partitions)
        assert homes.keys() == partitions
        assert set(homes.values()) <= (executors or {""})
        if executors:
            ran = {partition: home for partition, home in homes.items() if random.random() < 0.9}
            seen(locations, ran, {host: f"in-{host}" for host in "abcd"})
    last = locations.choose_hosts(range(12))
    assert Counter(last.values()) == {"a": 4, "b": 4, "c": 4}
    assert locations.choose_hosts(range(12)) == last


@pytest.mark.gate
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_tasks_on_two_hosts_find_their_stores_there(topics: Topics, tmp_path: Path) -> None:
    topic, out = topics.create(4), topics.create(1)
    topics.fill(topic, 4, 2400)
    program = APPS / "totals.py"
    with Standalone(tmp_path, workers=2, hosts=True) as cluster:
        arguments = (topics.bootstrap, f"totals-{uuid.uuid4().hex[:8]}", topic, out, cluster.master)
        arguments = (*arguments, f"127.0.0.1:{free_ports(1)[0]}")
        with Application(program, *arguments, log=tmp_path / "log") as application:
            application.hears("end")
            assert application.ends() == 0
    done = [each for each in application.said if "restored" in each]
    batches = [each["restored"] for each in done]
    assert len(batches) >= 6
    assert sum(batches[3:]) == 0, f"restored by batch: {batches}"
    last = {key: json.loads(value) for _, key, value in committed_records(topics, out)}
    counts = Counter(partition for partition, _ in topics.everything(topic))
    for each, rows in zip(done, accumulate(each["rows"] for each in done), strict=True):
        assert sum(row["n"] for row in each["state"]) == rows, "the driver reads the stores of both hosts"
        assert each["asked"] == each["state"]
    assert {row["partition"]: row["n"] for row in done[-1]["state"]} == counts
    assert {each["partition"]: each["n"] for each in last.values()} == counts
