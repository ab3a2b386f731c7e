"""Offsets between Spark's own Kafka queries and consumer groups; the queries are fakes, the broker is Roster's."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.client import Admin, GroupMember, OffsetAndMetadata, UnreachableError
from roster.model import TopicPartition
from roster.spark import PipelineError, ProgressCommitter, commit_progress, starting_offsets
from roster.spark import structured_streaming as module
from tests.examples_tried import examples
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.spark.spark_topics import Topics

Source = tuple[str, "str | None"]


class JavaList:
    """What py4j shows of a Scala map: an iterator of pairs."""

    def __init__(self, sources: list[Source]) -> None:
        self._left = list(sources)

    def iterator(self) -> JavaList:
        return JavaList(self._left)

    def hasNext(self) -> bool:
        return bool(self._left)

    def next(self) -> Any:
        description, offsets = self._left.pop(0)
        return SimpleNamespace(
            _1=lambda: SimpleNamespace(toString=lambda: description), _2=lambda: SimpleNamespace(json=lambda: offsets)
        )


class Query:
    """A query as the committer sees it; `sources` is what its checkpoint holds."""

    def __init__(self, name: str, *sources: Source) -> None:
        self.id = self.runId = self.name = name
        self.sources = list(sources)
        execution = SimpleNamespace(committedOffsets=lambda: JavaList(self.sources))
        self._jsq = SimpleNamespace(streamingQuery=lambda: execution)


def kafka(offsets: dict[str, list[int]]) -> Source:
    text = json.dumps({topic: dict(enumerate(ends)) for topic, ends in offsets.items()})
    return f"KafkaV2[Subscribe[{','.join(offsets)}]]", text


@pytest.fixture
def follow(topics: Topics, group: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Start a committer as `commit_progress` does, of a list of queries that may change."""
    monkeypatch.setattr(module, "_LOOK", 0.01)
    monkeypatch.setattr(module, "_RETRY", 0.01)
    made: list[ProgressCommitter] = []

    def start(queries: Any) -> ProgressCommitter:
        made.append(ProgressCommitter(lambda: list(queries), group, Admin(topics.bootstrap)))
        return made[-1]

    yield start
    for each in made:
        each.close()


def at(topic: str, *offsets: int) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, number): offset for number, offset in enumerate(offsets)}


def test_each_batch_moves_the_group_and_partitions_that_come_are_added(topics: Topics, group: str, follow: Any) -> None:
    topic, other = topics.create(2), topics.create(1)
    query = Query("orders")
    follow([query])
    query.sources = [kafka({topic: [3, 0]})]
    until(lambda: topics.committed(group) == at(topic, 3, 0), what="a restarted query's offsets, before any batch")
    query.sources = [kafka({topic: [3, 5]}), kafka({other: [7]})]
    until(lambda: topics.committed(group) == at(topic, 3, 5) | at(other, 7))
    topics.admin.create_partitions(topic, 3)
    query.sources = [kafka({topic: [4, 5, 1]}), kafka({other: [8]})]
    until(lambda: topics.committed(group) == at(topic, 4, 5, 1) | at(other, 8))


def test_closing_commits_the_last_batch(
    topics: Topics, group: str, follow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.create(1)
    monkeypatch.setattr(module, "_LOOK", 600.0)
    with follow([Query("orders", kafka({topic: [9]}))]):
        pass
    assert topics.committed(group) == at(topic, 9)


def test_in_a_session_the_first_query_with_a_kafka_source_is_followed_and_a_second_one_named(
    topics: Topics, group: str, follow: Any, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topics.create(1)
    queries = [Query("rate", ("RateStreamV2[rowsPerSecond=1]", "17"))]
    follow(queries)
    first, second = Query("first", kafka({topic: [1]})), Query("second", kafka({topic: [100]}))
    queries.append(first)
    until(lambda: topics.committed(group) == at(topic, 1))
    queries.append(second)
    until(lambda: "second is left out" in caplog.text)
    assert "rate" not in caplog.text
    assert "not known" not in caplog.text
    queries.remove(second)
    first.sources = [kafka({topic: [2]})]
    queries.remove(first)
    until(lambda: topics.committed(group) == at(topic, 2), what="the last batch of a query that ended")
    queries.append(Query("third", kafka({topic: [3]})))
    until(lambda: topics.committed(group) == at(topic, 3))
    assert caplog.text.count("left out") == 1


def test_while_the_group_has_members_the_offsets_wait_with_one_warning(
    topics: Topics, group: str, follow: Any, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topics.create(1)
    query = Query("orders", kafka({topic: [1]}))
    follow([query])
    until(lambda: topics.committed(group) == at(topic, 1))
    with GroupMember(topics.bootstrap, group, [topic]):
        for offset in (2, 3, 4):
            query.sources = [kafka({topic: [offset]})]
        until(lambda: "has members" in caplog.text)
        assert topics.committed(group) == at(topic, 1)
    until(lambda: topics.committed(group) == at(topic, 4), what="the newest offsets, once the member is gone")
    assert caplog.text.count("has members") == 1


def test_a_topic_that_is_gone_does_not_hold_up_the_others(
    topics: Topics, group: str, follow: Any, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topics.create(1)
    query = Query("orders", kafka({topic: [1], "gone": [5]}))
    follow([query])
    until(lambda: topics.committed(group).get(TopicPartition(topic, 0)) == 1)
    until(lambda: "not committed" in caplog.text)


def test_offsets_that_do_not_change_are_committed_again(
    topics: Topics, group: str, follow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of an empty group expire."""
    topic = topics.create(1)
    monkeypatch.setattr(module, "_REPEAT", 0.05)
    follow([Query("orders", kafka({topic: [1]}))])
    until(lambda: topics.committed(group) == at(topic, 1))
    topics.admin.delete_group(group)
    until(lambda: topics.exists(group) and topics.committed(group) == at(topic, 1))


def test_a_query_that_cannot_be_read_is_a_warning_and_the_next_batch_counts(
    topics: Topics, group: str, follow: Any, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topics.create(1)
    query = Query("orders", ("KafkaV2[Subscribe[x]]", "no JSON"))
    follow([query])
    until(lambda: "offsets are not known" in caplog.text)
    query.sources = [kafka({topic: [2]})]
    until(lambda: topics.committed(group) == at(topic, 2))


SOURCES = st.lists(
    st.tuples(
        st.sampled_from(["KafkaV2[Subscribe[a]]", "KafkaSourceV1[SubscribePattern[a.*]]", "FileStreamSource[x]"]),
        st.dictionaries(st.sampled_from("ab"), st.dictionaries(st.integers(0, 2), st.integers(0, 9), min_size=1)),
    ),
    max_size=4,
)


@given(SOURCES)
@settings(max_examples=examples(40))
def test_offsets_come_from_kafka_sources_alone_and_the_slower_one_counts(sources: Any) -> None:
    query = Query("q", *((description, json.dumps(offsets)) for description, offsets in sources))
    plain: dict[tuple[str, int], list[int]] = {}
    for description, offsets in sources:
        for topic, partitions in offsets.items():
            for number, offset in partitions.items():
                if "Kafka" in description:
                    plain.setdefault((topic, number), []).append(offset)
    wanted = {TopicPartition(*key): min(found) for key, found in plain.items()}
    assert module.offsets_of(query) == (wanted if sources else None)  # type: ignore[arg-type]


def test_starting_offsets_name_every_partition_of_the_groups_topics(topics: Topics, group: str) -> None:
    topic, other, third = topics.create(3), topics.create(1), topics.create(2)
    topics.admin.commit_group_offsets(
        group, {TopicPartition(topic, 1): OffsetAndMetadata(5), TopicPartition(other, 0): OffsetAndMetadata(0)}
    )
    both = {topic: {"0": -2, "1": 5, "2": -2}, other: {"0": 0}}
    assert json.loads(starting_offsets(topics.bootstrap, group)) == both
    only = json.loads(starting_offsets(topics.bootstrap, group, topics=[third, other]))
    assert only == {third: {"0": -2, "1": -2}, other: {"0": 0}}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "group: '{group}' has no committed offsets. Correct the name"),
        ({"topics": ["no-such"]}, "topics: there is no topic 'no-such'. Correct the name"),
        ({"topics": "orders"}, "topics: 'orders' is one name. Give a list: ['orders']"),
        ({"group": ""}, "group: '' is not a name. Pass group='my-group'"),
        ({"bootstrap": "host:no"}, "bootstrap: "),
        ({"security": {"security.protocol": "SLS"}}, "security: security.protocol"),
    ],
)
def test_a_mistake_in_starting_offsets_is_one_line(topics: Topics, group: str, arguments: Any, text: str) -> None:
    given = {"bootstrap": topics.bootstrap, "group": group} | arguments
    with pytest.raises(PipelineError) as raised:
        starting_offsets(**given)
    assert str(raised.value).startswith(text.format(group=group))
    assert "\n" not in str(raised.value)


def session_of() -> Any:
    """A session that is none of Spark's but has what is asked of it."""
    java = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False))
    streams = SimpleNamespace(active=[])
    return SimpleNamespace(readStream=None, streams=streams, _sc=SimpleNamespace(_jsc=java))


def test_a_group_with_members_is_refused(topics: Topics, group: str) -> None:
    topic = topics.create(1)
    member = GroupMember(topics.bootstrap, group, [topic])
    with member, pytest.raises(PipelineError, match="has 1 members") as raised:
        commit_progress(session_of(), topics.bootstrap, group)
    assert "\n" not in str(raised.value)
    commit_progress(session_of(), topics.bootstrap, group).close()


def test_what_is_neither_query_nor_session_is_refused(topics: Topics) -> None:
    with pytest.raises(PipelineError, match=r"^query: 'orders' is neither a StreamingQuery nor a SparkSession"):
        commit_progress("orders", topics.bootstrap, "g")  # type: ignore[arg-type]


def test_a_cluster_that_does_not_answer_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = lambda *given, **named: Admin(*given, **named, request_timeout_ms=200)  # noqa: E731
    monkeypatch.setattr(module, "Admin", quick)
    with pytest.raises(UnreachableError):
        commit_progress(session_of(), "127.0.0.1:1", "g")
