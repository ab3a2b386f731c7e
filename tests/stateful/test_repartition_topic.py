"""The topic between two sub-topologies: made with the group's first start, checked at every one; what is refused."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from roster.client import ClaimedBy, OffsetAndMetadata
from roster.model import TopicPartition
from roster.model.topology import Subtopology
from roster.pipeline.errors import PipelineError
from roster.spark import Window
from roster.spark.operations import Operations
from roster.stateful.changelogs import open_changelog
from roster.stateful.repartition import check_all_are_read, open_repartition_topic
from roster.stateful.tasks.repartition import RepartitionTopic

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.spark.spark_topics import Topics

COLUMNS = pa.schema([("carrier", pa.string())])


def between_of(topics: Topics, group: str, partitions: int | None = None, sources: int = 3) -> RepartitionTopic:
    source = topics.create(sources)
    topic = f"{group}-by-carrier-repartition"
    return RepartitionTopic(Subtopology(0, (source,)), topic, ("carrier",), COLUMNS, partitions=partitions)


def new_group() -> str:
    return f"g-{uuid.uuid4().hex[:8]}"


@pytest.mark.parametrize(("partitions", "expected"), [(None, 3), (5, 5)])
def test_the_first_start_makes_it_and_later_ones_take_it(topics: Topics, partitions: int | None, expected: int) -> None:
    group = new_group()
    repartition = between_of(topics, group, partitions)
    for _ in range(2):
        found = open_repartition_topic(topics.admin, group, repartition)
        assert found == [TopicPartition(repartition.topic, number) for number in range(expected)]
    settings = topics.admin.topic_configs(repartition.topic)
    wanted = {"cleanup.policy": "delete", "retention.ms": "-1", "segment.bytes": "52428800"}
    assert {name: settings[name] for name in wanted} == wanted
    topics.admin.create_partitions(repartition.before.sources[0], 8)
    if partitions is None:
        assert len(open_repartition_topic(topics.admin, group, repartition)) == 3, "the input may grow"


@pytest.mark.usefixtures("missing_at_once")
def test_it_is_not_made_with_other_partitions_than_what_its_rows_are_joined_with(topics: Topics) -> None:
    group, other = new_group(), topics.create(4)
    repartition = between_of(topics, group, 2)
    with pytest.raises(PipelineError, match=rf"in 2 partitions, and '{other}', which.*has 4. Use .*partitions=4"):
        open_repartition_topic(topics.admin, group, repartition, [other])
    with pytest.raises(PipelineError, match=r"join: there is no topic 'missing'. Create it first"):
        open_repartition_topic(topics.admin, group, repartition, ["missing"])
    assert repartition.topic not in topics.admin.list_topics(internal=True), "it would keep its partitions"
    mended = replace(repartition, partitions=4)
    assert len(open_repartition_topic(topics.admin, group, mended, [other])) == 4


def test_other_partitions_or_settings_are_refused(topics: Topics) -> None:
    group = new_group()
    repartition = between_of(topics, group, 4)
    topics.admin.create_topic(repartition.topic, 2, configs={"retention.ms": "60000"})
    with pytest.raises(PipelineError, match=r"partitions: '.*' has 2 partitions, not 4: keys would move away"):
        open_repartition_topic(topics.admin, group, repartition)
    same = between_of(topics, group, 2)
    with pytest.raises(PipelineError, match=r"has retention.ms=\d+, which would lose records.*Set retention.ms=-1"):
        open_repartition_topic(topics.admin, group, same)


def test_what_does_not_belong_together_is_refused(topics: Topics) -> None:
    group = new_group()
    repartition = between_of(topics, group)
    source = TopicPartition(repartition.before.sources[0], 0)
    topics.admin.commit_group_offsets(group, {source: OffsetAndMetadata(0)})
    with pytest.raises(PipelineError, match=r"has offsets of '.*', but '.*' is not there: it was deleted, or"):
        open_repartition_topic(topics.admin, group, repartition)
    topics.admin.create_topic(repartition.topic, 3, configs={"retention.ms": "-1"})
    open_repartition_topic(topics.admin, group, repartition)
    topics.fill_one(repartition.topic, 1, 2)
    with pytest.raises(PipelineError, match=r"offset of .*-0 was set by another program, not with the records in"):
        open_repartition_topic(topics.admin, group, repartition)
    claim = ClaimedBy(f"{group}-1", "m").to_metadata()
    topics.admin.commit_group_offsets(group, {source: OffsetAndMetadata(0, metadata=claim)})
    open_repartition_topic(topics.admin, group, repartition)
    topics.admin.delete_group(group)
    with pytest.raises(PipelineError, match="has records, but the group has no offsets of its input"):
        open_repartition_topic(topics.admin, group, repartition)


def test_a_topic_that_the_group_has_worked_with_is_read_or_refused(topics: Topics) -> None:
    group = new_group()
    names = [f"{group}-{name}-repartition" for name in ("kept", "removed")]
    claim = ClaimedBy(f"{group}-1", "m").to_metadata()
    for name in (*names, other := topics.create(1)):
        if name != other:
            topics.admin.create_topic(name, 1)
        topics.admin.commit_group_offsets(group, {TopicPartition(name, 0): OffsetAndMetadata(0, metadata=claim)})
    check_all_are_read(topics.admin, group, names)
    check_all_are_read(topics.admin, new_group(), names)
    with pytest.raises(PipelineError, match=r"repartition: .* has offsets of '.*-removed-repartition', which"):
        check_all_are_read(topics.admin, group, names[:1])


COUNT = {"n": "count(*)"}
SESSIONS = Window.session("at", timedelta(seconds=1))


def first_rows(operations: Operations) -> Operations:
    return operations.deduplicate("a", within=timedelta(seconds=1))


def declared() -> Operations:
    session: Any = None  # nothing is run
    return Operations(session)


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda it: it.repartition("a").repartition("b"), "nothing between it and the one before, by a, needs that"),
        (lambda it: first_rows(it.repartition("a")).repartition("a"), "name: there is one of the name 'by-a' already"),
        (lambda it: first_rows(it).join_table("t", "a", "x int"), "join_table: it comes before the stateful"),
        (
            lambda it: it.join_table("t", "a", "x int").repartition("b").join_table("t", "b", "y int"),
            "join_table: 't' is joined already. Name another table",
        ),
        (lambda it: first_rows(first_rows(it)), "store: there is a store 'keys' already. Give each store its name"),
        (lambda it: first_rows(it.aggregate("a", COUNT)), "deduplicate: the aggregate before it sends running updates"),
        (lambda it: it.aggregate("a", COUNT).repartition("b").aggregate("b", COUNT, store="b"), "running updates"),
        (lambda it: it.aggregate("a", COUNT, window=SESSIONS).aggregate("a", COUNT, store="b"), "take earlier results"),
        (lambda it: it.repartition([]), "repartition: no key. Name at least one column"),
        (lambda it: it.repartition("a", partitions=0), "partitions: 0 is not possible. Use a number from 1 on"),
        (lambda it: it.repartition("a b"), "name: 'by-a b' cannot be part of a topic name"),
    ],
)
def test_what_cannot_be_declared_is_named(declare: Callable[[Operations], object], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        declare(declared())


def test_a_store_that_an_earlier_release_did_without_is_made_later(topics: Topics) -> None:
    group, topic = new_group(), topics.create(2)
    topics.admin.commit_group_offsets(group, {TopicPartition(topic, 0): OffsetAndMetadata(0)})
    with pytest.raises(PipelineError, match="is not there: it was deleted"):
        open_changelog(topics.admin, group, Subtopology(0, (topic,)), "s")
    assert open_changelog(topics.admin, group, Subtopology(0, (topic,)), "s", is_optional=True).partitions == 2


def test_state_of_a_group_that_has_read_another_topic_is_not_opened(topics: Topics) -> None:
    group, one, two = new_group(), topics.create(2), topics.create(3)
    open_changelog(topics.admin, group, Subtopology(0, (one,)), "s")
    open_changelog(topics.admin, group, Subtopology(0, (one,)), "s")
    topics.admin.commit_group_offsets(group, {TopicPartition(one, 0): OffsetAndMetadata(0)})
    with pytest.raises(PipelineError, match=f"topics: the group '{group}' has read {one}, and nothing of {two}"):
        open_changelog(topics.admin, group, Subtopology(0, (two,)), "s")
