"""Fetch sessions and DeleteRecords: Roster's broker answers as Apache Kafka does."""

from __future__ import annotations

from tests.real.realparts.exchange import scenario
from tests.real.test_same_answers_log import UNKNOWN_ID, batch, fetch_fields, offsets_fields, topic_data
from tests.waiting import until


def wanted(partition: int, offset: int) -> dict:
    return fetch_fields("", offset, partition)["topics"][0]["partitions"][0]


def fields(session: int, epoch: int, topics: list[dict], forgotten: list[dict] = (), version: int = 12) -> dict:
    given = fetch_fields("", version=version, session_id=session, session_epoch=epoch)
    return {**given, "topics": topics, "forgotten_topics_data": list(forgotten)}


def fill(x, topic: str, *partitions: int, value: bytes = b"value") -> None:
    for partition in partitions:
        x.ask("Produce", 9, acks=-1, timeout_ms=9_000, topic_data=topic_data(topic, (partition, batch(value))))


@scenario
def test_incremental_fetches(x):
    topic, other = x.topic(partitions=3), x.topic("other")
    fill(x, topic, 0, 1)
    reads = [{"topic": topic, "partitions": [wanted(0, 0), wanted(1, 0), wanted(2, 0)]}]
    session = x.call("begins", "Fetch", 12, **fields(0, 0, reads))["session_id"]

    def fetch(label: str, epoch: int, *topics: dict, forgotten: list[dict] = ()) -> None:
        x.call(label, "Fetch", 12, **fields(session, epoch, list(topics), forgotten))

    fetch("has the same records", 1)
    fetch("goes on behind them", 2, {"topic": topic, "partitions": [wanted(0, 1), wanted(1, 1)]})
    fetch("nothing new", 3)
    fetch("epoch of the past", 3)
    fetch("epoch of the future", 7)
    fill(x, topic, 2)
    fetch("one has records", 4)
    fetch("it has them still", 5)
    fetch("behind them too", 6, {"topic": topic, "partitions": [wanted(2, 1)]})
    fill(x, other, 0)
    fetch("another topic", 7, {"topic": other, "partitions": [wanted(0, 0)]})
    fetch("both", 8, {"topic": other, "partitions": [wanted(0, 1)]}, forgotten=[{"topic": topic, "partitions": [0, 9]}])
    fill(x, topic, 0, 1)
    fetch("the forgotten one is left out", 9)
    fetch("unknown topic", 10, {"topic": x.stem + "-no", "partitions": [wanted(0, 0)]})
    fetch("unknown topic still", 11)
    fetch("out of range", 12, {"topic": topic, "partitions": [wanted(1, 99)]})
    fetch("out of range still", 13)
    fetch("in range again", 14, {"topic": topic, "partitions": [wanted(1, 2)]})
    everything = [
        {"topic": topic, "partitions": [1, 2]},
        {"topic": other, "partitions": [0]},
        {"topic": x.stem + "-no", "partitions": [0]},
    ]
    fetch("forgets everything", 15, forgotten=everything)
    fetch("is gone", 16)


@scenario
def test_ends_of_sessions(x):
    topic = x.topic()
    fill(x, topic, 0)
    reads = [{"topic": topic, "partitions": [wanted(0, 0)]}]
    session = x.call("begins", "Fetch", 12, **fields(0, 0, reads))["session_id"]
    x.call("ends", "Fetch", 12, **fields(session, -1, reads))
    x.call("has ended", "Fetch", 12, **fields(session, 1, []))
    session = x.call("another", "Fetch", 12, **fields(0, 0, reads))["session_id"]
    x.call("begins anew", "Fetch", 12, **fields(session, 0, reads))
    x.call("the former has ended", "Fetch", 12, **fields(session, 1, []))
    x.call("of nothing", "Fetch", 12, **fields(0, 0, []))
    x.call("unknown id that ends", "Fetch", 12, **fields(4711, -1, reads))
    x.call("no id", "Fetch", 12, **fields(0, 5, reads))
    x.call("negative epoch", "Fetch", 12, **fields(0, -2, reads))
    for version in (7, 11):
        x.call(f"v{version}", "Fetch", version, **fetch_fields(topic, version=version, session_epoch=0))


@scenario
def test_sessions_by_topic_id(x):
    topic = x.topic()
    fill(x, topic, 0)
    told = x.ask("Metadata", 12, topics=[{"name": topic}], allow_auto_topic_creation=False)
    identity = told["topics"][0]["topic_id"]
    reads = [
        {"topic_id": identity, "partitions": [wanted(0, 0)]},
        {"topic_id": UNKNOWN_ID, "partitions": [wanted(0, 0)]},
    ]
    session = x.call("begins", "Fetch", 13, **fields(0, 0, reads, version=13))["session_id"]
    behind = [{"topic_id": identity, "partitions": [wanted(0, 1)]}]
    x.call("goes on", "Fetch", 13, **fields(session, 1, behind, version=13))
    x.call("by name", "Fetch", 12, **fields(session, 2, []))
    x.call("goes on once more", "Fetch", 13, **fields(session, 2, [], version=13))


@scenario
def test_deleting_records(x):
    topic = x.topic(partitions=2)
    compacted = x.stem + "-compacted"
    settings = [{"name": "cleanup.policy", "value": "compact"}]
    new = {"name": compacted, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": settings}
    x.ask("CreateTopics", 5, topics=[new], timeout_ms=10_000, validate_only=False)
    until(lambda: x.ask("Metadata", 9, topics=[{"name": compacted}])["topics"][0]["error_code"] == 0)
    for _ in range(4):
        fill(x, topic, 0)
    fill(x, compacted, 0)

    def delete(label: str, offset: int, *, name: str = topic, partition: int = 0, version: int = 2) -> None:
        asked = [{"name": name, "partitions": [{"partition_index": partition, "offset": offset}]}]
        x.call(label, "DeleteRecords", version, topics=asked, timeout_ms=10_000)

    for version in range(3):
        delete(f"v{version} two", 1 + version, version=version)
    delete("less than before", 1)
    delete("behind the end", 5)
    delete("far behind the end", 1 << 40)
    delete("negative", -2)
    delete("unknown topic", 0, name=x.stem + "-no")
    delete("unknown partition", 0, partition=7)
    delete("of an empty partition", 0, partition=1)
    delete("of a compacted topic", 0, name=compacted)
    for offset in (2, 3, 4):
        x.call(f"fetch at {offset}", "Fetch", 12, **fetch_fields(topic, offset))
    x.call("offsets", "ListOffsets", 6, **offsets_fields(topic, (0, -2), (0, -1)))
    x.call("earliest", "ListOffsets", 6, **offsets_fields(topic, (0, -2)))
    delete("all", -1)
    x.call("earliest is the end", "ListOffsets", 6, **offsets_fields(topic, (0, -2)))
    fill(x, topic, 0)
    x.call("fetch what came later", "Fetch", 12, **fetch_fields(topic, 4))
    session = x.call("session", "Fetch", 12, **fetch_fields(topic, 5, session_epoch=0))["session_id"]
    delete("the rest", 5)
    x.call("its start is news", "Fetch", 12, **fields(session, 1, []))
