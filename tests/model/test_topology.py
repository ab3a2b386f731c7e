"""Sub-topologies: tasks with their source partitions, topic names, and co-partitioning."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roster.model import TopicPartition
from roster.model.tasks import TaskId
from roster.model.topology import (
    Subtopology,
    TopologyError,
    changelog_topic,
    partition_count,
    repartition_topic,
    task_sources,
)

JOIN = Subtopology(0, ["orders", "customers"], ["joined"])
COUNT = Subtopology(1, ["g-by-day-repartition"], ["counts"])


def test_partition_p_of_all_topics_of_a_subtopology_is_task_p():
    sources = task_sources([COUNT, JOIN], {"orders": 2, "customers": 2, "g-by-day-repartition": 1})
    assert sources == {
        TaskId(0, 0): (TopicPartition("orders", 0), TopicPartition("customers", 0)),
        TaskId(0, 1): (TopicPartition("orders", 1), TopicPartition("customers", 1)),
        TaskId(1, 0): (TopicPartition("g-by-day-repartition", 0),),
    }
    assert list(sources) == sorted(sources)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_every_partition_of_every_source_belongs_to_one_task(counts):
    parts = [Subtopology(number, [f"t{number}"]) for number in range(len(counts))]
    sources = task_sources(parts, {f"t{number}": count for number, count in enumerate(counts)})
    flat = [partition for partitions in sources.values() for partition in partitions]
    assert sorted(flat) == sorted(TopicPartition(f"t{n}", p) for n, count in enumerate(counts) for p in range(count))


def test_internal_topics_have_the_group_in_front():
    assert changelog_topic("g", "counts") == "g-counts-changelog"
    assert repartition_topic("g", "by-day") == "g-by-day-repartition"
    with pytest.raises(TopologyError, match="'a group-counts-changelog' is not a topic name, which has 1 to 249"):
        changelog_topic("a group", "counts")


@pytest.mark.parametrize(
    ("parts", "partitions", "message"),
    [
        ([JOIN], {"orders": 2, "customers": 3}, r"equally many .*\(orders 2, customers 3\): repartition those"),
        ([JOIN], {"orders": 2}, "topic 'customers' is not there, and sub-topology 0 reads it"),
        ([COUNT, Subtopology(1, ["t"])], {}, "two sub-topologies have the number 1"),
        ([COUNT, Subtopology(2, ["t"], ["counts"])], {}, "two sub-topologies have the store 'counts'"),
        ([JOIN, Subtopology(2, ["orders"])], {}, "two sub-topologies have the topic 'orders'"),
    ],
)
def test_topics_that_make_up_no_tasks_are_one_clear_error(parts, partitions, message):
    with pytest.raises(TopologyError, match=message):
        task_sources(parts, partitions)


@pytest.mark.parametrize(
    ("sources", "stores", "message"),
    [([], [], "reads no topic"), (["t", "t"], [], "the topic 't' twice"), (["t"], ["s", "s"], "the store 's' twice")],
)
def test_a_subtopology_that_is_none_is_refused(sources, stores, message):
    with pytest.raises(TopologyError, match=message):
        Subtopology(0, sources, stores)


def test_the_partition_count_is_that_of_all_topics():
    assert partition_count(JOIN, {"orders": 4, "customers": 4, "other": 1}) == 4
